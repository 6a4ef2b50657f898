"""What effects report of victims is told when the watch shows it, not before."""

from __future__ import annotations

from datetime import UTC, datetime

from asched.daemon.eviction_echo import EvictionEcho
from asched.model.pod import Pod
from asched.state.fold import Fold
from asched.state.observe import News, observe_deletion, observe_object
from asched.state.records import VictimEvicted
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
    echo = EvictionEcho(fold.state)
    report = VictimEvicted("default/victim", pod.metadata.uid)
    assert echo.holds(report)
    labelled = observe_object(fold.state, in_phase(pod, "Running"))
    assert labelled is not None
    assert echo.shown_by(labelled) is None
    gone = observe_deletion(fold.state, pod)
    assert gone is not None
    assert echo.shown_by(gone) == report
    assert not echo


def test_it_is_told_as_soon_as_the_victim_is_leaving() -> None:
    fold, pod = _with_victim()
    echo = EvictionEcho(fold.state)
    report = VictimEvicted("default/victim", pod.metadata.uid)
    assert echo.holds(report)
    leaving = observe_object(fold.state, deleted(pod, WHEN))
    assert leaving is not None
    assert echo.shown_by(leaving) == report
    assert not echo


def test_one_that_ends_by_itself_meanwhile_is_not_kept_for_ever() -> None:
    fold, pod = _with_victim()
    echo = EvictionEcho(fold.state)
    assert echo.holds(VictimEvicted("default/victim", pod.metadata.uid))
    ended = observe_object(fold.state, in_phase(pod, "Succeeded"))
    assert ended is not None
    assert echo.shown_by(ended) is not None
    assert not echo


def test_what_the_watch_has_shown_already_is_not_held() -> None:
    fold, pod = _with_victim()
    report = VictimEvicted("default/victim", pod.metadata.uid)
    _fold(fold, observe_object(fold.state, deleted(pod, WHEN)))
    assert not EvictionEcho(fold.state).holds(report)
    _fold(fold, observe_deletion(fold.state, pod))
    assert not EvictionEcho(fold.state).holds(report)
