"""What happened, as a timeline, and the tables at the end."""

from __future__ import annotations

import sys
from pathlib import Path
from time import monotonic
from typing import NamedTuple


class Breach(NamedTuple):
    """A violated invariant."""

    fault: str
    """The fault during or after which it was found."""
    text: str


class Timeline:
    """Times and events since the start; printed, and written to a file."""

    def __init__(self, file: Path, *, prints: bool) -> None:
        self.began_s = monotonic()
        self.fault = "start"
        """The last fault."""
        self.breaches: list[Breach] = []
        self._file = file
        self._prints = prints

    def add(self, text: str) -> None:
        line = f"{monotonic() - self.began_s:7.1f} s  {text}"
        with self._file.open("a") as file:
            file.write(line + "\n")
        if self._prints:
            print(line, flush=True)

    def breach(self, text: str) -> None:
        """Record a breach, the same one only once."""
        breach = Breach(self.fault, text)
        if breach not in self.breaches:
            self.breaches.append(breach)
            self.add(f"BREACH ({self.fault}): {text}")


class FaultRow(NamedTuple):
    """A kind of fault in the summary."""

    times: int = 0
    worst_recovery_s: float = 0.0

    def with_one(self, recovery_s: float) -> FaultRow:
        return FaultRow(self.times + 1, max(self.worst_recovery_s, recovery_s))


class Summary(NamedTuple):
    """The result of a campaign."""

    journals: str
    seed: int
    folder: Path
    faults: dict[str, FaultRow]
    checks: dict[str, int]
    """How much was checked, by what."""
    breaches: list[Breach]

    def show(self) -> None:
        print(f"\n{self.journals}: faults, how often, longest time to the next binding")
        for name, row in sorted(self.faults.items()):
            print(f"  {name:28} {row.times:4} {row.worst_recovery_s:8.1f} s")
        print(f"{self.journals}: checked")
        for name, count in self.checks.items():
            print(f"  {name:40} {count:6}")
        for breach in self.breaches:
            print(f"{self.journals}: BREACH after {breach.fault!r}: {breach.text}")
        if self.breaches:
            print(
                f"  seed {self.seed}; timeline, logs and journals in {self.folder}\n"
                f"  python -m tests.torture --seed {self.seed} --journals {self.journals}"
            )
        sys.stdout.flush()
