"""A preemptor is bound once its own victims are gone, while later preemptors still wait."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from asched.model.resources import Resource
from asched.state.records import Assigned, Rejected
from tests.core.hostile import HostileCore
from tests.security.hostile_objects import Json, a_pod, plain_preemptor

NODES = 6
CONDITION = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}


def victims(node: int) -> list[Json]:
    """Two pods that fill half of a node each."""
    pods = [a_pod("victim", 2 * node + index, nodeName=f"n{node}") for index in range(2)]
    for pod in pods:
        pod["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "31"}}
    return pods


def full_cluster() -> HostileCore:
    core = HostileCore(nodes=NODES)
    for node in range(NODES):
        for pod in victims(node):
            core.see(Resource.PODS, pod)
    return core


def preempting_core() -> tuple[HostileCore, Rejected]:
    """The first of several preemptors has selected its victims; the others wait behind it."""
    core = full_cluster()
    for number in range(NODES):
        core.see(Resource.PODS, plain_preemptor(number, 0))
    (first,) = core.decide(1)
    assert isinstance(first, Rejected)
    assert len(first.victims) == 2
    return core, first


def nominated(preemptor: Rejected) -> int:
    """The number of the node that the preemptor is nominated to."""
    assert preemptor.nominated_node is not None
    return int(preemptor.nominated_node.removeprefix("n"))


def terminating(pod: Json) -> Json:
    changed: dict[str, Any] = deepcopy(pod)
    changed["metadata"] |= {"deletionTimestamp": "2026-01-01T00:00:30Z"}
    changed["status"] = {"conditions": [CONDITION]}
    return changed


def test_preemptor_precedes_those_that_came_later() -> None:
    core, first = preempting_core()
    one, two = victims(nominated(first))
    for pod in (one, two):
        core.see(Resource.PODS, terminating(pod))
    core.delete(Resource.PODS, terminating(one))
    core.begin()
    assert first.key not in core.state.queue.active
    core.delete(Resource.PODS, terminating(two))
    # No second has passed since the attempt, and the queue has other pods of its priority.
    assert core.state.queue.head() is core.state.queue.find_queued(first.key)
    (retried,) = core.decide(1)
    assert isinstance(retried, Assigned)
    assert (retried.key, retried.node) == (first.key, first.nominated_node)
    core.verify_replay()


def test_pod_of_higher_priority_still_precedes_the_preemptor() -> None:
    core, first = preempting_core()
    urgent = plain_preemptor(NODES, 0)
    urgent["spec"]["priority"] = 20
    for pod in victims(nominated(first)):
        core.see(Resource.PODS, terminating(pod))
        core.delete(Resource.PODS, terminating(pod))
    assert first.key in core.state.queue.active
    core.see(Resource.PODS, urgent)
    head = core.state.queue.head()
    assert head is not None
    assert head.info.priority == 20
    core.decide()
    core.verify_replay()


def test_another_pod_that_leaves_does_not_end_the_backoff() -> None:
    core = full_cluster()
    other = a_pod("other", 0, nodeName="n0")
    core.see(Resource.PODS, other)
    core.see(Resource.PODS, plain_preemptor(0, 0))
    for number in range(1, NODES):
        core.see(Resource.PODS, plain_preemptor(number, 0))
    decided = core.decide(NODES)
    on_other_nodes = [r for r in decided if isinstance(r, Rejected) and r.nominated_node != "n0"]
    core.delete(Resource.PODS, other)
    assert not core.state.queue.active.keys() & {r.key for r in on_other_nodes}
    core.verify_replay()
