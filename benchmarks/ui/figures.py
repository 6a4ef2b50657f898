"""The figures of the browser interface, and their limits."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Final, TypeVar

import msgspec

from benchmarks.measurement import Percentiles

PAGE_MS: Final = 500
SLIDER_MS: Final = 150
FIRST_PAGE_S: Final = 2.0
MEMORY_MIB: Final = 600
LAG_S: Final = 1.0


class RouteFigures(msgspec.Struct):
    """Server time of one kind of request."""

    route: str
    requests: int
    p50_ms: float
    p95_ms: float
    limit_ms: int
    failed: int = 0

    @classmethod
    def of(cls, route: str, times_ms: Sequence[float], limit_ms: int, failed: int) -> RouteFigures:
        found = Percentiles.of(times_ms)
        p50_ms, p95_ms = (0.0, 0.0) if found is None else (found.perc50, found.perc95)
        return cls(route, len(times_ms), p50_ms, p95_ms, limit_ms, failed)


class CostFigures(msgspec.Struct):
    """CPU time of the server, with all its processes, for one kind of request at a time."""

    route: str
    requests: int
    p50_ms: float
    p95_ms: float


class StartFigures(msgspec.Struct):
    """A start of the server."""

    name: str
    first_page_s: float
    """From the start of the process to the first page."""
    first_answer_s: float
    """To the first answer of the overview and of the cluster."""
    indexed_s: float
    """Until everything is indexed and verified."""
    cpu_s: float
    """CPU time until then."""
    peak_mib: float
    """Highest memory until then."""


class LiveFigures(msgspec.Struct):
    """A journal that another process extends."""

    pods_per_s: float
    lag_p50_s: float
    """From the end of an append to the event that a browser gets."""
    lag_p95_s: float


RowT = TypeVar("RowT", RouteFigures, CostFigures, StartFigures, LiveFigures)


class UiFigures(msgspec.Struct):
    """All figures of a run."""

    records: int
    nodes: int
    clients: int
    starts: list[StartFigures]
    routes: list[RouteFigures]
    slider: list[RouteFigures]
    costs: list[CostFigures]
    peak_mib: float
    """Highest memory with users, right after the index was built."""
    live: LiveFigures | None = None

    @classmethod
    def median_of(cls, runs: Sequence[UiFigures]) -> UiFigures:
        """Each figure is the median of all runs."""
        first = runs[0]
        merged = msgspec.structs.replace(
            first,
            starts=[_median([run.starts[i] for run in runs]) for i in range(len(first.starts))],
            routes=[_median([run.routes[i] for run in runs]) for i in range(len(first.routes))],
            slider=[_median([run.slider[i] for run in runs]) for i in range(len(first.slider))],
            costs=[_median([run.costs[i] for run in runs]) for i in range(len(first.costs))],
            peak_mib=median(run.peak_mib for run in runs),
        )
        live = [run.live for run in runs if run.live is not None]
        merged.live = _median(live) if live else None
        return merged


def _median(rows: Sequence[RowT]) -> RowT:
    """Numbers are medians, the rest is that of the first row."""
    numbers = {
        name: median(getattr(row, name) for row in rows)
        for name in rows[0].__struct_fields__
        if isinstance(getattr(rows[0], name), int | float)
    }
    return msgspec.structs.replace(rows[0], **numbers)
