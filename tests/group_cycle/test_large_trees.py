"""Trees of groups that are too large for one cycle: tried in parts, or rejected at once."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asched.group_cycle import work
from asched.state import records as r
from asched.state.group_records import GroupOutcome, PodGroupAttempted
from asched.state.session_records import PodGroupStatusDecided
from tests.group_cycle.groups import PLUGINS, GroupScheduling, messages
from tests.group_cycle.test_composite import child, composite, cores, headers
from tests.plugins.gangs import check_replay, gang_pods, placed, settle
from tests.run_size import examples
from tests.state.objects import a_node


class LimitedTree(GroupScheduling):
    """The members that are tried depend on the limit. The cycle of a tree is not repeated."""

    def _check_screening(self) -> None:
        pass


def root_of(decisions: Sequence[r.Decision]) -> PodGroupAttempted:
    return next(d for d in decisions if isinstance(d, PodGroupAttempted) and not d.root)


def root_condition(decisions: Sequence[r.Decision]) -> str:
    """The message of the condition of the root."""
    return next(
        d.conditions[-1].message
        for d in decisions
        if isinstance(d, PodGroupStatusDecided) and d.group == "default/root"
    )


FEW = 8 * work.TRY_STEPS + 8_000
"""The work for eight like members on a few nodes."""


def test_tree_is_scheduled_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "MAX_STEPS", FEW)
    s = LimitedTree()
    cores(s, 8, 8)
    s.see(composite("root", 2), child("a", 2), child("b", 2))
    s.see(*gang_pods("a", 8), *gang_pods("b", 8))
    first = s.next()
    assert [outcome for _, outcome in headers(first)] == [GroupOutcome.SCHEDULED] * 3
    # As many as the children need: more of one could take the room of the other.
    assert placed(s) == ["a0", "a1", "b0", "b1"]
    settle(s)
    assert len(placed(s)) == 16
    check_replay(s, *PLUGINS, checkpoint_at=1)


def test_tree_that_needs_too_many_members_is_one_clear_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(work, "MAX_STEPS", FEW)
    s = LimitedTree()
    cores(s, 16)
    s.see(composite("root", 2), child("a", 5), child("b", 5))
    s.see(*gang_pods("a", 8), *gang_pods("b", 5))
    decisions = s.next()
    message = "too expensive: 10 members at once take too long to try in this cluster"
    assert root_condition(decisions) == message
    assert {*messages(decisions).values()} == {message}
    assert len(messages(decisions)) == 13
    # It is tried once it needs less.
    s.see(child("a", 2), child("b", 2))
    settle(s, 40)
    assert len(placed(s)) == 13
    check_replay(s, *PLUGINS)


def test_root_says_how_many_members_were_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "MAX_STEPS", FEW)
    s = LimitedTree()
    cores(s, 3)
    s.see(composite("root", 2), child("a", 2), child("b", 2))
    s.see(*gang_pods("a", 8), *gang_pods("b", 8))
    decisions = s.next()
    message = (
        "CompositePodGroup default/root is unschedulable: 1 of its 2 required child groups fit,"
        " 12 of 16 members not tried because that takes too long"
    )
    assert root_of(decisions).message == root_condition(decisions) == message
    assert not placed(s)
    # A node for the rest of the minimum is an event for the members that were rejected.
    s.see(a_node("more", {"cpu": "1", "memory": "64Gi", "pods": "9"}))
    settle(s, 20)
    assert len(placed(s)) == 4
    check_replay(s, *PLUGINS)


def test_tree_of_ten_thousand_pods_is_tried_in_part() -> None:
    s = LimitedTree()
    cores(s, 16, 16, 16, 16)
    s.see(composite("root", 10))
    for name in "abcdefghij":
        s.see(child(name, 5))
        for pod in gang_pods(name, 1_000, "10m"):
            s.fold.apply(r.ObjectObserved(pod))
    decisions = s.decider.next()
    assert [outcome for _, outcome in headers(decisions)] == [GroupOutcome.SCHEDULED] * 11
    assert root_of(decisions).members == 50
    for decision in decisions:
        s.fold.apply(decision)
    more = s.decider.next()
    assert sum(isinstance(one, r.Assigned) for one in more) == 440 - 50
    # A quarter of the work. The rest is still active.
    assert 1_500 < root_of(more).members == 390 + len(messages(more)) < 2_100
    assert len(s.state.queue.active) == 9_950


@settings(max_examples=examples(30))
@given(
    sizes=st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6)), min_size=1, max_size=4),
    min_groups=st.integers(1, 4),
    rooms=st.lists(st.integers(1, 8), min_size=1, max_size=4),
    tries=st.integers(1, 20),
    checkpoint_at=st.integers(0, 40),
)
def test_parts_of_a_tree_never_start_it_below_its_minimum(
    sizes: list[tuple[int, int]],
    min_groups: int,
    rooms: list[int],
    tries: int,
    checkpoint_at: int,
) -> None:
    """Each child has (minimum, further members)."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(work, "MAX_STEPS", tries * work.TRY_STEPS + 8_000)
        s = LimitedTree()
        cores(s, *rooms)
        names = "abcd"[: len(sizes)]
        min_groups = min(min_groups, len(sizes))
        s.see(composite("root", min_groups))
        for name, (minimum, more) in zip(names, sizes, strict=True):
            s.see(child(name, minimum), *gang_pods(name, minimum + more))
        for _ in range(3):
            for _ in range(60):
                if not s.next():
                    break
                check_minima(s, dict(zip(names, sizes, strict=True)), min_groups)
            else:
                raise AssertionError("decisions repeat endlessly at one time")
            s.pass_time(20)
        needed = sum(minimum for minimum, _ in sizes)
        if needed <= tries and sum(rooms) >= sum(map(sum, sizes)):
            settle(s, 60)
            assert len(placed(s)) == sum(map(sum, sizes))
        check_replay(s, *PLUGINS, checkpoint_at=checkpoint_at)


def check_minima(s: GroupScheduling, sizes: dict[str, tuple[int, int]], min_groups: int) -> None:
    """A child runs with its minimum or not at all, and as many as the root needs."""
    running = {name: sum(pod.startswith(name) for pod in placed(s)) for name in sizes}
    assert all(not count or count >= sizes[name][0] for name, count in running.items())
    assert not any(running.values()) or sum(map(bool, running.values())) >= min_groups
