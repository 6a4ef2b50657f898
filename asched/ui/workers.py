"""Worker processes for folds, so that they do not delay other requests.

A worker opens the journal read-only and keeps it open. A call names a function of a module; its
arguments are pickled, and its result is encoded as the type that the function declares.
"""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import signal
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar, get_type_hints

import msgspec
import structlog

from asched.config.registry import PluginRegistry
from asched.journal.opening import open_journal
from asched.proof.keys import JournalKeys
from asched.ui.errors import AnsweredError, BusyError, ErrorAnswer, error_answer
from asched.ui.past import PastStates, state_at
from asched.ui.state_file import with_states

T = TypeVar("T")

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

_CACHED_BYTES: Final = 16 * 1024**2


class WorkerSettings(NamedTuple):
    """What a worker opens."""

    url: str
    registry: PluginRegistry
    keys: JournalKeys
    states: Path | None = None
    """The file with checkpoints of the index."""


class _Answer(NamedTuple):
    """The result of a call, or why there is none."""

    result: bytes
    error: ErrorAnswer | None = None


class Workers:
    """Processes that run functions on an open journal. Used by one event loop."""

    def __init__(self, settings: WorkerSettings, count: int = 1) -> None:
        keys = JournalKeys(None, tuple(settings.keys.all_trusted))
        self._settings = settings._replace(keys=keys)
        self._count = count
        self._pool: ProcessPoolExecutor | None = None
        self._calls: dict[tuple[object, ...], asyncio.Future[_Answer]] = {}
        self._answers: OrderedDict[tuple[object, ...], bytes] = OrderedDict()
        self._cached_bytes = 0

    async def call(self, function: Callable[..., Awaitable[T]], *arguments: Any) -> T:
        """The result of ``function(journal, *arguments)``; the journal is a :class:`PastStates`.

        Equal calls share a result, so the arguments must determine it. Raises
        :class:`AnsweredError` if the function fails.
        """
        result: T = _decoder(function).decode(await self._encoded(function, arguments))
        return result

    async def at(self, seq: int, function: Callable[..., T], *arguments: Any) -> T:
        """The result of ``function(state, seq, *arguments)`` on the state after a record.

        Raises as :meth:`call`.
        """
        encoded = await self._encoded(state_at, (seq, function, arguments))
        result: T = _decoder(function).decode(encoded)
        return result

    async def _encoded(
        self, function: Callable[..., Awaitable[Any]], arguments: tuple[Any, ...]
    ) -> bytes:
        key = (function, *arguments)
        kept = self._answers.get(key)
        if kept is None:
            answer = await self._answer(key, function, arguments)
            if answer.error is not None:
                raise AnsweredError(answer.error)
            kept = answer.result
            self._keep(key, kept)
        else:
            self._answers.move_to_end(key)
        return kept

    async def _answer(
        self,
        key: tuple[object, ...],
        function: Callable[..., Awaitable[Any]],
        arguments: tuple[Any, ...],
    ) -> _Answer:
        call = self._calls.get(key)
        if call is None:
            call = self._calls[key] = asyncio.wrap_future(self._submit(function, arguments))
            call.add_done_callback(lambda _: self._calls.pop(key, None))
        try:
            return await asyncio.shield(call)
        except BrokenProcessPool:
            self.restart()
            raise BusyError("a worker process ended") from None

    def _submit(
        self, function: Callable[..., Awaitable[Any]], arguments: tuple[Any, ...]
    ) -> Future[_Answer]:
        if self._pool is None:
            self._pool = ProcessPoolExecutor(
                self._count,
                mp_context=multiprocessing.get_context("spawn"),
                initializer=_start,
                initargs=(self._settings,),
            )
        return self._pool.submit(_run, function, arguments)

    def _keep(self, key: tuple[object, ...], result: bytes) -> None:
        if key not in self._answers and len(result) < _CACHED_BYTES // 4:
            self._answers[key] = result
            self._cached_bytes += len(result)
        while self._cached_bytes > _CACHED_BYTES:
            self._cached_bytes -= len(self._answers.popitem(last=False)[1])

    def use_states(self, file: Path) -> None:
        """Fold from the checkpoints of the index as well, which fit the journal."""
        self._settings = self._settings._replace(states=file)
        if self._pool is not None:
            self.restart()

    def restart(self) -> None:
        """Open the journal again in new processes: its file was replaced, or a worker ended."""
        self._answers.clear()
        self._cached_bytes = 0
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=False, cancel_futures=True)

    def stop(self) -> None:
        """End the processes. Calls in progress are lost."""
        pool, self._pool = self._pool, None
        if pool is not None:
            processes = [*(pool._processes or {}).values()]
            pool.shutdown(wait=False, cancel_futures=True)
            for process in processes:
                process.terminate()
            pool.shutdown(wait=True)


@cache
def _decoder(function: Callable[..., Any]) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(get_type_hints(function)["return"])


# -- in a worker ----------------------------------------------------------------------------------


class _Worker:
    """The journal of this process, opened by the first call."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._settings = settings
        self._loop = asyncio.new_event_loop()
        self._journal: PastStates | None = None

    def run(self, function: Callable[..., Awaitable[Any]], arguments: tuple[Any, ...]) -> _Answer:
        if self._journal is not None and function is not state_at:
            self._journal.forget()
        # States are in reference cycles: without this, several of them would be in memory. While
        # one is restored, the collector would only look at what stays.
        gc.collect()
        gc.disable()
        try:
            return _Answer(self._loop.run_until_complete(self._call(function, arguments)))
        except Exception as error:
            found = error_answer(error)
            if found is None:
                log.error("worker failed", function=function.__qualname__, exc_info=error)
                found = ErrorAnswer(500, "internal error", "the log of asched ui has the details")
            return _Answer(b"", found)
        finally:
            gc.enable()

    async def _call(
        self, function: Callable[..., Awaitable[Any]], arguments: tuple[Any, ...]
    ) -> bytes:
        if self._journal is None:
            opening = open_journal(self._settings.url, read_only=True, keys=self._settings.keys)
            store = with_states(await opening.__aenter__(), self._settings.states)
            self._journal = PastStates(store, self._settings.registry)
        return msgspec.msgpack.encode(await function(self._journal, *arguments))


_worker: _Worker | None = None


def _start(settings: WorkerSettings) -> None:
    global _worker
    # The parent stops its workers; a signal for the whole group would end them in a call.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _worker = _Worker(settings)


def _run(function: Callable[..., Awaitable[Any]], arguments: tuple[Any, ...]) -> _Answer:
    assert _worker is not None, "the initializer ran"
    return _worker.run(function, arguments)
