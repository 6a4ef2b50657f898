"""The effect of a failing plugin does not depend on caches, or a replay would differ."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asched.cycle.decide import Decider
from asched.framework.cycle_state import CycleState
from asched.framework.interface import FilterAllPlugin, FilterPlugin, Plugin, Scope, ScorePlugin
from asched.framework.nodes import FilterResult, NodeInfo, Nodes
from asched.framework.pod_info import PodInfo
from asched.framework.status import SUCCESS, Status
from asched.plugins.default_preemption.plugin import DefaultPreemption
from asched.state import records as r
from asched.state.cluster import ClusterState
from asched.state.fold import Fold
from tests.cycle.plugins import FewPods, RoomForAll
from tests.cycle.scheduling import Scheduling
from tests.run_size import examples
from tests.state.objects import a_node, a_pod
from tests.state.profiles import loader

OFFERS = {"cpu": "4", "pods": "9"}
MANY = 104
"""Enough nodes for the different update paths: few, many and all nodes changed."""


class First(FilterPlugin):
    """Rejects nodes before the other filters run."""

    name: ClassVar[str] = "First"
    api_version: ClassVar[int] = 1
    scope: ClassVar[Scope] = Scope.NODE_OBJECT

    def filter(self, state: CycleState, pod: PodInfo, node: NodeInfo) -> Status:
        return Status.unschedulable("sore") if "sore" in node.labels else SUCCESS


class Strict(FilterPlugin):
    name: ClassVar[str] = "Strict"
    api_version: ClassVar[int] = 1
    scope: ClassVar[Scope] = Scope.NODE_OBJECT

    def filter(self, state: CycleState, pod: PodInfo, node: NodeInfo) -> Status:
        if node.labels.keys() & {"sore", "bad"}:
            raise RuntimeError(f"no idea about {node.name}")
        return SUCCESS


class StrictForAll(FilterAllPlugin):
    name: ClassVar[str] = "StrictForAll"
    api_version: ClassVar[int] = 1
    scope: ClassVar[Scope] = Scope.NODE

    def filter_all(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> FilterResult:
        for info in nodes.infos():
            if info.labels.keys() & {"sore", "bad"}:
                raise RuntimeError(f"no idea about {info.name}")
        return FilterResult.passing(nodes.size)


class SoreScore(ScorePlugin):
    name: ClassVar[str] = "SoreScore"
    api_version: ClassVar[int] = 1
    scope: ClassVar[Scope] = Scope.NODE_OBJECT

    def score(self, state: CycleState, pod: PodInfo, node: NodeInfo) -> int:
        if "unscored" in node.labels:
            raise RuntimeError(f"no score for {node.name}")
        return 1


SETS: tuple[tuple[type[Plugin], ...], ...] = (
    (RoomForAll, First, Strict, SoreScore),
    (RoomForAll, First, StrictForAll),
    (First, FewPods, Strict, RoomForAll, SoreScore),
)


def _fresh(scheduling: Scheduling, plugins: Iterable[type[Plugin]]) -> tuple[r.Decision, ...]:
    fold = Fold(ClusterState(), loader(*plugins))
    fold.apply_all(scheduling.records)
    return Decider(fold.state).next()


def _label(scheduling: Scheduling, rows: Iterable[int], *labels: str) -> None:
    for row in rows:
        scheduling.see(a_node(f"n{row}", OFFERS, labels=dict.fromkeys(labels, "1")))


@pytest.mark.parametrize("sore", [1, 20, 25])
@pytest.mark.parametrize("strict", [Strict, StrictForAll])
def test_filters_do_not_run_for_rejected_nodes_after_a_failure(
    strict: type[Plugin], sore: int
) -> None:
    plugins = (RoomForAll, First, strict)
    scheduling = Scheduling(*plugins)
    _label(scheduling, range(200))
    scheduling.see(a_pod("first", {"cpu": "1"}))
    scheduling.decide()
    _label(scheduling, range(sore), "sore")
    scheduling.see(a_pod("second", {"cpu": "1"}))
    (assigned,) = _fresh(scheduling, plugins)
    assert isinstance(assigned, r.Assigned)
    assert scheduling.next() == (assigned,)


@pytest.mark.parametrize("unscored", [(5, 33), (33, 5), (3, 17, 64)])
def test_reported_failure_does_not_depend_on_cache(unscored: tuple[int, ...]) -> None:
    plugins = (RoomForAll, SoreScore)
    scheduling = Scheduling(*plugins)
    _label(scheduling, range(100))
    scheduling.see(a_pod("first", {"cpu": "1"}))
    scheduling.decide()
    _label(scheduling, unscored, "unscored")
    scheduling.see(a_pod("second", {"cpu": "1"}))
    (failed,) = _fresh(scheduling, plugins)
    assert isinstance(failed, r.AttemptFailed)
    assert f"n{min(unscored)}" in failed.message
    assert scheduling.next() == (failed,)


steps = st.lists(
    st.one_of(
        st.tuples(
            st.just("label"),
            st.integers(0, MANY - 1),
            st.sampled_from((1, 2, 26, MANY)),
            st.sampled_from(("", "", "sore", "bad", "unscored")),
        ),
        st.tuples(st.just("gone"), st.integers(0, MANY - 1)),
    ),
    min_size=2,
    max_size=6,
)


@settings(max_examples=examples(25))
@given(steps=steps, plugins=st.sampled_from(SETS), priority=st.sampled_from((0, 5)))
def test_decisions_do_not_depend_on_cache(
    steps: list[tuple[object, ...]], plugins: tuple[type[Plugin], ...], priority: int
) -> None:
    """After each change a pod is added, and every second time another that may preempt."""
    plugins = (*plugins, DefaultPreemption)
    scheduling = Scheduling(*plugins)
    _label(scheduling, range(MANY))
    for number, step in enumerate(steps):
        match step:
            case ("label", int(first), int(count), str(label)):
                rows = (row % MANY for row in range(first, first + count))
                _label(scheduling, rows, *([label] if label else []))
            case ("gone", int(row)):
                if f"n{row}" in scheduling.state.nodes.names:
                    scheduling.apply(r.ObjectDeleted("Node", f"n{row}"))
        scheduling.see(a_pod(f"p{number}", {"cpu": "3"}, priority=priority * (number % 2)))
        assert _fresh(scheduling, plugins) == scheduling.next()
