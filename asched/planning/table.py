"""The results of a sweep as a table, one row for each run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from asched.audit.whatif.measures import Times
from asched.planning.conditions import Condition, Value, number
from asched.planning.errors import PlanningError
from asched.planning.items import RunFigures, RunSettings
from asched.planning.result_cache import write_or_remove

if TYPE_CHECKING:
    import pyarrow as pa

AXES: Final = (
    *("config", "plugins", "seed", "add_nodes", "drop_nodes"),
    *("node_mix", "spot_nodes", "load"),
)
"""The columns that identify a run."""

COST_COLUMNS: Final = ("cost", "idle_cost", "wait_cost", "total_cost")
_MORE_IS_BETTER: Final = ("placed", "utilisation")


class RunRow(NamedTuple):
    """One run."""

    settings: RunSettings
    figures: RunFigures | None
    """None if it failed."""
    error: str
    cpu_s: float
    """CPU time of the simulation, which is no part of the result."""

    def values(self) -> dict[str, Value]:
        """The columns: the settings, then figures with their unit at the end of the name."""
        named = settings_values(self.settings)
        named |= {} if self.figures is None else dict(_columns(self.figures))
        return named | {"error": self.error, "cpu_s": round(self.cpu_s, 3)}


def settings_values(settings: RunSettings) -> dict[str, Value]:
    """The columns that identify a run."""
    return {
        "config": "" if settings.config is None else settings.config.name,
        "plugins": settings.plugins,
        "seed": settings.seed,
        "add_nodes": settings.add_nodes,
        "drop_nodes": settings.drop_nodes,
        "node_mix": settings.node_mix.label,
        "spot_nodes": settings.spot_nodes.label,
        "load": settings.load.label,
    }


def _columns(run: RunFigures) -> Iterator[tuple[str, Value]]:
    figures = run.figures
    yield "nodes", run.nodes
    yield "node_hours", run.node_hours
    yield "span_s", run.span_s
    yield "pods", figures.pods
    yield "placed", figures.placed
    yield "pending_at_end", figures.pending_at_end
    waits = dict(zip(run.waits.percents, run.waits.seconds, strict=True))
    yield from _times("wait", figures.time_to_bind, waits.get(95))
    yield from _times("pending", figures.time_pending, None)
    yield "attempts", figures.attempts
    yield "rejections", figures.rejections
    yield "evictions", figures.preemptions
    for resource, found in figures.resources.items():
        yield f"{resource}_utilisation_mean", found.utilisation.mean
        yield f"{resource}_utilisation_peak", found.utilisation.peak
        if found.fragmentation is not None:
            yield f"{resource}_fragmentation_mean", found.fragmentation.mean
    if figures.costs is not None:
        costs = figures.costs
        yield from zip(
            COST_COLUMNS, (costs.nodes, costs.idle, costs.waits, costs.total), strict=True
        )
    yield "hard_spread_violations", figures.spread.hard_at_placement
    yield "sha256", run.sha256


def _times(name: str, times: Times, p95_s: float | None) -> Iterator[tuple[str, Value]]:
    yield f"p50_{name}_s", times.p50_seconds
    yield f"p90_{name}_s", times.p90_seconds
    if name == "wait":
        yield f"p95_{name}_s", p95_s
    yield f"p99_{name}_s", times.p99_seconds
    yield f"mean_{name}_s", times.mean_seconds
    yield f"max_{name}_s", times.max_seconds


class RunTable:
    """The runs of a sweep, in its order. The first one is the baseline."""

    def __init__(self, rows: Sequence[RunRow], workload: str) -> None:
        self.rows = tuple(rows)
        self.workload = workload
        """The name of what was simulated."""
        self._values = [row.values() for row in self.rows]

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of all rows: settings, figures, and ``error`` and ``cpu_s`` at the end."""
        last = ("error", "cpu_s")
        names = dict.fromkeys(name for values in self._values for name in values)
        return (*(name for name in names if name not in last), *last)

    @property
    def values(self) -> tuple[Mapping[str, Value], ...]:
        """The rows by column."""
        return tuple(self._values)

    def best(
        self, column: str, subject_to: Mapping[str, str] | None = None, *, most: bool | None = None
    ) -> Mapping[str, Value]:
        """The row with the lowest value, or with the highest one if ``most``.

        By default more is better for ``placed`` and utilisation. ``subject_to`` has conditions by
        column: ``<= 12``, ``<= baseline``, ``<= 1.05 * baseline``. Of equal rows the first counts.

        Raises PlanningError for an unknown column or condition, and if no row meets them all.
        """
        checks = [self._check(name, text) for name, text in (subject_to or {}).items()]
        if most is None:
            most = any(word in column for word in _MORE_IS_BETTER)
        self._require(column)
        found = [
            values
            for values in self._values
            if number(values.get(column)) is not None and all(check(values) for check in checks)
        ]
        if not found:
            conditions = ", ".join(f"{name} {text}" for name, text in (subject_to or {}).items())
            raise PlanningError(f"no run with {column} meets: {conditions or 'any condition'}")
        sign = -1 if most else 1
        return min(found, key=lambda values: sign * (number(values[column]) or 0.0))

    def pareto(self, cost: str, wait: str) -> tuple[int, ...]:
        """The rows that no other row beats in both columns, less being better, by ascending
        ``cost``. Raises PlanningError for an unknown column."""
        self._require(cost)
        self._require(wait)
        points = sorted(
            (x, y, index)
            for index, values in enumerate(self._values)
            if (x := number(values.get(cost))) is not None
            and (y := number(values.get(wait))) is not None
        )
        front: list[int] = []
        lowest = float("inf")
        for _, y, index in points:
            if y < lowest:
                front.append(index)
                lowest = y
        return tuple(front)

    def to_arrow(self) -> pa.Table:
        """An Arrow table. Needs ``asched[parquet]``; ``.to_pandas()`` needs pandas, too.

        Raises PlanningError without pyarrow.
        """
        arrow = _arrow()
        names = self.columns
        return arrow.table({name: [values.get(name) for values in self._values] for name in names})

    def write_parquet(self, file: Path) -> None:
        """Raises PlanningError without pyarrow, and for a file that cannot be written."""
        table = self.to_arrow()
        from pyarrow import BufferOutputStream, parquet

        content = BufferOutputStream()
        parquet.write_table(table, content)
        try:
            write_or_remove(file, content.getvalue().to_pybytes())
        except OSError as error:
            raise PlanningError(f"{file} cannot be written: {error.strerror or error}") from None

    def _require(self, column: str) -> None:
        if column not in self.columns:
            numbers = [name for name in self.columns if name not in (*AXES, "error", "sha256")]
            raise PlanningError(f'no column "{column}"; there are {", ".join(numbers)}')

    def _check(self, column: str, text: str) -> Callable[[Mapping[str, Value]], bool]:
        self._require(column)
        condition = Condition.parse(column, text)
        limit = condition.limit(self._values[0])
        return lambda values: condition.holds(values.get(column), limit)


def _arrow() -> Any:
    try:
        import pyarrow as pa
    except ModuleNotFoundError:
        raise PlanningError("a table needs pyarrow: pip install 'asched[parquet]'") from None
    return pa
