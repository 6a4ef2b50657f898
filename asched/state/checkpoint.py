"""Checkpoints: a state as bytes, so that a fold can go on from there instead of from the start.

A restored state is the one that was kept in every respect that a later decision may depend on:
rows of the node table and who is in them in which order, places in queues, what is in flight. What
is memory only (shared answers, indexes) is built anew when it is asked for, and the books of
plugins are entered again as after a change of profiles.

A checkpoint is no history: one that this code cannot read is worth nothing and loses nothing.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import NamedTuple, cast

import msgspec
import numpy as np

from asched.framework.interface import Eviction
from asched.framework.pod_info import PodInfo
from asched.framework.profile import PluginLoader
from asched.model.custom import CustomObject
from asched.model.meta import Object, ObjectMeta
from asched.model.node import Node
from asched.model.pod import Pod
from asched.model.resources import AnyObject
from asched.state.checkpoint_form import (
    FORMAT,
    AnswerForm,
    CircuitForm,
    EntryForm,
    EvictionForm,
    FilterAnswersForm,
    GroupWriteForm,
    InquiryForm,
    PlaceForm,
    RowForm,
    SessionForm,
    StateForm,
    TemplateForm,
    WaitingForm,
)
from asched.state.checkpoint_queue import QueueImage, encoded, image_of, refill
from asched.state.cluster import ClusterState, PodEntry, PodPhase
from asched.state.fold import Fold
from asched.state.inquiries import FilterAnswers, Inquiry
from asched.state.permits import PermitAnswer, WaitingPod
from asched.state.pod_fold import PodFold
from asched.state.records import Lottery, PodSeen, ProfilesLoaded
from asched.state.rules import Rules
from asched.state.sessions import GroupWrite, RefusedBinding
from asched.state.templates import Templates

_MAGIC = b"asched-checkpoint "
SIZE_LIMIT_BYTES = 4 * 1024**3
"""Of a checkpoint unpacked; a tenth of that holds 100,000 pods."""
_FREE_ROW = "\0free row "
"""Begins the names of nodes that hold rows open while a table is built; no node has such a name."""


class CheckpointError(Exception):
    """A checkpoint cannot be used: another format, or damaged. The text says which."""


class Image(NamedTuple):
    """A state at one moment. It refers to what never changes, and does not change with the state,
    so it can be encoded later, and elsewhere."""

    scalars: tuple[int, int, Lottery, Rules, int, int]
    loaded: ProfilesLoaded
    templates: tuple[TemplateForm, ...]
    last_template: int
    objects: tuple[AnyObject, ...]
    resources: tuple[tuple[str, ...], tuple[str, ...]]
    rows: list[tuple[str, list[PodInfo]]]
    strays: list[tuple[str, list[PodInfo]]]
    entries: list[tuple[PodInfo, EntryForm]]
    nominated: list[tuple[str, list[PodInfo]]]
    waiting: list[tuple[PodInfo, WaitingForm]]
    answers: tuple[AnswerForm, ...]
    evictions: tuple[EvictionForm, ...]
    room_made: tuple[tuple[str, str], ...]
    useless: tuple[str, ...]
    inquiries: tuple[InquiryForm, ...]
    queue: QueueImage
    sessions: tuple[SessionForm, ...]
    finished: list[PodInfo]
    group_writes: tuple[GroupWriteForm, ...]
    circuits: tuple[CircuitForm, ...]


def image_of_state(state: ClusterState) -> Image:
    """A picture of the state: a few microseconds a pod."""
    table = state.nodes
    profiles = tuple(profile.spec for profile in state.profiles.values())
    templates = state.templates
    return Image(
        (state.now_ns, state.seed, state.lottery, state.rules, state.epoch, state.next_start_row),
        ProfilesLoaded(profiles, state.queue._settings, state.extenders),
        tuple(
            TemplateForm(number, kept.pod, kept.users, templates._numbers.get(kept.key) == number)
            for number, kept in templates._by_number.items()
        ),
        templates._last,
        tuple(
            cast(AnyObject, kept)
            for of_kind in state.objects_of.values()
            for kept in of_kind.values()
        ),
        ((*table._allocatable,), (*table._requested,)),
        [(name, [*table.pods(row)]) for row, name in enumerate(table.names)],
        [(name, [*pods.values()]) for name, pods in table._strays.items()],
        [(entry.info, _entry_form(entry)) for entry in state.pods.values()],
        [(node, [*pods.values()]) for node, pods in state.nominator.by_node.items()],
        [
            (held.info, WaitingForm(-1, held.node_name, held.since_ns, {**held.pending_until_ns}))
            for held in state.waiting.values()
        ],
        tuple(AnswerForm(*answer) for answer in state.permits.answers),
        tuple(EvictionForm(*eviction) for eviction in state.evictions.values()),
        (*state.evictions.done_for.items(),),
        (*sorted(state.evictions.useless),),
        tuple(_inquiry_form(key, inquiry) for key, inquiry in state.inquiries.items()),
        image_of(state.queue),
        tuple(
            SessionForm(p.spec, p.number, p.held_ns, p.changes, (*p.pending,), {**p.refused})
            for p in state.sessions
        ),
        [*state.sessions.finished.values()],
        tuple(
            GroupWriteForm(write.decision, write.under_way)
            for write in state.sessions.writes.values()
        ),
        tuple(
            CircuitForm(
                scheduler_name, plugin, (*c.failed_at_ns,), c.until_ns, c.on_trial, (*c.held,)
            )
            for scheduler_name, plugin, c in state.circuits
        ),
    )


def _entry_form(entry: PodEntry) -> EntryForm:
    return EntryForm(
        -1, entry.template, entry.phase.value, entry.node, entry.rejection, entry.assignment,
        entry.reserved,
    )  # fmt: skip


def _inquiry_form(key: str, inquiry: Inquiry) -> InquiryForm:
    return InquiryForm(
        key,
        inquiry.uid,
        inquiry.attempt,
        inquiry.verb,
        tuple(sorted(inquiry.pending)),
        tuple(inquiry.rows.tolist()),
        inquiry.candidates,
        {
            index: FilterAnswersForm(
                tuple(given.rows.tolist()), tuple(given.codes.tolist()), tuple(given.statuses)
            )
            for index, given in inquiry.filters.items()
        },
        tuple(inquiry.compared.tolist()),
        {index: tuple(scores.tolist()) for index, scores in inquiry.scores.items()},
        {**inquiry.reviews},
        tuple((verb, index, text) for (verb, index), text in inquiry.failures.items()),
    )


# -- to bytes -------------------------------------------------------------------------------------


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


def encode(image: Image) -> bytes:
    """The image as bytes that :func:`restore` reads."""
    pods = _PodNumbers(_templates(image.templates, image.last_template))
    replace = msgspec.structs.replace
    entries = tuple(
        replace(form, pod=pods.add(info.pod, form.template)) for info, form in image.entries
    )
    rows = tuple(RowForm(name, pods.all(infos)) for name, infos in image.rows)
    strays = tuple(PlaceForm(node, pods.all(infos)) for node, infos in image.strays)
    nominated = tuple(PlaceForm(node, pods.all(infos)) for node, infos in image.nominated)
    waiting = tuple(replace(form, pod=pods.of(info.pod)) for info, form in image.waiting)
    queue = encoded(image.queue, pods.of)
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
    # The first level of compression: what it leaves is small, and it is the fastest.
    return _MAGIC + b"%d\n" % FORMAT + zlib.compress(msgspec.msgpack.encode(form), 1)


def checkpoint_of(state: ClusterState) -> bytes:
    """The state as bytes that :func:`restore` reads."""
    return encode(image_of_state(state))


# -- and back -------------------------------------------------------------------------------------


def restore(blob: bytes, load: PluginLoader) -> Fold:
    """A fold over the state that was kept. ``load`` finds the plugins of its profiles.

    Raises :class:`CheckpointError` for a checkpoint of another format, or a damaged one.
    """
    form = _decoded(blob)
    fold = Fold(ClusterState(), load)
    state = fold.state
    state.now_ns, state.epoch = form.now_ns, form.epoch
    state.seed, state.lottery = form.seed, form.lottery
    state.follow(form.rules)
    state.templates = _templates(form.templates, form.last_template)
    # Makes the profiles and configures the queue, while there is nothing yet to sort in.
    fold.apply(form.loaded)
    try:
        _fill(state, form)
    except (LookupError, ValueError) as error:
        raise CheckpointError(f"it contradicts itself ({error!r})") from error
    return fold


def _fill(state: ClusterState, form: StateForm) -> None:
    """All but the profiles."""
    pods = _Pods(form, state.templates)
    _fill_objects(state, form)
    _fill_nodes(state, form, pods)
    _fill_pods(state, form, pods)
    refill(state.queue, form.queue, pods.info)
    state.inquiries.update((inquiry.key, _inquiry(inquiry)) for inquiry in form.inquiries)
    state.next_start_row = form.next_start_row
    for kept in form.circuits:
        circuit = state.circuits.circuit(kept.scheduler_name, kept.plugin)
        circuit.failed_at_ns.extend(kept.failed_at_ns)
        circuit.until_ns, circuit.on_trial = kept.until_ns, kept.on_trial
        circuit.held.update(dict.fromkeys(kept.held))
    _fill_sessions(state, form, pods)
    _fill_groups(state)
    _fill_books(state)
    for answer in form.answers:
        state.permits.say(PermitAnswer(answer.key, answer.plugin, answer.message))


_decode = msgspec.msgpack.Decoder(StateForm).decode


def _decoded(blob: bytes) -> StateForm:
    header = blob[: len(_MAGIC) + 20].partition(b"\n")[0]
    if not header.startswith(_MAGIC):
        raise CheckpointError("it is no checkpoint of asched")
    if header != _MAGIC + b"%d" % FORMAT:
        there = header.removeprefix(_MAGIC).decode(errors="replace")
        raise CheckpointError(f"it has format {there}, this asched reads {FORMAT}")
    unpacking = zlib.decompressobj()
    try:
        content = unpacking.decompress(blob[len(header) + 1 :], SIZE_LIMIT_BYTES)
        if unpacking.unconsumed_tail:
            raise CheckpointError(f"it holds more than {SIZE_LIMIT_BYTES} bytes")
        if not unpacking.eof:
            raise CheckpointError("it is damaged: it breaks off")
        return _decode(content)
    except (zlib.error, msgspec.MsgspecError) as error:
        raise CheckpointError(f"it is damaged: {error}") from None


def _templates(forms: Iterable[TemplateForm], last: int) -> Templates:
    templates = Templates()
    for form in forms:
        templates.keep(form.number, PodInfo(form.pod))
        kept = templates._by_number[form.number]
        kept.users = form.users
        if not form.current:
            del templates._numbers[kept.key]
    # A later one of equal content may have taken the place of the current one.
    for form in forms:
        if form.current:
            templates._numbers[templates._by_number[form.number].key] = form.number
    templates._last = last
    return templates


class _Pods:
    """Pods by their numbers in a checkpoint; each is made once."""

    def __init__(self, form: StateForm, templates: Templates) -> None:
        self._whole = form.whole_pods
        self._copies = form.copied_pods
        self._templates = templates
        self._made: dict[int, PodInfo] = {}

    def info(self, number: int) -> PodInfo:
        info = self._made.get(number)
        if info is None:
            place, copied = divmod(number, 2)
            if copied:
                info = self._templates.instance(self._copies[place])
            else:
                info = PodInfo(self._whole[place])
            self._made[number] = info
        return info


def _fill_objects(state: ClusterState, form: StateForm) -> None:
    for kept in form.objects:
        of_kind: dict[str, Object] = state.objects_of.setdefault(type(kept), {})
        of_kind[kept.key] = kept
        state.objects_changed[type(kept)] += 1
        if isinstance(kept, CustomObject):
            # A plugin may have asked for them while it was made, and there were none yet.
            state.custom.seen(kept)


def _fill_nodes(state: ClusterState, form: StateForm, pods: _Pods) -> None:
    """Every node in the row where it was, with its pods in their order."""
    table, nodes = state.nodes, state.objects(Node)
    free = []
    # Sessions tell a resource that is no more from one that never was, and name them in this order.
    for columns, names in zip((table._allocatable, table._requested), form.resources, strict=True):
        for name in names:
            table._column(columns, name)
    for number, row in enumerate(form.rows):
        if row.name:
            table.set_node(nodes[row.name])
        else:
            free.append(f"{_FREE_ROW}{number}")
            table.set_node(Node(metadata=ObjectMeta(name=free[-1])))
    for name in free:
        table.remove_node(name)
    for row in form.rows:
        for number in row.pods:
            table.add_pod(row.name, pods.info(number))
    for stray in form.strays:
        for number in stray.pods:
            table.add_pod(stray.node, pods.info(number))


def _fill_pods(state: ClusterState, form: StateForm, pods: _Pods) -> None:
    for kept in form.entries:
        info = pods.info(kept.pod)
        entry = state.pods[info.key] = PodEntry(info, kept.template)
        entry.phase, entry.node, entry.rejection = PodPhase(kept.phase), kept.node, kept.rejection
        entry.assignment, entry.reserved = kept.assignment, kept.reserved
    for place in form.nominated:
        for number in place.pods:
            state.nominator.nominate(pods.info(number), place.node)
    for held in form.waiting:
        state.permits.hold(
            WaitingPod(pods.info(held.pod), held.node, held.since_ns, {**held.pending_until_ns})
        )
    for eviction in form.evictions:
        state.evictions.begin(
            Eviction(eviction.victim, eviction.preemptor, eviction.node, eviction.reason)
        )
    for uid, key in form.room_made:
        state.evictions.has_use(key, uid)
    for uid in form.useless:
        state.evictions.forget(uid)


def _inquiry(form: InquiryForm) -> Inquiry:
    inquiry = Inquiry(form.uid, form.attempt)
    inquiry.verb, inquiry.candidates = form.verb, form.candidates
    inquiry.pending = set(form.pending)
    inquiry.rows = np.array(form.rows, np.intp)
    inquiry.compared = np.array(form.compared, np.intp)
    for index, given in form.filters.items():
        answers = inquiry.filters[index] = FilterAnswers()
        answers.rows = np.array(given.rows, np.intp)
        answers.codes = np.array(given.codes, np.int16)
        answers.statuses = [*given.statuses]
    inquiry.scores = {index: np.array(s, np.int64) for index, s in form.scores.items()}
    inquiry.reviews = {**form.reviews}
    inquiry.failures = {(verb, index): text for verb, index, text in form.failures}
    return inquiry


def _fill_groups(state: ClusterState) -> None:
    pods = PodFold(state)
    for entry in state.pods.values():
        pods.regroup(entry)


def _fill_sessions(state: ClusterState, form: StateForm, pods: _Pods) -> None:
    sessions = state.sessions
    sessions.load(kept.spec for kept in form.sessions)
    for profile, kept in zip(sessions, form.sessions, strict=True):
        profile.restore(kept.number, kept.held_ns, kept.changes)
        profile.pending.update(dict.fromkeys(kept.pending))
        profile.refused = {key: RefusedBinding(*form) for key, form in kept.refused.items()}
    for number in form.finished:
        info = pods.info(number)
        sessions.finished[info.key] = info
    for write in form.group_writes:
        decision = write.decision
        sessions.writes[decision.kind, decision.group] = GroupWrite(decision, write.under_way)


def _fill_books(state: ClusterState) -> None:
    """Tell Reserve plugins what they were told of the pods that are still there."""
    pods = PodFold(state)
    for entry in state.pods.values():
        profile = pods.profile(entry)
        if entry.assignment is not None:
            state.books.enter(profile, entry.info, entry.assignment)
        elif entry.reserved is not None:
            state.books.enter(profile, entry.info, entry.reserved)
            state.books.close(profile, entry.info, entry.reserved)
