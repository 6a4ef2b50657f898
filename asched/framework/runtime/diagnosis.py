"""Combined result of all filters for every node (``Diagnosis`` of kube-scheduler)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from asched.framework.nodes import BoolColumn, FilterResult, RowArray
from asched.framework.status import Code, Status

PASSES = np.int16(np.iinfo(np.int16).max)
"""The rank of a row that no filter rejected."""

FILTER_CODES = frozenset(
    {Code.SUCCESS, Code.UNSCHEDULABLE, Code.UNSCHEDULABLE_AND_UNRESOLVABLE, Code.PENDING}
)
"""The codes that a filter may return. Any other code is an error."""

CountedStatus = tuple[Status, int]


class StatusTable:
    """Numbers distinct statuses; 0 means that there is none."""

    __slots__ = ("_numbers", "has_errors", "statuses")

    def __init__(self, statuses: Sequence[Status] = (), numbers: Mapping[Status, int] = {}) -> None:
        self.statuses: list[Status] = [*(statuses or (Status(),))]
        self._numbers: dict[Status, int] = {**numbers}
        self.has_errors = False

    def copy(self) -> StatusTable:
        copied = StatusTable(self.statuses, self._numbers)
        copied.has_errors = self.has_errors
        return copied

    def number(self, status: Status) -> int:
        number = self._numbers.get(status)
        if number is None:
            number = self._numbers[status] = len(self.statuses)
            self.statuses.append(status)
            self.has_errors |= status.code not in FILTER_CODES
        return number

    def translation(self, plugin: str, statuses: Sequence[Status]) -> NDArray[np.int32]:
        """Maps the codes of a plugin's :class:`FilterResult` to numbers of this table."""
        return np.array([0, *(self.number(s.by(plugin)) for s in statuses)], np.int32)


class FilterDiagnosis:
    """For each row the first filter, in the profile's order, that rejected it, and its status.

    ``rank[row]`` is the position of that filter, or :data:`PASSES`. ``code[row]`` is the number of
    its status in :attr:`statuses`.
    """

    __slots__ = ("_table", "code", "rank")

    def __init__(self, size: int, table: StatusTable | None = None) -> None:
        """Diagnoses that share ``table`` can copy rows from each other with :meth:`copy_from`."""
        self.rank = np.empty(size, np.int16)
        self.rank.fill(PASSES)
        # 32 bits: reasons may contain amounts, so updates can add new statuses without limit.
        self.code = np.zeros(size, np.int32)
        self._table = table or StatusTable()

    def copy(self, *, share_statuses: bool = False) -> FilterDiagnosis:
        """``share_statuses``: with the same table, so that both can copy rows from each other."""
        copied = FilterDiagnosis(0, self._table if share_statuses else self._table.copy())
        copied.rank, copied.code = self.rank.copy(), self.code.copy()
        return copied

    @property
    def passing(self) -> BoolColumn:
        passing: BoolColumn = self.rank == PASSES
        return passing

    @property
    def statuses(self) -> Sequence[Status]:
        """All statuses that ever occurred, by number."""
        return self._table.statuses

    @property
    def has_errors(self) -> bool:
        return self._table.has_errors

    def extend(self, size: int) -> None:
        extra = size - len(self.rank)
        if extra > 0:
            self.rank = np.concatenate([self.rank, np.full(extra, PASSES, np.int16)])
            self.code = np.concatenate([self.code, np.zeros(extra, np.int32)])

    def clear(self, rows: RowArray) -> None:
        self.rank[rows] = PASSES
        self.code[rows] = 0

    def clear_row(self, row: int) -> None:
        self.rank[row], self.code[row] = PASSES, 0

    def copy_from(self, other: FilterDiagnosis, rows: RowArray | slice) -> None:
        """Copy ``rows`` from a diagnosis that shares the status table."""
        self.rank[rows] = other.rank[rows]
        self.code[rows] = other.code[rows]

    def copy_row_from(self, other: FilterDiagnosis, row: int) -> None:
        self.rank[row], self.code[row] = other.rank[row], other.code[row]

    def passes(self, row: int) -> bool:
        return bool(self.rank[row] == PASSES)

    def add(
        self, rank: int, plugin: str, result: FilterResult, rows: RowArray | None = None
    ) -> None:
        """Add one filter's result, for all rows or for ``rows``."""
        if not result.statuses:
            return
        numbers = self._table.translation(plugin, result.statuses)
        if rows is None:
            wins = result.codes > 0
            if not wins.any():
                return
            wins &= self.rank > rank
            self.rank[wins] = rank
            self.code[wins] = numbers[result.codes[wins]]
            return
        wins = (result.codes > 0) & (self.rank[rows] > rank)
        hit = rows[wins]
        self.rank[hit] = rank
        self.code[hit] = numbers[result.codes[wins]]

    def set(self, row: int, rank: int, status: Status) -> None:
        self.rank[row] = rank
        self.code[row] = self._table.number(status)

    def copy_rows(self, rows: RowArray, other: FilterDiagnosis, from_rows: RowArray) -> None:
        """Copy ``from_rows`` of any diagnosis of the same profile to ``rows``."""
        if not len(rows):
            return
        codes = other.code[from_rows]
        used = np.flatnonzero(np.bincount(codes))
        numbers = np.zeros(len(other.statuses), np.int32)
        # 0 means a pass in every table.
        for code in used[used > 0].tolist():
            numbers[code] = self._table.number(other.statuses[code])
        self.rank[rows] = other.rank[from_rows]
        self.code[rows] = numbers[codes]

    def status(self, row: int) -> Status | None:
        """The status that rejected a row; None if it passed."""
        return None if self.rank[row] == PASSES else self.statuses[int(self.code[row])]

    def first_error(self, rows: BoolColumn) -> Status | None:
        """The error of the first of ``rows`` that has one; None if there is none.

        The lowest row is used because the order in which errors occur depends on caches.
        """
        errors = np.array([status.code not in FILTER_CODES for status in self.statuses])
        wrong = rows & ~self.passing & errors[self.code]
        return self.status(int(wrong.argmax())) if wrong.any() else None

    def counted(self, rows: BoolColumn) -> Iterator[CountedStatus]:
        """Each status that rejected any of ``rows``, with the number of rows."""
        counts = np.bincount(self.code[rows & (self.rank != PASSES)], minlength=1)
        for number in np.flatnonzero(counts).tolist():
            yield self.statuses[number], int(counts[number])


def histogram(counted: Iterable[tuple[Sequence[str], int]]) -> str:
    """``count reason`` for every reason, sorted as text, as kube-scheduler prints it."""
    counts: dict[str, int] = {}
    for reasons, number in counted:
        for reason in reasons:
            counts[reason] = counts.get(reason, 0) + number
    return ", ".join(sorted(f"{number} {reason}" for reason, number in counts.items()))


def rejecting_plugins(statuses: Iterable[Status]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Sorted names of (plugins that rejected, plugins that returned Pending)."""
    rejected: set[str] = set()
    pending: set[str] = set()
    for status in statuses:
        (pending if status.code is Code.PENDING else rejected).add(status.plugin)
    return tuple(sorted(rejected)), tuple(sorted(pending))
