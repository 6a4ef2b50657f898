"""Single cases of the fold."""

from __future__ import annotations

from asched.framework.cluster import PodRef
from asched.framework.status import Code
from asched.model.quantity import NS_PER_S
from asched.state import records as r
from asched.state.fold import Fold
from asched.testing.invariants import check
from tests.state.objects import a_node, a_pod, bound, labelled
from tests.state.profiles import DEFAULT, Ledger, a_fold, profile_of


def _assumed(*holds: r.PermitWait) -> Fold:
    fold = a_fold(*DEFAULT)
    fold.apply_all([r.ObjectObserved(a_node("n0")), r.ObjectObserved(a_pod("p"))])
    reservations = (r.Reservation("Ledger", {"node": "n0"}),)
    fold.apply(
        r.Assigned("default/p", "pod-p", "n0", 1, 1, permit_waits=holds, reservations=reservations)
    )
    check(fold.state)
    return fold


def _books(fold: Fold) -> dict[str, tuple[str, dict[str, str] | None]]:
    ledger = fold.state.profiles["default-scheduler"].plugins["Ledger"]
    assert isinstance(ledger, Ledger)
    return ledger.books


def test_held_pod_has_current_info_after_update() -> None:
    fold = _assumed(r.PermitWait("Doorman", NS_PER_S))
    fold.apply(r.ObjectObserved(labelled(a_pod("p"), app="new")))
    check(fold.state)
    assert fold.state.waiting["default/p"].info.labels == {"app": "new"}


def test_reserve_plugins_are_called_again_after_reload() -> None:
    fold = _assumed()
    before = _books(fold)
    fold.apply(r.ProfilesLoaded((profile_of(*DEFAULT),)))
    assert _books(fold) is not before
    assert _books(fold) == before == {"pod-p": ("n0", {"node": "n0"})}
    fold.apply(r.BindFailed("default/p", "pod-p", "n0", Code.ERROR))
    assert _books(fold) == {}


def test_outdated_watch_event_does_not_unbind_pod() -> None:
    fold = _assumed()
    fold.apply(r.Bound("default/p", "pod-p", "n0"))
    fold.apply(r.ObjectObserved(labelled(a_pod("p"), app="late")))
    check(fold.state)
    assert fold.state.pods["default/p"].node == "n0"
    assert fold.state.nodes.pod_count.tolist() == [1]


def test_bind_response_after_watch_event_is_ignored() -> None:
    fold = _assumed()
    fold.apply(r.ObjectObserved(bound(a_pod("p"), "n0")))
    for late in (
        r.Bound("default/p", "pod-p", "n0"),
        r.BindFailed("default/p", "pod-p", "n0", Code.ERROR),
    ):
        fold.apply(late)
        check(fold.state)
    assert fold.state.nodes.pod_count.tolist() == [1]


def test_eviction_lasts_until_victim_is_deleted() -> None:
    fold = a_fold(*DEFAULT)
    victim = a_pod("victim", on="n0")
    fold.apply_all([r.ObjectObserved(item) for item in (a_node("n0"), victim, a_pod("p"))])
    fold.apply(
        r.Rejected(
            "default/p", "pod-p", 1, "no", ("RoomWatcher",),
            nominated_node="n0", victims=(PodRef(victim.key, victim.uid),),
        )
    )  # fmt: skip
    check(fold.state)
    assert fold.state.nominator.node_of("default/p") == "n0"
    assert list(fold.state.evictions) == [victim.uid]
    fold.apply(r.TurnStarted(20 * NS_PER_S))
    fold.apply(r.ObjectDeleted("Pod", victim.key, victim.uid))
    check(fold.state)
    assert not fold.state.evictions
    assert list(fold.state.queue.active) == ["default/p"]


def test_pods_on_unknown_node_count_after_node_is_added() -> None:
    fold = a_fold(*DEFAULT)
    fold.apply(r.ObjectObserved(a_pod("p", on="late")))
    check(fold.state)
    fold.apply(r.ObjectObserved(a_node("late")))
    check(fold.state)
    assert fold.state.nodes.pod_count.tolist() == [1]
