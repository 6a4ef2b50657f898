"""What the filters together say of every node."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from asched.framework.nodes import BoolColumn, RowArray, Verdicts
from asched.framework.status import Code, Status

PASSES = np.int16(np.iinfo(np.int16).max)


FILTER_CODES = frozenset(
    {Code.SUCCESS, Code.UNSCHEDULABLE, Code.UNSCHEDULABLE_AND_UNRESOLVABLE, Code.PENDING}
)
"""What a filter may answer; all else is an error."""


CountedStatus = tuple[Status, int]
"""A status, and how many nodes have it."""


class StatusNumbers:
    """Numbers for the distinct statuses that occur; 0 is for none."""

    __slots__ = ("_numbers", "has_errors", "statuses")

    def __init__(self) -> None:
        self.statuses: list[Status] = [Status()]
        self._numbers: dict[Status, int] = {}
        self.has_errors = False
        """Whether any status is an error."""

    def copy(self) -> StatusNumbers:
        twin = StatusNumbers()
        twin.statuses, twin._numbers = list(self.statuses), dict(self._numbers)
        twin.has_errors = self.has_errors
        return twin

    def number(self, status: Status) -> int:
        number = self._numbers.get(status)
        if number is None:
            number = self._numbers[status] = len(self.statuses)
            self.statuses.append(status)
            self.has_errors |= status.code not in FILTER_CODES
        return number

    def translation(self, plugin: str, statuses: Sequence[Status]) -> NDArray[np.int32]:
        """From the codes of a plugin's verdicts to numbers."""
        return np.array([0, *(self.number(s.by(plugin)) for s in statuses)], np.int32)


class Findings:
    """For each row the first filter, in the profile's order, that refused it, and its status.

    ``rank[row]`` is the position of that filter, or :data:`PASSES`; ``code[row]`` numbers a status.
    """

    __slots__ = ("_numbers", "code", "rank")

    def __init__(self, size: int, numbers: StatusNumbers | None = None) -> None:
        """``numbers`` may be shared with other findings, whose rows can then be taken over."""
        self.rank = np.empty(size, np.int16)
        self.rank.fill(PASSES)
        # Reasons may name figures, so that patches bring ever new statuses.
        self.code = np.zeros(size, np.int32)
        self._numbers = numbers or StatusNumbers()

    def copy(self) -> Findings:
        twin = Findings(0, self._numbers.copy())
        twin.rank, twin.code = self.rank.copy(), self.code.copy()
        return twin

    @property
    def passing(self) -> BoolColumn:
        passing: BoolColumn = self.rank == PASSES
        return passing

    @property
    def statuses(self) -> Sequence[Status]:
        """All statuses that ever occurred, by number."""
        return self._numbers.statuses

    @property
    def has_errors(self) -> bool:
        """Whether any of :attr:`statuses` is an error."""
        return self._numbers.has_errors

    def extend(self, size: int) -> None:
        """Rows were added; they pass so far."""
        extra = size - len(self.rank)
        if extra > 0:
            self.rank = np.concatenate([self.rank, np.full(extra, PASSES, np.int16)])
            self.code = np.concatenate([self.code, np.zeros(extra, np.int32)])

    def clear(self, rows: RowArray) -> None:
        self.rank[rows] = PASSES
        self.code[rows] = 0

    def take_over(self, other: Findings, rows: RowArray | slice) -> None:
        """Say of ``rows`` what ``other`` says, which shares its numbers with this."""
        self.rank[rows] = other.rank[rows]
        self.code[rows] = other.code[rows]

    def passes(self, row: int) -> bool:
        return bool(self.rank[row] == PASSES)

    def pass_row(self, row: int) -> None:
        """:meth:`clear` for one row."""
        self.rank[row], self.code[row] = PASSES, 0

    def take_over_row(self, other: Findings, row: int) -> None:
        """:meth:`take_over` for one row."""
        self.rank[row], self.code[row] = other.rank[row], other.code[row]

    def add(self, rank: int, plugin: str, verdicts: Verdicts, rows: RowArray | None = None) -> None:
        """Enter one filter's verdicts, for all rows or for ``rows``."""
        if not verdicts.statuses:
            return
        numbers = self._numbers.translation(plugin, verdicts.statuses)
        if rows is None:
            wins = verdicts.codes > 0
            if not wins.any():
                return
            wins &= self.rank > rank
            self.rank[wins] = rank
            self.code[wins] = numbers[verdicts.codes[wins]]
            return
        wins = (verdicts.codes > 0) & (self.rank[rows] > rank)
        hit = rows[wins]
        self.rank[hit] = rank
        self.code[hit] = numbers[verdicts.codes[wins]]

    def set(self, row: int, rank: int, status: Status) -> None:
        self.rank[row] = rank
        self.code[row] = self._numbers.number(status)

    def copy_rows(self, rows: RowArray, other: Findings, from_rows: RowArray) -> None:
        """Say of ``rows`` what ``other``, of the same profile, says of its ``from_rows``."""
        if not len(rows):
            return
        codes = other.code[from_rows]
        used = np.flatnonzero(np.bincount(codes))
        numbers = np.zeros(len(other.statuses), np.int32)
        # 0 stands for a pass everywhere.
        for code in used[used > 0].tolist():
            numbers[code] = self._numbers.number(other.statuses[code])
        self.rank[rows] = other.rank[from_rows]
        self.code[rows] = numbers[codes]

    def status(self, row: int) -> Status | None:
        """The status that refused a row, None where it passed."""
        return None if self.rank[row] == PASSES else self.statuses[int(self.code[row])]

    def first_error(self, rows: BoolColumn) -> Status | None:
        """The error that was answered about the first of ``rows``; None where there is none. Which of
        several came up first depends on what is remembered."""
        errors = np.array([status.code not in FILTER_CODES for status in self.statuses])
        wrong = rows & ~self.passing & errors[self.code]
        return self.status(int(wrong.argmax())) if wrong.any() else None

    def counted(self, rows: BoolColumn) -> Iterator[CountedStatus]:
        """Each status that refused any of ``rows``, with how many."""
        counts = np.bincount(self.code[rows & (self.rank != PASSES)], minlength=1)
        for number in np.flatnonzero(counts).tolist():
            yield self.statuses[number], int(counts[number])


def histogram(counted: Iterable[tuple[Sequence[str], int]]) -> str:
    """``count reason`` for every reason, sorted as text, as Kubernetes prints it."""
    counts: dict[str, int] = {}
    for reasons, number in counted:
        for reason in reasons:
            counts[reason] = counts.get(reason, 0) + number
    return ", ".join(sorted(f"{number} {reason}" for reason, number in counts.items()))


def rejecting_plugins(statuses: Iterable[Status]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(plugins that refused, plugins that answered Pending), sorted."""
    refused: set[str] = set()
    pending: set[str] = set()
    for status in statuses:
        (pending if status.code is Code.PENDING else refused).add(status.plugin)
    return tuple(sorted(refused)), tuple(sorted(pending))
