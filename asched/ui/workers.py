"""Worker processes for folds, so that they do not delay other requests.

A call names a function of a module; its arguments are pickled, and its result is encoded as the
type that the function declares. :mod:`asched.ui.fork_host` forks a process for each call.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from functools import cache
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any, Final, TypeVar, get_type_hints

import msgspec

from asched.proof.keys import JournalKeys
from asched.ui.errors import AnsweredError, BusyError
from asched.ui.fork_host import (
    WorkerAnswer,
    WorkerCall,
    WorkerSettings,
    expanded,
    pickled,
    serve,
)
from asched.ui.past import state_at

T = TypeVar("T")

CONTEXT: Final = multiprocessing.get_context("spawn")
"""Starts the process that forks others: the server has threads, so a fork of it is unsafe."""
_CACHED_BYTES: Final = 4 * 1024**2
_ENTRY_BYTES: Final = 1024
"""What a result needs besides: its question, and the text of an error."""
_ABSENT: Final = 404
_MAX_PROCESSES: Final = 2
"""Each has a state of its own, which is most of what it needs: 75 MB for 40,000 pods."""
_STOP_S: Final = 2.0


class Workers:
    """Processes that run functions on an open journal. Used by one event loop."""

    def __init__(self, settings: WorkerSettings, count: int | None = None) -> None:
        """``count`` of calls run at a time: as many as there are processors, at most two."""
        keys = JournalKeys(None, tuple(settings.keys.all_trusted))
        self._settings = settings._replace(keys=keys)
        self._running = asyncio.Semaphore(count or min(_MAX_PROCESSES, os.cpu_count() or 1))
        self._host: _HostProcess | None = None
        self._states: Path | None = None
        self._calls: dict[tuple[object, ...], asyncio.Task[WorkerAnswer]] = {}
        self._answers: OrderedDict[tuple[object, ...], WorkerAnswer] = OrderedDict()
        self._cached_bytes = 0

    async def call(self, function: Callable[..., Awaitable[T]], *arguments: Any) -> T:
        """The result of ``function(journal, *arguments)``; the journal is a :class:`PastStates`.

        Equal calls share a result, so the arguments must determine it, or that there is none
        (404). Raises :class:`AnsweredError` if the function fails.
        """
        encoded = await self._encoded(function, arguments)
        result: T = _decoder(function).decode(expanded(encoded))
        return result

    async def at(self, seq: int, function: Callable[..., T], *arguments: Any) -> T:
        """The result of ``function(state, seq, *arguments)`` on the state after a record.

        Raises as :meth:`call`.
        """
        encoded = await self._encoded(state_at, (seq, function, arguments))
        result: T = _decoder(function).decode(expanded(encoded))
        return result

    async def _encoded(
        self, function: Callable[..., Awaitable[Any]], arguments: tuple[Any, ...]
    ) -> bytes:
        key = (function, *arguments)
        answer = self._answers.get(key)
        if answer is not None:
            self._answers.move_to_end(key)
        else:
            call = self._calls.get(key)
            if call is None:
                call = self._calls[key] = asyncio.ensure_future(self._run(function, arguments))
                call.add_done_callback(lambda _: self._calls.pop(key, None))
            answer = await asyncio.shield(call)
            self._keep(key, answer)
        if answer.error is not None:
            raise AnsweredError(answer.error)
        return answer.result

    async def _run(
        self, function: Callable[..., Awaitable[Any]], arguments: tuple[Any, ...]
    ) -> WorkerAnswer:
        async with self._running:
            return await self.start().call(function, arguments, self._states)

    def start(self) -> _HostProcess:
        """Start the processes, so that the first call does not wait for it."""
        if self._host is None or self._host.ended:
            self._host = _HostProcess(self._settings)
        return self._host

    def _keep(self, key: tuple[object, ...], answer: WorkerAnswer) -> None:
        """Other errors may be gone the next time."""
        lasting = answer.error is None or answer.error.status == _ABSENT
        if lasting and key not in self._answers and len(answer.result) < _CACHED_BYTES // 4:
            self._answers[key] = answer
            self._cached_bytes += _size_bytes(answer)
        while self._cached_bytes > _CACHED_BYTES:
            self._cached_bytes -= _size_bytes(self._answers.popitem(last=False)[1])

    def use_states(self, file: Path) -> None:
        """Fold from the checkpoints of the index as well, which fit the journal."""
        self._states = file

    def stop(self) -> None:
        """End the processes. Calls in progress are lost."""
        host, self._host = self._host, None
        if host is not None:
            host.stop()


class _HostProcess:
    """A process that forks others, and the calls that they run."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._connection: Connection
        self._connection, other = CONTEXT.Pipe()
        self._process: SpawnProcess = CONTEXT.Process(
            target=serve, args=(settings, other), name="asched-ui-workers", daemon=True
        )
        self._process.start()
        other.close()
        self._numbers = 0
        self._calls: dict[int, asyncio.Future[WorkerAnswer]] = {}
        self.ended = False
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._connection.fileno(), self._receive)

    @property
    def pid(self) -> int:
        found = self._process.pid
        assert found is not None, "it was started"
        return found

    async def call(
        self,
        function: Callable[..., Awaitable[Any]],
        arguments: tuple[Any, ...],
        states: Path | None,
    ) -> WorkerAnswer:
        """Raises :class:`BusyError` if the process ends."""
        self._numbers += 1
        number = self._numbers
        answer: asyncio.Future[WorkerAnswer] = self._loop.create_future()
        self._calls[number] = answer
        try:
            self._connection.send_bytes(pickled(WorkerCall(number, function, arguments, states)))
        except OSError:
            self._end()
        return await answer

    def _receive(self) -> None:
        try:
            while self._connection.poll():
                answer = _ANSWERS.decode(self._connection.recv_bytes())
                waiting = self._calls.pop(answer.number, None)
                if waiting is not None and not waiting.done():
                    if not answer.result and answer.error is None:
                        waiting.set_exception(BusyError("a worker process ended"))
                    else:
                        waiting.set_result(answer)
        except (EOFError, OSError):
            self._end()

    def _end(self) -> None:
        if self.ended:
            return
        self.ended = True
        self._loop.remove_reader(self._connection.fileno())
        self._connection.close()
        for waiting in self._calls.values():
            if not waiting.done():
                waiting.set_exception(BusyError("a worker process ended"))
        self._calls.clear()

    def stop(self) -> None:
        """The process ends its children when the connection is closed."""
        self._end()
        self._process.join(_STOP_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._process.close()


def _size_bytes(answer: WorkerAnswer) -> int:
    return len(answer.result) + _ENTRY_BYTES


_ANSWERS: Final = msgspec.msgpack.Decoder(WorkerAnswer)


@cache
def _decoder(function: Callable[..., Any]) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(get_type_hints(function)["return"])
