"""``process_*`` of this process, and the tasks of its event loop.

The Prometheus client's own collector shows nothing where ``/proc/stat`` cannot be read, as under
systemd's ``ProcSubset=pid``: it wants to know when the machine was booted. That can be had without.
"""

from __future__ import annotations

import asyncio
import os
import resource
import time
from collections.abc import Iterator
from pathlib import Path

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

_PROC = Path("/proc/self")


class ProcessMetrics(Collector):
    """Where there is no ``/proc``, only what the system calls tell."""

    def __init__(self) -> None:
        self._ticks_per_s = os.sysconf("SC_CLK_TCK")
        self._page_bytes = os.sysconf("SC_PAGE_SIZE")

    def collect(self) -> Iterator[Metric]:
        times = os.times()
        yield CounterMetricFamily(
            "process_cpu_seconds",
            "Total user and system CPU time spent in seconds.",
            value=times.user + times.system,
        )
        yield from self._memory_and_start()
        yield from _files()
        tasks = _tasks()
        if tasks is not None:
            yield GaugeMetricFamily("asched_tasks", "Tasks of the event loop.", value=tasks)

    def _memory_and_start(self) -> Iterator[Metric]:
        try:
            # The name may hold spaces and parentheses; numbers follow its last one.
            fields = (_PROC / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            return
        virtual_bytes, resident_pages, started_ticks = fields[20], fields[21], fields[19]
        booted_s = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
        for name, text, value in (
            ("virtual_memory_bytes", "Virtual memory size in bytes.", float(virtual_bytes)),
            (
                "resident_memory_bytes",
                "Resident memory size in bytes.",
                float(resident_pages) * self._page_bytes,
            ),
            (
                "start_time_seconds",
                "Start time of the process since unix epoch in seconds.",
                booted_s + float(started_ticks) / self._ticks_per_s,
            ),
        ):
            yield GaugeMetricFamily(f"process_{name}", text, value=value)


def _files() -> Iterator[Metric]:
    try:
        is_open = len(os.listdir(_PROC / "fd"))
    except OSError:
        return
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield GaugeMetricFamily("process_open_fds", "Number of open file descriptors.", value=is_open)
    yield GaugeMetricFamily(
        "process_max_fds", "Maximum number of open file descriptors.", value=soft
    )


def _tasks() -> int | None:
    try:
        return len(asyncio.all_tasks())
    except RuntimeError:
        return None  # asked from outside of an event loop
