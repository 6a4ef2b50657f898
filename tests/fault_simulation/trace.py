"""The trace of a run and its hash, which is equal for equal runs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from tests.fault_simulation.virtual_time import VirtualLoop


class Trace:
    """Collects lines; the hash covers all of them."""

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
        """Show a line outside the hash, such as a log line that may contain an address."""
        if self._show is not None:
            self._show(f"        {self._loop.time():.6f} {who}: {what}")

    def digest(self) -> str:
        return self._hash.hexdigest()
