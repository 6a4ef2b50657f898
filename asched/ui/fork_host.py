"""The process that forks a child for each question about the past.

Everything that questions need is imported once, and children share it. A child folds a state,
writes its answer and ends, so its memory is free at once.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import os
import pickle
import signal
import sys
import traceback
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn

import msgspec
import structlog

from asched.config.file import load
from asched.config.registry import PluginRegistry
from asched.framework.runtime.profile import ProfileError
from asched.journal.errors import JournalError
from asched.journal.opening import open_journal
from asched.journal.store import JournalStore
from asched.proof.keys import JournalKeys
from asched.state.checkpoint import CheckpointError, KnownObjects
from asched.state.cluster import ClusterState
from asched.state.fold import Fold
from asched.state.records import ProfilesLoaded
from asched.ui.errors import BusyError, ErrorAnswer, error_answer
from asched.ui.memory import limit_heap, return_free_memory
from asched.ui.past import PastStates
from asched.ui.state_file import newest_state, with_states

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

_READ_BYTES: Final = 1 << 20
_LARGE_BYTES: Final = 1 << 16
_END: Final = b"\0complete"
"""Follows everything that a child writes. Nothing waits for the release of its memory."""
_QUESTIONS: Final = (
    "asched.ui.pods",
    "asched.ui.why",
    "asched.ui.cluster",
    "asched.ui.reports",
    "asched.ui.group_api",
)
"""Modules with functions that are called."""


class WorkerSettings(NamedTuple):
    """What a child opens."""

    url: str
    registry: PluginRegistry
    keys: JournalKeys


class WorkerCall(NamedTuple):
    """A question."""

    number: int
    function: Callable[..., Awaitable[Any]]
    arguments: tuple[Any, ...]
    states: Path | None
    """The file with checkpoints of the index."""


class WorkerAnswer(msgspec.Struct, array_like=True):
    """The result of a call, or why there is none."""

    number: int
    result: bytes = b""
    error: ErrorAnswer | None = None


class _Child(NamedTuple):
    call: int
    pid: int
    written: bytearray


def serve(settings: WorkerSettings, connection: Connection) -> None:
    """Answer calls until the other end of the connection is closed."""
    # The parent ends this process; a signal for the whole group would end it in a call.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    limit_heap()
    _import_questions(settings.registry)
    opened, newest = asyncio.run(_opened(settings))
    known = _known_objects(newest)
    return_free_memory()
    gc.freeze()  # without a collection: the pages that it frees would be copied in each child
    children: dict[int, _Child] = {}
    try:
        while True:
            readable = wait([connection, *children])
            _reap()
            for ready in readable:
                if ready is connection:
                    call: WorkerCall = connection.recv()
                    if known is None and call.states is not None:
                        known = _known_objects(newest_state(call.states))
                    pipe, child = _forked(settings, call, opened, known)
                    children[pipe] = child
                else:
                    assert isinstance(ready, int), "the others are pipes"
                    _read(connection, children, ready)
    except (EOFError, OSError):
        pass  # the parent ended or closed the connection
    finally:
        for child in children.values():
            with suppress(ProcessLookupError):
                os.kill(child.pid, signal.SIGKILL)


def _reap() -> None:
    """Remove children that ended. What they wrote stays in their pipes."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _import_questions(registry: PluginRegistry) -> None:
    for name in _QUESTIONS:
        importlib.import_module(name)
    try:
        profiles = ProfilesLoaded(load(None, registry).profiles)
        Fold(ClusterState(), registry.load).apply(profiles)
    except ProfileError as error:
        log.warning("plugins not loaded in advance", reason=str(error))


async def _opened(settings: WorkerSettings) -> tuple[JournalStore | None, bytes | None]:
    """The journal, with its connections closed, and its newest checkpoint. No thread may be left:
    this process forks. Children share the driver and the statements that were compiled."""
    with suppress(JournalError):
        async with open_journal(settings.url, read_only=True, keys=settings.keys) as store:
            found = await store.load_checkpoint()
            for subject in ("none", None):
                async for _ in store.read(0, 1, subject=subject):
                    pass
            return store, None if found is None else found.blob
    return None, None


@asynccontextmanager
async def _connected(
    settings: WorkerSettings, opened: JournalStore | None
) -> AsyncIterator[JournalStore]:
    """The opened journal, which connects when it is read."""
    if opened is None:
        async with open_journal(settings.url, read_only=True, keys=settings.keys) as store:
            yield store
        return
    try:
        yield opened
    finally:
        await opened.close()


def _known_objects(blob: bytes | None) -> KnownObjects | None:
    """What children need not decode: they share it until they change it."""
    with suppress(CheckpointError):
        return None if blob is None else KnownObjects(blob)
    return None


def _forked(
    settings: WorkerSettings,
    call: WorkerCall,
    opened: JournalStore | None,
    known: KnownObjects | None,
) -> tuple[int, _Child]:
    """Start a child for a call."""
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        gc.disable()
        _write_and_exit(
            writing,
            lambda: msgspec.msgpack.encode(asyncio.run(_answer(settings, call, opened, known))),
        )
    os.close(writing)
    return reading, _Child(call.number, pid, bytearray())


def _read(connection: Connection, children: dict[int, _Child], pipe: int) -> None:
    """Forward the answer of a child that ends."""
    part, child = os.read(pipe, _READ_BYTES), children[pipe]
    if part:
        child.written.extend(part)
        return
    os.close(pipe)
    del children[pipe]
    found = _complete(child.written)
    connection.send_bytes(
        msgspec.msgpack.encode(WorkerAnswer(child.call)) if found is None else found
    )


async def _answer(
    settings: WorkerSettings,
    call: WorkerCall,
    opened: JournalStore | None,
    known: KnownObjects | None,
) -> WorkerAnswer:
    try:
        async with _connected(settings, opened) as store:
            journal = PastStates(with_states(store, call.states, known), settings.registry)
            found = await call.function(journal, *call.arguments)
        return WorkerAnswer(call.number, _compressed(msgspec.msgpack.encode(found)))
    except Exception as error:
        answer = error_answer(error)
        if answer is None:
            log.error("worker failed", function=call.function.__qualname__, exc_info=error)
            answer = ErrorAnswer(500, "internal error", "the log of asched ui has the details")
        return WorkerAnswer(call.number, error=answer)


def _compressed(encoded: bytes) -> bytes:
    """For :func:`expanded`: answers about all nodes are large and repetitive, and are kept."""
    if len(encoded) < _LARGE_BYTES:
        return b"\0" + encoded
    return b"\1" + zlib.compress(encoded, 1)


def expanded(result: bytes) -> bytes:
    """The encoded result of a call."""
    return zlib.decompress(result[1:]) if result[0] else result[1:]


class Branch:
    """A copy of this process that computes something on the state that it has now, while this one
    goes on. What either changes is no longer shared, so the copy gets what changes less. Only for
    processes with nothing else to do: calls of the host."""

    def __init__(self, compute: Callable[[], bytes]) -> None:
        """``compute`` must not read the journal."""
        self._reading, writing = os.pipe()
        if not os.fork():
            os.close(self._reading)
            _write_and_exit(writing, compute)
        os.close(writing)

    def result(self) -> bytes:
        """What was computed. Raises :class:`BusyError` if the copy ended before."""
        with open(self._reading, "rb") as pipe:
            found = _complete(pipe.read())
        if found is None:
            raise BusyError("a worker process ended")
        return found


def _complete(written: bytes | bytearray) -> bytes | None:
    """What a process wrote; None if it ended before."""
    return bytes(written[: -len(_END)]) if written.endswith(_END) else None


def _write_and_exit(pipe: int, compute: Callable[[], bytes]) -> NoReturn:
    """Nothing of the parent's is closed or flushed."""
    code = 1
    try:
        rest = memoryview(compute() + _END)
        while rest:
            rest = rest[os.write(pipe, rest) :]
        os.close(pipe)
        code = 0
    except BaseException:  # noqa: BLE001  nothing may return into the parent's stack
        sys.stderr.write(traceback.format_exc())
    finally:
        os._exit(code)


def pickled(call: WorkerCall) -> bytes:
    """For :meth:`Connection.recv` of the host."""
    return pickle.dumps(call)
