"""The virtual event loop and clock."""

from __future__ import annotations

import asyncio
import time

import anyio
import pytest

from asched.model.quantity import NS_PER_S
from tests.fault_simulation.virtual_time import StuckError, VirtualClock, VirtualLoop


def test_loop_skips_idle_time() -> None:
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


def test_loop_raises_if_nothing_is_scheduled() -> None:
    async def wait() -> None:
        await anyio.sleep_forever()

    with (
        pytest.raises(StuckError, match="nothing is scheduled within a day"),
        asyncio.Runner(loop_factory=VirtualLoop) as runner,
    ):
        runner.run(wait())


def test_loop_reports_a_busy_loop() -> None:
    async def spin() -> None:
        loop, reported = asyncio.get_running_loop(), list[str]()
        assert isinstance(loop, VirtualLoop)
        loop.on_stuck = lambda error: reported.append(str(error))
        while not reported:
            await anyio.lowlevel.checkpoint()
        assert reported[0].startswith("time does not advance")

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(spin())


def test_on_stuck_callback_can_cancel() -> None:
    async def wait() -> list[str]:
        loop, reported = asyncio.get_running_loop(), list[str]()
        assert isinstance(loop, VirtualLoop)
        with anyio.CancelScope() as scope:

            def end(error: StuckError) -> None:
                reported.append(str(error))
                scope.cancel()

            loop.on_stuck = end
            await anyio.sleep_forever()
        return reported

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        assert len(runner.run(wait())) == 1


def test_at_step_calls_at_the_step() -> None:
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


def test_clock_adds_thinking_time_and_jumps() -> None:
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
