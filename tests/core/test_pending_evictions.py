"""Reports of evictions are recorded when the watch confirms them."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
import pytest

from asched.core.confirmations import PendingEvictions
from asched.framework.cluster import PodRef
from asched.framework.sessions import SessionSpec
from asched.framework.status import Code
from asched.model.pod import ContainerStatus, Pod, ResourceRequirements
from asched.plugins.default_preemption.plugin import DefaultPreemption
from asched.state.fold import Fold
from asched.state.observe import ObservedChange, observe_deletion, observe_object
from asched.state.records import (
    Assigned,
    BindFailed,
    EvictionSucceeded,
    ObjectObserved,
    PodObserved,
    Rejected,
)
from asched.state.session_records import SessionsLoaded
from tests.state.objects import a_node, a_pod, bound, deleted, in_phase
from tests.state.profiles import a_fold

WHEN = datetime(2026, 1, 1, tzinfo=UTC)


def _with_victim() -> tuple[Fold, Pod]:
    fold, pod = a_fold(), bound(a_pod("victim"), "n0")
    for seen in (a_node("n0"), pod):
        _fold(fold, observe_object(fold.state, seen))
    return fold, pod


def _fold(fold: Fold, record: ObservedChange | None) -> ObservedChange:
    assert record is not None
    fold.apply(record)
    return record


def test_report_is_held_until_victim_is_deleted() -> None:
    fold, pod = _with_victim()
    pending = PendingEvictions(fold.state)
    report = EvictionSucceeded("default/victim", pod.metadata.uid)
    assert pending.hold(report)
    labelled = observe_object(fold.state, in_phase(pod, "Running"))
    assert labelled is not None
    assert pending.due_before(labelled) is None
    gone = observe_deletion(fold.state, pod)
    assert gone is not None
    assert pending.due_before(gone) == report
    assert not pending.accepted


def test_report_is_recorded_when_victim_terminates() -> None:
    fold, pod = _with_victim()
    pending = PendingEvictions(fold.state)
    report = EvictionSucceeded("default/victim", pod.metadata.uid)
    assert pending.hold(report)
    leaving = observe_object(fold.state, deleted(pod, WHEN))
    assert leaving is not None
    assert pending.due_before(leaving) == report
    assert not pending.accepted


def test_report_is_recorded_when_victim_finishes() -> None:
    fold, pod = _with_victim()
    pending = PendingEvictions(fold.state)
    assert pending.hold(EvictionSucceeded("default/victim", pod.metadata.uid))
    ended = observe_object(fold.state, in_phase(pod, "Succeeded"))
    assert ended is not None
    assert pending.due_before(ended) is not None
    assert not pending.accepted


def test_report_is_recorded_when_resized_victim_finishes() -> None:
    """The pod of a batch session is observed as a whole object after its resize."""
    fold, pod = _with_victim()
    fold.apply(SessionsLoaded((SessionSpec("default-scheduler", ("allocate",), ()),)))
    more = ResourceRequirements(requests={"cpu": "600m"})
    resized = msgspec.structs.replace(
        pod.status, container_statuses=(ContainerStatus(name="main", resources=more),)
    )
    _fold(fold, observe_object(fold.state, msgspec.structs.replace(pod, status=resized)))
    pending = PendingEvictions(fold.state)
    report = EvictionSucceeded("default/victim", pod.metadata.uid)
    assert pending.hold(report)
    ended = observe_object(fold.state, in_phase(pod, "Succeeded"))
    assert isinstance(ended, ObjectObserved)
    assert pending.due_before(ended) == report
    assert not pending.accepted


@pytest.mark.parametrize("like_another", [True, False])
def test_report_is_recorded_when_another_pod_has_the_name(like_another: bool) -> None:
    """The watch missed the deletion."""
    fold, pod = _with_victim()
    pending = PendingEvictions(fold.state)
    report = EvictionSucceeded("default/victim", pod.metadata.uid)
    assert pending.hold(report)
    follower = a_pod("victim", None if like_another else {"cpu": "700m"}, uid="another")
    seen = observe_object(fold.state, follower)
    assert isinstance(seen, PodObserved if like_another else ObjectObserved)
    assert pending.due_before(seen) == report
    assert not pending.accepted


def test_confirmed_deletion_is_not_held() -> None:
    fold, pod = _with_victim()
    report = EvictionSucceeded("default/victim", pod.metadata.uid)
    _fold(fold, observe_object(fold.state, deleted(pod, WHEN)))
    assert not PendingEvictions(fold.state).hold(report)
    _fold(fold, observe_deletion(fold.state, pod))
    assert not PendingEvictions(fold.state).hold(report)


def _with_preemptor_of_unplaced_victim() -> Fold:
    """The victim was assumed on n0 when it was selected, and its binding failed since."""
    fold = a_fold(DefaultPreemption)
    victim, preemptor = a_pod("victim"), a_pod("preemptor", priority=10)
    for seen in (a_node("n0"), victim, preemptor):
        _fold(fold, observe_object(fold.state, seen))
    low = PodRef("default/victim", victim.metadata.uid)
    fold.apply(Assigned(low.key, low.uid, "n0", attempt=1, feasible_nodes=1))
    fold.apply(
        Rejected(
            "default/preemptor",
            preemptor.metadata.uid,
            attempt=1,
            message="no room",
            unschedulable_plugins=("NodeResourcesFit",),
            nominated_node="n0",
            victims=(low,),
        )
    )
    fold.apply(BindFailed(low.key, low.uid, "n0", Code.ERROR))
    fold.state.queue.activate("default/preemptor", fold.state.now_ns)
    assert "default/preemptor" in fold.state.queue.gated
    return fold


def test_unplaced_victim_requeues_preemptor() -> None:
    fold = _with_preemptor_of_unplaced_victim()
    victim = fold.state.pods["default/victim"].info.pod
    pending = PendingEvictions(fold.state)
    report = EvictionSucceeded("default/victim", victim.metadata.uid)
    assert pending.hold(report)
    gone = observe_deletion(fold.state, victim)
    assert gone is not None
    due = pending.due_before(gone)
    assert due == msgspec.structs.replace(report, unplaced=True)
    fold.apply(due)
    fold.apply(gone)
    assert "default/preemptor" in fold.state.queue.active


def test_unplaced_victim_terminating_before_answer_requeues_preemptor() -> None:
    fold = _with_preemptor_of_unplaced_victim()
    pending = PendingEvictions(fold.state)
    leaving = observe_object(fold.state, deleted(fold.state.pods["default/victim"].info.pod, WHEN))
    assert leaving is not None
    report = pending.due_before(leaving)
    assert report is not None
    fold.apply(report)
    fold.apply(leaving)
    assert "default/preemptor" in fold.state.queue.active
    assert pending.due_before(leaving) is None


def test_unplaced_victim_deleted_before_answer_requeues_preemptor() -> None:
    fold = _with_preemptor_of_unplaced_victim()
    gone = observe_deletion(fold.state, fold.state.pods["default/victim"].info.pod)
    assert gone is not None
    report = PendingEvictions(fold.state).due_before(gone)
    assert report is not None
    fold.apply(report)
    fold.apply(gone)
    assert "default/preemptor" in fold.state.queue.active
