"""Requests of resources that no node offers: exact sums by resource and row.

Any pod may name any resource, so these names get no columns: a column for each would take memory
for all nodes. A name disappears with the last request above 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from asched.framework.nodes import Int64Column
from asched.model.quantity import saturated

ELSEWHERE = -1
"""Represents the row of pods on nodes that are not known."""


class UnofferedRequests:
    """Requests of the pods on each row. A sum of 0 is not stored."""

    def __init__(self) -> None:
        self._by_name: dict[str, dict[int, int]] = {}
        self._by_row: dict[int, dict[str, int]] = {}

    def __bool__(self) -> bool:
        return bool(self._by_name)

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def __iter__(self) -> Iterator[str]:
        """The names, in the order of their first request."""
        return iter(self._by_name)

    def add(self, name: str, row: int, difference: int) -> None:
        """Add to the sum of a row."""
        if not difference:
            return
        rows, names = self._by_name.setdefault(name, {}), self._by_row.setdefault(row, {})
        total = rows.get(row, 0) + difference
        if total:
            rows[row] = names[name] = total
            return
        rows.pop(row, None)
        names.pop(name, None)
        if not rows:
            del self._by_name[name]
        if not names:
            del self._by_row[row]

    def declare(self, name: str) -> None:
        """Give a name its place in the order; its requests follow."""
        self._by_name.setdefault(name, {})

    def take(self, name: str) -> Mapping[int, int]:
        """Remove a name. Returns its sums by row."""
        rows = self._by_name.pop(name, {})
        for row in rows:
            names = self._by_row[row]
            del names[name]
            if not names:
                del self._by_row[row]
        return rows

    def on_row(self, row: int) -> tuple[tuple[str, int], ...]:
        """The sums of a row by name."""
        names = self._by_row.get(row)
        return tuple(sorted(names.items())) if names else ()

    def of(self, name: str, row: int) -> int:
        rows = self._by_name.get(name)
        return saturated(rows.get(row, 0)) if rows else 0

    def column(self, name: str, size: int) -> Int64Column:
        """The sums by row, saturated at 64 bits."""
        column = np.zeros(size, np.int64)
        for row, total in self._by_name.get(name, {}).items():
            if row != ELSEWHERE:
                column[row] = saturated(total)
        return column

    def copy(self) -> UnofferedRequests:
        copied = UnofferedRequests()
        vars(copied).update(
            _by_name={name: {**rows} for name, rows in self._by_name.items()},
            _by_row={row: {**names} for row, names in self._by_row.items()},
        )
        return copied
