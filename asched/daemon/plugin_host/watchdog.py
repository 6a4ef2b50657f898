"""Which plugin holds the event loop: watched from a thread of its own, at no cost to the loop.

A synchronous plugin that does not return cannot be ended from outside. It can be named, though: now and
then the watchdog looks at the stack of the loop's thread. One that may take long belongs into a worker.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from types import FrameType
from typing import Any, NamedTuple

import structlog
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from asched.config.settings import AschedConfiguration, PluginLimits
from asched.framework.interface import Plugin
from asched.state.queue_events import hint_of

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

_POINTS = {
    "pre_enqueue": "PreEnqueue",
    "less": "QueueSort",
    "sort_key": "QueueSort",
    "concerns": "Concerns",
    "pre_filter": "PreFilter",
    "filter": "Filter",
    "filter_all": "Filter",
    "post_filter": "PostFilter",
    "pre_score": "PreScore",
    "score": "Score",
    "score_all": "Score",
    "normalize": "NormalizeScore",
    "reserve": "Reserve",
    "reserved": "Reserve",
    "unreserve": "Reserve",
    "settled": "Reserve",
    "released": "Reserve",
    "permit": "Permit",
    "review": "Permit",
    "pre_bind_pre_flight": "PreBindPreFlight",
    "pre_bind": "PreBind",
    "bind": "Bind",
    "post_bind": "PostBind",
}
"""What the methods of plugins are called in metrics."""
_BETWEEN = "asched.framework.runtime.plugin_calls"
"""Asks a plugin about one node after the other: its frames are not where a visit to a plugin begins."""
_REMEMBERED_S = 30.0


class Visit(NamedTuple):
    """A stay of the loop in a plugin."""

    plugin: str
    point: str
    caller: FrameType
    """Where in asched it was called from: the same frame for as long as it is the same visit."""


def visited(frame: FrameType | None) -> Visit | None:
    """The plugin in which a stack is, if in any; the innermost where one calls another."""
    found: tuple[str, str] | None = None
    while frame is not None:
        plugin: Any = frame.f_locals.get("self")
        # Not isinstance: an abstract class remembers who is no instance, and so does each of its
        # subclasses, for every class that is ever seen here.
        if Plugin in type(plugin).__mro__:
            if found is None or found[0] == plugin.name:
                found = plugin.name, _POINTS.get(frame.f_code.co_name, frame.f_code.co_name)
        elif found is None and frame.f_code is hint_of.__code__:
            return Visit(frame.f_locals["registered"].plugin, "QueueingHint", frame)
        elif found is not None and _is_ours(frame):
            return Visit(*found, frame)
        frame = frame.f_back
    return None


def _is_ours(frame: FrameType) -> bool:
    module = str(frame.f_globals.get("__name__", ""))
    return module.startswith("asched.") and module != _BETWEEN


class Watchdog:
    """Watches the thread that makes it, within a ``with`` block."""

    def __init__(self, limit_s: Callable[[str], float], interval_s: float = 0.1) -> None:
        """``limit_s``: how long a plugin of that name may hold the loop."""
        self.overruns: Counter[tuple[str, str]] = Counter()
        """By plugin and extension point."""
        self._limit_s = limit_s
        self._interval_s = interval_s
        self._watched = threading.get_ident()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="plugin-watchdog", daemon=True)
        self._visit: Visit | None = None
        self._since_s = self._last_s = 0.0
        self._reported = False
        self._last = ""

    def __enter__(self) -> Watchdog:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def limit_by(self, limit_s: Callable[[str], float]) -> None:
        """From now on plugins may hold the loop for as long as ``limit_s`` says."""
        self._limit_s = limit_s

    def trouble(self) -> str:
        """Which plugin holds the loop, or held it lately; empty where none did."""
        recently = self._last and time.monotonic() - self._last_s < _REMEMBERED_S
        return self._last if recently else ""

    def _run(self) -> None:
        while not self._over.wait(self._interval_s):
            self._look()
        self._end()

    def _look(self) -> None:
        visit = visited(sys._current_frames().get(self._watched))
        now_s = time.monotonic()
        if visit is None or visit != self._visit:
            self._end()
            self._visit, self._since_s = visit, now_s
            return
        held_s = now_s - self._since_s
        if held_s >= self._limit_s(visit.plugin):
            self._last_s = now_s
            self._last = f"plugin {visit.plugin} at {visit.point} held the loop for {held_s:.1f} s"
            if not self._reported:
                self._reported = True
                self.overruns[visit.plugin, visit.point] += 1
                log.error(
                    "a plugin holds the event loop: nothing else is done meanwhile",
                    plugin=visit.plugin, point=visit.point, held_s=round(held_s, 1),
                )  # fmt: skip

    def _end(self) -> None:
        """The visit that was watched is over."""
        if self._reported and self._visit is not None:
            log.warning("the plugin returned", plugin=self._visit.plugin, said=self._last)
        self._visit, self._reported = None, False


class OverrunMetrics(Collector):
    """What a watchdog saw."""

    def __init__(self, watchdog: Watchdog) -> None:
        self._watchdog = watchdog

    def collect(self) -> Iterator[Metric]:
        counter = CounterMetricFamily(
            "asched_plugin_overruns",
            "How often a plugin held the event loop for longer than it may.",
            labels=["plugin", "extension_point"],
        )
        for labels, count in [*self._watchdog.overruns.items()]:
            counter.add_metric(labels, count)
        yield counter


@asynccontextmanager
async def watched(settings: AschedConfiguration) -> AsyncIterator[Watchdog]:
    """Within the block the loop that it runs in is watched."""
    with Watchdog(limits_of(settings)) as watchdog:
        yield watchdog


def limits_of(settings: AschedConfiguration) -> Callable[[str], float]:
    """How long plugins may hold the loop, by name, in seconds."""
    limits = PluginLimits(settings.plugins)
    default_s = settings.engine.plugin_time_limit.total_seconds()
    return lambda plugin: limits.limit_s(plugin) or default_s
