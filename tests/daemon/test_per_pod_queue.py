"""The per-pod queue of effects, stoppable sleeps, and the inbox."""

from __future__ import annotations

import asyncio
from functools import partial

import anyio
import anyio.lowlevel
import pytest

from asched.core.inputs import Listed, Upserted
from asched.daemon.effects.per_pod_queue import REVIEW_INTERVAL, Job, PerPodQueue
from asched.daemon.engine.inbox import MAX_DEFERRED_CHANGES, Inbox
from asched.framework.status import Code
from asched.kube.timing import StoppableSleep, SystemClock
from asched.model.resources import Resource
from asched.state.records import BindFailed, Bound, LeadershipGained
from tests.kube.harness import BEGIN
from tests.state.objects import a_pod, bound, deleted, in_phase


class RecordingJobs:
    """Creates jobs that record when they begin and end."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.may_end = anyio.Event()

    def job(self, name: str) -> Job:
        async def work() -> None:
            self.lines.append(f"{name} begins")
            await self.may_end.wait()
            self.lines.append(f"{name} ends")

        return work


async def test_jobs_run_in_order_per_pod_and_concurrently_between_pods() -> None:
    jobs, ends = RecordingJobs(), list[int]()
    async with anyio.create_task_group() as tasks:
        queue = PerPodQueue(tasks, lambda: ends.append(len(queue)))
        for key, kind in (("a", "patch"), ("a", "bind"), ("b", "patch")):
            queue.submit(key, kind, jobs.job(f"{key}/{kind}"))
        await anyio.wait_all_tasks_blocked()
        assert jobs.lines == ["a/patch begins", "b/patch begins"]
        assert len(queue) == 2
        jobs.may_end.set()
        queue.close()
    assert jobs.lines.index("a/patch ends") < jobs.lines.index("a/bind begins")
    assert ends == [1, 0]


async def test_newest_queued_job_of_a_kind_replaces_older_ones() -> None:
    jobs = RecordingJobs()
    async with anyio.create_task_group() as tasks:
        queue = PerPodQueue(tasks, lambda: None)
        queue.submit("a", "patch", jobs.job("first"))
        await anyio.wait_all_tasks_blocked()
        for name in ("second", "third"):
            queue.submit("a", "patch", jobs.job(name))
        jobs.may_end.set()
        queue.close()
    assert jobs.lines == ["first begins", "first ends", "third begins", "third ends"]


async def test_tasks_are_reused_and_end_when_closed() -> None:
    ended: list[str] = []
    async with anyio.create_task_group() as tasks:
        queue = PerPodQueue(tasks, lambda: None)

        async def job(name: str) -> None:
            ended.append(f"{name} by {anyio.get_current_task().id}")

        for wave in range(3):
            for name in ("a", "b"):
                queue.submit(name, "patch", partial(job, f"{name}{wave}"))
            await anyio.wait_all_tasks_blocked()
        queue.close()
        queue.submit("c", "patch", partial(job, "c"))
    assert [line.partition(" ")[0] for line in ended] == ["a0", "b0", "a1", "b1", "a2", "b2", "c"]
    assert len({line.partition(" by ")[2] for line in ended[:6]}) == 2


async def test_tasks_of_a_burst_end() -> None:
    async with anyio.create_task_group() as tasks:
        queue, before = PerPodQueue(tasks, lambda: None), len(asyncio.all_tasks())
        for number in range(200):
            queue.submit(f"burst-{number}", "patch", anyio.lowlevel.checkpoint)
        await anyio.wait_all_tasks_blocked()
        assert len(asyncio.all_tasks()) - before == 200
        for _ in range(8 * REVIEW_INTERVAL):
            queue.submit("calm", "patch", anyio.lowlevel.checkpoint)
            while len(queue):
                await anyio.lowlevel.checkpoint()
        assert 1 <= len(asyncio.all_tasks()) - before < 10
        queue.close()


async def test_sleeps_end_when_stopped() -> None:
    sleep, results = StoppableSleep(SystemClock()), list[bool]()

    async def wait() -> None:
        results.append(await sleep.pause(3600))

    assert await sleep.pause(0.001)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        tasks.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        sleep.end()
    assert results == [False, False]
    assert not await sleep.pause(3600)


async def test_inbox_delays_watches_but_not_outcomes() -> None:
    inbox, listed = Inbox(max_changes=4), Listed(Resource.PODS, ())
    handed_over: list[int] = []

    async def watch(number: int) -> None:
        inbox.put_changes((listed, listed, listed))
        await inbox.wait_for_capacity()
        handed_over.append(number)

    async with anyio.create_task_group() as tasks:
        for number in range(2):
            tasks.start_soon(watch, number)
        await anyio.wait_all_tasks_blocked()
        assert handed_over == [0]
        inbox.put_outcome(Bound("default/p", "u", "n"))
        assert (len(inbox), inbox.outcomes) == (7, 1)
        while inbox.next_change() is not None:
            pass
        await inbox.wait()
    assert handed_over == [0, 1]
    assert inbox.next_outcome() == Bound("default/p", "u", "n")
    assert inbox.next_outcome() is None


async def test_inbox_holds_few_parts_of_lists() -> None:
    inbox, handed_over = Inbox(), 0

    async def watch() -> None:
        nonlocal handed_over
        for _ in range(5):
            inbox.put_changes((Listed(Resource.PODS, (), ends=False),))
            await inbox.wait_for_capacity()
            handed_over += 1

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch)
        await anyio.wait_all_tasks_blocked()
        assert (len(inbox), handed_over) == (2, 1)
        inbox.next_change()
        await anyio.wait_all_tasks_blocked()
        assert (len(inbox), handed_over) == (2, 2)
        while inbox.next_change() is not None:
            await anyio.wait_all_tasks_blocked()
    assert handed_over == 5


def test_leadership_is_delivered_after_earlier_changes() -> None:
    inbox, listed = Inbox(), Listed(Resource.PODS, ())
    gained, bound = LeadershipGained(1), Bound("default/p", "u", "n")
    inbox.put_changes((listed, listed))
    inbox.put_outcome(gained)
    inbox.put_outcome(bound)
    inbox.put_changes((listed,))
    assert (len(inbox), inbox.outcomes) == (5, 2)
    assert inbox.next_outcome() == bound
    assert inbox.next_outcome() is None
    inbox.next_change()
    assert inbox.next_outcome() is None
    inbox.next_change()
    assert inbox.next_outcome(listing=True) is None
    inbox.next_change()
    assert inbox.next_outcome(listing=True) == gained, "the list was added later"
    assert inbox.next_outcome() is None
    assert len(inbox) == 0


async def test_wake_before_wait_is_not_lost() -> None:
    inbox = Inbox()
    inbox.wake()
    with anyio.fail_after(60):
        await inbox.wait()
    with anyio.move_on_after(0) as again:
        await inbox.wait()
    assert again.cancelled_caught


def test_inbox_defers_only_what_follows_a_binding() -> None:
    inbox, running = Inbox(), bound(a_pod("p"), "n")
    inbox.put_changes((Upserted(Resource.PODS, running),))
    inbox.put_outcome(Bound("default/p", "u", "n"))
    assert (inbox.urgent, inbox.deferred, len(inbox)) == (False, True, 2)
    for urgent in (a_pod("new"), deleted(running, BEGIN), in_phase(running, "Succeeded")):
        inbox.put_changes((Upserted(Resource.PODS, urgent),))
        assert inbox.urgent
        while inbox.next_change() is not None:
            pass
        while inbox.next_outcome() is not None:
            pass
        inbox.turn_taken()
        assert (inbox.urgent, inbox.deferred) == (False, False)
    inbox.put_outcome(BindFailed("default/p", "u", "n", Code.ERROR))
    assert inbox.urgent


def test_inbox_defers_a_limited_number_of_changes() -> None:
    inbox, change = Inbox(), Upserted(Resource.PODS, bound(a_pod("p"), "n"))
    inbox.put_changes((change,) * MAX_DEFERRED_CHANGES)
    assert not inbox.urgent
    inbox.put_changes((change,))
    assert inbox.urgent


def test_deferred_items_that_a_turn_leaves_are_urgent() -> None:
    inbox, change = Inbox(), Upserted(Resource.PODS, bound(a_pod("p"), "n"))
    inbox.put_changes((change, change))
    inbox.next_change()
    inbox.turn_taken()
    assert inbox.urgent


async def test_wait_ends_a_while_after_the_first_deferred_item(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inbox, ended = Inbox(), []

    async def wait() -> None:
        ended.append(await inbox.wait())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        inbox.put_outcome(Bound("default/p", "u", "n"))
        await anyio.wait_all_tasks_blocked()
        assert ended == [], "a later item may share the turn"
        inbox.wake()
        await anyio.wait_all_tasks_blocked()
        assert ended == [False]
        monkeypatch.setattr("asched.daemon.engine.inbox.DEFERRAL_S", 0.0)
        with anyio.fail_after(60):
            assert await inbox.wait(), "time ended it"
        inbox.turn_taken()
        tasks.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        inbox.put_outcome(Bound("default/q", "u", "n"))
    assert ended == [False, True]


async def test_wait_ends_at_its_deadline() -> None:
    inbox = Inbox()
    with anyio.fail_after(60):
        assert await inbox.wait(anyio.current_time())
        inbox.wake()
        assert not await inbox.wait(anyio.current_time() + 3600), "a wake precedes it"
