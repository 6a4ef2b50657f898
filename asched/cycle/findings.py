"""What the filters together say of every node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from asched.framework.nodes import BoolColumn, RowArray, Verdicts
from asched.framework.status import Code, Status

PASSES = np.int16(np.iinfo(np.int16).max)


class Findings:
    """For each row the first filter, in the profile's order, that refused it, and its status.

    ``rank[row]`` is the position of that filter, or :data:`PASSES`; ``code[row]`` numbers a status.
    """

    __slots__ = ("_numbers", "code", "rank", "statuses")

    def __init__(self, size: int) -> None:
        self.rank = np.full(size, PASSES, np.int16)
        self.code = np.zeros(size, np.int16)
        self.statuses: list[Status] = [Status()]
        self._numbers: dict[Status, int] = {}

    def copy(self) -> Findings:
        twin = Findings(0)
        twin.rank, twin.code = self.rank.copy(), self.code.copy()
        twin.statuses, twin._numbers = list(self.statuses), dict(self._numbers)
        return twin

    @property
    def passing(self) -> BoolColumn:
        passing: BoolColumn = self.rank == PASSES
        return passing

    def clear(self, rows: RowArray) -> None:
        self.rank[rows] = PASSES
        self.code[rows] = 0

    def add(self, rank: int, plugin: str, verdicts: Verdicts, rows: RowArray | None = None) -> None:
        """Enter one filter's verdicts, for all rows or for ``rows``."""
        if not verdicts.statuses:
            return
        numbers = self._renumber(plugin, verdicts.statuses)
        if rows is None:
            wins = (verdicts.codes > 0) & (self.rank > rank)
            self.rank[wins] = rank
            self.code[wins] = numbers[verdicts.codes[wins]]
            return
        wins = (verdicts.codes > 0) & (self.rank[rows] > rank)
        hit = rows[wins]
        self.rank[hit] = rank
        self.code[hit] = numbers[verdicts.codes[wins]]

    def set(self, row: int, rank: int, status: Status) -> None:
        self.rank[row] = rank
        self.code[row] = self._number(status)

    def status(self, row: int) -> Status | None:
        """The status that refused a row, None where it passed."""
        return None if self.rank[row] == PASSES else self.statuses[int(self.code[row])]

    def counted(self, rows: BoolColumn) -> Iterator[tuple[Status, int]]:
        """Each status that refused any of ``rows``, with how many."""
        counts = np.bincount(self.code[rows & (self.rank != PASSES)], minlength=1)
        for number in np.flatnonzero(counts).tolist():
            yield self.statuses[number], int(counts[number])

    def _renumber(self, plugin: str, statuses: Sequence[Status]) -> NDArray[np.int16]:
        return np.array([0, *(self._number(s.by(plugin)) for s in statuses)], np.int16)

    def _number(self, status: Status) -> int:
        number = self._numbers.get(status)
        if number is None:
            number = self._numbers[status] = len(self.statuses)
            self.statuses.append(status)
        return number


def histogram(counted: Iterable[tuple[Sequence[str], int]]) -> str:
    """``count reason`` for every reason, sorted as text, as Kubernetes prints it."""
    counts: Counter[str] = Counter()
    for reasons, number in counted:
        for reason in reasons:
            counts[reason] += number
    return ", ".join(sorted(f"{number} {reason}" for reason, number in counts.items()))


def rejecting_plugins(statuses: Iterable[Status]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(plugins that refused, plugins that answered Pending), sorted."""
    refused: set[str] = set()
    pending: set[str] = set()
    for status in statuses:
        (pending if status.code is Code.PENDING else refused).add(status.plugin)
    return tuple(sorted(refused)), tuple(sorted(pending))
