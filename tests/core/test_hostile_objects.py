"""No object of a tenant makes the state, the journal or a decision expensive."""

from __future__ import annotations

import json

import pytest

from asched.cycle.inspect import AttemptOutcome, inspect
from asched.cycle.shadow import ShadowDecider
from asched.model.limits import KIB, POD_LIMITS
from asched.model.resources import GroupResource, Resource
from asched.state.records import Assigned, ObjectObserved, Rejected, TurnStarted
from tests.batch.worlds import session_spec
from tests.core.hostile import HostileCore, stored_bytes
from tests.security.hostile_objects import POD_CLASSES, SMALL, HostileClass, a_pod

OWN = [c for c in POD_CLASSES if c.name not in ("labels", "scheduler name")]
"""The pods that our profile schedules."""


@pytest.mark.parametrize("hostile", POD_CLASSES, ids=lambda c: c.name)
def test_large_pod_leaves_a_small_record(hostile: HostileClass) -> None:
    seen = HostileCore().see(hostile.resource, hostile.raw(1))
    assert [type(record) for record in seen] == [ObjectObserved]
    assert stored_bytes(seen) < 32 * KIB


@pytest.mark.parametrize("hostile", OWN, ids=lambda c: c.name)
def test_large_pod_is_rejected_without_an_attempt(hostile: HostileClass) -> None:
    core = HostileCore()
    core.see(hostile.resource, hostile.raw(1))
    core.innocent(1)
    rejected, assigned = core.decide()
    assert isinstance(rejected, Rejected)
    assert rejected.message.startswith("too expensive: ")
    assert rejected.unschedulable_plugins == (POD_LIMITS,)
    assert isinstance(assigned, Assigned)
    core.verify_replay()


def test_message_names_the_limit() -> None:
    core = HostileCore()
    terms = [{"topologyKey": f"k{i}"} for i in range(2000)]
    rule = {"requiredDuringSchedulingIgnoredDuringExecution": terms}
    core.see(Resource.PODS, a_pod("terms", 1, affinity={"podAntiAffinity": rule}))
    (rejected,) = core.decide()
    assert isinstance(rejected, Rejected)
    expected = "too expensive: 2,000 affinity terms and spread constraints, at most 128"
    assert rejected.message == expected
    entry = core.state.pods["evil/terms-1"]
    profile = core.state.profiles["default-scheduler"]
    found = inspect(core.state, profile, entry.info)
    assert (found.outcome, found.message) == (AttemptOutcome.UNSCHEDULABLE, expected)
    assert ShadowDecider(core.state).decide(entry.info).message == expected


def test_rejected_pod_waits_for_its_own_change() -> None:
    core = HostileCore()
    labels = {f"l{i}": "v" for i in range(300)}
    pod = a_pod("labelled", 1, meta={"labels": labels})
    core.see(Resource.PODS, pod)
    core.decide()
    core.see(Resource.PODS, a_pod("another", 1, nodeName="n1"))
    core.begin(20)
    assert core.decide() == []
    pod["metadata"]["labels"] = {"app": "web"}
    core.see(Resource.PODS, pod)
    core.begin(20)
    (assigned,) = core.decide()
    assert isinstance(assigned, Assigned)
    core.verify_replay()


def test_label_patches_leave_one_record() -> None:
    """Also of pods of another scheduler."""
    hostile = next(c for c in POD_CLASSES if c.name == "labels")
    core = HostileCore()
    core.see(hostile.resource, hostile.raw(1, SMALL))
    size_bytes = 0
    kinds = []
    for value in range(20):
        pod = json.loads(hostile.raw(1, 730_000))
        pod["metadata"]["labels"] = dict.fromkeys(pod["metadata"]["labels"], f"v{value}")
        core.begin()
        seen = core.see(hostile.resource, pod)
        kinds += [type(r) for r in seen if not isinstance(r, TurnStarted)]
        size_bytes += stored_bytes(seen)
    assert kinds == [ObjectObserved]
    assert size_bytes < 2 * KIB


def test_bound_pod_counts_on_its_node() -> None:
    core = HostileCore(nodes=1)
    tolerations = [{"key": f"k{i}", "operator": "Exists"} for i in range(1000)]
    pod = a_pod("bound", 1, nodeName="n0", tolerations=tolerations)
    pod["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "63950m"
    core.see(Resource.PODS, pod)
    core.innocent(1)
    (rejected,) = core.decide()
    assert isinstance(rejected, Rejected)
    assert rejected.message.startswith("0/1 nodes are available: 1 Insufficient cpu.")
    core.verify_replay()


def test_batch_session_rejects_the_pod_once() -> None:
    core = HostileCore(session=session_spec("allocate"))
    queue = {"metadata": {"name": "default", "uid": "q"}, "spec": {"weight": 1}}
    core.see(GroupResource.VOLCANO_QUEUES, queue)
    tolerations = [{"key": f"k{i}", "operator": "Exists"} for i in range(1000)]
    core.see(Resource.PODS, a_pod("wide", 1, schedulerName="batch", tolerations=tolerations))
    core.see(Resource.PODS, a_pod("usual", 1, schedulerName="batch"))
    core.begin(2)
    decisions = core.decide()
    (rejected,) = (d for d in decisions if isinstance(d, Rejected))
    assert rejected.key == "evil/wide-1"
    assert rejected.message == "too expensive: 1,000 tolerations, at most 256"
    (assigned,) = (d for d in decisions if isinstance(d, Assigned))
    assert assigned.key == "evil/usual-1"
    core.see(Resource.PODS, a_pod("more", 1, schedulerName="batch"))
    core.begin(2)
    assert not [d for d in core.decide() if isinstance(d, Rejected)]
    core.verify_replay()
