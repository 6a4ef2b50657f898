"""Executes work items with any executor, and keeps their results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    CancelledError,
    Executor,
    Future,
    wait,
)
from contextlib import contextmanager
from typing import Final, NamedTuple

import msgspec

from asched.planning.cluster import is_worker_loss
from asched.planning.errors import ExecutionError, ForeignWorkerError
from asched.planning.items import WorkAnswer, WorkItem, WorkRequest, item_key
from asched.planning.processes import ProcessExecutor
from asched.planning.provenance import own_provenance
from asched.planning.result_cache import ResultCache
from asched.planning.worker import perform

MAX_TRIES: Final = 3
"""How often an item is executed if its worker ends."""
_LOST: Final = (
    f"its worker ended {MAX_TRIES} times, possibly because it needs more memory; give workers more,"
    " choose a shorter period, or see their logs"
)


class Progress(NamedTuple):
    """How far an execution is."""

    done: int
    total: int
    from_cache: int
    """Those of ``done`` that were known."""


ProgressListener = Callable[[Progress], None]


class _Pending(NamedTuple):
    number: int
    request: bytes
    tries: int


def execute(
    items: Sequence[WorkItem],
    executor: Executor | None = None,
    *,
    cache: ResultCache | None = None,
    progress: ProgressListener = lambda _: None,
) -> list[WorkAnswer]:
    """The answers to the items, in their order.

    ``executor``: any ``concurrent.futures.Executor``; by default one process for each processor.
    An item that fails, or during which workers end repeatedly, has an answer with an error. An
    interruption keeps what ``cache`` holds.

    Raises ForeignWorkerError for a worker with other code or data, and ExecutionError for a lost
    connection or a cache that cannot be written.
    """
    if executor is not None:
        return _Execution(items, cache, progress).run(executor)
    with own_processes() as processes:
        return _Execution(items, cache, progress).run(processes)


@contextmanager
def own_processes(
    processes: int | None = None, *, memory_bytes: int = 0
) -> Iterator[ProcessExecutor]:
    """A :class:`ProcessExecutor`; an error or an interruption ends its processes at once."""
    executor = ProcessExecutor(processes, memory_bytes=memory_bytes)
    try:
        yield executor
    except BaseException:
        executor.shutdown(wait=False, cancel_futures=True)
        raise
    executor.shutdown()


class _Execution:
    """The state of one call of :func:`execute`."""

    def __init__(
        self, items: Sequence[WorkItem], cache: ResultCache | None, progress: ProgressListener
    ) -> None:
        self._provenance = own_provenance()
        self._items = items
        self._cache = cache
        self._progress = progress
        self._answers: dict[int, WorkAnswer] = {}
        self._running: dict[Future[bytes], _Pending] = {}
        self._known = 0

    def run(self, executor: Executor) -> list[WorkAnswer]:
        for index in self._unknown():
            request = msgspec.json.encode(WorkRequest(self._items[index], self._provenance))
            self._submit(executor, _Pending(index, request, tries=1))
        self._show()
        try:
            while self._running:
                for future in wait(self._running, return_when=FIRST_COMPLETED).done:
                    self._done(executor, future, self._running.pop(future))
        finally:
            for future in self._running:
                future.cancel()
        return [self._answers[index] for index in range(len(self._items))]

    def _unknown(self) -> Iterable[int]:
        """The items without a result in the cache."""
        for index, item in enumerate(self._items):
            found = None if self._cache is None else self._cache.get(self._key(item))
            if found is None:
                yield index
            else:
                self._answers[index] = found
                self._known += 1

    def _submit(self, executor: Executor, pending: _Pending) -> None:
        try:
            self._running[executor.submit(perform, pending.request)] = pending
        except (BrokenExecutor, RuntimeError) as error:
            raise ExecutionError(f"the executor accepts no work: {error}") from error

    def _done(self, executor: Executor, future: Future[bytes], pending: _Pending) -> None:
        try:
            answer = msgspec.json.decode(future.result(), type=WorkAnswer)
        except BrokenExecutor:
            self._retry(executor, pending)
            return
        except CancelledError:
            raise ExecutionError(f"the executor cancelled the work; {self._kept()}") from None
        except Exception as error:
            if not is_worker_loss(error):
                raise
            # Dask also blames items that only waited on the workers that ended.
            self._retry(executor, pending)
            return
        if answer.foreign:
            raise ForeignWorkerError(answer.error)
        if self._cache is not None and not answer.error:
            self._cache.put(self._key(self._items[pending.number]), answer)
        self._finish(pending, answer)

    def _retry(self, executor: Executor, pending: _Pending) -> None:
        if pending.tries >= MAX_TRIES:
            self._finish(pending, WorkAnswer(error=_LOST, lost=True))
        else:
            self._submit(executor, _Pending(pending.number, pending.request, pending.tries + 1))

    def _finish(self, pending: _Pending, answer: WorkAnswer) -> None:
        self._answers[pending.number] = answer
        self._show()

    def _kept(self) -> str:
        done = f"{len(self._answers)} of {len(self._items)} results"
        if self._cache is None:
            return f"{done} were complete and are lost without a results folder"
        return f"{done} are in {self._cache.folder}; start again to continue"

    def _key(self, item: WorkItem) -> str:
        return item_key(item, self._provenance)

    def _show(self) -> None:
        self._progress(Progress(len(self._answers), len(self._items), self._known))
