"""Invariants of all sessions, on random clusters."""

from __future__ import annotations

from typing import TypeVar

from hypothesis import given
from hypothesis import strategies as st

from asched.batch.plugins.jobs import is_protected
from asched.batch.plugins.shares import Drf, Proportion
from asched.batch.session import SessionRun
from asched.framework.session_objects import Job, Task, TaskStatus
from asched.framework.session_plugins import SessionPlugin
from asched.framework.sessions import EvictionReason, SessionOutcome
from tests.batch.workloads import Plan, plans
from tests.batch.worlds import overdrawn, session_spec

P = TypeVar("P", bound=SessionPlugin)

ACTIONS = ("reclaim", "allocate", "backfill", "preempt")
orders = st.permutations(ACTIONS).flatmap(
    lambda order: st.integers(1, len(ACTIONS)).map(lambda count: tuple(order[:count]))
)


def held(plan: Plan, actions: tuple[str, ...], seed: int) -> tuple[SessionRun, SessionOutcome]:
    run = plan.world(seed).run(session_spec(*actions))
    return run, run.outcome(run.closing())


def task_of(run: SessionRun, uid: str) -> Task:
    return next(
        task for job in run.session.jobs.values() for task in job.tasks.values() if task.uid == uid
    )


def job_of(run: SessionRun, uid: str) -> Job:
    return run.session.jobs[task_of(run, uid).job]


def plugin_of(run: SessionRun, kind: type[P]) -> P:
    return next(p for p in run.session.tiers.plugins if isinstance(p, kind))


@given(plans(), orders, st.integers(0, 99))
def test_no_gang_is_partly_bound(plan: Plan, actions: tuple[str, ...], seed: int) -> None:
    run, outcome = held(plan, actions, seed)
    for bind in outcome.binds:
        job = job_of(run, bind.uid)
        # Tasks evicted later do not matter: the job was ready when it was bound.
        gone = sum(e.uid in job.tasks for e in outcome.evictions)
        assert job.ready_count + gone >= job.min_available


@given(plans(), orders, st.integers(0, 99))
def test_no_gang_is_broken(plan: Plan, actions: tuple[str, ...], seed: int) -> None:
    run, outcome = held(plan, actions, seed)
    for eviction in outcome.evictions:
        job = job_of(run, eviction.uid)
        assert job.min_available <= 1 or job.ready


@given(plans(), orders, st.integers(0, 99))
def test_no_node_is_overcommitted(plan: Plan, actions: tuple[str, ...], seed: int) -> None:
    run, _ = held(plan, actions, seed)
    assert overdrawn(run.session.session_nodes) == []


@given(plans(), orders, st.integers(0, 99))
def test_pipelined_tasks_fit_after_releases(
    plan: Plan, actions: tuple[str, ...], seed: int
) -> None:
    run, _ = held(plan, actions, seed)
    books = run.session.session_nodes
    for name, idle in books.idle.items():
        assert (idle + books.releasing[name] >= 0)[books.present].all()


@given(plans(), orders, st.integers(0, 99))
def test_no_queue_is_reclaimed_below_its_share(
    plan: Plan, actions: tuple[str, ...], seed: int
) -> None:
    """The victim's queue keeps its deserved amount of some resource that the victim used."""
    run, outcome = held(plan, actions, seed)
    accounts = plugin_of(run, Proportion).accounts
    if any(eviction.reason is EvictionReason.PREEMPT for eviction in outcome.evictions):
        return  # preempt evicts within the queue, regardless of its share
    for eviction in outcome.evictions:
        victim = task_of(run, eviction.uid)
        account = accounts[run.session.jobs[victim.job].queue]
        assert any(
            account.allocated.get(name) >= account.deserved.get(name)
            for name, number in victim.request.amounts().items()
            if number
        )


@given(plans(), orders, st.integers(0, 99))
def test_drf_shares_match_allocations(plan: Plan, actions: tuple[str, ...], seed: int) -> None:
    """Only jobs that gained resources have a larger share than before."""
    before = plan.world(seed).run(session_spec())
    run, outcome = held(plan, actions, seed)
    drf, drf_before = plugin_of(run, Drf), plugin_of(before, Drf)
    victims = {e.uid for e in outcome.evictions}
    for job in run.session.jobs.values():
        lost = bool(victims & job.tasks.keys())
        share, was = drf.holdings[job.id].share, drf_before.holdings[job.id].share
        assert lost or share >= was
        placed = [t for t in job.tasks.values() if t.status in _PLACED]
        assert share <= was or placed


_PLACED = {TaskStatus.ALLOCATED, TaskStatus.BINDING, TaskStatus.PIPELINED}


@given(plans(), orders, st.integers(0, 99))
def test_nothing_protected_is_evicted(plan: Plan, actions: tuple[str, ...], seed: int) -> None:
    run, outcome = held(plan, actions, seed)
    assert not any(is_protected(task_of(run, e.uid)) for e in outcome.evictions)


@given(plans(), orders, st.integers(0, 99))
def test_every_eviction_has_a_pipelined_preemptor(
    plan: Plan, actions: tuple[str, ...], seed: int
) -> None:
    run, outcome = held(plan, actions, seed)
    for eviction in outcome.evictions:
        task = task_of(run, eviction.preemptor_uid)
        assert task.status is TaskStatus.PIPELINED
        assert task.node == eviction.node
        assert run.session.jobs[task.job].pipelined


@given(plans(), orders, st.integers(0, 99))
def test_no_queue_gets_more_than_its_capability(
    plan: Plan, actions: tuple[str, ...], seed: int
) -> None:
    run, _ = held(plan, actions, seed)
    before = plan.world(seed).run(session_spec())
    had = plugin_of(before, Proportion).accounts
    for name, account in plugin_of(run, Proportion).accounts.items():
        capability = run.session.queues[name].capability
        if capability is not None:
            most = max(capability.milli_cpu, had[name].allocated.milli_cpu)
            assert account.allocated.milli_cpu <= most


@given(plans(), orders, st.integers(0, 99))
def test_sessions_are_deterministic(plan: Plan, actions: tuple[str, ...], seed: int) -> None:
    assert held(plan, actions, seed)[1] == held(plan, actions, seed)[1]
