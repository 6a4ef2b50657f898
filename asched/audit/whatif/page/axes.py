"""Where the marks of an axis are, and what they say."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

NS_PER_S: Final = 1_000_000_000

_SPANS_S: Final = (
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5,
    1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800,
    3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800,
)  # fmt: skip
"""Round stretches of time, in seconds."""
_UNITS: Final = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s"), (0.001, "ms"))


class Mark(NamedTuple):
    """A labelled place on an axis."""

    at: float
    """In units of the axis."""
    label: str


def span_label(seconds: float) -> str:
    """A stretch of time in its largest unit that leaves no long fraction.

    >>> span_label(5400), span_label(0.25), span_label(0)
    ('90 min', '250 ms', '0')
    """
    if not seconds:
        return "0"
    for size, unit in _UNITS:
        if abs(seconds) < size:
            continue
        number = seconds / size
        if math.isclose(number, round(number, 1), rel_tol=1e-6):
            return f"{number:.6g} {unit}"
    return f"{seconds:.3g} s"


def time_marks(span_s: float, most: int = 7) -> list[Mark]:
    """Round times from 0 up to ``span_s``, at most so many steps."""
    step_s = next((span for span in _SPANS_S if span_s / span <= most), None)
    if step_s is None:
        step_s = math.ceil(span_s / most / _SPANS_S[-1]) * _SPANS_S[-1]
    unit_s, unit = next((u for u in _UNITS if step_s >= u[0]), _UNITS[-1])
    count = math.floor(span_s / step_s + 1e-9)
    return [
        Mark(i * step_s, f"{i * step_s / unit_s:g} {unit}" if i else "0") for i in range(count + 1)
    ]


def decade_marks(low_s: float, high_s: float) -> list[Mark]:
    """Round times on a logarithmic axis, bounds included."""
    marks = (0.001, 0.01, 0.1, 1, 10, 60, 600, 3600, 36000, 86400, 864000, 8640000)
    return [Mark(at, span_label(at)) for at in marks if low_s <= at <= high_s * 1.0001]


def upper_bound(values: Sequence[float], most_marks: int = 5) -> tuple[float, float]:
    """(A round number not below any of the values, the distance of its marks)."""
    highest = max(values, default=0.0)
    if highest <= 0:
        return 1.0, 1.0
    raw = highest / most_marks
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= raw * 0.999999)
    return math.ceil(highest / step - 1e-9) * step, step
