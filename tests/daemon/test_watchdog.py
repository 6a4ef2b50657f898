"""Which plugin calls the watchdog reports."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from asched.daemon.plugin_host.guarded_loop import PluginTasks, Watchdog, guarded_loop
from asched.framework.runtime.observation import CURRENT_CALL

LIMIT_S = 0.2


def watch(block: Callable[[], Awaitable[None]]) -> Watchdog:
    """Run a coroutine in a guarded loop that is watched."""
    watchdog = Watchdog(lambda plugin: LIMIT_S, interval_s=0.01)

    async def run() -> None:
        with watchdog:
            await block()

    with asyncio.Runner(loop_factory=guarded_loop) as runner:
        runner.run(run())
    return watchdog


def test_synchronous_call_over_its_limit_is_reported_once() -> None:
    async def block() -> None:
        with CURRENT_CALL.of("Slow", "Filter"):
            time.sleep(2 * LIMIT_S)  # noqa: ASYNC251  a plugin that blocks

    watchdog = watch(block)
    assert watchdog.overruns == {("Slow", "Filter"): 1}
    assert watchdog.problem().startswith("plugin Slow at Filter blocked the event loop for 0.")


def test_asynchronous_plugin_that_blocks_is_reported() -> None:
    async def block() -> None:
        async def plugin() -> None:
            with PluginTasks("Blocks", "PreBind"):
                await asyncio.sleep(0)
                time.sleep(2 * LIMIT_S)  # noqa: ASYNC251  a plugin that blocks

        await asyncio.create_task(plugin())

    assert watch(block).overruns == {("Blocks", "PreBind"): 1}


def test_asynchronous_plugin_that_waits_is_not_reported() -> None:
    async def block() -> None:
        with PluginTasks("Waits", "PreBind"):
            await asyncio.sleep(2 * LIMIT_S)

    watchdog = watch(block)
    assert not watchdog.overruns
    assert not watchdog.problem()


def test_successive_short_calls_are_not_one_long_call() -> None:
    async def block() -> None:
        ends_s = time.monotonic() + 2 * LIMIT_S
        while time.monotonic() < ends_s:
            with CURRENT_CALL.of("Quick", "Filter"):
                time.sleep(0.005)  # noqa: ASYNC251  a plugin that blocks

    assert not watch(block).overruns


def test_inner_call_hides_the_outer_one_until_it_returns() -> None:
    with CURRENT_CALL.of("Outer", "PostFilter"):
        with CURRENT_CALL.of("Inner", "Filter"):
            assert CURRENT_CALL.call == ("Inner", "Filter")
        assert CURRENT_CALL.call == ("Outer", "PostFilter")
    assert CURRENT_CALL.call is None
