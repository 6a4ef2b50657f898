"""The small parts that effects are made of: lanes, pauses, the inbox."""

from __future__ import annotations

import asyncio
from functools import partial

import anyio
import anyio.lowlevel

from asched.core.inputs import Listed
from asched.daemon.effects.per_pod_queue import REVIEW_INTERVAL, Job, PerPodQueue
from asched.daemon.engine.inbox import Inbox
from asched.daemon.engine.runtime import StoppableSleep
from asched.kube.timing import SystemClock
from asched.model.resources import Resource
from asched.state.records import Bound, LeadershipGained


class Diary:
    """Jobs that write down when they begin and end."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.may_end = anyio.Event()

    def job(self, name: str) -> Job:
        async def work() -> None:
            self.lines.append(f"{name} begins")
            await self.may_end.wait()
            self.lines.append(f"{name} ends")

        return work


async def test_in_order_within_a_lane_and_at_the_same_time_between_lanes() -> None:
    diary, ends = Diary(), list[int]()
    async with anyio.create_task_group() as tasks:
        lanes = PerPodQueue(tasks, lambda: ends.append(len(lanes)))
        for lane, kind in (("a", "tell"), ("a", "bind"), ("b", "tell")):
            lanes.submit(lane, kind, diary.job(f"{lane}/{kind}"))
        await anyio.wait_all_tasks_blocked()
        assert diary.lines == ["a/tell begins", "b/tell begins"]
        assert len(lanes) == 2
        diary.may_end.set()
        lanes.close()
    assert diary.lines.index("a/tell ends") < diary.lines.index("a/bind begins")
    assert ends == [1, 0]


async def test_only_the_newest_word_that_waits_is_said() -> None:
    diary = Diary()
    async with anyio.create_task_group() as tasks:
        lanes = PerPodQueue(tasks, lambda: None)
        lanes.submit("a", "tell", diary.job("first"))
        await anyio.wait_all_tasks_blocked()
        for name in ("second", "third"):
            lanes.submit("a", "tell", diary.job(name))
        diary.may_end.set()
        lanes.close()
    assert diary.lines == ["first begins", "first ends", "third begins", "third ends"]


async def test_tasks_go_on_with_other_lanes_and_end_when_closed() -> None:
    ended: list[str] = []
    async with anyio.create_task_group() as tasks:
        lanes = PerPodQueue(tasks, lambda: None)

        async def job(name: str) -> None:
            ended.append(f"{name} by {anyio.get_current_task().id}")

        for wave in range(3):
            for name in ("a", "b"):
                lanes.submit(name, "tell", partial(job, f"{name}{wave}"))
            await anyio.wait_all_tasks_blocked()
        lanes.close()
        lanes.submit("c", "tell", partial(job, "c"))
    assert [line.partition(" ")[0] for line in ended] == ["a0", "b0", "a1", "b1", "a2", "b2", "c"]
    assert len({line.partition(" by ")[2] for line in ended[:6]}) == 2


async def test_tasks_that_only_a_burst_needed_end() -> None:
    async with anyio.create_task_group() as tasks:
        lanes, before = PerPodQueue(tasks, lambda: None), len(asyncio.all_tasks())
        for lane in range(200):
            lanes.submit(f"burst-{lane}", "tell", anyio.lowlevel.checkpoint)
        await anyio.wait_all_tasks_blocked()
        assert len(asyncio.all_tasks()) - before == 200
        for _ in range(8 * REVIEW_INTERVAL):
            lanes.submit("calm", "tell", anyio.lowlevel.checkpoint)
            while len(lanes):
                await anyio.lowlevel.checkpoint()
        assert 1 <= len(asyncio.all_tasks()) - before < 10
        lanes.close()


async def test_pauses_end_when_the_daemon_stops() -> None:
    pauses, answers = StoppableSleep(SystemClock()), list[bool]()

    async def wait() -> None:
        answers.append(await pauses.pause(3600))

    assert await pauses.pause(0.001)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        tasks.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        pauses.end()
    assert answers == [False, False]
    assert not await pauses.pause(3600)


async def test_the_inbox_holds_watches_back_but_never_outcomes() -> None:
    inbox, listed = Inbox(max_changes=4), Listed(Resource.PODS, ())
    handed_over: list[int] = []

    async def watch(number: int) -> None:
        inbox.put_changes((listed, listed, listed))
        await inbox.until_room()
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


def test_leadership_waits_for_the_changes_that_came_before_it() -> None:
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
    assert inbox.next_outcome(listing=True) == gained, "that list came after it"
    assert inbox.next_outcome() is None
    assert len(inbox) == 0


async def test_waking_an_inbox_counts_even_before_anybody_waits() -> None:
    inbox = Inbox()
    inbox.wake()
    with anyio.fail_after(60):
        await inbox.wait()
    with anyio.move_on_after(0) as again:
        await inbox.wait()
    assert again.cancelled_caught
