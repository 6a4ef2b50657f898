"""How long a counted step takes on this machine.

Steps are counted instead of measured, so that a replay decides the same. The unit was measured on
one machine; where Python and numpy are slower, a namespace would use up more than its share of
time. A start measures how much slower, and records it.
"""

from __future__ import annotations

import time
from typing import Final

import numpy as np

from asched.state.attempt_budget import NS_PER_STEP

_ROWS: Final = 5000
_ROUNDS: Final = 8
_REPETITIONS: Final = 5
_STEPS: Final = 8_200
"""As many steps take as long as the sample, where a step takes :data:`NS_PER_STEP`. Cycles of whole
groups and searches for victims took 95 ns a step where the sample took 0.78 ms."""
_MOST_NS: Final = 10 * NS_PER_STEP


def measured_step_ns() -> int:
    """The time of a step, at least :data:`NS_PER_STEP`. Takes some milliseconds."""
    # Other processes can only lengthen a sample.
    sample_ns = min(_sample_ns() for _ in range(_REPETITIONS))
    return max(NS_PER_STEP, min(_MOST_NS, round(sample_ns / _STEPS)))


def _sample_ns() -> int:
    """CPU time of work like that of attempts: columns of nodes, and objects of Python."""
    began_ns = time.thread_time_ns()
    column, total = np.arange(_ROWS), 0
    for number in range(_ROUNDS):
        fits = (column >= number) & (column < _ROWS - number)
        total += int(column[fits.nonzero()[0]].max())
        names = {f"n{row}": (row, number) for row in range(60)}
        total += sum(row for row, _ in names.values())
    return time.thread_time_ns() - began_ns
