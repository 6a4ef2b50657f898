"""What effects report of victims is told when the watch shows it, not before."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
import pytest

from asched.core.confirmations import PendingEvictions
from asched.framework.cluster import Victim
from asched.framework.sessions import SessionSpec
from asched.framework.status import Code
from asched.model.pod import ContainerStatus, Pod, ResourceRequirements
from asched.plugins.default_preemption.plugin import DefaultPreemption
from asched.state.fold import Fold
from asched.state.observe import News, observe_deletion, observe_object
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


def _fold(fold: Fold, news: News | None) -> News:
    assert news is not None
    fold.apply(news)
    return news


def test_a_victim_that_stands_there_is_held_until_it_is_gone() -> None:
    fold, pod = _with_victim()
    echo = PendingEvictions(fold.state)
    report = EvictionSucceeded("default/victim", pod.metadata.uid)
    assert echo.hold(report)
    labelled = observe_object(fold.state, in_phase(pod, "Running"))
    assert labelled is not None
    assert echo.due_before(labelled) is None
    gone = observe_deletion(fold.state, pod)
    assert gone is not None
    assert echo.due_before(gone) == report
    assert not echo


def test_it_is_told_as_soon_as_the_victim_is_leaving() -> None:
    fold, pod = _with_victim()
    echo = PendingEvictions(fold.state)
    report = EvictionSucceeded("default/victim", pod.metadata.uid)
    assert echo.hold(report)
    leaving = observe_object(fold.state, deleted(pod, WHEN))
    assert leaving is not None
    assert echo.due_before(leaving) == report
    assert not echo


def test_one_that_ends_by_itself_meanwhile_is_not_kept_for_ever() -> None:
    fold, pod = _with_victim()
    echo = PendingEvictions(fold.state)
    assert echo.hold(EvictionSucceeded("default/victim", pod.metadata.uid))
    ended = observe_object(fold.state, in_phase(pod, "Succeeded"))
    assert ended is not None
    assert echo.due_before(ended) is not None
    assert not echo


def test_nor_is_one_that_ends_and_is_shown_anew_with_it() -> None:
    """It was resized, and its containers, which have ended, use nothing any more. As a job's pod it is
    seen for as long as it exists."""
    fold, pod = _with_victim()
    fold.apply(SessionsLoaded((SessionSpec("default-scheduler", ("allocate",), ()),)))
    more = ResourceRequirements(requests={"cpu": "600m"})
    resized = msgspec.structs.replace(
        pod.status, container_statuses=(ContainerStatus(name="main", resources=more),)
    )
    _fold(fold, observe_object(fold.state, msgspec.structs.replace(pod, status=resized)))
    echo = PendingEvictions(fold.state)
    report = EvictionSucceeded("default/victim", pod.metadata.uid)
    assert echo.hold(report)
    ended = observe_object(fold.state, in_phase(pod, "Succeeded"))
    assert isinstance(ended, ObjectObserved)
    assert echo.due_before(ended) == report
    assert not echo


@pytest.mark.parametrize("like_another", [True, False])
def test_nor_is_one_whose_name_another_pod_has_got(like_another: bool) -> None:
    """What told of its end was lost."""
    fold, pod = _with_victim()
    echo = PendingEvictions(fold.state)
    report = EvictionSucceeded("default/victim", pod.metadata.uid)
    assert echo.hold(report)
    follower = a_pod("victim", None if like_another else {"cpu": "700m"}, uid="another")
    seen = observe_object(fold.state, follower)
    assert isinstance(seen, PodObserved if like_another else ObjectObserved)
    assert echo.due_before(seen) == report
    assert not echo


def test_what_the_watch_has_shown_already_is_not_held() -> None:
    fold, pod = _with_victim()
    report = EvictionSucceeded("default/victim", pod.metadata.uid)
    _fold(fold, observe_object(fold.state, deleted(pod, WHEN)))
    assert not PendingEvictions(fold.state).hold(report)
    _fold(fold, observe_deletion(fold.state, pod))
    assert not PendingEvictions(fold.state).hold(report)


def _with_preemptor_of_one_without_room() -> Fold:
    """The preemptor waits for the eviction of a pod that was on its way to n0 when it was chosen, and
    whose binding has failed since."""
    fold = a_fold(DefaultPreemption)
    victim, preemptor = a_pod("victim"), a_pod("preemptor", priority=10)
    for seen in (a_node("n0"), victim, preemptor):
        _fold(fold, observe_object(fold.state, seen))
    low = Victim("default/victim", victim.metadata.uid)
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


def test_a_victim_that_lost_its_room_lets_the_preemptor_go_on() -> None:
    fold = _with_preemptor_of_one_without_room()
    victim = fold.state.pods["default/victim"].info.pod
    echo = PendingEvictions(fold.state)
    report = EvictionSucceeded("default/victim", victim.metadata.uid)
    assert echo.hold(report)
    gone = observe_deletion(fold.state, victim)
    assert gone is not None
    told = echo.due_before(gone)
    assert told is not None
    fold.apply(told)
    fold.apply(gone)
    assert "default/preemptor" in fold.state.queue.active


def test_so_does_one_that_is_going_before_we_are_answered() -> None:
    fold = _with_preemptor_of_one_without_room()
    echo = PendingEvictions(fold.state)
    leaving = observe_object(fold.state, deleted(fold.state.pods["default/victim"].info.pod, WHEN))
    assert leaving is not None
    told = echo.due_before(leaving)
    assert told is not None
    fold.apply(told)
    fold.apply(leaving)
    assert "default/preemptor" in fold.state.queue.active
    assert echo.due_before(leaving) is None


def test_so_does_one_that_goes_before_we_are_answered() -> None:
    fold = _with_preemptor_of_one_without_room()
    gone = observe_deletion(fold.state, fold.state.pods["default/victim"].info.pod)
    assert gone is not None
    told = PendingEvictions(fold.state).due_before(gone)
    assert told is not None
    fold.apply(told)
    fold.apply(gone)
    assert "default/preemptor" in fold.state.queue.active


def test_a_journal_of_before_is_folded_as_it_was() -> None:
    fold = _with_preemptor_of_one_without_room()
    victim = fold.state.pods["default/victim"].info.pod
    fold.apply(EvictionSucceeded("default/victim", victim.metadata.uid))
    assert "default/preemptor" in fold.state.queue.gated
