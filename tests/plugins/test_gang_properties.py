"""Random gangs and clusters: no gang is bound in part, and gangs that fit run."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import NamedTuple

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from asched.framework.interface import Plugin
from asched.framework.status import Code
from asched.model.pod import Pod
from asched.plugins.default_preemption.plugin import DefaultPreemption
from asched.state import records as r
from asched.state.cluster import PlacementState
from tests.cycle.scheduling import Scheduling, nodes_of
from tests.plugins.gangs import (
    GANGS,
    INTERLEAVED,
    a_gang,
    bind,
    check_replay,
    member,
    settle,
    waiting,
)
from tests.run_size import examples
from tests.state.objects import a_node, a_pod, bound

MEMORY = {"memory": "64Gi", "pods": "110"}


class Plan(NamedTuple):
    """A gang of identical pods."""

    name: str
    size: int
    min_count: int
    cpu: int
    priority: int

    @property
    def pods(self) -> list[Pod]:
        return [
            member(self.name, f"{self.name}{number}", str(self.cpu), priority=self.priority)
            for number in range(self.size)
        ]


@st.composite
def plans(draw: st.DrawFn) -> list[Plan]:
    found = []
    for number in range(draw(st.integers(1, 4))):
        size = draw(st.integers(1, 5))
        needed = draw(st.integers(1, size))
        cpu, priority = draw(st.integers(1, 2)), draw(st.integers(0, 1))
        found.append(Plan(f"g{number}", size, needed, cpu, priority))
    return found


class Run(NamedTuple):
    plans: list[Plan]
    created: list[int]
    """Creation time of each PodGroup."""
    rooms: list[int]
    """Cores of each node."""
    steps: list[int]
    """New pods and other events in order."""


runs = st.builds(
    Run,
    plans(),
    st.permutations(range(4)).map(list),
    st.lists(st.integers(1, 4), min_size=1, max_size=5),
    st.lists(st.integers(0, 40), max_size=40),
)


def in_part(scheduling: Scheduling, plan: Plan) -> bool:
    """Whether some pods of the gang are assigned, but fewer than its minimum count."""
    state = scheduling.state
    through = [
        key
        for key, entry in state.pods.items()
        if entry.node and key not in state.waiting and entry.info.name.startswith(plan.name)
    ]
    return 0 < len(through) < plan.min_count


def play(run: Run, *plugins: type[Plugin], bindings_fail: bool = False) -> Scheduling:
    """Add pods in any order; in between decide, bind and let time pass. With ``bindings_fail``,
    some bindings fail."""
    scheduling = Scheduling(*plugins)
    for number, cores in enumerate(run.rooms):
        scheduling.see(a_node(f"n{number}", {"cpu": str(cores), **MEMORY}))
    to_come = [pod for plan in run.plans for pod in plan.pods]
    groups = [
        a_gang(plan.name, plan.min_count, created_s=run.created[number])
        for number, plan in enumerate(run.plans)
    ]
    for step in run.steps:
        if step < 24 and to_come:
            scheduling.see(to_come.pop(step % len(to_come)))
        elif step < 28 and groups:
            scheduling.see(groups.pop(step % len(groups)))
        elif step < 34:
            scheduling.next()
        elif step < 36 and bindings_fail:
            fail_a_binding(scheduling)
        elif step < 38:
            bind(scheduling)
        else:
            scheduling.pass_time(0.7 * (step - 37))
        assert bindings_fail or not any(in_part(scheduling, plan) for plan in run.plans)
    scheduling.see(*groups, *to_come)
    return scheduling


def fail_a_binding(scheduling: Scheduling) -> None:
    for key, entry in scheduling.state.pods.items():
        if entry.placement_state is PlacementState.ASSUMED and key not in scheduling.state.waiting:
            scheduling.apply(r.BindFailed(key, entry.info.uid, entry.node, Code.ERROR))
            return


def would_run_alone(scheduling: Scheduling, plan: Plan, *plugins: type[Plugin]) -> bool:
    """Whether the gang fits next to the running pods alone."""
    alone = Scheduling(*plugins)
    state = scheduling.state
    for row, name in enumerate(state.nodes.names):
        assert name, row
        alone.see(state.nodes.node(row))
    for entry in state.pods.values():
        if entry.placement_state is PlacementState.BOUND:
            alone.see(bound(a_pod(f"was-{entry.info.name}", _asked(entry.info.pod)), entry.node))
    alone.see(a_gang(plan.name, plan.min_count), *plan.pods)
    return len(nodes_of(alone.decide())) >= plan.min_count


def _asked(pod: Pod) -> dict[str, str]:
    return {name: str(q) for name, q in pod.spec.containers[0].resources.requests.items()}


@pytest.mark.parametrize("plugins", [GANGS, INTERLEAVED], ids=["GangSort", "PrioritySort"])
@settings(max_examples=examples(50))
@given(run=runs, cut=st.integers(0, 50))
def test_gang_is_scheduled_completely_or_not_at_all(
    plugins: Sequence[type[Plugin]], run: Run, cut: int
) -> None:
    scheduling = play(run, *plugins)
    settle(scheduling)
    note(f"{waiting(scheduling)} held at the end")
    assert waiting(scheduling) == []
    for plan in run.plans:
        assert not in_part(scheduling, plan)
        runs_now = any(
            entry.node and entry.info.name.startswith(plan.name)
            for entry in scheduling.state.pods.values()
        )
        # A gang that fits does not wait.
        assert runs_now or not would_run_alone(scheduling, plan, *plugins)
    check_replay(scheduling, *plugins, checkpoint_at=cut)


@settings(max_examples=examples(30))
@given(run=runs, cut=st.integers(0, 50))
def test_no_pod_waits_at_permit_in_the_end(run: Run, cut: int) -> None:
    """Includes preemption between gangs and failing bindings."""
    plugins: tuple[type[Plugin], ...] = (*GANGS[:3], DefaultPreemption, GANGS[3])
    scheduling = play(run, *plugins, bindings_fail=True)
    for _ in range(8):
        settle(scheduling, rounds=1)
        for eviction in [*scheduling.state.evictions.values()]:
            victim = eviction.victim
            scheduling.apply(r.EvictionSucceeded(victim.key, victim.uid))
            scheduling.apply(r.ObjectDeleted("Pod", victim.key, victim.uid))
    settle(scheduling)
    assert waiting(scheduling) == []
    check_replay(scheduling, *plugins, checkpoint_at=cut)


class Unlike(NamedTuple):
    """A gang of members that differ."""

    min_count: int
    created_s: int
    members: list[tuple[int, int]]
    """Cores and priority of each."""


def unlike_gangs() -> st.SearchStrategy[list[Unlike]]:
    members = st.lists(
        st.tuples(st.integers(1, 3), st.sampled_from([0, 0, 0, 1, 2])), min_size=1, max_size=5
    )
    gang = st.builds(
        lambda found, missing, created: Unlike(max(1, len(found) - missing), created, found),
        members,
        st.integers(0, 2),
        st.integers(0, 2),
    )
    return st.lists(gang, min_size=2, max_size=4)


MAX_DECISIONS = 600


Order = list[tuple[int, int]]
"""Numbers of gang and member, as pods arrive."""

LOOPED: list[tuple[list[Unlike], list[int], Order]] = [
    (
        # The room that the second gang releases is taken by another member of it.
        [Unlike(1, 0, [(3, 0)]), Unlike(2, 1, [(3, 0), (2, 0), (3, 0)])],
        [4],
        [(1, 2), (1, 0), (0, 0), (1, 1)],
    ),
    (
        [Unlike(2, 1, [(2, 0), (1, 2), (2, 2)]), Unlike(2, 0, [(2, 0), (2, 2), (1, 0)])],
        [2],
        [(0, 0), (0, 1), (1, 1), (1, 0), (1, 2), (0, 2)],
    ),
    (
        # A member preempts another one of its own gang.
        [Unlike(2, 1, [(1, 0), (3, 2)]), Unlike(2, 2, [(3, 0), (2, 1)])],
        [3],
        [(0, 1), (1, 1), (1, 0), (0, 0)],
    ),
    (
        [Unlike(3, 1, [(1, 2), (2, 0), (1, 1)]), Unlike(1, 0, [(1, 0)])],
        [1, 3],
        [(0, 2), (0, 1), (0, 0), (1, 0)],
    ),
]


@pytest.mark.parametrize("preempts", [False, True])
@pytest.mark.parametrize(("gangs", "rooms", "order"), LOOPED)
def test_gangs_that_once_took_turns(
    gangs: list[Unlike], rooms: list[int], order: Order, preempts: bool
) -> None:
    check_rest(INTERLEAVED, gangs, rooms, order, preempts=preempts)


@pytest.mark.parametrize("plugins", [GANGS, INTERLEAVED], ids=["GangSort", "PrioritySort"])
@settings(max_examples=examples(15))
@given(
    gangs=unlike_gangs(),
    rooms=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    random=st.randoms(use_true_random=False),
    preempts=st.booleans(),
)
def test_no_two_gangs_starve_each_other(
    plugins: Sequence[type[Plugin]],
    gangs: list[Unlike],
    rooms: list[int],
    random: Random,
    preempts: bool,
) -> None:
    order = [(number, at) for number, gang in enumerate(gangs) for at in range(len(gang.members))]
    random.shuffle(order)
    check_rest(plugins, gangs, rooms, order, preempts=preempts)


MAX_DECISIONS = 300


def check_rest(
    plugins: Sequence[type[Plugin]],
    gangs: list[Unlike],
    rooms: list[int],
    order: Order,
    *,
    preempts: bool,
) -> None:
    """Without changes from outside, gangs come to rest: none keeps releasing reservations."""
    enabled: tuple[type[Plugin], ...] = (
        *plugins[:-1],
        *([DefaultPreemption] if preempts else []),
        plugins[-1],
    )
    scheduling = Scheduling(*enabled)
    for number, cores in enumerate(rooms):
        scheduling.see(a_node(f"n{number}", {"cpu": str(cores), **MEMORY}))
    for number, gang in enumerate(gangs):
        scheduling.see(a_gang(f"g{number}", gang.min_count, created_s=gang.created_s))
    for number, at in order:
        cpu, priority = gangs[number].members[at]
        name = f"g{number}"
        scheduling.see(member(name, f"{name}-{at}", str(cpu), priority=priority))
    rounds = []
    for _ in range(12):
        decided: list[r.Decision] = []
        while decisions := scheduling.next():
            decided += decisions
            assert len(decided) < MAX_DECISIONS
        rounds.append(decided)
        bind(scheduling)
        for eviction in [*scheduling.state.evictions.values()]:
            scheduling.apply(r.EvictionSucceeded(eviction.victim.key, eviction.victim.uid))
            scheduling.apply(r.ObjectDeleted("Pod", eviction.victim.key, eviction.victim.uid))
        scheduling.pass_time(11)
    assert not any(isinstance(d, r.PermitRejected) for decided in rounds[-3:] for d in decided)
