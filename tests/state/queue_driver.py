"""The queue, driven by records."""

from __future__ import annotations

from asched.framework.cluster import PodRef
from asched.framework.feature_gates import FeatureGates
from asched.framework.interface import Plugin
from asched.framework.pod_info import QueuedPod
from asched.framework.status import Code
from asched.model.pod import Pod
from asched.model.quantity import NS_PER_S
from asched.model.resources import AnyObject
from asched.plugins.queue_and_bind import SchedulingGates
from asched.state import records as r
from asched.state.queue import SchedulingQueue
from asched.testing.invariants import check
from tests.state.description import active_in_order
from tests.state.objects import a_node
from tests.state.profiles import NodeWatcher, RoomWatcher, a_fold


class Queue:
    """A fold; the test decides about the head of its queue."""

    def __init__(self, *plugins: type[Plugin], pop_from_backoff: bool = False) -> None:
        self.fold = a_fold(
            *(plugins or (SchedulingGates, NodeWatcher, RoomWatcher)),
            gates=FeatureGates(scheduler_pop_from_backoff_q=pop_from_backoff),
        )
        self.apply(r.EngineStarted("test", 0))
        self.see(a_node("n0"))

    @property
    def queue(self) -> SchedulingQueue:
        return self.fold.state.queue

    def apply(self, record: r.AnyRecord) -> None:
        self.fold.apply(record)
        check(self.fold.state)

    def see(self, *objects: AnyObject) -> None:
        for item in objects:
            self.apply(r.ObjectObserved(item))

    def pass_time(self, seconds: float) -> None:
        self.apply(r.TurnStarted(self.fold.state.now_ns + round(seconds * NS_PER_S)))

    def head(self) -> QueuedPod:
        head = self.queue.head()
        assert head is not None
        return head

    def reject(
        self,
        *plugins: str,
        pending: tuple[str, ...] = (),
        nominated: str | None = None,
        displaced: tuple[Pod, ...] = (),
    ) -> None:
        head = self.head()
        key, uid = head.info.key, head.info.uid
        self.apply(
            r.Rejected(
                key,
                uid,
                head.attempts + 1,
                "no",
                plugins,
                pending,
                nominated,
                cleared_nominations=tuple(PodRef(pod.key, pod.uid) for pod in displaced),
            )
        )

    def fail(self) -> None:
        head = self.head()
        key, uid = head.info.key, head.info.uid
        self.apply(r.AttemptFailed(key, uid, head.attempts + 1, "X", "oops"))

    def assign(self, node: str = "n0") -> r.Assigned:
        head = self.head()
        assigned = r.Assigned(head.info.key, head.info.uid, node, head.attempts + 1, 1)
        self.apply(assigned)
        return assigned

    def unbind(self, assigned: r.Assigned, code: Code, plugin: str = "") -> None:
        self.apply(r.BindFailed(assigned.key, assigned.uid, assigned.node, code, plugin, "no"))

    def names(self) -> list[str]:
        return [pod.info.name for pod in active_in_order(self.queue)]
