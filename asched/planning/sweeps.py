"""Sweeps: one workload under all combinations of settings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import Executor
from itertools import product
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

import msgspec

from asched.audit.whatif.candidate import parse_changes
from asched.capacity.load import LoadForecast
from asched.capacity.node_mix import NodeMix
from asched.capacity.spot_nodes import SpotNodes
from asched.planning.bounds import DEFAULT_LIMIT_S
from asched.planning.errors import PlanningError
from asched.planning.execution import ProgressListener, execute
from asched.planning.history import History
from asched.planning.items import (
    ConfigText,
    QualityItem,
    RunFigures,
    RunItem,
    RunSettings,
    WorkAnswer,
)
from asched.planning.job_classes import DEFAULT as DEFAULT_JOB_CLASS
from asched.planning.job_classes import classifier
from asched.planning.quality import QualityOverTime
from asched.planning.result_cache import ResultCache
from asched.planning.table import RunRow, RunTable
from asched.planning.workloads import OpenbTables, ScenarioText, WorkloadSource
from asched.pricing.prices import Prices, read_prices

T = TypeVar("T")

MAX_RUNS: Final = 100_000
DEFAULT_MOMENTS: Final = 10


def sweep(
    workload: History | ScenarioText | OpenbTables,
    *,
    config: Iterable[str | Path | ConfigText | None] = (None,),
    plugins: Iterable[str] = ("",),
    seed: Iterable[int | None] = (None,),
    add_nodes: Iterable[int | str] = ("",),
    drop_nodes: Iterable[int | str] = ("",),
    job_class: str = DEFAULT_JOB_CLASS,
) -> Sweep:
    """All combinations of these settings for a workload; the last axis varies fastest.

    ``config``: configuration files, or None for the recorded configuration (for a scenario or trace
    the default one). ``plugins``: changes as for ``asched diff --plugins``. ``add_nodes``,
    ``drop_nodes``: a number, a percentage (``"10%"``), or names as for ``asched diff``; see
    :func:`~asched.capacity.node_counts.node_changes`. ``seed`` breaks ties and draws these nodes.
    ``job_class``: ``namespace``, ``priority``, ``owner`` or ``label:NAME``.
    :meth:`Sweep.across` adds axes of other nodes and load, :meth:`Sweep.priced` costs.

    The first combination is the baseline. Files are read now. Raises PlanningError for a file that
    cannot be read and for a sweep of no run or more than :data:`MAX_RUNS`; AuditError for invalid
    changes; JournalError.
    """
    classifier(job_class)
    changes = list(dict.fromkeys(plugins))
    for text in filter(None, changes):
        parse_changes(text)
    settings = [
        RunSettings(one, changed, number, added, dropped)
        for one, changed, number, added, dropped in product(
            dict.fromkeys(map(_config, config)),
            changes,
            dict.fromkeys(seed),
            dict.fromkeys(map(_nodes, add_nodes)),
            dict.fromkeys(map(_nodes, drop_nodes)),
        )
    ]
    _check_number(len(settings))
    source = workload.source() if isinstance(workload, History) else workload
    return Sweep(source, settings, job_class)


def _check_number(runs: int) -> None:
    if not 1 <= runs <= MAX_RUNS:
        raise PlanningError(f"a sweep of {runs:,} runs; expected 1 to {MAX_RUNS:,}")


def _config(given: str | Path | ConfigText | None) -> ConfigText | None:
    if given is None or isinstance(given, ConfigText):
        return given
    file = Path(given)
    try:
        return ConfigText(file.name, file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise PlanningError(f"{file} cannot be read: {error}") from None


def _distinct(given: Iterable[T]) -> list[T]:
    """Without repetitions; the values may contain dictionaries."""
    found: list[T] = []
    for one in given:
        if one not in found:
            found.append(one)
    return found


def _nodes(given: int | str) -> str:
    return "" if given in (0, "0", "") else str(given)


class Sweep(NamedTuple):
    """A workload and the settings of each run."""

    workload: WorkloadSource
    settings: Sequence[RunSettings]
    job_class: str
    prices: Prices | None = None

    def __len__(self) -> int:
        return len(self.settings)

    def across(
        self,
        *,
        node_mix: Iterable[NodeMix] = (NodeMix(),),
        spot_nodes: Iterable[SpotNodes] = (SpotNodes(),),
        load: Iterable[LoadForecast] = (LoadForecast(),),
    ) -> Sweep:
        """Each run with all combinations of these axes: nodes that are replaced, nodes that vanish,
        and more, fewer or resampled arrivals. The seed of the run draws them.

        Raises PlanningError for too many runs.
        """
        axes = [*product(_distinct(node_mix), _distinct(spot_nodes), _distinct(load))]
        _check_number(len(axes) * len(self.settings))
        settings = [
            msgspec.structs.replace(one, node_mix=mix, spot_nodes=spot, load=forecast)
            for one in self.settings
            for mix, spot, forecast in axes
        ]
        return Sweep(self.workload, settings, self.job_class, self.prices)

    def priced(self, prices: str | Path | Prices | None) -> Sweep:
        """With columns of costs, by a file of prices (``docs/how-to/costs.md``) or its content;
        None for none. Raises ConfigFileError."""
        if isinstance(prices, str | Path):
            prices = read_prices(Path(prices))
        return Sweep(self.workload, self.settings, self.job_class, prices)

    @property
    def items(self) -> list[RunItem]:
        return [RunItem(self.workload, one, self.job_class, self.prices) for one in self.settings]

    def run(
        self,
        executor: Executor | None = None,
        *,
        cache: str | Path | None = None,
        progress: ProgressListener = lambda _: None,
    ) -> RunTable:
        """The results, one row for each run, in the order of the sweep.

        ``executor``: any ``concurrent.futures.Executor``; by default one process for each
        processor. ``cache``: a folder that keeps results, so that an interrupted sweep continues
        and a repeated one takes no time. A run that fails is a row with an ``error``.

        Raises as :func:`~asched.planning.execution.execute`.
        """
        kept = None if cache is None else ResultCache(Path(cache))
        answers = execute(self.items, executor, cache=kept, progress=progress)
        return self.table(answers)

    def quality(
        self,
        executor: Executor | None = None,
        *,
        moments: int = DEFAULT_MOMENTS,
        limit_s: float = DEFAULT_LIMIT_S,
        cache: str | Path | None = None,
        progress: ProgressListener = lambda _: None,
    ) -> list[QualityRow]:
        """For each run, its placements at several moments, and what any scheduler could reach.

        Arguments as for :meth:`run`; ``moments`` are evenly spaced in virtual time, and the solver
        has ``limit_s`` for each bound. Raises as :meth:`run`.
        """
        items = [QualityItem(item, moments, limit_s) for item in self.items]
        kept = None if cache is None else ResultCache(Path(cache))
        answers = execute(items, executor, cache=kept, progress=progress)
        return [_quality(one, answer) for one, answer in zip(self.settings, answers, strict=True)]

    def table(self, answers: Sequence[WorkAnswer]) -> RunTable:
        """The table of these answers, which are in the order of the settings."""
        rows = [_row(one, answer) for one, answer in zip(self.settings, answers, strict=True)]
        return RunTable(rows, self.workload.name)


class QualityRow(NamedTuple):
    """The quality of one run."""

    settings: RunSettings
    quality: QualityOverTime | None
    """None if it failed."""
    error: str


def _quality(settings: RunSettings, answer: WorkAnswer) -> QualityRow:
    if answer.error:
        return QualityRow(settings, None, answer.error)
    found = msgspec.json.decode(answer.result, type=QualityOverTime)
    return QualityRow(settings, found, "")


def _row(settings: RunSettings, answer: WorkAnswer) -> RunRow:
    figures = None
    if not answer.error:
        figures = msgspec.json.decode(answer.result, type=RunFigures)
    return RunRow(settings, figures, answer.error, answer.run_cpu_s)
