"""The scheduling queue, driven by records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import msgspec
import pytest

from asched.framework.events import (
    ActionType,
    ClusterEvent,
    ClusterEventWithHint,
    EventResource,
    QueueingHint,
)
from asched.framework.feature_gates import FeatureGates
from asched.framework.interface import (
    EnqueueExtensions,
    PreEnqueuePlugin,
    QueueSortPlugin,
)
from asched.framework.pod_info import PodInfo, QueuedPod
from asched.framework.status import Code, Status
from asched.model.meta import Object
from asched.model.node import Node
from asched.model.pod import Pod, PodSchedulingGroup
from asched.model.quantity import NS_PER_S
from asched.plugins.queue_and_bind import SchedulingGates
from asched.state import records as r
from asched.state.checkpoint import checkpoint_of, restore
from asched.state.fold import FoldError
from asched.state.running_attempts import MAX_EVENTS
from tests.state.description import active_in_order
from tests.state.objects import a_node, a_pod, bound, labelled
from tests.state.profiles import NodeWatcher, RoomWatcher, a_fold, loader, profile_of
from tests.state.queue_driver import Queue


class Broken(NodeWatcher):
    """Its hint raises."""

    name: ClassVar[str] = "Broken"
    api_version: ClassVar[int] = 1

    def events_to_register(self) -> Sequence[ClusterEventWithHint]:
        return (ClusterEventWithHint(ClusterEvent(EventResource.NODE, ActionType.ADD), _raise),)


def _raise(pod: Pod, old: Object | None, new: Object | None) -> QueueingHint:
    raise RuntimeError("a bug")


class ByName(QueueSortPlugin):
    """Only ``less``, by the label ``rank`` and then the name."""

    name: ClassVar[str] = "ByName"
    api_version: ClassVar[int] = 1

    def less(self, first: QueuedPod, second: QueuedPod) -> bool:
        return self._rank(first) < self._rank(second)

    @staticmethod
    def _rank(pod: QueuedPod) -> tuple[str, str]:
        return pod.info.labels.get("rank", ""), pod.info.name


class BrokenGate(PreEnqueuePlugin, EnqueueExtensions):
    """Its PreEnqueue raises for pods with the label ``bad``."""

    name: ClassVar[str] = "BrokenGate"
    api_version: ClassVar[int] = 1

    def pre_enqueue(self, pod: PodInfo) -> Status:
        if "bad" in pod.labels:
            raise RuntimeError("a bug")
        return Status()

    def events_to_register(self) -> Sequence[ClusterEventWithHint]:
        return ()


class NodeGate(PreEnqueuePlugin, EnqueueExtensions):
    """Pods wait until the cluster has a node named ``open``."""

    name: ClassVar[str] = "NodeGate"
    api_version: ClassVar[int] = 1

    def pre_enqueue(self, pod: PodInfo) -> Status:
        there = any(node.name == "open" for node in self.handle.cluster.objects(Node).values())
        return Status() if there else Status.unresolvable("no node is open")

    def events_to_register(self) -> Sequence[ClusterEventWithHint]:
        return (
            ClusterEventWithHint(
                ClusterEvent(EventResource.NODE, ActionType.ADD | ActionType.DELETE)
            ),
        )


BACKOFFS_S = (1, 2, 4, 8, 10, 10)


def test_backoff_doubles_up_to_ten_seconds() -> None:
    queue = Queue()
    queue.see(a_pod("p"))
    for number, backoff_s in enumerate(BACKOFFS_S):
        queue.reject("NodeWatcher")
        assert list(queue.queue.unschedulable) == ["default/p"]
        queue.see(a_node("n1", labels={"try": str(number)}))
        assert list(queue.queue.backoff) == ["default/p"]
        assert queue.queue.next_timer_ns() == queue.fold.state.now_ns + backoff_s * NS_PER_S
        queue.pass_time(backoff_s - 0.001)
        assert queue.queue.head() is None
        queue.pass_time(0.001)
        assert queue.names() == ["p"]


def test_errors_back_off_by_their_own_count() -> None:
    queue = Queue()
    queue.see(a_pod("p"))
    for _ in range(3):
        queue.reject("NodeWatcher")
        queue.pass_time(300)
    for backoff_s in BACKOFFS_S:
        queue.fail()
        queue.pass_time(backoff_s - 0.001)
        assert queue.queue.head() is None
        queue.pass_time(0.001)
    queue.reject("NodeWatcher")
    queue.see(a_node("n1"))
    # The fourth rejection: eight seconds, regardless of errors in between.
    assert queue.queue.next_timer_ns() == queue.fold.state.now_ns + 8 * NS_PER_S


def test_expired_backoff_is_skipped() -> None:
    queue = Queue()
    queue.see(a_pod("p"))
    queue.reject("NodeWatcher")
    queue.pass_time(5)
    queue.see(a_node("n1"))
    assert queue.names() == ["p"]


def test_rejected_pod_is_requeued_after_five_minutes() -> None:
    queue = Queue()
    queue.see(a_pod("p"))
    queue.reject("RoomWatcher")
    assert queue.queue.next_timer_ns() == 300 * NS_PER_S
    queue.pass_time(299.999)
    assert queue.queue.head() is None
    queue.pass_time(0.001)
    assert queue.names() == ["p"]


def test_pod_without_rejecting_plugin_backs_off() -> None:
    queue = Queue()
    queue.see(a_pod("p"))
    queue.reject()
    assert list(queue.queue.backoff) == ["default/p"]
    queue.pass_time(1)
    assert queue.names() == ["p"]


def test_only_events_of_rejecting_plugins_requeue() -> None:
    queue = Queue()
    queue.see(a_pod("room"), a_pod("node"))
    queue.reject("RoomWatcher")
    queue.reject("NodeWatcher")
    queue.pass_time(20)
    queue.see(a_node("n1"))
    assert queue.names() == ["node"]
    other = a_pod("other", on="n0")
    queue.see(other)
    assert queue.names() == ["node"]
    queue.apply(r.ObjectDeleted("Pod", other.key, other.uid))
    assert queue.names() == ["node", "room"]


def test_irrelevant_events_requeue_no_pod() -> None:
    queue = Queue()
    for number in range(50):
        queue.see(a_pod(f"p{number}"))
        queue.reject("RoomWatcher")
    queue.pass_time(20)
    for number in range(200):
        queue.see(a_node(f"n{number % 7}", labels={"beat": str(number)}))
        queue.see(a_pod(f"foreign-{number}", scheduler="else"))
    assert len(queue.queue.unschedulable) == 50


def test_failing_hint_counts_as_queue() -> None:
    queue = Queue(Broken)
    queue.see(a_pod("p"))
    queue.reject("Broken")
    queue.pass_time(20)
    queue.see(a_node("n1"))
    assert queue.names() == ["p"]


def test_event_during_binding_requeues_after_failure() -> None:
    queue = Queue()
    queue.see(a_pod("p"))
    assigned = queue.assign()
    queue.see(a_node("n1"))
    queue.unbind(assigned, Code.UNSCHEDULABLE, "NodeWatcher")
    assert list(queue.queue.backoff) == ["default/p"]


def test_event_before_decision_is_ignored() -> None:
    queue = Queue()
    queue.see(a_pod("p"), a_pod("long"))
    queue.assign()
    queue.see(a_node("n1"))
    assigned = queue.assign()
    queue.unbind(assigned, Code.UNSCHEDULABLE, "NodeWatcher")
    assert list(queue.queue.unschedulable) == [assigned.key]


def test_failed_binding_requeues_other_pods_only() -> None:
    queue = Queue()
    queue.see(a_pod("first"), a_pod("second"))
    assigned = queue.assign()
    queue.reject("RoomWatcher")
    queue.pass_time(20)
    queue.unbind(assigned, Code.UNSCHEDULABLE, "RoomWatcher")
    assert list(queue.queue.unschedulable) == ["default/first"]
    assert queue.names() == ["second"]


def test_pod_bound_elsewhere_releases_assumed_node() -> None:
    queue = Queue()
    queue.see(a_node("n1"), a_pod("first"), a_pod("second"))
    queue.assign("n0")
    queue.reject("RoomWatcher")
    queue.pass_time(20)
    queue.see(bound(a_pod("first"), "n1"))
    assert queue.names() == ["second"]
    assert queue.fold.state.nodes.pod_count.tolist() == [0, 1]


def test_event_of_pending_plugin_skips_backoff() -> None:
    queue = Queue()
    queue.see(a_pod("p"))
    queue.reject("RoomWatcher", pending=("NodeWatcher",))
    queue.see(a_node("n1"))
    assert queue.names() == ["p"]


def test_event_of_other_plugin_backs_off_despite_pending_plugin() -> None:
    queue = Queue()
    other = a_pod("other", on="n0")
    queue.see(a_pod("p"), other)
    queue.reject("RoomWatcher", pending=("NodeWatcher",))
    queue.apply(r.ObjectDeleted("Pod", other.key, other.uid))
    assert list(queue.queue.backoff) == ["default/p"]


def test_own_update_requeues_only_that_pod() -> None:
    queue = Queue()
    queue.see(a_pod("p"), a_pod("q"))
    queue.reject("RoomWatcher")
    queue.reject("RoomWatcher")
    queue.pass_time(20)
    queue.see(labelled(a_pod("p"), app="new"))
    assert queue.names() == ["p"]


def test_own_update_during_binding_requeues_after_failure() -> None:
    queue = Queue()
    queue.see(a_pod("p"))
    assigned = queue.assign()
    queue.see(labelled(a_pod("p"), app="new"))
    queue.unbind(assigned, Code.UNSCHEDULABLE, "RoomWatcher")
    assert list(queue.queue.backoff) == ["default/p"]


def test_gated_pod_waits_until_gates_are_removed() -> None:
    queue = Queue()
    queue.see(a_pod("p", gates=("a", "b")))
    assert list(queue.queue.gated) == ["default/p"]
    assert queue.queue.next_timer_ns() is None
    queue.pass_time(1000)
    queue.see(a_node("n1"), a_pod("p", gates=("b",)))
    assert list(queue.queue.gated) == ["default/p"]
    queue.see(a_pod("p"))
    assert queue.names() == ["p"]


def test_entered_at_is_set_once_when_first_ungated() -> None:
    """``InitialAttemptTimestamp``."""
    queue = Queue(NodeGate)
    queue.see(a_pod("p"))
    [pod] = queue.queue
    assert [waiting.entered_at_ns for waiting in queue.queue] == [None]
    queue.pass_time(1000)
    queue.see(a_node("open"))
    assert pod.entered_at_ns == queue.fold.state.now_ns == 1000 * NS_PER_S
    assert pod.timestamp_ns == 0
    queue.pass_time(1)
    queue.apply(r.ObjectDeleted("Node", "open"))
    queue.see(labelled(a_pod("p"), app="new"))
    assert list(queue.queue.gated) == ["default/p"]
    queue.pass_time(1)
    queue.see(a_node("open"))
    assert queue.names() == ["p"]
    assert pod.entered_at_ns == 1000 * NS_PER_S


def test_decision_about_gated_pod_is_a_replay_mismatch() -> None:
    """A later release of a plugin gates a pod that has a recorded decision."""
    queue = Queue(SchedulingGates, NodeWatcher)
    queue.see(a_pod("p", gates=("a",)))
    [pod] = queue.queue
    queue.apply(r.Rejected("default/p", pod.info.uid, 1, "no", ("NodeWatcher",)))
    assert queue.queue.replay_mismatches == 1
    queue.see(a_node("n1"))
    assert list(queue.queue.backoff) == ["default/p"]


def test_failing_pre_enqueue_gates_only_its_pod() -> None:
    queue = Queue(BrokenGate)
    queue.see(a_pod("bad", labels={"bad": "yes"}), a_pod("good"))
    assert list(queue.queue.gated) == ["default/bad"]
    assert queue.names() == ["good"]
    queue.see(a_pod("bad"))
    assert sorted(queue.names()) == ["bad", "good"]


def test_order_is_by_priority_then_waiting_time() -> None:
    queue = Queue()
    queue.see(a_pod("old"))
    queue.pass_time(1)
    queue.see(a_pod("new"), a_pod("vip", priority=9), a_pod("newest"))
    assert queue.names() == ["vip", "old", "new", "newest"]


def test_requeued_pod_sorts_by_time_of_rejection() -> None:
    queue = Queue()
    queue.see(a_pod("first"), a_pod("second"))
    assigned = queue.assign()
    queue.pass_time(1)
    queue.unbind(assigned, Code.ERROR)
    queue.pass_time(10)
    # The stale heap entry of the first attempt does not count.
    assert queue.names() == ["second", "first"]
    assert queue.head().info.name == "second"


def test_queue_sort_with_less_only() -> None:
    queue = Queue(ByName)
    queue.see(a_pod("c"), a_pod("a"), a_pod("b", labels={"rank": "z"}))
    assert queue.names() == ["a", "c", "b"]
    queue.see(labelled(a_pod("a"), rank="y"))
    assert queue.names() == ["c", "a", "b"]
    assert queue.head().info.name == "c"


def test_profiles_have_separate_pods_and_plugins() -> None:
    specs = (profile_of(NodeWatcher), profile_of(RoomWatcher, name="batch"))
    fold = a_fold(NodeWatcher, RoomWatcher, profiles=specs)
    for pod in (a_pod("p"), a_pod("q", scheduler="batch"), a_pod("r", scheduler="else")):
        fold.apply(r.ObjectObserved(pod))
    queue = fold.state.queue
    assert [pod.info.name for pod in active_in_order(queue)] == ["p", "q"]
    for key, uid in (("default/p", "pod-p"), ("default/q", "pod-q")):
        fold.apply(r.Rejected(key, uid, 1, "no", ("NodeWatcher",)))
    fold.apply(r.TurnStarted(20 * NS_PER_S))
    fold.apply(r.ObjectObserved(a_node("n0")))
    # The batch profile has no NodeWatcher, so no hint returns QUEUE for its pod.
    assert [pod.info.name for pod in active_in_order(queue)] == ["p"]


@pytest.mark.parametrize("restarts", [False, True])
def test_hints_of_profiles_without_waiting_pods_are_not_evaluated(restarts: bool) -> None:
    evaluated: list[str] = []

    class Logged(NodeWatcher):
        name: ClassVar[str] = "Logged"

        def events_to_register(self) -> Sequence[ClusterEventWithHint]:
            added = ClusterEvent(EventResource.NODE, ActionType.ADD)
            return (ClusterEventWithHint(added, self._hint, only_for=self._named),)

        def _named(self) -> Sequence[str]:
            evaluated.append("only_for")
            return ("default/p", "default/q")

        def _hint(self, pod: Pod, old: Object | None, new: Object | None) -> QueueingHint:
            evaluated.append(pod.metadata.name)
            return QueueingHint.SKIP

    specs = (profile_of(Logged), profile_of(Logged, name="batch"))
    fold = a_fold(Logged, profiles=specs)
    for pod in (a_pod("p"), a_pod("q", scheduler="batch")):
        fold.apply(r.ObjectObserved(pod))
    fold.apply(r.ObjectObserved(a_node("n0")))
    assert evaluated == []
    fold.apply(r.Rejected("default/p", "pod-p", 1, "no", ("Logged",)))
    if restarts:
        fold = restore(checkpoint_of(fold.state), loader(Logged))
    fold.apply(r.ObjectObserved(a_node("n1")))
    assert evaluated == ["only_for", "p"]
    fold.apply(r.Rejected("default/q", "pod-q", 1, "no", ("Logged",)))
    fold.apply(r.ObjectDeleted("Pod", "default/p", "pod-p"))
    evaluated.clear()
    fold.apply(r.ObjectObserved(a_node("n2")))
    assert evaluated == ["only_for", "q"]


def test_new_profiles_sort_all_waiting_pods() -> None:
    queue = Queue()
    queue.see(a_pod("p"), a_pod("q"), a_pod("other", scheduler="batch"))
    queue.reject("NodeWatcher")
    queue.fail()
    loaded = profile_of(SchedulingGates, NodeWatcher, RoomWatcher)
    queue.apply(r.ProfilesLoaded((loaded, profile_of(name="batch"))))
    assert sorted(queue.names()) == ["other", "p", "q"]
    queue.apply(r.ProfilesLoaded((profile_of(name="batch"),)))
    assert queue.names() == ["other"]


@pytest.mark.parametrize("restarts", [False, True])
def test_pod_that_is_requeued_first_stays_first_when_it_changes(restarts: bool) -> None:
    queue = Queue()
    queue.see(a_pod("low"))
    made_room = r.Rejected("default/low", "pod-low", 1, "released", requeue_now=True)
    queue.apply(made_room)
    queue.see(a_pod("high", priority=10))
    assert queue.names() == ["low", "high"]
    if restarts:
        plugins = (SchedulingGates, NodeWatcher, RoomWatcher)
        queue.fold = restore(checkpoint_of(queue.fold.state), loader(*plugins))
    queue.see(labelled(a_pod("low"), changed="yes"))
    assert queue.names() == ["low", "high"]
    queue.assign()
    queue.see(labelled(a_pod("high", priority=10), changed="yes"), a_pod("higher", priority=20))
    assert queue.names() == ["higher", "high"]


def test_pods_of_a_new_profile_keep_their_nominations() -> None:
    queue = Queue()
    queue.see(a_pod("p", scheduler="batch", nominated="n0"), a_pod("q", nominated="n1"))
    nominator = queue.fold.state.nominator
    assert [*nominator.by_node] == ["n1"]
    queue.apply(r.ProfilesLoaded((profile_of(name="batch"),)))
    assert {node: [*pods] for node, pods in nominator.by_node.items()} == {"n0": ["default/p"]}


def test_failed_binding_of_removed_profile_leaves_the_queue() -> None:
    queue = Queue()
    queue.see(a_pod("p"))
    assigned = queue.assign()
    queue.apply(r.ProfilesLoaded((profile_of(name="batch"),)))
    queue.unbind(assigned, Code.ERROR)
    assert len(queue.queue) == 0
    assert list(queue.queue.in_flight) == []


def test_decision_about_unqueued_pod_is_rejected() -> None:
    queue = Queue()
    queue.see(a_pod("p"))
    queue.assign()
    with pytest.raises(FoldError, match="which is not pending"):
        queue.fold.apply(r.Rejected("default/p", "pod-p", 2, "no"))
    queue.see(a_pod("q"))
    with pytest.raises(FoldError, match="which is unknown"):
        queue.assign("nowhere")


def test_decreasing_time_is_rejected() -> None:
    queue = Queue()
    queue.pass_time(5)
    with pytest.raises(FoldError, match="backwards"):
        queue.pass_time(-1)


def test_order_does_not_depend_on_reads() -> None:
    """Reading the head in between does not change the order."""
    watched, unwatched = Queue(), Queue()
    for queue in (watched, unwatched):
        for number in range(200):
            queue.see(a_pod(f"p{number}", priority=number % 3))
            if number % 2:
                if queue is watched:
                    queue.head()
                names = queue.names()
                info = queue.queue.active[f"default/{names[0]}"].info
                queue.apply(r.AttemptFailed(info.key, info.uid, 1, "X", "oops"))
            queue.pass_time(1)
    assert watched.names() == unwatched.names()
    assert len(watched.names()) > 100


# -- SchedulerPopFromBackoffQ ---------------------------------------------------------------------


def early_queue(*names: str) -> Queue:
    """A queue that pops from backoff, with these pods backing off after a rejection."""
    queue = Queue(pop_from_backoff=True)
    queue.pass_time(0.25)
    for name in names:
        queue.see(a_pod(name))
        queue.reject("NodeWatcher")
    queue.see(a_node("n1"))
    return queue


def test_rejected_pod_is_popped_from_backoff_while_no_pod_is_active() -> None:
    queue = early_queue("p")
    assert list(queue.queue.backoff) == ["default/p"]
    assert queue.names() == []
    assert queue.head().info.key == "default/p"
    queue.see(a_pod("q"))
    assert queue.head().info.key == "default/q"
    queue.reject("NodeWatcher")
    queue.reject("NodeWatcher")
    assert list(queue.queue.unschedulable) == ["default/q", "default/p"]
    assert not queue.queue.backoff
    assert not queue.queue.replay_mismatches
    assert queue.queue.incoming["active", "PopFromBackoffQ"] == 1


def test_pod_that_backs_off_after_an_error_is_not_popped_early() -> None:
    queue = Queue(pop_from_backoff=True)
    queue.see(a_pod("p"))
    queue.fail()
    assert list(queue.queue.backoff) == ["default/p"]
    assert queue.queue.head() is None


def test_backoffs_that_end_in_one_second_end_together_in_order_of_priority() -> None:
    queue = early_queue("first")
    queue.pass_time(0.25)
    queue.see(a_pod("urgent", priority=9))
    queue.reject("NodeWatcher")
    queue.see(a_node("n2"))
    assert sorted(queue.queue.backoff) == ["default/first", "default/urgent"]
    assert queue.head().info.key == "default/urgent"
    # 0.25 s and 0.5 s plus 1 s of backoff, each at the end of its second.
    assert queue.queue.next_timer_ns() == 2 * NS_PER_S
    queue.pass_time(1.5)
    assert queue.names() == ["urgent", "first"]


def test_backoff_that_ends_in_an_earlier_second_is_popped_first() -> None:
    queue = early_queue("first")
    queue.pass_time(1)
    queue.see(a_pod("urgent", priority=9))
    queue.reject("NodeWatcher")
    queue.see(a_node("n2"))
    assert queue.head().info.key == "default/first"


def test_member_of_a_gang_keeps_its_backoff() -> None:
    queue = Queue(pop_from_backoff=True)
    plain = a_pod("p")
    group = PodSchedulingGroup(pod_group_name="g")
    spec = msgspec.structs.replace(plain.spec, scheduling_group=group)
    queue.see(msgspec.structs.replace(plain, spec=spec))
    queue.reject("NodeWatcher")
    queue.see(a_node("n1"))
    assert list(queue.queue.backoff) == ["default/p"]
    assert queue.queue.head() is None


def test_changed_pod_keeps_its_backoff_and_is_sorted_again() -> None:
    queue = early_queue("p", "q")
    assert queue.head().info.key == "default/p"
    queue.see(a_pod("q", priority=5))
    assert queue.head().info.key == "default/q"
    assert sorted(queue.queue.backoff) == ["default/p", "default/q"]


def test_pod_is_gated_before_it_backs_off() -> None:
    queue = Queue(NodeGate, NodeWatcher, pop_from_backoff=True)
    queue.see(a_node("open"), a_pod("p"))
    queue.reject("NodeWatcher")
    queue.apply(r.ObjectDeleted("Node", "open"))
    queue.see(a_node("n0", labels={"a": "b"}))
    assert list(queue.queue.gated) == ["default/p"]
    assert queue.queue.head() is None


def test_reload_of_the_gate_sorts_pods_again() -> None:
    queue = early_queue("p")
    assert queue.queue.head() is not None
    spec = queue.fold.state.profiles["default-scheduler"].spec
    off = FeatureGates(scheduler_pop_from_backoff_q=False)
    queue.apply(r.ProfilesLoaded((spec,), feature_gates=off))
    assert queue.names() == ["p"]


def test_checkpoint_keeps_the_order_of_early_pods() -> None:
    queue = early_queue("p", "q", "r")
    queue.see(a_pod("q", priority=5))
    load = loader(SchedulingGates, NodeWatcher, RoomWatcher)
    restored = restore(checkpoint_of(queue.fold.state), load).state.queue
    keys = []
    while (head := restored.head()) is not None:
        keys.append(head.info.key)
        restored.pop(head.info.key)
    assert keys == ["default/q", "default/p", "default/r"]


def flood(queue: Queue, events: int, *, label_bytes: int = 10) -> None:
    """Label updates of a pod on a node."""
    for number in range(events):
        pod = bound(a_pod("loud", labels={"l": f"{number}" + "x" * label_bytes}), "n0")
        queue.fold.apply(r.ObjectObserved(pod))


@pytest.mark.parametrize(("events", "label_bytes"), [(5_000, 10), (600, 10_000)])
def test_events_for_a_pod_in_flight_are_limited(events: int, label_bytes: int) -> None:
    queue = Queue()
    queue.see(a_pod("waits-for-volumes"))
    assigned = queue.assign()
    flood(queue, events, label_bytes=label_bytes)
    assert len(queue.queue.events) < min(events, MAX_EVENTS)
    restored = restore(
        checkpoint_of(queue.fold.state), loader(SchedulingGates, NodeWatcher, RoomWatcher)
    )
    assert len(restored.state.queue.events) == len(queue.queue.events)
    queue.unbind(assigned, Code.UNSCHEDULABLE, "NodeWatcher")
    # One of the dropped events may have helped it.
    assert "default/waits-for-volumes" in queue.queue.backoff
    assert not queue.queue.events


def test_few_events_for_a_pod_in_flight_are_kept() -> None:
    queue = Queue()
    queue.see(a_pod("waits-for-volumes"))
    assigned = queue.assign()
    flood(queue, 600)
    assert len(queue.queue.events) == 600
    queue.unbind(assigned, Code.UNSCHEDULABLE, "NodeWatcher")
    assert "default/waits-for-volumes" in queue.queue.unschedulable
