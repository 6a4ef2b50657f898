"""Runs of the lab: a queue, and a worker process for each run in progress."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections import OrderedDict
from contextlib import suppress
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import structlog

from asched.ui.errors import BusyError
from asched.ui.lab.requests import LabForm, LabRequest, LabSource
from asched.ui.lab.results import ResultStore
from asched.ui.lab.worker import WorkerMessage, WorkerTask

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

MAX_WAITING: Final = 8
"""Runs that wait for a worker."""
_KEPT_RUNS: Final = 50
_ONE_THREAD: Final = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")


class LabSettings(NamedTuple):
    """The options of the lab."""

    journal_url: str
    results_dir: Path
    workers: int = 1
    """Runs at a time; 0 switches the lab off."""
    memory_bytes: int = 4 << 30
    """Limit for each worker; 0 for none."""
    keeps_results: bool = True
    """Whether results outlive the server."""


class RunState(StrEnum):
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"


class LabRun(msgspec.Struct, frozen=True, rename="camel"):
    """A run since the start of the server."""

    id: str
    state: RunState
    started_at: datetime
    source: LabSource
    changes: str
    """The candidate in one line."""
    since: str
    until: str
    activity: str = ""
    done: int = 0
    total: int = 0
    """``done`` of ``total``, in a unit that depends on the activity; 0 if it is unknown."""
    error: str = ""
    """Why it failed, in one line."""

    @property
    def active(self) -> bool:
        return self.state in (RunState.WAITING, RunState.RUNNING)

    @classmethod
    def of(cls, request: LabRequest, state: RunState) -> LabRun:
        return cls(
            id=request.id,
            state=state,
            started_at=datetime.now(UTC),
            source=request.source,
            changes=request.changes,
            since=request.since,
            until=request.until,
        )


class LabRuns:
    """Starts and cancels runs. Belongs to the event loop of the server."""

    def __init__(self, settings: LabSettings) -> None:
        """Raises OSError if results cannot be stored."""
        self.settings = settings
        self.store = ResultStore(settings.results_dir)
        self._slots = asyncio.Semaphore(settings.workers)
        self._runs: OrderedDict[str, LabRun] = OrderedDict()
        self._forms: dict[str, LabForm] = {}
        """By run."""
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def start(self, request: LabRequest) -> LabRun:
        """The run of the request; the finished or active one if there is one.

        Raises :class:`BusyError` if too many wait.
        """
        if await asyncio.to_thread(self.store.load, request.id) is not None:
            return LabRun.of(request, RunState.FINISHED)
        # Nothing is awaited from here on: the same question starts one run only.
        found = self._runs.get(request.id)
        if found is not None and found.active:
            return found
        if len(self._tasks) >= self.settings.workers + MAX_WAITING:
            raise BusyError(f"{len(self._tasks)} runs are in progress or wait")
        run = LabRun.of(request, RunState.WAITING)
        self._forms[run.id] = request.form
        self._show(run)
        task = self._tasks[run.id] = asyncio.create_task(self._run(run, request))
        task.add_done_callback(lambda _: self._tasks.pop(run.id, None))
        return run

    def find(self, run_id: str) -> LabRun | None:
        return self._runs.get(run_id)

    def form(self, run_id: str) -> LabForm | None:
        """The form of a run since the start."""
        return self._forms.get(run_id)

    def recent(self) -> list[LabRun]:
        """Runs since the start, the newest first."""
        return [*reversed(self._runs.values())]

    async def cancel(self, run_id: str) -> LabRun | None:
        """End the run and its process. None if there is no such run."""
        task = self._tasks.get(run_id)
        if task is not None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.shield(task)
        return self._runs.get(run_id)

    async def close(self) -> None:
        """End all runs."""
        tasks = [*self._tasks.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # -- one run ----------------------------------------------------------------------------------

    def _show(self, run: LabRun) -> None:
        self._runs[run.id] = run
        self._runs.move_to_end(run.id)
        ended = [known.id for known in self._runs.values() if not known.active]
        for known in ended[: max(0, len(self._runs) - _KEPT_RUNS)]:
            del self._runs[known], self._forms[known]

    async def _run(self, run: LabRun, request: LabRequest) -> None:
        replace = msgspec.structs.replace
        try:
            async with self._slots:
                run = replace(run, state=RunState.RUNNING, activity="starting")
                self._show(run)
                run = await self._execute(run, request)
        except asyncio.CancelledError:
            self._show(replace(run, state=RunState.CANCELLED))
            raise
        except OSError as error:
            reason = f"the worker cannot be started: {error.strerror or error}"
            run = replace(run, state=RunState.FAILED, error=reason)
        finally:
            self.store.discard(run.id)
        if run.error:
            log.warning("what-if run failed", run=run.id, error=run.error)
        self._show(run)

    async def _execute(self, run: LabRun, request: LabRequest) -> LabRun:
        """Run the worker to its end. Raises OSError."""
        process = await start_worker()
        try:
            await self._give(request, process)
            return await self._follow(run, process)
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    process.kill()
            await asyncio.shield(process.wait())

    async def _give(self, request: LabRequest, process: Process) -> None:
        """Send the task to the worker."""
        assert process.stdin is not None
        task = WorkerTask(
            request=request,
            journal_url=self.settings.journal_url,
            result_path=str(self.store.partial_path(request.id)),
            memory_bytes=self.settings.memory_bytes,
        )
        with suppress(ConnectionError):  # it ended; its exit code says why
            process.stdin.write(msgspec.json.encode(task) + b"\n")
            await process.stdin.drain()

    async def _follow(self, run: LabRun, process: Process) -> LabRun:
        assert process.stdout is not None
        replace, last = msgspec.structs.replace, WorkerMessage()
        async for line in process.stdout:
            last = msgspec.json.decode(line, type=WorkerMessage)
            if last.activity:
                run = replace(run, activity=last.activity, done=last.done, total=last.total)
                self._show(run)
        code = await process.wait()
        if last.finished:
            await asyncio.to_thread(self.store.keep, run.id)
            return replace(run, state=RunState.FINISHED)
        return replace(run, state=RunState.FAILED, error=last.error or _end_reason(code))


async def start_worker() -> Process:
    """A process that waits for its :class:`WorkerTask`. Raises OSError."""
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "asched.ui.lab.worker"),
        stdin=PIPE,
        stdout=PIPE,
        env={**os.environ, **_ONE_THREAD},
        start_new_session=True,
    )


def _end_reason(code: int) -> str:
    advice = "if the machine is short of memory, choose a shorter period"
    if code >= 0:
        return f"the worker process ended with exit code {code} and without a result"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"the worker process was ended by {name}; {advice}"
