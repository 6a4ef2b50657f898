"""An executor with processes, in which a process that ends costs only its own call."""

from __future__ import annotations

import gc
import multiprocessing
import os
import resource
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import Connection, wait
from queue import SimpleQueue
from typing import Any, Final, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_CONTEXT: Final = multiprocessing.get_context("forkserver")
"""A forked child of a process with threads can hang. The fork server has none."""
# It imports the code of all workers once: half of the CPU time of two that do little.
_CONTEXT.set_forkserver_preload(["asched.planning.worker"])


def default_processes() -> int:
    """One for each processor that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class ProcessExecutor(ThreadPoolExecutor):
    """Executes each call in one of a fixed number of processes.

    If a process of a ``ProcessPoolExecutor`` ends, all of its calls fail. Here each process has a
    pool of its own, and a new one replaces it.
    """

    def __init__(self, processes: int | None = None, *, memory_bytes: int = 0) -> None:
        """``processes``: by default :func:`default_processes`. ``memory_bytes``: a limit for the
        data of each process; an item that needs more fails. 0 is no limit."""
        self.processes = processes or default_processes()
        self._memory_bytes = memory_bytes
        # Open as long as the processes may live; it closes with this process at the latest.
        self._end, self._alive = _CONTEXT.Pipe(duplex=False)
        self._idle: SimpleQueue[ProcessPoolExecutor] = SimpleQueue()
        self._pools: set[ProcessPoolExecutor] = set()
        for _ in range(self.processes):
            self._idle.put(self._new_pool())
        super().__init__(self.processes, thread_name_prefix="asched-planning")

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """As any executor; a call raises ``BrokenProcessPool`` if its process ends."""
        return super().submit(self._call, fn, args, kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Without ``wait``, processes that work are ended."""
        if not wait:
            self._alive.close()
        super().shutdown(wait, cancel_futures=cancel_futures)
        for pool in list(self._pools):
            pool.shutdown(wait)

    def _call(self, fn: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any]) -> T:
        pool = self._idle.get()
        try:
            return pool.submit(fn, *args, **kwargs).result()
        except BrokenProcessPool:
            self._pools.discard(pool)
            pool.shutdown(wait=False)
            pool = self._new_pool()
            raise
        finally:
            self._idle.put(pool)

    def _new_pool(self) -> ProcessPoolExecutor:
        pool = ProcessPoolExecutor(
            1, _CONTEXT, initializer=_begin, initargs=(self._end, self._memory_bytes)
        )
        self._pools.add(pool)
        return pool


def _begin(end: Connection, memory_bytes: int) -> None:
    """Prepare a new process."""
    gc.freeze()  # a collection would copy the pages that it shares with the fork server
    # The parent decides what an interrupt ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if memory_bytes:
        resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
    threading.Thread(target=_exit_at, args=(end,), daemon=True).start()


def _exit_at(end: Connection) -> None:
    """End the process when the parent closes its side, or is gone."""
    wait([end])
    os.kill(os.getpid(), signal.SIGKILL)
