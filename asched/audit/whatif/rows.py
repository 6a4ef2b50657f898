"""The figures of runs as the rows of a table, for terminal and page alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from asched.audit.whatif.measures import Figures, Share

NONE: Final = "–"
Number = int | float


class Row(NamedTuple):
    """One figure of every run, as text."""

    label: str
    values: tuple[str, ...]
    change: str
    """From the first run to the second; empty where there is none, or only one run."""


class _Unit(NamedTuple):
    text: Callable[[Number], str]
    change: Callable[[Number], str]


def duration(seconds: Number) -> str:
    """Three digits that matter, in a unit that fits.

    >>> duration(0.0421), duration(95), duration(5400), duration(0)
    ('42.1 ms', '95 s', '90 min', '0 s')
    """
    size = abs(seconds)
    for least, unit, name in ((172_800, 86_400, "d"), (7_200, 3_600, "h"), (120, 60, "min")):
        if size >= least:
            return f"{_digits(seconds / unit)} {name}"
    return f"{_digits(seconds * 1000)} ms" if 0 < size < 1 else f"{_digits(seconds)} s"


def _digits(number: float) -> str:
    """Three digits that matter, never an exponent."""
    return f"{number:,.0f}" if abs(number) >= 1000 else f"{number:.3g}"


_COUNT: Final = _Unit(lambda n: f"{n:,}", lambda n: f"{n:+,}")
_TIME: Final = _Unit(duration, lambda s: ("+" if s > 0 else "") + duration(s))
_SHARE: Final = _Unit(lambda s: f"{s:.1%}", lambda s: f"{s * 100:+.1f} points")


def figure_rows(runs: Sequence[Figures]) -> list[Row]:
    """The rows for these runs, in their order; the change is that between the first two."""
    return [
        Row(
            label, tuple(NONE if v is None else unit.text(v) for v in values), _change(unit, values)
        )
        for label, unit, values in _figures(runs)
    ]


_Line = tuple[str, _Unit, tuple[Number | None, ...]]


def _change(unit: _Unit, values: Sequence[Number | None]) -> str:
    if len(values) < 2:
        return ""
    before, after = values[0], values[1]
    if before is None or after is None or unit.text(before) == unit.text(after):
        return ""
    return unit.change(after - before)


def _figures(runs: Sequence[Figures]) -> Iterator[_Line]:
    def line(label: str, unit: _Unit, of: Callable[[Figures], Number | None]) -> _Line:
        return label, unit, tuple(of(run) for run in runs)

    yield line("pods to place", _COUNT, lambda f: f.pods)
    yield line("placed", _COUNT, lambda f: f.placed)
    yield line("pending at the end", _COUNT, lambda f: f.pending_at_end)
    yield line("time to bind, p50", _TIME, lambda f: f.time_to_bind.p50_seconds)
    yield line("time to bind, p99", _TIME, lambda f: f.time_to_bind.p99_seconds)
    yield line("time to bind, mean", _TIME, lambda f: f.time_to_bind.mean_seconds)
    yield line("time pending, p99", _TIME, lambda f: f.time_pending.p99_seconds)
    yield line("time pending, all pods together", _TIME, lambda f: f.time_pending.total_seconds)
    yield line("attempts", _COUNT, lambda f: f.attempts)
    yield line("attempts that found no node", _COUNT, lambda f: f.rejections)
    yield line("preemptions", _COUNT, lambda f: f.preemptions)
    for resource in dict.fromkeys(name for run in runs for name in run.resources):
        yield from _of_resource(resource, runs)
    if any(run.spread.constraints for run in runs):
        yield line("hard spread broken, at placement", _COUNT, lambda f: f.spread.hard_at_placement)
        yield line("soft spread broken, at placement", _COUNT, lambda f: f.spread.soft_at_placement)
        yield line("hard spread broken, at the end", _COUNT, lambda f: f.spread.hard_at_end)
        yield line("soft spread broken, at the end", _COUNT, lambda f: f.spread.soft_at_end)


def _of_resource(resource: str, runs: Sequence[Figures]) -> Iterator[_Line]:
    found = [run.resources.get(resource) for run in runs]
    used = [None if one is None else one.utilisation for one in found]
    fragmented = [None if one is None else one.fragmentation for one in found]
    yield f"{resource} utilisation, mean", _SHARE, _each(used, lambda share: share.mean)
    yield f"{resource} utilisation, peak", _SHARE, _each(used, lambda share: share.peak)
    if any(fragmented):
        yield f"{resource} fragmentation, mean", _SHARE, _each(fragmented, lambda s: s.mean)
        yield f"{resource} fragmentation, end", _SHARE, _each(fragmented, lambda s: s.end)


def _each(shares: Sequence[Share | None], of: Callable[[Share], float]) -> tuple[float | None, ...]:
    return tuple(None if share is None else of(share) for share in shares)
