"""A quarantined pod is not attempted until it changes."""

from __future__ import annotations

from asched.cycle.precheck import QUARANTINED
from asched.model.limits import POD_LIMITS
from asched.model.resources import Resource
from asched.state.records import Assigned, PodQuarantined, Rejected
from tests.core.hostile import HostileCore
from tests.security.hostile_objects import a_pod


def quarantined(core: HostileCore) -> Rejected:
    core.core.apply(PodQuarantined("evil/deadly-1", "u-deadly-1"))
    (decision,) = core.decide()
    assert isinstance(decision, Rejected)
    return decision


def test_pod_is_rejected_until_it_changes() -> None:
    core, pod = HostileCore(), a_pod("deadly", 1)
    core.see(Resource.PODS, pod)
    decision = quarantined(core)
    assert (decision.message, decision.unschedulable_plugins) == (QUARANTINED, (POD_LIMITS,))
    core.verify_replay()
    # Its own condition is no change.
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    pod["status"] = {"conditions": [condition]}
    core.see(Resource.PODS, pod)
    core.begin(400)
    (again,) = core.decide()
    assert isinstance(again, Rejected)
    pod["metadata"]["labels"] = {"app": "web"}
    core.see(Resource.PODS, pod)
    core.begin(20)
    (assigned,) = core.decide()
    assert isinstance(assigned, Assigned)
    assert not core.state.guards.quarantined
    core.verify_replay()


def test_pod_that_the_journal_does_not_know_yet() -> None:
    core, pod = HostileCore(), a_pod("deadly", 1)
    core.core.apply(PodQuarantined("evil/deadly-1", "u-deadly-1"))
    core.see(Resource.PODS, pod)
    (decision,) = core.decide()
    assert isinstance(decision, Rejected)
    core.verify_replay()


def test_another_pod_of_that_name() -> None:
    core, pod = HostileCore(), a_pod("deadly", 1)
    core.see(Resource.PODS, pod)
    quarantined(core)
    core.delete(Resource.PODS, pod)
    assert not core.state.guards.quarantined
    pod["metadata"]["uid"] = "another"
    core.see(Resource.PODS, pod)
    (decision,) = core.decide()
    assert isinstance(decision, Assigned)
