"""What pods of one controller have in common, kept once.

Most pods are copies: of ten thousand pods of a Deployment one is recorded whole, and the others as
that one's template with a name. So the journal stays small, the copies share their specification in
memory, and their shape is known without looking.

Templates are numbered in the order in which the fold meets them and forgotten with their last pod,
so the numbers in records mean the same in every replay.
"""

from __future__ import annotations

import msgspec

from asched.framework.pod_info import PodInfo, PodShape
from asched.model.meta import ObjectMeta
from asched.model.pod import Pod, PodStatus
from asched.state.records import PodSeen

_encode = msgspec.json.Encoder(order="deterministic").encode


class _Template:
    __slots__ = ("key", "pod", "shape", "users")

    def __init__(self, key: bytes, pod: Pod, shape: PodShape) -> None:
        self.key = key
        self.pod = pod
        self.shape = shape
        self.users = 0


class Templates:
    """The templates of the pods that the state holds. Only the fold changes them."""

    def __init__(self) -> None:
        self._by_number: dict[int, _Template] = {}
        self._numbers: dict[bytes, int] = {}
        self._next = 1

    def __len__(self) -> int:
        return len(self._by_number)

    def find(self, pod: Pod) -> int:
        """The number of the pod's template, or 0 where the state holds no such pod.

        A pod whose containers report resources of their own has no template: it may be resized.
        """
        if _reports_resources(pod):
            return 0
        return self._numbers.get(_key(pod), 0)

    def learn(self, info: PodInfo) -> int:
        """A pod that was recorded whole: its template has one more user. Returns the number."""
        pod = info.pod
        if _reports_resources(pod):
            return 0
        key = _key(pod)
        number = self._numbers.get(key)
        if number is None:
            number, self._next = self._next, self._next + 1
            self._numbers[key] = number
            self._by_number[number] = _Template(key, _unplaced(pod), info.shape)
        self._by_number[number].users += 1
        return number

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
            del self._numbers[template.key]

    def labels(self, number: int) -> dict[str, str]:
        """The labels that a pod of this template has unless its record says otherwise."""
        return self._by_number[number].pod.metadata.labels

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
                owner_references=like.metadata.owner_references,
                annotations=like.metadata.annotations,
            ),
            spec=spec,
            status=PodStatus(
                phase=record.phase,
                conditions=record.conditions,
                nominated_node_name=record.nominated_node_name,
                start_time=record.start_time,
            ),
        )
        return PodInfo(pod, template.shape)


def _reports_resources(pod: Pod) -> bool:
    return bool(pod.status.container_statuses or pod.status.init_container_statuses)


def _unplaced(pod: Pod) -> Pod:
    if not pod.spec.node_name:
        return pod
    return msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, node_name=""))


def _key(pod: Pod) -> bytes:
    """All of a pod that its copies share, apart from labels, which a record can give."""
    meta, spec = pod.metadata, pod.spec
    if spec.node_name:
        spec = msgspec.structs.replace(spec, node_name="")
    return _encode((meta.namespace, meta.owner_references, meta.annotations, spec))
