"""What happened, line by line, and a hash of all of it: two runs with one hash were the same run."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from tests.fault_simulation.virtual_time import VirtualLoop


class Trace:
    """Takes lines. They are formatted in any case, because the hash is made of them."""

    def __init__(self, loop: VirtualLoop, show: Callable[[str], None] | None = None) -> None:
        self._loop = loop
        self._show = show
        self._hash = hashlib.sha256()
        self.last = ""

    def __call__(self, who: str, what: str) -> None:
        line = f"{self._loop.time():.6f} {who}: {what}"
        self._hash.update(line.encode())
        self._hash.update(b"\n")
        self.last = line
        if self._show is not None:
            self._show(f"{self._loop.steps:>7} {line}")

    def aside(self, who: str, what: str) -> None:
        """For the reader only, not part of the hash: a line of a log may hold an address."""
        if self._show is not None:
            self._show(f"        {self._loop.time():.6f} {who}: {what}")

    def digest(self) -> str:
        return self._hash.hexdigest()
