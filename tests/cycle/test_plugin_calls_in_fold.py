"""Plugin calls of the fold: exceptions and answers are the same in every replay."""

from __future__ import annotations

from typing import Any, ClassVar

from asched.framework.cycle_state import CycleState
from asched.framework.interface import (
    PermitPlugin,
    PermitResult,
    Plugin,
    ReservePlugin,
    ReserveResult,
    WaitingPodReviewer,
)
from asched.framework.pod_info import PodInfo
from asched.framework.status import Code, Status
from asched.state import records as r
from asched.state.cluster import ClusterState
from asched.state.fold import Fold
from tests.cycle.scheduling import Scheduling, nodes_of, pod_of
from tests.state.objects import a_node, a_pod
from tests.state.profiles import loader


class RaisingBooks(ReservePlugin):
    """Raises in every call of the fold."""

    name: ClassVar[str] = "RaisingBooks"
    api_version: ClassVar[int] = 1

    def reserve(self, state: CycleState, pod: PodInfo, node_name: str) -> ReserveResult:
        return ReserveResult()

    def on_reserved(self, pod: PodInfo, node_name: str, reservation: dict[str, Any] | None) -> None:
        raise RuntimeError("out of ink")

    def unreserve(self, pod: PodInfo, node_name: str, reservation: dict[str, Any] | None) -> None:
        raise RuntimeError("no eraser")


class AllOrNone(PermitPlugin, ReservePlugin):
    """Makes every pod wait; if one is unreserved, it rejects the others."""

    name: ClassVar[str] = "AllOrNone"
    api_version: ClassVar[int] = 1

    def permit(self, state: CycleState, pod: PodInfo, node_name: str) -> PermitResult:
        return PermitResult(Status(Code.WAIT), timeout_s=60.0)

    def reserve(self, state: CycleState, pod: PodInfo, node_name: str) -> ReserveResult:
        return ReserveResult()

    def unreserve(self, pod: PodInfo, node_name: str, reservation: dict[str, Any] | None) -> None:
        for other in self.handle.waiting_pods():
            other.reject(self.name, f"{pod.name} gave up")


def refolded(scheduling: Scheduling, *plugins: type[Plugin]) -> ClusterState:
    fold = Fold(ClusterState(), loader(*plugins))
    fold.apply_all(scheduling.records)
    return fold.state


def test_raising_reserve_calls_do_not_stop_the_fold() -> None:
    scheduling = Scheduling(RaisingBooks)
    scheduling.see(a_node("n0"), a_pod("one"), a_pod("two"))

    assert nodes_of(scheduling.decide()) == {"default/one": "n0", "default/two": "n0"}
    scheduling.apply(
        r.BindFailed("default/one", scheduling.state.pods["default/one"].info.uid, "n0", Code.ERROR)
    )

    whats = [(fault.pod, fault.error) for fault in scheduling.state.reserve_calls.errors]
    reserved, unreserved = (
        f"(cycle/test_plugin_calls_in_fold.py:{method.__code__.co_firstlineno + 1})"
        for method in (RaisingBooks.on_reserved, RaisingBooks.unreserve)
    )
    assert whats == [
        ("default/one", f"on_reserved: RuntimeError: out of ink {reserved}"),
        ("default/two", f"on_reserved: RuntimeError: out of ink {reserved}"),
        ("default/one", f"unreserve: RuntimeError: no eraser {unreserved}"),
    ]
    assert (
        refolded(scheduling, RaisingBooks).reserve_calls.errors
        == scheduling.state.reserve_calls.errors
    )


def test_answers_given_during_the_fold_become_decisions() -> None:
    scheduling = Scheduling(AllOrNone)
    scheduling.see(a_node("n0"), a_pod("one"), a_pod("two"), a_pod("three"))
    scheduling.decide()
    assert set(scheduling.state.waiting) == {"default/one", "default/two", "default/three"}

    scheduling.apply(
        r.ObjectDeleted("Pod", "default/one", scheduling.state.pods["default/one"].info.uid)
    )
    answers = refolded(scheduling, AllOrNone).waiting_pods.answers
    assert answers == scheduling.state.waiting_pods.answers
    assert [answer.key for answer in answers] == ["default/two", "default/three"]

    decisions = scheduling.next()
    assert [(type(d), pod_of(d)) for d in decisions] == [
        (r.PermitRejected, "default/two"),
        (r.PermitRejected, "default/three"),
    ]
    assert not scheduling.state.waiting
    assert not scheduling.state.waiting_pods.answers
    assert not refolded(scheduling, AllOrNone).waiting_pods.answers


class Fickle(WaitingPodReviewer):
    """Allows its waiting pods, and then rejects them."""

    name: ClassVar[str] = "Fickle"
    api_version: ClassVar[int] = 1

    def permit(self, state: CycleState, pod: PodInfo, node_name: str) -> PermitResult:
        return PermitResult(Status(Code.WAIT), timeout_s=60.0)

    def review_waiting_pods(self) -> None:
        for held in self.handle.waiting_pods():
            held.allow(self.name)
            held.reject(self.name, "on second thoughts")
        raise RuntimeError("oh dear")


def test_allowed_pod_is_not_rejected_later() -> None:
    scheduling = Scheduling(Fickle)
    scheduling.see(a_node("n0"), a_pod("one"))
    assigned, *others = scheduling.decide()
    assert isinstance(assigned, r.Assigned)
    assert others == [r.PermitAllowed("default/one", "pod-one", "Fickle")]
    assert not scheduling.state.waiting
    assert not scheduling.state.waiting_pods.answers
