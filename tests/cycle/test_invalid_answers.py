"""An invalid answer fails only the attempt of its pod, and the message names the plugin."""

from __future__ import annotations

from typing import Any, ClassVar, cast

import msgspec
import numpy as np
import pytest

from asched.framework.cycle_state import CycleState
from asched.framework.interface import (
    FilterAllPlugin,
    NodeToStatus,
    PermitPlugin,
    PermitResult,
    PostFilterPlugin,
    PostFilterResult,
    PreFilterPlugin,
    PreFilterResult,
    QueueSortPlugin,
)
from asched.framework.nodes import FilterResult, Nodes
from asched.framework.pod_info import PodInfo, QueuedPod
from asched.framework.status import SUCCESS, Code, Status
from asched.state import records as r
from tests.cycle.scheduling import Scheduling, pod_of
from tests.state.objects import a_node, a_pod


class UnspeakableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even this")


def _raise_unspeakable() -> Any:
    raise UnspeakableError


PRE_FILTERS: dict[str, Any] = {
    "an exception for a reason": lambda: PreFilterResult(Status.error(cast(str, OSError("x")))),
    "names in a list": lambda: PreFilterResult(SUCCESS, cast(Any, ["n0"])),
    "an error without words": _raise_unspeakable,
}
FILTERS: dict[str, Any] = {
    "unhashable reasons": lambda n: FilterResult.reject(
        np.ones(n, bool), Status(Code.UNSCHEDULABLE, cast(Any, ["a"]))
    ),
    "a mask for codes": lambda n: FilterResult(
        cast(Any, np.ones(n, bool)), (Status.unschedulable("a"),)
    ),
    "a list for codes": lambda n: FilterResult(cast(Any, [1] * n), (Status.unschedulable("a"),)),
}
PERMITS: dict[str, Any] = {
    "no timeout": lambda: PermitResult(Status(Code.WAIT), cast(Any, None)),
}
POST_FILTERS: dict[str, Any] = {
    "victims of another type": lambda pod: PostFilterResult(SUCCESS, "n0", (cast(Any, pod),)),
    "half a character": lambda pod: PostFilterResult(Status.unschedulable("\udcff")),
}
EVERY = [*PRE_FILTERS, *FILTERS, *PERMITS, *POST_FILTERS]


class Hostile(PreFilterPlugin, FilterAllPlugin, PostFilterPlugin, PermitPlugin):
    """Returns the invalid answer in the pod's label ``nonsense``; other answers are valid."""

    name: ClassVar[str] = "Hostile"
    api_version: ClassVar[int] = 1

    def _chosen(self, pod: PodInfo, table: dict[str, Any]) -> Any:
        return table.get(pod.labels.get("nonsense", ""))

    def pre_filter(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> PreFilterResult:
        chosen = self._chosen(pod, PRE_FILTERS)
        return cast(PreFilterResult, chosen()) if chosen else PreFilterResult()

    def filter_all(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> FilterResult:
        chosen = self._chosen(pod, FILTERS)
        if chosen:
            return cast(FilterResult, chosen(nodes.size))
        refuses = self._chosen(pod, POST_FILTERS) is not None
        return FilterResult.reject(np.full(nodes.size, refuses), Status.unschedulable("full"))

    def post_filter(
        self, state: CycleState, pod: PodInfo, statuses: NodeToStatus
    ) -> PostFilterResult:
        chosen = self._chosen(pod, POST_FILTERS)
        return cast(PostFilterResult, chosen(pod)) if chosen else PostFilterResult(SUCCESS)

    def permit(self, state: CycleState, pod: PodInfo, node_name: str) -> PermitResult:
        chosen = self._chosen(pod, PERMITS)
        return cast(PermitResult, chosen()) if chosen else PermitResult()


@pytest.mark.parametrize("nonsense", EVERY)
def test_invalid_answer_fails_only_its_pod(nonsense: str) -> None:
    scheduling = Scheduling(Hostile)
    scheduling.see(
        a_node("n0"),
        a_node("n1"),
        a_pod("bad", labels={"nonsense": nonsense}, priority=1),
        a_pod("good"),
    )
    first, second = scheduling.next(), scheduling.next()
    assert [type(decision) for decision in second] == [r.Assigned]
    [failed] = first
    if nonsense == "half a character":
        # A text that cannot be encoded does not always fail the attempt.
        assert isinstance(failed, r.Rejected | r.AttemptFailed)
    elif nonsense == "names in a list":
        assert isinstance(failed, r.AttemptFailed | r.Assigned)
    else:
        assert isinstance(failed, r.AttemptFailed), failed
        assert "Hostile" in failed.message
    for record in scheduling.records:
        msgspec.json.encode(record)


class RaisingSort(QueueSortPlugin):
    """Raises for pods named ``odd``; other keys are not always comparable."""

    name: ClassVar[str] = "RaisingSort"
    api_version: ClassVar[int] = 1

    def less(self, first: QueuedPod, second: QueuedPod) -> bool:
        return first.timestamp_ns < second.timestamp_ns

    def sort_key(self, pod: QueuedPod) -> Any:
        if pod.info.name == "odd":
            raise RuntimeError("where to?")
        return "text" if pod.info.name == "word" else pod.info.priority


def test_raising_queue_sort_does_not_stop_scheduling() -> None:
    scheduling = Scheduling(RaisingSort)
    pods = [a_pod(name) for name in ("odd", "word", "one", "two")]
    scheduling.see(a_node("n0"), *pods)
    decided = [pod_of(decision) for decision in scheduling.decide()]
    assert sorted(decided) == sorted(pod.key for pod in pods)
    assert decided[-1] == "default/odd"


class Second(PermitPlugin):
    """Runs after another Permit plugin."""

    name: ClassVar[str] = "Second"
    api_version: ClassVar[int] = 1

    def permit(self, state: CycleState, pod: PodInfo, node_name: str) -> PermitResult:
        return PermitResult()


@pytest.mark.parametrize("keys", [(object(),), 5, (5,), ("\udcff",), ([],)])
def test_invalid_answer_names_its_plugin(keys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PERMITS, "keys", lambda: PermitResult(activate=keys))
    scheduling = Scheduling(Hostile, Second)
    scheduling.see(a_node("n0"), a_pod("bad", labels={"nonsense": "keys"}))
    [failed] = scheduling.next()
    assert isinstance(failed, r.AttemptFailed)
    assert failed.plugin == "Hostile"
    assert failed.message.startswith("plugin Hostile at Permit: its answer cannot be used: ")
