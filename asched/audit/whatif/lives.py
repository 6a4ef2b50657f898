"""What a journal tells of one pod, gathered while it is read."""

from __future__ import annotations

import msgspec

from asched.model.pod import POD_SCHEDULED, Pod, PodStatus
from asched.simulator.trace import EndReason, PodCreated, PodDeleted, PodPlacement, PodRun

DAEMON_SET = "DaemonSet"
"""Its pods belong to their node: none is made elsewhere when that goes."""


class RecordedLife:
    """A pod, and whatever its controller made in its place when it had to go for us."""

    __slots__ = (
        "_evictions",
        "_open",
        "attempts",
        "created_ns",
        "deleted_ns",
        "end",
        "ended_ns",
        "given",
        "message",
        "placements",
        "pod",
        "rejections",
        "uid",
    )

    def __init__(self, pod: Pod, created_ns: int, node: str = "") -> None:
        """``node``: where it was already when it was first seen."""
        self.pod = placed(pod, node) if node else fresh(pod)
        """As it enters the history."""
        self.uid = pod.uid
        """Its present uid: another one than the first after its controller made it anew."""
        self.created_ns = created_ns
        self.given = bool(node)
        """It is where it is by no decision that is to be made again."""
        self.placements: list[PodPlacement] = []
        self._open: dict[str, int] = {}
        self._evictions: set[str] = set()
        self.attempts = 0
        self.rejections = 0
        self.message = ""
        self.deleted_ns: int | None = None
        """When it was seen that somebody else deleted it."""
        self.ended_ns: int | None = None
        self.end: EndReason | None = None
        if node:
            self.place(pod.uid, node, created_ns)

    @property
    def returns(self) -> bool:
        """Whether a controller makes it anew where it has to go."""
        owner = self.pod.metadata.controller
        return owner is not None and owner.kind != DAEMON_SET

    @property
    def bound(self) -> bool:
        """Whether it ever was."""
        return any(placement.bound_ns is not None for placement in self.placements)

    @property
    def on_node(self) -> bool:
        """Whether it holds room somewhere."""
        return bool(self._open)

    @property
    def evicted(self) -> bool:
        """Whether we decided so, of the pod under its present uid."""
        return self.uid in self._evictions

    # -- what happens to it ---------------------------------------------------------------------

    def assign(self, uid: str, node: str, at_ns: int) -> None:
        self._open[uid] = len(self.placements)
        self.placements.append(PodPlacement(node, at_ns))

    def bind(self, uid: str, at_ns: int) -> None:
        index = self._open[uid]
        if self.placements[index].bound_ns is None:
            self.placements[index] = msgspec.structs.replace(self.placements[index], bound_ns=at_ns)

    def place(self, uid: str, node: str, at_ns: int) -> None:
        """It came to a node by somebody else's doing."""
        self.assign(uid, node, at_ns)
        self.bind(uid, at_ns)

    def evict(self, uid: str, at_ns: int, by: str) -> None:
        self._evictions.add(uid)
        self._mark(uid, at_ns, by)

    def spare(self, uid: str) -> None:
        """The eviction failed."""
        if uid in self._evictions:
            self._evictions.remove(uid)
            self._mark(uid, None, "")

    def _mark(self, uid: str, evicted_ns: int | None, by: str) -> None:
        index = self._open.get(uid)
        if index is not None:
            self.placements[index] = msgspec.structs.replace(
                self.placements[index], evicted_ns=evicted_ns, by=by
            )

    def leave(self, uid: str, at_ns: int, why: EndReason) -> None:
        """It holds no room under that uid any more, if it did."""
        index = self._open.pop(uid, None)
        if index is not None:
            self.placements[index] = msgspec.structs.replace(
                self.placements[index], ended_ns=at_ns, end=why
            )

    def why_gone(self, uid: str, node: str, *, node_there: bool) -> EndReason:
        """What to make of it that the pod of that uid, last on ``node``, is gone."""
        if uid in self._evictions:
            return EndReason.PREEMPTED
        if node and not node_there:
            return EndReason.NODE_GONE
        if self.deleted_ns is not None or not node:
            return EndReason.DELETED
        return EndReason.FINISHED

    def finish(self, at_ns: int, why: EndReason) -> None:
        """It is gone, under its present uid."""
        self.ended_ns, self.end = at_ns, why

    def go_on(self, uid: str) -> None:
        """Its controller made it anew."""
        self.uid = uid
        self.ended_ns = self.end = self.deleted_ns = None

    # -- what comes of it -----------------------------------------------------------------------

    @property
    def run_ns(self) -> int | None:
        """How long it ran until it was finished by itself; None where that was not observed."""
        if self.end is not EndReason.FINISHED or not self.bound:
            return None
        return sum(
            placement.ended_ns - placement.bound_ns
            for placement in self.placements
            if placement.ended_ns is not None and placement.bound_ns is not None
        )

    def created(self) -> PodCreated:
        return PodCreated(self.created_ns, self.pod, self.run_ns, self.returns)

    def deleted(self, at_ns: int) -> PodDeleted | None:
        """Its end, where that does not follow from its running time."""
        if self.end is EndReason.DELETED or (self.end is EndReason.FINISHED and not self.bound):
            return PodDeleted(at_ns, self.pod.key, self.pod.uid)
        return None

    def as_run(self) -> PodRun:
        pending = not self.on_node and self.ended_ns is None
        return PodRun(
            self.pod,
            self.created_ns,
            self.attempts,
            self.rejections,
            tuple(self.placements),
            self.ended_ns,
            self.end,
            self.message if pending else "",
        )


def fresh(pod: Pod) -> Pod:
    """The pod without what schedulers made of it."""
    status = PodStatus(
        phase="Pending",
        conditions=tuple(c for c in pod.status.conditions if c.type != POD_SCHEDULED),
        container_statuses=pod.status.container_statuses,
        init_container_statuses=pod.status.init_container_statuses,
    )
    return msgspec.structs.replace(placed(pod, ""), status=status)


def placed(pod: Pod, node: str) -> Pod:
    """The pod on that node; on none where it is empty."""
    if pod.spec.node_name == node:
        return pod
    return msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, node_name=node))
