"""Reports plugins that block the event loop.

A synchronous plugin that does not return cannot be interrupted. A thread can name it, though: it
looks regularly at the plugin call that the loop executes. Plugins that may take long belong in a
worker.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

import structlog
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from asched.config.settings import AschedConfiguration, PluginLimits
from asched.daemon.plugin_host.guarded_loop import current_plugin_call
from asched.framework.runtime.observation import PluginCall

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

_REPORTED_FOR_S = 30.0
"""How long :meth:`Watchdog.problem` reports a plugin that has returned."""


class Watchdog:
    """Watches the event loop in which the ``with`` block runs."""

    def __init__(self, limit_s: Callable[[str], float], interval_s: float = 0.1) -> None:
        """``limit_s``: how long the plugin of a given name may block the loop."""
        self.overruns: Counter[PluginCall] = Counter()
        self._limit_s = limit_s
        self._interval_s = interval_s
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="plugin-watchdog", daemon=True)
        self._call: PluginCall | None = None
        """The call that ran at the last look, since ``_since_s`` at least."""
        self._since_s = self._last_overrun_s = 0.0
        self._reported = False
        self._problem = ""

    def __enter__(self) -> Watchdog:
        self._loop = asyncio.get_running_loop()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def set_limits(self, limit_s: Callable[[str], float]) -> None:
        """Apply other limits from now on."""
        self._limit_s = limit_s

    def problem(self) -> str:
        """The plugin that blocks the loop or did so recently; empty if there is none."""
        recently = self._problem and time.monotonic() - self._last_overrun_s < _REPORTED_FOR_S
        return self._problem if recently else ""

    def _run(self) -> None:
        while not self._stopped.wait(self._interval_s):
            self._look()
        self._call_ended()

    def _look(self) -> None:
        call = current_plugin_call(self._loop)
        now_s = time.monotonic()
        if call is None or call is not self._call:
            self._call_ended()
            self._call, self._since_s = call, now_s
            return
        plugin, point = call
        blocked_s = now_s - self._since_s
        if blocked_s >= self._limit_s(plugin):
            self._last_overrun_s = now_s
            self._problem = (
                f"plugin {plugin} at {point} blocked the event loop for {blocked_s:.1f} s"
            )
            if not self._reported:
                self._reported = True
                self.overruns[call] += 1
                blocked_s = round(blocked_s, 1)
                log.error(
                    "plugin blocks the event loop", plugin=plugin, point=point, blocked_s=blocked_s
                )

    def _call_ended(self) -> None:
        if self._reported and self._call is not None:
            plugin, point = self._call
            blocked_s = round(self._last_overrun_s - self._since_s, 1)
            log.warning("blocking plugin returned", plugin=plugin, point=point, blocked_s=blocked_s)
        self._call, self._reported = None, False


class OverrunMetrics(Collector):
    """Counts the overruns that a watchdog found."""

    def __init__(self, watchdog: Watchdog) -> None:
        self._watchdog = watchdog

    def collect(self) -> Iterator[Metric]:
        counter = CounterMetricFamily(
            "asched_plugin_overruns",
            "Calls in which a plugin blocked the event loop for longer than its limit.",
            labels=["plugin", "extension_point"],
        )
        for labels, count in [*self._watchdog.overruns.items()]:
            counter.add_metric(labels, count)
        yield counter


@asynccontextmanager
async def watched(settings: AschedConfiguration) -> AsyncIterator[Watchdog]:
    """Watch the running event loop during the block."""
    with Watchdog(limits_of(settings)) as watchdog:
        yield watchdog


def limits_of(settings: AschedConfiguration) -> Callable[[str], float]:
    """How long plugins may block the loop, by name, in seconds."""
    limits = PluginLimits(settings.plugins)
    default_s = settings.engine.plugin_time_limit.total_seconds()
    return lambda plugin: limits.limit_s(plugin) or default_s
