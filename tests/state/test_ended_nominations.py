"""Ended nominations: which pods are requeued."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from asched.framework.status import Code
from asched.model.pod import Pod, PodSchedulingGroup
from asched.state import records as r
from asched.state.checkpoint import checkpoint_of, restore
from tests.state.objects import a_node, a_pod, bound
from tests.state.profiles import RoomWatcher, loader
from tests.state.queue_driver import Queue

BIG = a_pod("big", priority=10)
SMALL, PEER, HIGH = "default/small", "default/peer", "default/high"


def nominated(pod: Pod, node: str) -> Pod:
    return a_pod(pod.name, uid=pod.uid, priority=pod.spec.priority, nominated=node)


def world() -> Queue:
    """``big`` is nominated to n0; pods of lower, equal and higher priority were rejected since."""
    queue = Queue(RoomWatcher)
    queue.see(a_node("n1"), BIG)
    queue.reject("RoomWatcher", nominated="n0")
    queue.see(nominated(BIG, "n0"))
    for pod in (a_pod("small"), a_pod("peer", priority=10), a_pod("high", priority=11)):
        queue.see(pod)
        queue.reject("RoomWatcher")
    assert {SMALL, PEER, HIGH} <= {*queue.queue.unschedulable}
    return queue


def tried_anew(queue: Queue, key: str) -> None:
    """The pod is active, while the others wait."""
    queue.queue.activate(key, queue.fold.state.now_ns)
    assert [*queue.queue.active] == [key]


def deleted(queue: Queue) -> None:
    queue.apply(r.ObjectDeleted("Pod", BIG.key, BIG.uid))


def replaced(queue: Queue) -> None:
    queue.see(a_pod("big", uid="another", gates=("held",)))


def taken_back_by_another(queue: Queue) -> None:
    queue.see(BIG)


def moved_by_another(queue: Queue) -> None:
    queue.see(nominated(BIG, "n1"))


def decided_away(queue: Queue) -> None:
    tried_anew(queue, BIG.key)
    queue.reject("RoomWatcher", nominated="")


def decided_to_another_node(queue: Queue) -> None:
    tried_anew(queue, BIG.key)
    queue.reject("RoomWatcher", nominated="n1")


def assigned_elsewhere(queue: Queue) -> None:
    tried_anew(queue, BIG.key)
    queue.assign("n1")


def bound_elsewhere_by_another(queue: Queue) -> None:
    queue.see(bound(nominated(BIG, "n0"), "n1"))


def displaced(queue: Queue) -> None:
    queue.see(a_pod("urgent", priority=20))
    queue.reject("RoomWatcher", nominated="n0", displaced=(BIG,))


WAYS = (
    deleted, replaced, taken_back_by_another, moved_by_another, decided_away,
    decided_to_another_node, assigned_elsewhere, bound_elsewhere_by_another, displaced,
)  # fmt: skip
ways = pytest.mark.parametrize("lose", WAYS, ids=lambda way: way.__name__)


@ways
def test_ended_nomination_requeues_blocked_pods(lose: Callable[[Queue], None]) -> None:
    queue = world()
    lose(queue)
    assert {SMALL, PEER} <= {*queue.queue.backoff}
    assert HIGH in queue.queue.unschedulable


def assigned_there(queue: Queue) -> None:
    tried_anew(queue, BIG.key)
    queue.assign("n0")


def decided_to_the_same_node(queue: Queue) -> None:
    tried_anew(queue, BIG.key)
    queue.reject("RoomWatcher", nominated="n0")


def decided_without_a_word_of_it(queue: Queue) -> None:
    tried_anew(queue, BIG.key)
    queue.reject("RoomWatcher")


def bound_there_by_another(queue: Queue) -> None:
    queue.see(bound(nominated(BIG, "n0"), "n0"))


def shown_again(queue: Queue) -> None:
    queue.see(nominated(BIG, "n0"))


@pytest.mark.parametrize(
    "keep",
    [
        assigned_there, decided_to_the_same_node, decided_without_a_word_of_it,
        bound_there_by_another, shown_again,
    ],
    ids=lambda way: way.__name__,
)  # fmt: skip
def test_kept_or_used_nomination_requeues_no_pod(keep: Callable[[Queue], None]) -> None:
    queue = world()
    keep(queue)
    assert {SMALL, PEER, HIGH} <= {*queue.queue.unschedulable}


def member(pod: Pod) -> Pod:
    spec = msgspec.structs.replace(
        pod.spec, scheduling_group=PodSchedulingGroup(pod_group_name="gang")
    )
    return msgspec.structs.replace(pod, spec=spec)


@pytest.mark.parametrize("nominated_to", ["n0", ""])
def test_nominated_node_released_on_permit_requeues_blocked_pods(nominated_to: str) -> None:
    """A member of a gang waited on the node. The other pod was rejected before the wait, while the
    member was nominated to the node or not."""
    queue = Queue(RoomWatcher)
    big = member(BIG)
    queue.see(a_node("n1"), big)
    queue.reject("RoomWatcher", nominated=nominated_to)
    queue.see(a_pod("small"))
    queue.reject("RoomWatcher")
    queue.pass_time(1)
    tried_anew(queue, BIG.key)
    wait = r.PermitWait("Doorman", queue.fold.state.now_ns + 10**10)
    queue.apply(r.Assigned(BIG.key, BIG.uid, "n0", 2, 1, permit_waits=(wait,)))
    queue.apply(r.PermitRejected(BIG.key, BIG.uid, "Doorman", "not now"))
    assert (SMALL in queue.queue.unschedulable) is (nominated_to == "")


def test_pod_with_cleared_nomination_is_requeued() -> None:
    queue = world()
    displaced(queue)
    assert BIG.key in queue.queue.backoff


@pytest.mark.parametrize(("key", "heard"), [(SMALL, True), (PEER, True), (HIGH, False)])
def test_in_flight_pod_gets_event_of_ended_nomination(key: str, heard: bool) -> None:
    queue = world()
    tried_anew(queue, key)
    assigned = queue.assign("n1")
    deleted(queue)
    fold = restore(checkpoint_of(queue.fold.state), loader(RoomWatcher))
    fold.apply(r.BindFailed(key, assigned.uid, "n1", Code.UNSCHEDULABLE, "RoomWatcher", "no"))
    assert (key in fold.state.queue.backoff) is heard
