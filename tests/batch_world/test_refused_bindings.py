"""Backoff of pods with failed session bindings."""

from __future__ import annotations

from collections.abc import Iterator

from asched.model.quantity import NS_PER_S
from asched.state.cluster import PlacementState
from asched.state.records import Assigned
from asched.state.session_records import PodGroupStatusDecided, SessionExecuted
from tests.batch_world.test_fold import History, member


def refused_each_time(history: History, seconds: int, key: str = "default/a0") -> list[int]:
    """Lets the pod's bindings fail. Returns the times of the decisions in seconds."""
    began_ns, decided = history.state.now_ns, []
    for _ in range(seconds):
        history.pass_time()
        if history.state.pods[key].placement_state is PlacementState.ASSUMED:
            decided.append((history.state.now_ns - began_ns) // NS_PER_S)
            history.happen("bind failed", key[-2], int(key[-1]))
    return decided


def assigned(history: History, first: int = 0) -> Iterator[str]:
    return (r.key for r in history.records[first:] if isinstance(r, Assigned))


def with_a_pod() -> History:
    history = History()
    history.happen("pod", "a", 0)
    return history


def test_backoff_equals_pod_by_pod_backoff() -> None:
    assert refused_each_time(with_a_pod(), 40) == [1, 2, 4, 8, 16, 26, 36]


def test_no_session_during_the_backoff() -> None:
    history = with_a_pod()
    refused_each_time(history, 8)
    history.happen("writes end", "a", 1)
    history.pass_time()
    count = len(history.records)
    for _ in range(6):
        history.pass_time()
    assert not [r for r in history.records[count:] if isinstance(r, SessionExecuted)]
    history.pass_time()
    assert [*assigned(history, count)] == ["default/a0"]


def test_other_pods_do_not_wait() -> None:
    history = with_a_pod()
    refused_each_time(history, 8)
    count = len(history.records)
    history.happen("pod", "b", 0)
    history.pass_time()
    assert [*assigned(history, count)] == ["default/b0"]


def test_gang_is_not_reported_incomplete() -> None:
    history = with_a_pod()
    history.happen("group", "a", 1)
    history.happen("pod", "a", 1)
    history.pass_time()
    history.happen("bound", "a", 1)
    history.happen("bind failed", "a", 0)
    history.happen("writes end", "a", 1)
    count = len(history.records)
    history.see(member("b", 2))
    assert refused_each_time(history, 12)
    news = [r for r in history.records[count:] if isinstance(r, PodGroupStatusDecided)]
    assert not [r for r in news if r.group == "default/a" and r.conditions]


def test_backoff_restarts_after_a_success() -> None:
    history = with_a_pod()
    refused_each_time(history, 7)
    history.pass_time()
    history.happen("bound", "a", 0)
    assert not next(iter(history.state.sessions)).failed_bindings
    history.happen("no pod", "a", 0)
    history.happen("pod", "a", 0)
    assert refused_each_time(history, 4) == [1, 2, 4]


def test_recreated_pod_has_no_backoff() -> None:
    history = with_a_pod()
    refused_each_time(history, 8)
    history.happen("no pod", "a", 0)
    history.happen("pod", "a", 0)
    assert refused_each_time(history, 4) == [1, 2, 4]


def test_deleted_node_ends_the_backoff() -> None:
    history = with_a_pod()
    refused_each_time(history, 8)
    node = next(iter(history.state.sessions)).failed_bindings["default/a0"].node
    history.happen("no node", "a", int(node[-1]))
    history.pass_time()
    assert history.state.pods["default/a0"].node not in ("", node)
