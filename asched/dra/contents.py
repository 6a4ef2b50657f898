"""Numbers for contents that are equal, so that comparing them is cheap."""

from __future__ import annotations

import msgspec


class Contents:
    """Numbers contents that are in use. A number is never used again for another content."""

    def __init__(self) -> None:
        self._numbers: dict[bytes, int] = {}
        self._uses: dict[int, tuple[bytes, int]] = {}
        self._next = 0
        self._encoder = msgspec.msgpack.Encoder(order="deterministic")
        self.released = 0
        """How many contents are no longer in use."""

    def __len__(self) -> int:
        return len(self._numbers)

    def acquire(self, content: object) -> int:
        """The number of a content, which stays until it is released as often."""
        encoded = self._encoder.encode(content)
        number = self._numbers.get(encoded)
        if number is None:
            number = self._numbers[encoded] = self._next
            self._next += 1
        self._uses[number] = (encoded, self._uses.get(number, (encoded, 0))[1] + 1)
        return number

    def release(self, number: int) -> None:
        """Undo one :meth:`acquire`."""
        encoded, uses = self._uses[number]
        if uses > 1:
            self._uses[number] = (encoded, uses - 1)
            return
        del self._uses[number]
        del self._numbers[encoded]
        self.released += 1
