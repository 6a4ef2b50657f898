"""The stopwatch on attempts: what it adds up, and that it changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from asched.daemon.telemetry.metrics import Metrics
from asched.daemon.telemetry.stopwatch import (
    SAMPLE_RANGE,
    CycleStopwatch,
    HintStopwatch,
    SampledCycle,
    TimedSpan,
    sample_number,
    status_of,
)
from asched.framework.cycle_state import CycleState
from asched.framework.events import ActionType, ClusterEvent, EventResource, QueueingHint
from asched.framework.interface import FilterPlugin, PostFilterResult, PreFilterResult
from asched.framework.nodes import FilterResult, NodeInfo
from asched.framework.pod_info import PodInfo
from asched.framework.status import SUCCESS, Code, Status
from asched.model.meta import ObjectMeta
from asched.model.pod import Pod
from asched.state.records import Assigned, TurnStarted
from tests.daemon.test_reconfigurer import check_replay
from tests.daemon.world import KUBE, world


def pod_of(uid: str) -> PodInfo:
    return PodInfo(Pod(metadata=ObjectMeta(name="p", namespace="ns", uid=uid)))


class Watch:
    """A manual clock, and a sink that keeps what it receives."""

    numbered = True

    def __init__(self, share: float = 1.0) -> None:
        self.now_ns = 1000
        self.share = share
        self.cycles: list[SampledCycle] = []
        self.hints: list[tuple[str, str, str, int]] = []
        self.stopwatch = CycleStopwatch(lambda: self.now_ns, [self])

    def cycle(self, cycle: SampledCycle) -> None:
        self.cycles.append(cycle)

    def hint(self, plugin: str, event: str, answer: str, duration_ns: int) -> None:
        self.hints.append((plugin, event, answer, duration_ns))

    def takes(self, duration_ns: int, answer: object = SUCCESS) -> Callable[[], object]:
        def method() -> object:
            self.now_ns += duration_ns
            return answer

        return method

    def call(self, plugin: str, point: str, method: Callable[[], object]) -> object:
        return self.stopwatch.wrap(plugin, point, method)()


def shown(stretches: Any) -> dict[tuple[str, str], tuple[int, int, str]]:
    found: list[TimedSpan] = [*stretches]
    return {(s.plugin, s.point): (s.busy_ns, s.calls, s.status) for s in found}


ASSIGNED = Assigned("ns/p", "u", "n0", 1, feasible_nodes=1, score=0, ties=1)


def test_time_between_plugins_counts_for_the_point() -> None:
    watch = Watch()
    assert watch.stopwatch.begin(pod_of("u"), 1)
    watch.stopwatch.enter("Filter")
    watch.call("Fit", "PreFilter", watch.takes(5, PreFilterResult()))
    watch.now_ns += 7
    watch.call("Fit", "Filter", watch.takes(11))
    watch.call("Fit", "Filter", watch.takes(13))
    watch.stopwatch.enter("Score")
    watch.now_ns += 17
    watch.call("Fit", "NormalizeScore", watch.takes(19, np.zeros(1)))
    watch.stopwatch.end(ASSIGNED)
    assert watch.cycles == []  # it is not durable yet
    watch.stopwatch.committed([TurnStarted(1), ASSIGNED], last_seq=8)
    (cycle,) = watch.cycles
    assert (cycle.seq, cycle.decision, cycle.attempt) == (8, ASSIGNED, 1)
    assert cycle.ended_ns - cycle.began_ns == 5 + 7 + 11 + 13 + 17 + 19
    assert shown(cycle.plugins) == {
        ("Fit", "PreFilter"): (5, 1, "Success"),
        ("Fit", "Filter"): (24, 2, "Success"),
        ("Fit", "ScoreExtensionNormalize"): (19, 1, "Success"),
    }
    assert shown(cycle.points) == {
        ("", "Filter"): (31, 0, "Success"),
        ("", "PreFilter"): (5, 0, "Success"),
        ("", "Score"): (17, 0, "Success"),
        ("", "ScoreExtensionNormalize"): (19, 0, "Success"),
    }


def test_nested_calls_count_for_the_outer_point_only() -> None:
    watch = Watch()
    watch.stopwatch.begin(pod_of("u"), 1)
    watch.stopwatch.enter("PostFilter")

    def preempt() -> object:
        watch.now_ns += 3
        watch.call("Fit", "Filter", watch.takes(10))
        return PostFilterResult(Status.unschedulable("no"))

    watch.call("Preemption", "PostFilter", preempt)
    watch.stopwatch.end(ASSIGNED)
    watch.stopwatch.committed([ASSIGNED], 1)
    (cycle,) = watch.cycles
    assert shown(cycle.points) == {("", "PostFilter"): (13, 0, "Unschedulable")}
    assert shown(cycle.plugins)["Fit", "Filter"] == (10, 1, "Success")
    assert shown(cycle.plugins)["Preemption", "PostFilter"] == (13, 1, "Unschedulable")


def test_exception_counts_as_error_and_propagates() -> None:
    watch = Watch()
    watch.stopwatch.begin(pod_of("u"), 1)

    def broken() -> object:
        raise KeyError("x")

    with pytest.raises(KeyError, match="x"):
        watch.call("Broken", "Filter", broken)
    watch.stopwatch.end(ASSIGNED)
    watch.stopwatch.committed([ASSIGNED], 1)
    assert shown(watch.cycles[0].points)["", "Filter"][2] == "Error"


def test_sample_is_deterministic() -> None:
    pods = [pod_of(f"0c3e7f1a-{number}") for number in range(4000)]
    watched = [pod.uid for pod in pods if Watch(0.1).stopwatch.begin(pod, 1)]
    assert 300 < len(watched) < 500
    assert [pod.uid for pod in pods if sample_number(pod, 1) < 0.1 * SAMPLE_RANGE] == watched
    assert sample_number(pod_of("a"), 1) == 3826
    assert sample_number(pod_of("a"), 1) != sample_number(pod_of("a"), 2)
    assert not Watch(0.0).stopwatch.begin(pod_of("a"), 1)


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (SUCCESS, "Success"),
        (Status(Code.SKIP), "Skip"),
        (PreFilterResult(Status.unresolvable("x")), "UnschedulableAndUnresolvable"),
        (FilterResult(np.array([1]), (Status.unschedulable("x"),)), "Success"),
        (FilterResult(np.array([1]), (Status.error("x"),)), "Error"),
        (np.zeros(3), "Success"),
        (PreFilterResult(None), "Error"),  # type: ignore[arg-type]
        (FilterResult(np.array([1]), 5), "Success"),  # type: ignore[arg-type]
        (None, "Success"),
    ],
)
def test_every_answer_has_a_status(answer: object, status: str) -> None:
    assert status_of(answer) == status


def test_hint_results_are_passed_through() -> None:
    watch = Watch()
    stopwatch = HintStopwatch(lambda: watch.now_ns, watch.hint)
    event = ClusterEvent(EventResource.NODE, ActionType.ADD)

    def ask(answer: Any) -> object:
        timed = stopwatch.wrap_hint("Fit", event, lambda pod, old, new: answer)
        return timed(pod_of("u").pod, None, None)

    assert ask(QueueingHint.SKIP) is QueueingHint.SKIP
    assert ask("nonsense") == "nonsense"
    assert watch.hints == [("Fit", "NodeAdd", "QueueSkip", 0), ("Fit", "NodeAdd", "Error", 0)]


class EvenOnly(FilterPlugin):
    """Written for one node."""

    name: ClassVar[str] = "EvenOnly"
    api_version: ClassVar[int] = 1

    def filter(self, state: CycleState, pod: PodInfo, node: NodeInfo) -> Status:
        return SUCCESS if node.name in ("n0", "n2") else Status.unschedulable("odd")


async def test_sampled_attempts_decide_like_others(tmp_path: Path) -> None:
    """A replay without observers makes the same decisions."""
    config = (
        f"{KUBE}profiles:\n- schedulerName: default-scheduler\n"
        "  plugins: {filter: {enabled: [{name: EvenOnly}]}}\n"
    )
    metrics = Metrics()
    metrics.cycles.share = 1.0
    async with world(tmp_path, nodes=4) as w:
        async with w.daemon(config, EvenOnly, metrics=metrics):
            w.add_pods(20, "p")
            w.add_pod("big", "100")
            await w.until(lambda: w.unbound() == ["big"] and w.message("big") != "")
        await check_replay(w, EvenOnly)
    value = metrics.registry.get_sample_value
    labels = {"plugin": "EvenOnly", "extension_point": "Filter", "status": "Success"}
    asked = value("scheduler_plugin_execution_duration_seconds_count", labels)
    assert asked is not None
    assert 1 <= asked <= 21  # once a cycle at most, not once a node
