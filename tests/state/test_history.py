"""Journals stay valid when code and plugins change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import ClassVar

import numpy as np
import pytest

from asched.cycle.decide import Decider
from asched.cycle.node_selection import BestNodes, select_node
from asched.framework.cycle_state import CycleState
from asched.framework.events import (
    ActionType,
    ClusterEvent,
    ClusterEventWithHint,
    EventResource,
    QueueingHint,
)
from asched.framework.interface import EnqueueExtensions, FilterPlugin, Scope
from asched.framework.nodes import NodeInfo
from asched.framework.pod_info import PodInfo
from asched.framework.status import SUCCESS, Status
from asched.state import records as r
from asched.state.cluster import ClusterState
from asched.state.fold import Fold
from asched.state.node_table import NodeTable
from tests.cycle.scheduling import Scheduling
from tests.state.objects import a_node, a_pod, in_phase
from tests.state.profiles import loader


class Picky(FilterPlugin, EnqueueExtensions):
    """Rejects nodes without the label ``ok``; a new node requeues its pods."""

    name: ClassVar[str] = "Picky"
    api_version: ClassVar[int] = 1
    hint: ClassVar[QueueingHint] = QueueingHint.QUEUE

    def filter(self, state: CycleState, pod: PodInfo, node: NodeInfo) -> Status:
        return SUCCESS if "ok" in node.labels else Status.unschedulable("not ok")

    def events_to_register(self) -> Sequence[ClusterEventWithHint]:
        event = ClusterEvent(EventResource.NODE, ActionType.ADD)
        return [ClusterEventWithHint(event, lambda pod, old, new: self.hint)]


class PickyLater(Picky):
    """The next release, with another hint."""

    hint: ClassVar[QueueingHint] = QueueingHint.SKIP


def _recorded() -> list[r.AnyRecord]:
    scheduling = Scheduling(Picky)
    scheduling.see(a_node("n0"), a_pod("p"))
    scheduling.decide()
    scheduling.pass_time(2)
    scheduling.see(a_node("n1", labels={"ok": ""}))
    assert isinstance(scheduling.decide()[-1], r.Assigned)
    return scheduling.records


def test_changed_hint_is_a_replay_mismatch() -> None:
    fold = Fold(ClusterState(), loader(PickyLater))
    fold.apply_all(_recorded())
    assert fold.state.pods["default/p"].node == "n1"
    assert fold.state.queue.replay_mismatches == 1


def test_journal_of_missing_plugin_is_folded() -> None:
    def load(name: str) -> type[Picky]:
        if name == "Picky":
            from asched.framework.runtime.profile import ProfileError

            raise ProfileError('unknown plugin "Picky"')
        return loader()(name)  # type: ignore[return-value]

    fold = Fold(ClusterState(), load)
    fold.apply_all(_recorded())
    assert fold.state.pods["default/p"].node == "n1"
    fold.apply(r.ObjectObserved(a_pod("q")))
    [decision] = Decider(fold.state).next()
    assert isinstance(decision, r.AttemptFailed)
    assert decision.message == 'profile is unusable: unknown plugin "Picky"'


def test_template_numbers_follow_from_the_journal() -> None:
    fold = Fold(ClusterState(), loader())
    fold.apply(r.ObjectObserved(a_pod("a", {"cpu": "1"}), 1))
    fold.apply(
        r.ObjectObserved(a_pod("b", {"cpu": "1"}), 2)
    )  # recorded by code that distinguished them
    fold.apply(r.ObjectObserved(a_pod("c", {"cpu": "3"}), 3))
    fold.apply(r.PodObserved("default/d", "pod-d", 2))
    assert fold.state.pods["default/d"].info.shape.requests == {"cpu": 1000}
    fold.apply(r.ObjectDeleted("Pod", "default/a", "pod-a"))
    fold.apply(r.PodObserved("default/e", "pod-e", 3))
    assert fold.state.pods["default/e"].info.shape.requests == {"cpu": 3000}


class NobodyStarting(FilterPlugin):
    """Rejects nodes with a pod that is still starting."""

    name: ClassVar[str] = "NobodyStarting"
    api_version: ClassVar[int] = 1
    scope: ClassVar[Scope] = Scope.NODE

    def filter(self, state: CycleState, pod: PodInfo, node: NodeInfo) -> Status:
        if any(other.pod.status.phase == "Pending" for other in node.pods):
            return Status.unschedulable("still starting")
        return SUCCESS


def test_shared_answers_follow_pod_changes_on_node() -> None:
    scheduling = Scheduling(NobodyStarting)
    scheduling.see(a_node("n0"), a_pod("first", on="n0"), a_pod("waits"))
    assert isinstance(scheduling.decide()[-1], r.Rejected)
    scheduling.see(in_phase(a_pod("first", on="n0"), "Running"), a_pod("next"))
    decisions = scheduling.decide()
    assert isinstance(decisions[0], r.Assigned), decisions


def _table(names: Sequence[str]) -> NodeTable:
    table = NodeTable()
    for name in names:
        table.set_node(a_node(name))
    return table


def _best(table: NodeTable, rows: Iterable[int]) -> BestNodes:
    mask = np.zeros(table.size, np.bool_)
    mask[[*rows]] = True
    return BestNodes(100, mask, int(np.count_nonzero(mask)))


def test_tie_break_does_not_depend_on_rows() -> None:
    names = [f"n{number}" for number in range(20)]
    one, other = _table(names), _table(names[::-1])
    for attempt in range(200):
        row = select_node(_best(one, range(20)), one, 7, "uid", attempt)
        twin = select_node(_best(other, range(20)), other, 7, "uid", attempt)
        assert one.names[row] == other.names[twin]


@pytest.mark.parametrize("others", [0, 24, 400])
@pytest.mark.parametrize("seed", [0, 1, 12345])
def test_tie_break_is_uniform(seed: int, others: int) -> None:
    table = _table([f"node-{number}" for number in range(8 + others)])
    best = _best(table, range(8))
    wins = Counter(select_node(best, table, seed, f"pod-{number}", 1) for number in range(4000))
    # 500 each is expected, with a standard deviation of 21.
    assert sorted(wins) == [*range(8)]
    assert all(400 < count < 600 for count in wins.values()), wins


def test_tie_break_follows_added_and_deleted_nodes() -> None:
    table = _table(["a", "b", "c"])
    best = _best(table, range(3))
    assert {select_node(best, table, 0, f"{i}", 1) for i in range(100)} == {0, 1, 2}
    table.remove_node("b")
    best = _best(table, (0, 2))
    assert {select_node(best, table, 0, f"{i}", 1) for i in range(100)} == {0, 2}
    table.set_node(a_node("d"))
    best = _best(table, range(3))
    assert {select_node(best, table, 0, f"{i}", 1) for i in range(100)} == {0, 1, 2}


class Careless(FilterPlugin):
    """Computes in place."""

    name: ClassVar[str] = "Careless"
    api_version: ClassVar[int] = 1

    def filter(self, state: CycleState, pod: PodInfo, node: NodeInfo) -> Status:
        nodes = self.handle.cluster.nodes
        free = nodes.allocatable("cpu")
        free -= nodes.requested("cpu")
        return SUCCESS


def test_columns_are_read_only_for_plugins() -> None:
    scheduling = Scheduling(Careless)
    scheduling.see(a_node("n0"), a_pod("first", on="n0"), a_pod("p"))
    before = scheduling.state.nodes.allocatable("cpu").tolist()
    [decision] = scheduling.decide()[:1]
    assert isinstance(decision, r.AttemptFailed)
    assert "plugin Careless at Filter: ValueError" in decision.message
    assert scheduling.state.nodes.allocatable("cpu").tolist() == before
