"""The worker process of the lab: one comparison, then it ends.

It reads a :class:`WorkerTask` as one line of standard input, and writes lines of
:class:`WorkerMessage` to standard output. It ends when standard input is closed, so it does not
outlive the server.
"""

from __future__ import annotations

import os
import resource
import select
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Final

import anyio
import msgspec

from asched.audit.history import Period
from asched.audit.timeline import time_of
from asched.audit.whatif.candidate import (
    WHAT_IF_ERRORS,
    WhatIfProgress,
    compare_candidate,
)
from asched.audit.whatif.comparison import Comparison
from asched.audit.whatif.scenarios import compare_on_scenario
from asched.config.file import ConfigFileError
from asched.config.registry import PluginRegistry
from asched.journal.errors import JournalError
from asched.journal.opening import open_journal
from asched.ui.lab.requests import (
    SCENARIO,
    LabRequest,
    LabSource,
    candidate_of,
    parsed_period_ns,
)
from asched.ui.lab.results import LabResult, shortened

_NICENESS: Final = 10
_PROGRESS_INTERVAL_S: Final = 0.1
_MAX_ERROR: Final = 1_000
_WATCH_INTERVAL_S: Final = 0.1
_HEADROOM_BYTES: Final = 256 << 20
_MAXRSS_BYTES: Final = 1 if sys.platform == "darwin" else 1024
"""The unit of ``ru_maxrss``."""


class WorkerTask(msgspec.Struct, frozen=True):
    """What the server asks for."""

    request: LabRequest
    journal_url: str
    result_path: str
    memory_bytes: int
    """Limit for the memory of the process; 0 for none."""


class WorkerMessage(msgspec.Struct, frozen=True, omit_defaults=True):
    """Progress, or the end."""

    activity: str = ""
    done: int = 0
    total: int = 0
    error: str = ""
    """Why it failed, in one line."""
    finished: bool = False
    """Whether the result is written."""


Send = Callable[[WorkerMessage], None]


def main() -> int:
    """Execute the task in standard input. Returns the exit code."""
    messages = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what plugins print is no message
    task = msgspec.json.decode(sys.stdin.buffer.readline(), type=WorkerTask)

    def send(message: WorkerMessage) -> None:
        # Short enough to be written at once, also by two threads.
        os.write(messages, msgspec.json.encode(message) + b"\n")

    os.nice(_NICENESS)
    if task.memory_bytes:
        hard_bytes = 2 * task.memory_bytes + _HEADROOM_BYTES
        resource.setrlimit(resource.RLIMIT_DATA, (hard_bytes, hard_bytes))
    threading.Thread(target=_watch, args=(task, send), daemon=True).start()
    send(_outcome(task, send))
    return 0


def _watch(task: WorkerTask, send: Send) -> None:
    """End the process with the server, or when it uses too much memory.

    At a limit of the operating system, Python may end before it can report why. That limit is
    higher, and for allocations that are faster than this thread.
    """
    # Not sys.stdin: the interpreter cannot end while a thread holds its lock.
    source = sys.stdin.fileno()
    while True:
        readable, _, _ = select.select([source], [], [], _WATCH_INTERVAL_S)
        if readable and not os.read(source, 1):
            break
        used_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _MAXRSS_BYTES
        if 0 < task.memory_bytes < used_bytes:
            send(WorkerMessage(error=_out_of_memory(task)))
            break
    os._exit(1)


def _out_of_memory(task: WorkerTask) -> str:
    return (
        f"the comparison needs more memory than {task.memory_bytes >> 20} MiB: choose a shorter"
        " period, or give asched ui a larger --lab-memory"
    )


def _outcome(task: WorkerTask, send: Send) -> WorkerMessage:
    try:
        _write_result(task, _Progress(send))
    except ConfigFileError as error:
        return WorkerMessage(error=_line(error.lines[0]))
    except (*WHAT_IF_ERRORS, JournalError) as error:
        return WorkerMessage(error=_line(str(error)))
    except MemoryError:
        return WorkerMessage(error=_out_of_memory(task))
    except OSError as error:
        return WorkerMessage(error=f"the result cannot be stored: {error.strerror or error}")
    except Exception:  # noqa: BLE001  a bug; the server reports that there is no result
        traceback.print_exc()
        return WorkerMessage(error="internal error; the log of asched ui has the details")
    return WorkerMessage(finished=True)


def _line(text: str) -> str:
    return " ".join(text.split())[:_MAX_ERROR]


class _Progress:
    """Sends progress, at most ten times a second."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._activity = ""
        self._next_s = 0.0

    def __call__(self, progress: WhatIfProgress) -> None:
        now_s = time.monotonic()
        if progress.activity == self._activity and now_s < self._next_s:
            return
        self._activity, self._next_s = progress.activity, now_s + _PROGRESS_INTERVAL_S
        self._send(WorkerMessage(progress.activity[:_MAX_ERROR], progress.done, progress.total))


def _write_result(task: WorkerTask, progress: _Progress) -> None:
    begin_s = time.monotonic()
    comparison = anyio.run(_compare, task, progress)
    report, omitted = shortened(comparison.report())
    result = LabResult(
        id=task.request.id,
        finished_at=time_of(time.time_ns()),
        took_s=round(time.monotonic() - begin_s, 3),
        request=task.request,
        report=report,
        omitted=omitted,
    )
    path = Path(task.result_path)
    path.touch(mode=0o600)
    path.write_bytes(msgspec.json.encode(result))


async def _compare(task: WorkerTask, progress: _Progress) -> Comparison:
    request = task.request
    registry = PluginRegistry.discover()
    candidate = candidate_of(request, registry)
    if request.source is LabSource.SCENARIO:
        return compare_on_scenario(
            request.scenario, SCENARIO, candidate, progress, prices=request.prices
        )
    period = Period(*parsed_period_ns(request))
    async with open_journal(task.journal_url, read_only=True) as store:
        return await compare_candidate(store, candidate, period, progress, prices=request.prices)


if __name__ == "__main__":
    sys.exit(main())
