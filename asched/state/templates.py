"""The common part of pods of one controller, stored once.

Of ten thousand pods of a Deployment the journal has one in full, and the others as a reference to
its template with a name. The copies share their specification in memory and their shape.

A record with a full pod says under which number its template is stored; later records refer to
that number. So the meaning of a number follows from the journal and not from how this code
compares pods. A template is removed with its last pod.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from asched.framework.pod_groups import group_of
from asched.framework.pod_info import LabelSet, PodInfo, PodShape
from asched.model.meta import ObjectMeta
from asched.model.pod import Pod, PodStatus
from asched.state.records import PodObserved
from asched.state.stored_form import Record, StoredForm

_encode = msgspec.json.Encoder(order="deterministic").encode


class TemplateSnapshot(StoredForm):
    number: int
    pod: Pod
    users: int
    current: bool
    """Whether new copies are recorded under this number."""


class TemplatesSnapshot(StoredForm):
    templates: tuple[TemplateSnapshot, ...]
    last: int


@dataclass(slots=True)
class _Template:
    key: bytes
    pod: Pod
    shape: PodShape
    labels: LabelSet
    priority: int
    grouped: bool
    """Whether its pods name a group."""
    users: int = 1


def _new_template(key: bytes, pod: Pod, info: PodInfo) -> _Template:
    grouped = group_of(pod) is not None
    return _Template(key, pod, info.shape, info.label_set, info.priority, grouped)


class CopyName(Record, tag="PodObserved"):
    """What is read at once of a stored :class:`PodObserved`."""

    key: str
    uid: str
    template: int
    labels: object = None
    annotations: object = None


def _decode_copy(record: msgspec.Raw) -> PodObserved:
    return msgspec.msgpack.decode(record, type=PodObserved)


class _CopiedPod(PodInfo):
    """A copy of a template. Most pods that are bound elsewhere or restored are never read."""

    __slots__ = ("_source", "_template", "priority")

    def __init__(
        self,
        record: CopyName | PodObserved,
        source: PodObserved | msgspec.Raw,
        template: _Template,
    ) -> None:
        self._source: PodObserved | msgspec.Raw | Pod = source
        self._template = template
        self._label_set = template.labels if record.labels is None else None
        self.uid = record.uid
        self.seen_version = 0
        self.key = record.key
        self.shape = template.shape
        self.priority = template.priority  # type: ignore[misc]  # read of all pods at once

    @property
    def pod(self) -> Pod:  # type: ignore[override]
        """Created when it is first read."""
        source = self._source
        if isinstance(source, Pod):
            return source
        if isinstance(source, msgspec.Raw):
            source = _decode_copy(source)
        pod = self._source = restore_copy(source, self._template.pod)
        return pod

    @property
    def namespace(self) -> str:
        return self._template.pod.metadata.namespace

    @property
    def labels(self) -> dict[str, str]:
        template = self._template
        # Label sets are interned. Without one, the labels may differ from the template's.
        same = self._label_set is template.labels
        return template.pod.metadata.labels if same else self.pod.metadata.labels


class Templates:
    """The templates of the pods in the state. Only the fold changes them."""

    def __init__(self) -> None:
        self._by_number: dict[int, _Template] = {}
        self._numbers: dict[bytes, int] = {}
        self._last = 0

    def __len__(self) -> int:
        return len(self._by_number)

    def find(self, pod: Pod) -> int:
        """The number of the template that the pod is a copy of, or 0 if there is none."""
        return 0 if pod.status.reports_resources else self._numbers.get(_key(pod), 0)

    def new_number(self, pod: Pod) -> int:
        """The number for the template of a pod that is recorded in full.

        0 for a pod with resources in its container statuses: it may be resized in place.
        """
        return 0 if pod.status.reports_resources else self._last + 1

    def add(self, number: int, info: PodInfo) -> None:
        """Store the template of a pod that was recorded in full, its first user. 0 is ignored."""
        if not number:
            return
        key = _key(info.pod)
        self._by_number[number] = _new_template(key, _unplaced(info.pod), info)
        self._numbers[key] = number
        self._last = max(self._last, number)

    def retain(self, number: int) -> None:
        """Count a user: a pod that was recorded by its template."""
        self._by_number[number].users += 1

    def release(self, number: int) -> None:
        """Remove a user, and the template with its last one. 0 is ignored."""
        template = self._by_number.get(number)
        if template is None:
            return
        template.users -= 1
        if not template.users:
            del self._by_number[number]
            if self._numbers.get(template.key) == number:
                del self._numbers[template.key]

    def record_of(self, number: int, pod: Pod) -> PodObserved:
        """The record of a pod that is a copy of the template; see :func:`record_copy`."""
        return record_copy(number, self._by_number[number].pod, pod)

    def pod_of(self, record: PodObserved) -> PodInfo:
        """The recorded pod, created when it is first read if it has a node. Raises KeyError if its
        template is not stored."""
        template = self._by_number[record.template]
        if record.node_name and record.annotations is None:
            return _CopiedPod(record, record, template)
        # The shape includes the annotations that plugins read.
        shape = template.shape if record.annotations is None else None
        labels = template.labels if record.labels is None else None
        return PodInfo(restore_copy(record, template.pod), shape, labels)

    def stored_pods(self, records: msgspec.Raw, *, lazily: bool) -> list[PodInfo]:
        """As :meth:`pod_of` for an encoded tuple of records. A pod itself is created when it is
        first read, and with ``lazily`` its record is decoded then. Raises MsgspecError."""
        decode, templates = msgspec.msgpack.decode, self._by_number
        sources: Sequence[PodObserved | msgspec.Raw]
        sources = decode(records, type=list[msgspec.Raw] if lazily else list[PodObserved])
        names = decode(records, type=list[CopyName])
        return [
            _CopiedPod(name, source, templates[name.template])
            if name.annotations is None
            else self.pod_of(source if isinstance(source, PodObserved) else _decode_copy(source))
            for name, source in zip(names, sources, strict=True)
        ]

    def in_groups(self) -> frozenset[int]:
        """The numbers of the templates with pods that name a group."""
        return frozenset(number for number, kept in self._by_number.items() if kept.grouped)

    def is_grouped(self, number: int) -> bool:
        """Whether the pods of the template name a group. Raises KeyError if it is not stored."""
        return self._by_number[number].grouped

    def snapshot(self) -> TemplatesSnapshot:
        numbers = self._numbers
        return TemplatesSnapshot(
            tuple(
                TemplateSnapshot(number, kept.pod, kept.users, numbers.get(kept.key) == number)
                for number, kept in self._by_number.items()
            ),
            self._last,
        )

    def restore(self, snapshot: TemplatesSnapshot) -> None:
        for kept in snapshot.templates:
            key = _key(kept.pod)
            template = _new_template(key, kept.pod, PodInfo(kept.pod))
            template.users = kept.users
            self._by_number[kept.number] = template
            if kept.current:
                self._numbers[key] = kept.number
        self._last = snapshot.last


def record_copy(number: int, template: Pod, pod: Pod) -> PodObserved:
    """The record of a pod: its template's number and the fields in which it differs."""
    meta, status, common = pod.metadata, pod.status, template.metadata
    owners, annotations = meta.owner_references, meta.declared_annotations
    return PodObserved(
        template=number,
        key=pod.key,
        uid=meta.uid,
        creation_timestamp=meta.creation_timestamp,
        labels=None if meta.labels == common.labels else meta.labels,
        owner_references=None if owners == common.owner_references else owners,
        node_name=pod.spec.node_name,
        phase=status.phase,
        conditions=status.conditions,
        nominated_node_name=status.nominated_node_name,
        deletion_timestamp=meta.deletion_timestamp,
        start_time=status.start_time,
        annotations=None if annotations == common.declared_annotations else annotations,
        claims=status.resource_claim_statuses,
    )


def restore_copy(record: PodObserved, template: Pod) -> Pod:
    """The pod that :func:`record_copy` recorded."""
    namespace, _, name = record.key.rpartition("/")
    spec, common = template.spec, template.metadata
    if record.node_name:
        spec = msgspec.structs.replace(spec, node_name=record.node_name)
    owners, annotations = record.owner_references, record.annotations
    return Pod(
        metadata=ObjectMeta(
            name=name,
            namespace=namespace,
            uid=record.uid,
            labels=common.labels if record.labels is None else record.labels,
            creation_timestamp=record.creation_timestamp,
            deletion_timestamp=record.deletion_timestamp,
            owner_references=common.owner_references if owners is None else owners,
            annotations=common.annotations,
            declared_annotations=common.declared_annotations
            if annotations is None
            else annotations,
        ),
        spec=spec,
        status=PodStatus(
            phase=record.phase,
            conditions=record.conditions,
            nominated_node_name=record.nominated_node_name,
            start_time=record.start_time,
            resource_claim_statuses=record.claims,
        ),
    )


def _unplaced(pod: Pod) -> Pod:
    if not pod.spec.node_name:
        return pod
    return msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, node_name=""))


def _key(pod: Pod) -> bytes:
    """Everything that copies share, without labels and owners, which a record can override."""
    meta, spec = pod.metadata, pod.spec
    if spec.node_name:
        spec = msgspec.structs.replace(spec, node_name="")
    if meta.declared_annotations:
        return _encode((meta.namespace, meta.annotations, meta.declared_annotations, spec))
    return _encode((meta.namespace, meta.annotations, spec))
