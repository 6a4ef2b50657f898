"""Random groups and clusters: what holds after every group cycle."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from asched.framework.pod_groups import PodGroupKey
from asched.model.groups import PodGroup
from asched.model.pod import Affinity, Pod, PodAffinity, PodAffinityTerm
from asched.model.selectors import LabelSelector
from asched.state import records as r
from asched.state.group_records import GroupOutcome, PodGroupAttempted
from tests.group_cycle.groups import PLUGINS, RACK, GroupScheduling, a_group, outcomes, victims
from tests.plugins.gangs import bind, check_replay, member, settle
from tests.run_size import examples
from tests.state.objects import a_node, a_pod, bound

_replace = msgspec.structs.replace
HOST = "kubernetes.io/hostname"
MAX_ROUNDS = 60


class Plan(NamedTuple):
    """A group of pods of one kind."""

    name: str
    size: int
    min_count: int
    cpu: int
    priority: int
    rack: bool
    prefers: str | None
    """The preferred topology levels."""
    apart: str
    """The label for which members must have different values; empty for none."""
    together: bool
    """Members need another member in their rack, except the first one."""

    @property
    def pods(self) -> list[Pod]:
        return [self._pod(number) for number in range(self.size)]

    def _pod(self, number: int) -> Pod:
        labels = {"group": self.name}
        name = f"{self.name}{number}"
        made = member(self.name, name, str(self.cpu), priority=self.priority, labels=labels)
        selector = LabelSelector(match_labels=labels)

        def rule(key: str) -> PodAffinity | None:
            term = PodAffinityTerm(label_selector=selector, topology_key=key)
            return PodAffinity(required=(term,)) if key else None

        near = rule(RACK if self.together else "")
        affinity = Affinity(pod_affinity=near, pod_anti_affinity=rule(self.apart))
        return _replace(made, spec=_replace(made.spec, affinity=affinity))

    @property
    def group(self) -> PodGroup:
        return a_group(
            self.name,
            self.min_count,
            rack=self.rack,
            priority=self.priority,
            prefers=self.prefers,
        )


@st.composite
def plans(draw: st.DrawFn, most: int = 3) -> list[Plan]:
    found = []
    for number in range(draw(st.integers(1, most))):
        size = draw(st.integers(1, 5))
        found.append(
            Plan(
                name=f"g{number}",
                size=size,
                min_count=draw(st.integers(1, size)),
                cpu=draw(st.integers(1, 2)),
                priority=draw(st.sampled_from([5, 10])),
                rack=draw(st.booleans()),
                prefers=draw(st.sampled_from([None, RACK, f"{RACK},{HOST}"])),
                apart=draw(st.sampled_from(["", "", HOST, RACK])),
                together=draw(st.booleans()),
            )
        )
    return found


class World(NamedTuple):
    plans: list[Plan]
    rooms: list[int]
    """Cores of each node; racks have two nodes each."""
    running: list[tuple[int, int]]
    """Node and priority of pods with one core."""
    steps: list[int]
    """New pods and other events in order."""
    group_preemption: bool


def worlds(most: int = 3) -> st.SearchStrategy[World]:
    return st.builds(
        World,
        plans(most),
        st.lists(st.integers(1, 4), min_size=1, max_size=6),
        st.lists(st.tuples(st.integers(0, 5), st.sampled_from([0, 1, 7])), max_size=6),
        st.lists(st.integers(0, 40), max_size=25),
        st.booleans(),
    )


def build(world: World) -> GroupScheduling:
    s = GroupScheduling(group_preemption=world.group_preemption)
    free = [*world.rooms]
    for number, cores in enumerate(world.rooms):
        labels = {HOST: f"n{number}", RACK: f"r{number // 2}"}
        s.see(
            a_node(
                f"n{number}", {"cpu": str(cores), "memory": "64Gi", "pods": "110"}, labels=labels
            )
        )
    for number, (at, priority) in enumerate(world.running):
        node = at % len(free)
        if free[node]:
            free[node] -= 1
            s.see(bound(a_pod(f"run{number}", {"cpu": "1"}, priority=priority), f"n{node}"))
    return s


def placed_members(s: GroupScheduling, plan: Plan) -> dict[str, str]:
    statuses = s.state.group_members(PodGroupKey(f"default/{plan.name}", True)).statuses
    return {key: s.state.pods[key].node for key in statuses if s.state.pods[key].node}


def label(s: GroupScheduling, node: str, key: str) -> str:
    row = s.state.nodes.row_of(node)
    assert row is not None
    return s.state.nodes.node(row).labels[key]


def check_groups(s: GroupScheduling, plans: list[Plan]) -> None:
    for plan in plans:
        nodes = [*placed_members(s, plan).values()]
        if plan.rack or plan.together:
            assert len({label(s, node, RACK) for node in nodes}) <= 1
        if plan.apart:
            domains = [label(s, node, plan.apart) for node in nodes]
            assert len(domains) == len({*domains})


def check_cycle(s: GroupScheduling, plans: list[Plan], decisions: tuple[r.Decision, ...]) -> None:
    """Right after the decisions were folded."""
    for header in decisions:
        if not isinstance(header, PodGroupAttempted):
            continue
        plan = next(plan for plan in plans if header.group.endswith(f"/{plan.name}"))
        assigned = [d for d in decisions if isinstance(d, r.Assigned)]
        assert bool(assigned) == (header.outcome is GroupOutcome.SCHEDULED)
        if assigned:
            assert len(placed_members(s, plan)) >= plan.min_count
        if victims(decisions):
            assert header.outcome is GroupOutcome.WAITING
    check_groups(s, plans)


def rounds(s: GroupScheduling, plans: list[Plan]) -> Iterator[tuple[r.Decision, ...]]:
    for _ in range(MAX_ROUNDS):
        decisions = s.next()
        if not decisions:
            return
        check_cycle(s, plans, decisions)
        yield decisions
    raise AssertionError("decisions repeat endlessly at one time")


@settings(max_examples=examples(50))
@given(worlds(), st.integers(0, 20))
def test_no_group_is_started_below_its_minimum_or_outside_its_domain(
    world: World, checkpoint_at: int
) -> None:
    s = build(world)
    to_come = [pod for plan in world.plans for pod in plan.pods]
    groups = [plan.group for plan in world.plans]
    for step in world.steps:
        if step < 18 and to_come:
            s.see(to_come.pop(step % len(to_come)))
        elif step < 24 and groups:
            s.see(groups.pop(step % len(groups)))
        elif step < 32:
            for decisions in rounds(s, world.plans):
                assert decisions
        elif step < 35:
            bind(s)
        elif step < 37:
            s.evict()
        elif step < 38 and s.state.pods:
            key = sorted(s.state.pods)[step % len(s.state.pods)]
            s.apply(r.ObjectDeleted("Pod", key, s.state.pods[key].info.uid))
        else:
            s.pass_time(1.5 * (step - 36))
        check_groups(s, world.plans)
    check_replay(s, *PLUGINS, checkpoint_at=checkpoint_at)


@settings(max_examples=examples(40))
@given(worlds(most=1))
def test_victims_make_room_for_the_group(world: World) -> None:
    """Once the victims are gone and nothing else happened, the group runs."""
    s = build(world)
    plan = world.plans[0]
    s.see(plan.group, *plan.pods)
    found = [*rounds(s, world.plans)]
    waiting = [d for d in found if GroupOutcome.WAITING in outcomes(d)]
    assert bool(waiting) or not any(victims(decisions) for decisions in found)
    if not waiting:
        return
    s.evict()
    settle(s, rounds=4)
    assert len(placed_members(s, plan)) >= plan.min_count
    check_replay(s, *PLUGINS)
