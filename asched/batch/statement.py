"""Changes that are made at once and count only together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from asched.batch.books import Books
from asched.batch.trace import SessionTrace
from asched.framework.session_objects import Task, TaskStatus
from asched.framework.sessions import EvictionReason


class _Placed(NamedTuple):
    task: Task


class _Evicted(NamedTuple):
    task: Task
    reason: EvictionReason
    preemptor: Task


class BatchStatement:
    """A :class:`asched.framework.session_plugins.Statement`."""

    def __init__(
        self,
        books: Books,
        names: Sequence[str],
        trace: SessionTrace,
        bind_if_ready: Callable[[str], None],
    ) -> None:
        """``names``: those of nodes, by row."""
        self._books = books
        self._names = names
        self._trace = trace
        self._bind_if_ready = bind_if_ready
        self._operations: list[_Placed | _Evicted] = []

    def __len__(self) -> int:
        return len(self._operations)

    @property
    def evicts(self) -> bool:
        """Whether anybody has to go if this is committed."""
        return any(isinstance(operation, _Evicted) for operation in self._operations)

    def allocate(self, task: Task, row: int) -> None:
        """Raises :class:`asched.batch.books.Misplaced`."""
        self._trace.line("allocate", task.key, self._names[row])
        self._books.place(task, row, TaskStatus.ALLOCATED)
        self._operations.append(_Placed(task))

    def pipeline(self, task: Task, row: int) -> None:
        """Raises :class:`asched.batch.books.Misplaced`."""
        self._trace.line("stmt-pipeline", task.key, self._names[row])
        self._books.place(task, row, TaskStatus.PIPELINED)
        self._operations.append(_Placed(task))

    def evict(self, task: Task, reason: EvictionReason, preemptor: Task) -> None:
        self._books.release(task)
        self._operations.append(_Evicted(task, reason, preemptor))
        self._trace.line("stmt-evict", task.key)

    def commit(self) -> None:
        self._trace.line("commit", len(self._operations))
        allocated: dict[str, None] = {}
        for operation in self._operations:
            if isinstance(operation, _Evicted):
                self._books.send_eviction(*operation)
            elif operation.task.status is TaskStatus.ALLOCATED:
                allocated[operation.task.job] = None
        self._operations.clear()
        for job in allocated:
            self._bind_if_ready(job)

    def discard(self) -> None:
        self._trace.line("discard", len(self._operations))
        for operation in reversed(self._operations):
            if isinstance(operation, _Evicted):
                self._books.unrelease(operation.task)
            else:
                self._books.unplace(operation.task)
        self._operations.clear()
