"""Time that passes only where somebody waits for it."""

from __future__ import annotations

import asyncio
import time

import anyio
import pytest

from asched.model.quantity import NS_PER_S
from tests.fault_simulation.virtual_time import StuckError, VirtualClock, VirtualLoop


def test_a_day_of_waiting_takes_no_time() -> None:
    async def wait() -> float:
        loop = asyncio.get_running_loop()
        async with anyio.create_task_group() as tasks:
            for hours in range(24):
                tasks.start_soon(anyio.sleep, 3600.0 * hours)
        with anyio.move_on_after(3600.0):
            await anyio.sleep_forever()
        return loop.time()

    began_s = time.process_time()
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        assert runner.run(wait()) == pytest.approx(24 * 3600.0)
    assert time.process_time() - began_s < 5.0


def test_waiting_for_nothing_is_an_error_and_not_a_hang() -> None:
    async def wait() -> None:
        await anyio.sleep_forever()

    with (
        pytest.raises(StuckError, match="for nothing within a day"),
        asyncio.Runner(loop_factory=VirtualLoop) as runner,
    ):
        runner.run(wait())


def test_what_spins_is_an_error_and_not_a_hang() -> None:
    async def spin() -> None:
        loop, told = asyncio.get_running_loop(), list[str]()
        assert isinstance(loop, VirtualLoop)
        loop.on_stuck = lambda error: told.append(str(error))
        while not told:
            await anyio.lowlevel.checkpoint()
        assert told[0].startswith("time stands still")

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(spin())


def test_who_is_told_of_it_may_end_it() -> None:
    async def wait() -> list[str]:
        loop, told = asyncio.get_running_loop(), list[str]()
        assert isinstance(loop, VirtualLoop)
        with anyio.CancelScope() as scope:

            def end(error: StuckError) -> None:
                told.append(str(error))
                scope.cancel()

            loop.on_stuck = end
            await anyio.sleep_forever()
        return told

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        assert len(runner.run(wait())) == 1


def test_a_call_comes_at_its_step() -> None:
    seen: list[int] = []

    async def count() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        loop.at_step(loop.steps + 10, lambda: seen.append(loop.steps))
        before = loop.steps
        while not seen:
            await anyio.lowlevel.checkpoint()
        assert seen == [before + 10]

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(count())


def test_thinking_takes_time_and_the_wall_clock_may_jump() -> None:
    async def think() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        clock = VirtualClock(loop, lambda: 0.25)
        began_ns, wall_ns, wall = clock.monotonic_ns(), clock.time_ns(), clock.utc()
        assert clock.monotonic_ns() - began_ns == NS_PER_S // 4
        clock.ahead_s = -3600.0
        assert clock.time_ns() - wall_ns == NS_PER_S // 4 - 3600 * NS_PER_S
        assert (clock.utc() - wall).total_seconds() == pytest.approx(0.25 - 3600)
        assert clock.monotonic_s() == pytest.approx(clock.monotonic_ns() / NS_PER_S - 0.25)

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(think())
