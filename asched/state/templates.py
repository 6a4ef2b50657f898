"""What pods of one controller have in common, kept once.

Most pods are copies: of ten thousand pods of a Deployment one is recorded whole, and the others as
that one's template with a name. So the journal stays small, the copies share their specification in
memory, and their shape is known without looking.

A record that holds a pod whole says under which number its template is kept; later records refer to
that number. What a number means is thus in the journal, and does not depend on how this code compares
pods. A template is forgotten with its last pod.
"""

from __future__ import annotations

import msgspec

from asched.framework.pod_info import PodInfo, PodShape, label_set_of
from asched.model.meta import ObjectMeta
from asched.model.pod import Pod, PodStatus
from asched.state.records import PodSeen

_encode = msgspec.json.Encoder(order="deterministic").encode


class _Template:
    __slots__ = ("key", "labels", "pod", "shape", "users")

    def __init__(self, key: bytes, pod: Pod, shape: PodShape) -> None:
        self.key = key
        self.pod = pod
        self.shape = shape
        self.labels = label_set_of(pod)
        self.users = 0


class Templates:
    """The templates of the pods that the state holds. Only the fold changes them."""

    def __init__(self) -> None:
        self._by_number: dict[int, _Template] = {}
        self._numbers: dict[bytes, int] = {}
        self._last = 0

    def __len__(self) -> int:
        return len(self._by_number)

    def find(self, pod: Pod) -> int:
        """The number of a template that the pod is a copy of, or 0 where none is held."""
        return 0 if reports_resources(pod) else self._numbers.get(_key(pod), 0)

    def new_number(self, pod: Pod) -> int:
        """The number under which the template of a pod that is recorded whole is to be kept.

        A pod whose containers report resources of their own has none: it may be resized.
        """
        return 0 if reports_resources(pod) else self._last + 1

    def keep(self, number: int, info: PodInfo) -> None:
        """A pod was recorded whole: it is the first user of its template."""
        if not number:
            return
        key = _key(info.pod)
        template = _Template(key, _unplaced(info.pod), info.shape)
        template.users = 1
        self._by_number[number] = template
        self._numbers[key] = number
        self._last = max(self._last, number)

    def use(self, number: int) -> None:
        """A pod that was recorded by its template."""
        self._by_number[number].users += 1

    def release(self, number: int) -> None:
        """A user of the template went. 0 is nobody's."""
        template = self._by_number.get(number)
        if template is None:
            return
        template.users -= 1
        if not template.users:
            del self._by_number[number]
            if self._numbers.get(template.key) == number:
                del self._numbers[template.key]

    def copy_of(self, number: int, pod: Pod) -> PodSeen:
        """The record that says of a pod what its template does not. :meth:`instance` reads it."""
        meta, status, like = pod.metadata, pod.status, self._by_number[number].pod.metadata
        owners = meta.owner_references
        return PodSeen(
            template=number,
            key=pod.key,
            uid=meta.uid,
            creation_timestamp=meta.creation_timestamp,
            labels=None if meta.labels == like.labels else meta.labels,
            owner_references=None if owners == like.owner_references else owners,
            node_name=pod.spec.node_name,
            phase=status.phase,
            conditions=status.conditions,
            nominated_node_name=status.nominated_node_name,
            deletion_timestamp=meta.deletion_timestamp,
            start_time=status.start_time,
            annotations=(
                None
                if meta.declared_annotations == like.declared_annotations
                else meta.declared_annotations
            ),
        )

    def instance(self, record: PodSeen) -> PodInfo:
        """The pod that a record tells of. Raises KeyError for a template that is not held."""
        template = self._by_number[record.template]
        like = template.pod
        namespace, _, name = record.key.rpartition("/")
        spec = like.spec
        if record.node_name:
            spec = msgspec.structs.replace(spec, node_name=record.node_name)
        pod = Pod(
            metadata=ObjectMeta(
                name=name,
                namespace=namespace,
                uid=record.uid,
                labels=like.metadata.labels if record.labels is None else record.labels,
                creation_timestamp=record.creation_timestamp,
                deletion_timestamp=record.deletion_timestamp,
                owner_references=(
                    like.metadata.owner_references
                    if record.owner_references is None
                    else record.owner_references
                ),
                annotations=like.metadata.annotations,
                declared_annotations=(
                    like.metadata.declared_annotations
                    if record.annotations is None
                    else record.annotations
                ),
            ),
            spec=spec,
            status=PodStatus(
                phase=record.phase,
                conditions=record.conditions,
                nominated_node_name=record.nominated_node_name,
                start_time=record.start_time,
            ),
        )
        # What plugins read of annotations is part of the shape.
        shape = template.shape if record.annotations is None else None
        return PodInfo(pod, shape, template.labels if record.labels is None else None)


def reports_resources(pod: Pod) -> bool:
    """Whether the pod's containers say what they have, beside what its template asks for."""
    return bool(pod.status.container_statuses or pod.status.init_container_statuses)


def _unplaced(pod: Pod) -> Pod:
    if not pod.spec.node_name:
        return pod
    return msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, node_name=""))


def _key(pod: Pod) -> bytes:
    """All of a pod that its copies share, apart from labels and owners, which a record can give."""
    meta, spec = pod.metadata, pod.spec
    if spec.node_name:
        spec = msgspec.structs.replace(spec, node_name="")
    if meta.declared_annotations:
        return _encode((meta.namespace, meta.annotations, meta.declared_annotations, spec))
    return _encode((meta.namespace, meta.annotations, spec))
