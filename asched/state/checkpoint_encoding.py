"""From the picture of a state to the bytes of a checkpoint, a little at a time.

A thread beside the event loop would hold it up: it takes the interpreter for half a millisecond after each of the
loop's system calls, and for as long as it takes to write down all pods in one go. So whoever has other things to
do takes one step, does these, and takes the next.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec

from asched.framework.pod_info import PodInfo
from asched.model.pod import Pod
from asched.state.checkpoint_form import FORMAT, Form, PlaceForm, RowForm, StateForm, TemplateForm
from asched.state.checkpoint_image import Image
from asched.state.checkpoint_queue import encoded
from asched.state.records import PodSeen
from asched.state.steps import STEP, Steps, all_of, in_one_go
from asched.state.templates import Templates

MAGIC: Final = b"asched-checkpoint "
_encode = msgspec.msgpack.encode


class _PodNumbers:
    """Gives pods their numbers, and keeps them in their stored form."""

    def __init__(self, templates: Templates) -> None:
        self.whole: list[Pod] = []
        self.copies: list[PodSeen] = []
        self._templates = templates
        self._numbers: dict[int, int] = {}

    def add(self, pod: Pod, template: int) -> int:
        record = _copy_of(self._templates, pod, template) if template else None
        if record is None:
            number = 2 * len(self.whole)
            self.whole.append(pod)
        else:
            number = 2 * len(self.copies) + 1
            self.copies.append(record)
        self._numbers[id(pod)] = number
        return number

    def of(self, pod: Pod) -> int:
        number = self._numbers.get(id(pod))
        return self.add(pod, 0) if number is None else number

    def all(self, infos: Iterable[PodInfo]) -> tuple[int, ...]:
        return tuple(self.of(info.pod) for info in infos)


def _copy_of(templates: Templates, pod: Pod, template: int) -> PodSeen | None:
    """The pod as a copy of its template; None where it differs by more than a record can say."""
    record = templates.copy_of(template, pod)
    return record if templates.instance(record).pod == pod else None


def encoding(image: Image) -> Steps[bytes]:
    """What :func:`sealed` makes a checkpoint of."""
    pods = _PodNumbers((yield from templates_of(image.templates, image.last_template)))
    replace = msgspec.structs.replace
    entries = yield from all_of(
        replace(form, pod=pods.add(info.pod, form.template))
        for info, form in zip(image.pods, image.entries, strict=True)
    )
    rows = yield from all_of(_rows(image, pods))
    strays = tuple(PlaceForm(node, pods.all(infos)) for node, infos in image.strays)
    nominated = tuple(PlaceForm(node, pods.all(infos)) for node, infos in image.nominated)
    waiting = tuple(replace(form, pod=pods.of(info.pod)) for info, form in image.waiting)
    queue = yield from encoded(image.queue, pods.of)
    # The last that adds pods: all there are is told before them.
    finished = pods.all(image.finished)
    form = StateForm(
        *image.scalars,
        image.loaded,
        image.templates,
        image.last_template,
        tuple(pods.whole),
        tuple(pods.copies),
        image.objects,
        image.resources,
        rows,
        strays,
        entries,
        nominated,
        waiting,
        image.answers,
        image.evictions,
        image.room_made,
        image.useless,
        image.inquiries,
        queue,
        image.sessions,
        finished,
        image.group_writes,
        image.circuits,
    )
    return bytes((yield from packed(form)))


def _rows(image: Image, pods: _PodNumbers) -> Iterator[RowForm]:
    begin = 0
    for name, end in zip(image.row_names, image.row_ends, strict=True):
        yield RowForm(name, pods.all(image.row_pods[begin:end]))
        begin = end


def packed(form: Form) -> Steps[msgspec.Raw]:
    """As msgpack writes it in one go."""
    fields: list[object] = []
    for name in form.__struct_fields__:
        field = getattr(form, name)
        if isinstance(field, Form):
            field = yield from packed(field)
        elif isinstance(field, tuple) and len(field) > STEP:
            field = yield from _packed_all(field)
        fields.append(field)
    return msgspec.Raw(_encode(fields))


def _packed_all(items: Sequence[object]) -> Steps[msgspec.Raw]:
    parts = [_head(len(items))]
    for begin in range(0, len(items), STEP):
        some = items[begin : begin + STEP]
        parts.append(_encode(some)[len(_head(len(some))) :])
        yield
    return msgspec.Raw(b"".join(parts))


def _head(length: int) -> bytes:
    """What msgpack writes before the items of an array. None takes a byte."""
    return _encode((None,) * length)[:-length]


def sealed(content: bytes) -> bytes:
    """The checkpoint, compressed. Lets other threads run meanwhile."""
    # The first level: what it leaves is small, and it is the fastest.
    return MAGIC + b"%d\n" % FORMAT + zlib.compress(content, 1)


def encode(image: Image) -> bytes:
    """The image as bytes that :func:`~asched.state.checkpoint.restore` reads, in one go."""
    return sealed(in_one_go(encoding(image)))


def templates_of(forms: Sequence[TemplateForm], last: int) -> Steps[Templates]:
    """The templates of a checkpoint, under their numbers."""
    templates = Templates()
    for index, form in enumerate(forms):
        templates.keep(form.number, PodInfo(form.pod))
        kept = templates._by_number[form.number]
        kept.users = form.users
        if not form.current:
            del templates._numbers[kept.key]
        if index % STEP == 0:
            yield
    # A later one of equal content may have taken the place of the current one.
    for form in forms:
        if form.current:
            templates._numbers[templates._by_number[form.number].key] = form.number
    templates._last = last
    return templates
