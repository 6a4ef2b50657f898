"""Numbers for how full nodes are, so that what is said of one is known of all that are alike."""

from __future__ import annotations

_MOST_NUMBERS = 1 << 16


class FullnessNumbers:
    """A number for each tuple of amounts, unique for the life of the process. Memory, not state."""

    __slots__ = ("_last", "_numbers")

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, ...], int] = {}
        self._last = 0

    def of(self, amounts: tuple[int, ...]) -> int:
        """The same for the same amounts, unless so many others came between that it was forgotten."""
        number = self._numbers.get(amounts)
        if number is None:
            if len(self._numbers) >= _MOST_NUMBERS:
                self._numbers.clear()
            self._last = number = self._last + 1
            self._numbers[amounts] = number
        return number
