"""The limits of a group cycle: no group blocks the scheduler, and large groups are charged."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asched.group_cycle import decide, domain_preemption, partial, work
from asched.group_cycle.members import CycleMembers, collect_members
from asched.group_cycle.preemption import possible_victims
from asched.group_cycle.victim_nodes import on_cheapest_nodes
from asched.group_cycle.work import CycleWork
from asched.model.pod import Affinity, PodAffinity, PodAffinityTerm
from asched.model.quantity import NS_PER_S
from asched.model.selectors import LabelSelector
from asched.state import attempt_budget
from asched.state import records as r
from asched.state.attempt_budget import FREE_STEPS, NS_PER_STEP, SHARE
from asched.state.group_records import GroupOutcome, PodGroupAttempted
from tests.cycle.scheduling import nodes_of
from tests.group_cycle.groups import (
    PLUGINS,
    RACK,
    GroupScheduling,
    a_group,
    messages,
    outcomes,
    victims,
)
from tests.plugins.gangs import check_replay, gang_pods, member, placed, settle
from tests.state.objects import a_node, a_pod, bound


@pytest.fixture(autouse=True)
def no_short_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attempts are charged whoever waits, as long ones are."""
    monkeypatch.setattr(attempt_budget, "SHORT_STEPS", 0)


ROOM = {"memory": "64Gi", "pods": "110"}


class Limited(GroupScheduling):
    """Placements that are not tried may change the outcome."""

    def _check_screening(self) -> None:
        pass


def nodes(s: GroupScheduling, count: int, cpu: str = "4") -> None:
    for n in range(count):
        s.see(a_node(f"n{n}", {"cpu": cpu, **ROOM}, labels={RACK: f"r{n}"}))


def header(decisions: tuple[r.Decision, ...]) -> PodGroupAttempted:
    return next(d for d in decisions if isinstance(d, PodGroupAttempted))


FEW = 8 * work.TRY_STEPS + 8_000
"""The work for eight like members on a few nodes."""


def test_group_that_needs_too_many_members_is_rejected_untried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(work, "MAX_STEPS", FEW)
    s = Limited()
    nodes(s, 4)
    s.see(a_group("large", 9), *gang_pods("large", 10))
    s.see(a_group("small", 2), *gang_pods("small", 3))
    decisions = s.next()
    assert outcomes(decisions) == [GroupOutcome.UNSCHEDULABLE]
    assert messages(decisions) == {
        f"large{n}": "too expensive: 9 members at once take too long to try in this cluster"
        for n in range(10)
    }
    settle(s)
    assert placed(s) == ["small0", "small1", "small2"]
    # It is tried once it needs less.
    s.see(a_group("large", 3))
    settle(s, 40)
    assert len(placed(s)) == 13
    check_replay(s, *PLUGINS)


def test_large_group_is_scheduled_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "MAX_STEPS", FEW)
    s = Limited()
    nodes(s, 4)
    s.see(a_group("a", 4), *gang_pods("a", 15))
    first = s.next()
    assert outcomes(first) == [GroupOutcome.SCHEDULED]
    # A quarter of the work is not enough for the minimum, which is tried nevertheless.
    assert len(nodes_of(first)) == 4
    parts = [len(nodes_of(decisions)) for decisions in iter(s.next, ())]
    assert sum(parts) == 11
    check_replay(s, *PLUGINS, checkpoint_at=1)


def test_parts_of_a_large_group_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "MAX_STEPS", FEW)
    s = Limited()
    nodes(s, 4)
    # The first members fit nowhere.
    large = [member("a", f"large{n}", "5") for n in range(6)]
    s.see(a_group("a", 2), *large, *(member("a", f"small{n}") for n in range(6)))
    message = "pod group is unschedulable, 10 of 12 members not tried because that takes too long"
    assert header(s.next()).message.endswith(message)
    assert [header(s.next()).outcome for _ in range(3)] == [
        GroupOutcome.UNSCHEDULABLE,
        GroupOutcome.UNSCHEDULABLE,
        GroupOutcome.SCHEDULED,
    ]
    settle(s)
    assert placed(s) == [f"small{n}" for n in range(6)]
    check_replay(s, *PLUGINS)


def test_members_that_fit_before_are_tried_once_a_part_is_scheduled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(work, "MAX_STEPS", 20_000)
    s = Limited()
    nodes(s, 1)
    s.see(a_group("a", 2), member("a", "fits"), *gang_pods("a", 3, cpu="5"))
    settle(s, 2)
    assert placed(s) == []
    # This event does not requeue the one that fits.
    s.see(a_node("large", {"cpu": "15", **ROOM}))
    s.pass_time(20)
    decisions = s.next()
    assert len(nodes_of(decisions)) == 2
    assert messages(decisions) == {"fits": partial.NEXT_CYCLE}
    settle(s, 2)
    assert placed(s) == ["a0", "a1", "a2", "fits"]
    check_replay(s, *PLUGINS)


def test_large_group_evicts_for_its_minimum(monkeypatch: pytest.MonkeyPatch) -> None:
    s = Limited(group_preemption=True)
    with_victims(s, 4)
    s.see(a_group("a", 2, priority=50), *gang_pods("a", 100, cpu="4", priority=50))
    one_pass = CycleWork(s.state, work_members(s).pending).pass_steps(work_members(s).pending)
    monkeypatch.setattr(work, "MAX_STEPS", one_pass - 1)
    decisions = s.next()
    assert outcomes(decisions) == [GroupOutcome.WAITING]
    assert len(victims(decisions)) == 8
    # The members that were not tried wait, too, by one round of decisions.
    waits = s.next()
    assert outcomes(waits) == [GroupOutcome.WAITING]
    assert len(messages(decisions)) + len(messages(waits)) == 100
    assert s.next() == ()
    s.evict()
    settle(s, 2)
    assert len([name for name in placed(s) if name.startswith("a")]) >= 2
    check_replay(s, *PLUGINS)


def test_long_cycle_is_charged_and_the_next_one_put_off(monkeypatch: pytest.MonkeyPatch) -> None:
    # Each form takes a second.
    monkeypatch.setattr(work, "_FORM_STEPS", NS_PER_S // NS_PER_STEP)
    monkeypatch.setattr(work, "MAX_STEPS", 10**9)
    s = GroupScheduling()
    nodes(s, 1)
    s.see(a_group("a", 5), *gang_pods("a", 5))
    s.see(a_group("b", 2), *gang_pods("b", 2))
    first = header(s.next())
    assert first.outcome is GroupOutcome.UNSCHEDULABLE
    assert first.steps > FREE_STEPS
    # The two members together.
    attempted, put_off, other = s.next()
    assert isinstance(attempted, PodGroupAttempted)
    assert isinstance(put_off, r.Rejected)
    assert isinstance(other, r.Rejected)
    assert put_off.put_off_until_ns == other.put_off_until_ns
    assert attempted.message == put_off.message
    assert put_off.message == (
        "put off: a group of 2 members takes long to try, and namespace default used up its share"
        " of decision time"
    )
    waits_ns = put_off.put_off_until_ns - s.state.now_ns
    assert waits_ns == pytest.approx(first.steps * NS_PER_STEP * SHARE, rel=0.3)
    # All members wait, and decide nothing one by one.
    assert [put_off.key.partition("/")[2], other.key.partition("/")[2]] == ["b0", "b1"]
    assert s.next() == ()
    s.pass_time(waits_ns // NS_PER_S + 1)
    # The longer a group has waited in the queue, the sooner its turn comes.
    settle(s)
    assert placed(s) == ["b0", "b1"]
    check_replay(s, *PLUGINS, checkpoint_at=len(s.records) // 2)


def test_new_member_of_a_group_that_is_put_off_joins_it_without_collecting_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(work, "_FORM_STEPS", NS_PER_S // NS_PER_STEP)
    monkeypatch.setattr(work, "MAX_STEPS", 10**9)
    s = GroupScheduling()
    nodes(s, 2)
    s.see(a_group("a", 9), *gang_pods("a", 9))
    s.see(a_group("b", 2), *gang_pods("b", 2))
    s.next()
    turn_ns = turn_of(s.next())
    with monkeypatch.context() as patch:
        patch.setattr(decide, "members_of", None)
        patch.setattr(GroupScheduling, "_check_screening", lambda _: None)
        s.see(*gang_pods("b", 4)[2:])
        decisions = s.next()
    assert {*messages(decisions)} == {"b2", "b3"}
    assert turn_of(decisions) == turn_ns
    assert "a group of 4 members takes long" in header(decisions).message
    assert s.next() == ()
    settle(s, 60)
    assert [name for name in placed(s) if name.startswith("b")] == ["b0", "b1", "b2", "b3"]
    check_replay(s, *PLUGINS)


def test_groups_have_their_turns_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "_FORM_STEPS", NS_PER_S // NS_PER_STEP)
    monkeypatch.setattr(work, "MAX_STEPS", 10**9)
    s = GroupScheduling()
    nodes(s, 8)
    for name in "abcd":
        s.see(a_group(name, 2), *gang_pods(name, 2))
    assert s.next()  # a is scheduled
    turns_ns = [turn_of(s.next()) for _ in range(3)]
    assert s.next() == ()
    assert turns_ns == sorted({*turns_ns})
    # What a cycle takes is charged once it ran: more than estimated puts later ones off again.
    s.pass_time((turns_ns[0] - s.state.now_ns) / NS_PER_S)
    monkeypatch.setattr(work, "_FORM_STEPS", 3 * NS_PER_S // NS_PER_STEP)
    assert header(s.next()).outcome is GroupOutcome.SCHEDULED
    s.pass_time((turns_ns[1] - s.state.now_ns) / NS_PER_S)
    assert turn_of(s.next()) > turns_ns[2]
    settle(s, 90)
    assert len(placed(s)) == 8


def turn_of(decisions: tuple[r.Decision, ...]) -> int:
    """The turn of a group that was put off."""
    (turn_ns,) = {d.put_off_until_ns for d in decisions if isinstance(d, r.Rejected)}
    return turn_ns


def test_usual_group_is_free() -> None:
    s = GroupScheduling()
    nodes(s, 4)
    s.see(a_group("a", 3), *gang_pods("a", 3))
    assert header(s.next()).steps == 0


def test_placements_that_take_too_long_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "MAX_STEPS", 20_000)
    s = Limited()
    nodes(s, 6, cpu="1")
    # There is room everywhere, but no pod for the affinity of the members.
    term = PodAffinityTerm(topology_key=RACK, label_selector=LabelSelector(match_labels={"a": "b"}))
    pods = [
        msgspec.structs.replace(
            pod,
            spec=msgspec.structs.replace(
                pod.spec, affinity=Affinity(pod_affinity=PodAffinity(required=(term,)))
            ),
        )
        for pod in gang_pods("a", 1)
    ]
    s.see(a_group("a", 1, rack=True), *pods)
    found = header(s.next())
    assert found.outcome is GroupOutcome.UNSCHEDULABLE
    assert found.message.startswith("0/6 placements are available")
    assert "placements not tried because that takes too long" in found.message


def with_victims(s: GroupScheduling, count: int) -> None:
    """Nodes with four pods each. Their priorities rise with the number of the node."""
    nodes(s, count)
    for n in range(count):
        for number in range(4):
            s.see(bound(a_pod(f"v{n}-{number}", {"cpu": "1"}, priority=n), f"n{n}"))


def test_large_search_evicts_where_it_costs_least(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(domain_preemption, "FEW_PODS", 8)
    s = Limited(group_preemption=True)
    with_victims(s, 10)
    s.see(a_group("a", 2, priority=50), *gang_pods("a", 2, cpu="4", priority=50))
    decisions = s.next()
    assert outcomes(decisions) == [GroupOutcome.WAITING]
    assert victims(decisions) == [f"v{n}-{k}" for n in range(2) for k in range(4)]


def test_search_grows_until_the_group_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(domain_preemption, "FEW_PODS", 4)
    s = Limited(group_preemption=True)
    with_victims(s, 10)
    s.see(a_group("a", 3, priority=50), *gang_pods("a", 3, cpu="4", priority=50))
    decisions = s.next()
    assert outcomes(decisions) == [GroupOutcome.WAITING]
    assert len(victims(decisions)) == 12
    s.evict()
    settle(s)
    assert [name for name in placed(s) if name.startswith("a")] == ["a0", "a1", "a2"]
    check_replay(s, *PLUGINS)


def test_limited_search_says_what_it_did_not_try(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(domain_preemption, "FEW_PODS", 4)
    monkeypatch.setattr(work, "REMOVAL_STEPS", work.MAX_STEPS // 8)
    s = Limited(group_preemption=True)
    with_victims(s, 10)
    s.see(a_group("a", 5, priority=50), *gang_pods("a", 5, cpu="4", priority=50))
    found = header(s.next())
    assert found.outcome is GroupOutcome.UNSCHEDULABLE
    assert found.message.endswith("pods with costlier evictions were not tried")


@given(
    priorities=st.lists(st.lists(st.integers(0, 3), max_size=4), min_size=1, max_size=6),
    usable=st.sets(st.integers(0, 5)),
    most_pods=st.integers(0, 12),
)
def test_chosen_units_are_those_of_the_cheapest_usable_nodes(
    priorities: list[list[int]], usable: set[int], most_pods: int
) -> None:
    s = GroupScheduling(group_preemption=True)
    nodes(s, len(priorities), cpu="64")
    for n, on_node in enumerate(priorities):
        for number, priority in enumerate(on_node):
            s.see(bound(a_pod(f"v{n}-{number}", {"cpu": "1"}, priority=priority), f"n{n}"))
    s.see(a_group("a", 1, priority=50), *gang_pods("a", 1, priority=50))
    head = s.state.queue.head()
    assert head is not None
    members = work_members(s)
    units = possible_victims(s.state, members)
    rows = s.state.nodes.alive.copy()
    for n in range(len(priorities)):
        rows[s.state.nodes.row_of(f"n{n}")] = n in usable
    chosen = on_cheapest_nodes(s.state, units, rows, most_pods)
    total = sum(map(len, priorities))
    if total <= most_pods:
        assert chosen == units
        return
    assert [unit for unit in units if unit in chosen] == [*chosen]
    names = {s.state.pods[unit.pods[0].key].node for unit in chosen}
    assert names <= {f"n{n}" for n in usable}
    assert len(chosen) == sum(len(priorities[int(name[1:])]) for name in names)

    def cost(n: int) -> tuple[int, int, int]:
        return max(priorities[n]), sum(priorities[n]), len(priorities[n])

    taken = [n for n in usable if f"n{n}" in names]
    left = [n for n in usable if n < len(priorities) and priorities[n] and f"n{n}" not in names]
    assert all(cost(one) <= cost(other) for one in taken for other in left)
    assert len(chosen) >= min(most_pods, sum(len(priorities[n]) for n in taken + left))


def work_members(s: GroupScheduling) -> CycleMembers:
    head = s.state.queue.head()
    assert head is not None
    found = collect_members(s.state, s.state.profiles["default-scheduler"], head)
    assert found is not None
    return found


@given(
    cpus=st.lists(st.sampled_from(["1", "2", "3"]), min_size=1, max_size=8),
    max_steps=st.integers(1_000, 200_000),
    rack=st.booleans(),
    evicts=st.booleans(),
)
def test_cycle_stays_near_its_limit(
    cpus: list[str], max_steps: int, rack: bool, evicts: bool
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(work, "MAX_STEPS", max_steps)
        s = Limited(group_preemption=evicts)
        with_victims(s, 5)
        pods = [gang_pods("a", n + 1, cpu, priority=50)[n] for n, cpu in enumerate(cpus)]
        s.see(a_group("a", len(cpus), rack=rack, priority=50), *pods)
        head = s.state.queue.head()
        assert head is not None
        members = work_members(s)
        one_pass = CycleWork(s.state, members.pending).pass_steps(members.pending)
        found = header(s.next())
        if one_pass > max_steps:
            assert found.message.startswith("too expensive")
            assert found.steps == 0
        else:
            # What began before the limit is finished: a pass, a search, or the removal of pods.
            most = one_pass + work.REMOVAL_STEPS * 20 + 2 * 15_000 * len(cpus) + 7 * 10_000
            assert found.steps <= max_steps + most
