"""The lifetime of one pod in a journal, collected record by record."""

from __future__ import annotations

from dataclasses import InitVar, dataclass, field
from typing import NamedTuple

import msgspec

from asched.model.node import REGION_LABEL, ZONE_LABEL
from asched.model.pod import POD_SCHEDULED, Pod, PodStatus
from asched.simulator.trace import EndReason, PodCreated, PodDeleted, PodPlacement, PodRun
from asched.state.cluster import PlacementState, PodEntry

DAEMON_SET = "DaemonSet"
"""Its pods belong to one node, so they are not recreated elsewhere."""


class PodSnapshot(NamedTuple):
    """A pod in the state before or after a record."""

    pod: Pod
    node: str
    placement_state: PlacementState

    @classmethod
    def of(cls, entry: PodEntry | None) -> PodSnapshot | None:
        return None if entry is None else cls(entry.info.pod, entry.node, entry.placement_state)


@dataclass(slots=True, eq=False)
class PodLifetime:
    """A pod, including the pods that its controller created to replace it after an eviction."""

    pod: Pod
    """As created."""
    created_ns: int
    node: InitVar[str] = ""
    """The node on which the pod was already when first observed."""
    uid: str = ""
    """The uid of the latest replacement."""
    given: bool = False
    """Its node does not follow from a decision to simulate."""
    placements: list[PodPlacement] = field(default_factory=list)
    attempts: int = 0
    rejections: int = 0
    message: str = ""
    deleted_ns: int | None = None
    """When its deletion by its owner was observed."""
    ended_ns: int | None = None
    end: EndReason | None = None
    _current: dict[str, int] = field(default_factory=dict)
    """Index of the current placement, by uid."""
    _evicted_uids: set[str] = field(default_factory=set)
    _terminations_ns: dict[int, int] = field(default_factory=dict)
    """From the eviction to the end, by index of the placement."""

    def __post_init__(self, node: str) -> None:
        self.pod = with_node(self.pod, node) if node else as_created(self.pod)
        self.uid, self.given = self.pod.uid, bool(node)
        if node:
            self.place(self.uid, node, self.created_ns)

    @property
    def recreated(self) -> bool:
        """Whether a controller replaces it after an eviction or the removal of its node."""
        owner = self.pod.metadata.controller
        return owner is not None and owner.kind != DAEMON_SET

    @property
    def was_bound(self) -> bool:
        return any(placement.bound_ns is not None for placement in self.placements)

    @property
    def on_node(self) -> bool:
        """Whether it uses resources of a node now."""
        return bool(self._current)

    @property
    def evicted(self) -> bool:
        """Whether a decision evicts the pod with the latest uid."""
        return self.uid in self._evicted_uids

    def own_labels(self, pod: Pod) -> dict[str, str]:
        """The labels of ``pod``, this pod or a replacement, without zone and region, which the API
        server copies from the node on binding (admission plugin PodTopologyLabels, KEP-4742)."""
        if not pod.spec.node_name:
            return pod.labels
        return {
            key: value
            for key, value in pod.labels.items()
            if key not in (ZONE_LABEL, REGION_LABEL) or key in self.pod.labels
        }

    def assign(self, uid: str, node: str, at_ns: int) -> None:
        self._current[uid] = len(self.placements)
        self.placements.append(PodPlacement(node, at_ns))

    def bind(self, uid: str, at_ns: int) -> None:
        if self.placements[self._current[uid]].bound_ns is None:
            self._update(self._current[uid], bound_ns=at_ns)

    def place(self, uid: str, node: str, at_ns: int) -> None:
        """Another scheduler bound the pod."""
        self.assign(uid, node, at_ns)
        self.bind(uid, at_ns)

    def evict(self, uid: str, at_ns: int, by: str) -> None:
        """Its eviction was decided."""
        self._evicted_uids.add(uid)
        if uid in self._current:
            self._update(self._current[uid], evicted_ns=at_ns, by=by)

    def cancel_eviction(self, uid: str) -> None:
        """The eviction failed."""
        if uid in self._evicted_uids:
            self._evicted_uids.remove(uid)
            if uid in self._current:
                self._update(self._current[uid], evicted_ns=None, by="")

    def release(self, uid: str, at_ns: int, reason: EndReason, *, node_exists: bool = True) -> None:
        """Ends the placement of that uid, if it has one."""
        index = self._current.pop(uid, None)
        if index is None:
            return
        self._update(index, ended_ns=at_ns, end=reason)
        evicted_ns = self.placements[index].evicted_ns
        if evicted_ns is not None and node_exists:
            self._terminations_ns[index] = at_ns - evicted_ns

    def _update(self, index: int, **fields: object) -> None:
        self.placements[index] = msgspec.structs.replace(self.placements[index], **fields)

    def end_reason(self, uid: str, node: str, *, node_exists: bool) -> EndReason:
        """The likely reason that the pod of that uid, last on ``node``, is gone."""
        if uid in self._evicted_uids:
            return EndReason.PREEMPTED
        if node and not node_exists:
            return EndReason.NODE_GONE
        if self.deleted_ns is not None or not node:
            return EndReason.DELETED
        return EndReason.FINISHED

    def finish(self, at_ns: int, reason: EndReason) -> None:
        """The pod of the latest uid is gone."""
        self.ended_ns, self.end = at_ns, reason

    def replace(self, uid: str) -> None:
        """Its controller created a replacement."""
        self.uid = uid
        self.ended_ns = self.end = self.deleted_ns = None

    @property
    def run_ns(self) -> int | None:
        """Running time until it finished by itself; None if that was not observed.

        A victim that its controller did not replace had finished before it was terminated.
        """
        finished = self.end is EndReason.FINISHED
        finished |= self.end is EndReason.PREEMPTED and self.recreated
        if not finished or not self.was_bound:
            return None
        return sum(
            placement.ended_ns - placement.bound_ns
            for placement in self.placements
            if placement.ended_ns is not None and placement.bound_ns is not None
        )

    def creation(self) -> PodCreated:
        terminations_ns = tuple(
            self._terminations_ns.get(index)
            for index, placement in enumerate(self.placements)
            if placement.evicted_ns is not None and placement.bound_ns is not None
        )
        return PodCreated(self.created_ns, self.pod, self.run_ns, self.recreated, terminations_ns)

    def deletion(self, at_ns: int) -> PodDeleted | None:
        """The event that ends it, unless it ends by its running time."""
        unbound_end = self.end is EndReason.FINISHED and not self.was_bound
        if self.end is EndReason.DELETED or unbound_end:
            return PodDeleted(at_ns, self.pod.key, self.pod.uid)
        return None

    def as_run(self) -> PodRun:
        pending = not self.on_node and self.ended_ns is None
        return PodRun(
            pod=self.pod,
            created_ns=self.created_ns,
            attempts=self.attempts,
            rejections=self.rejections,
            placements=tuple(self.placements),
            ended_ns=self.ended_ns,
            end=self.end,
            message=self.message if pending else "",
        )


def as_created(pod: Pod) -> Pod:
    """The pod without the fields that schedulers set."""
    status = PodStatus(
        phase="Pending",
        conditions=tuple(c for c in pod.status.conditions if c.type != POD_SCHEDULED),
        container_statuses=pod.status.container_statuses,
        init_container_statuses=pod.status.init_container_statuses,
        resources=pod.status.resources,
        allocated_resources=pod.status.allocated_resources,
        resource_claim_statuses=pod.status.resource_claim_statuses,
    )
    return msgspec.structs.replace(with_node(pod, ""), status=status)


def with_node(pod: Pod, node: str) -> Pod:
    """The pod with that ``spec.nodeName``, which may be empty."""
    if pod.spec.node_name == node:
        return pod
    return msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, node_name=node))
