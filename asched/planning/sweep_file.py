"""The file format of sweeps (``docs/how-to/planning.md``)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from asched.capacity.load import LoadForecast
from asched.capacity.node_mix import NodeMix
from asched.capacity.spot_nodes import SpotNodes
from asched.config.file import ConfigFileError, parse_yaml, read_text
from asched.config.kube_scheduler import Section
from asched.framework.runtime.strict import Problem, StrictDecoder, quote
from asched.planning.conditions import Value
from asched.planning.history import History, open_history
from asched.planning.job_classes import DEFAULT as DEFAULT_JOB_CLASS
from asched.planning.sweeps import Sweep, sweep
from asched.planning.table import RunTable
from asched.planning.workloads import OpenbTables, ScenarioText

API_VERSION: Final = "asched.dev/v1"
KIND: Final = "Sweep"
RECORDED: Final = "recorded"
"""The recorded configuration; for a scenario or trace, the default one."""


class OpenbFiles(Section, frozen=True):
    nodes: str
    pods: str


class SweepWorkload(Section, frozen=True):
    """Exactly one of ``journal``, ``scenario`` and ``openb``."""

    journal: str | None = None
    since: str | None = None
    until: str | None = None
    scenario: str | None = None
    openb: OpenbFiles | None = None

    def __post_init__(self) -> None:
        given = [self.journal, self.scenario, self.openb]
        if sum(one is not None for one in given) != 1:
            raise ValueError("expected exactly one of journal, scenario and openb")
        if self.scenario is not None and self.since:
            raise ValueError("since needs a journal or an openb trace")
        if self.journal is None and self.until:
            raise ValueError("until needs a journal")


class SweepDocument(Section, frozen=True):
    """The axes of a sweep; the first value of each belongs to the baseline."""

    api_version: str
    kind: str
    workload: SweepWorkload
    configs: tuple[str, ...] = (RECORDED,)
    plugins: tuple[str, ...] = ("",)
    seeds: int | tuple[int, ...] | None = None
    """A number ``n`` means the seeds 0 to n - 1."""
    add_nodes: tuple[int | str, ...] = (0,)
    drop_nodes: tuple[int | str, ...] = (0,)
    node_mixes: tuple[NodeMix, ...] = (NodeMix(),)
    spot_nodes: tuple[SpotNodes, ...] = (SpotNodes(),)
    loads: tuple[LoadForecast, ...] = (LoadForecast(),)
    job_class: str = DEFAULT_JOB_CLASS
    prices: str | None = None
    """A file of prices."""

    def __post_init__(self) -> None:
        if self.api_version != API_VERSION or self.kind != KIND:
            raise ValueError(
                f"expected apiVersion {API_VERSION} and kind {KIND},"
                f" got {quote(self.api_version)} and {quote(self.kind)}"
            )


def read_sweep(file: Path, journal: str | None = None, prices: Path | None = None) -> Sweep:
    """The sweep in a file; its relative paths begin at the file's folder.

    ``journal`` and ``prices`` replace those of the file. Raises ConfigFileError with a line for
    each mistake of form, and as :func:`~asched.planning.sweeps.sweep`.
    """
    document = _document(file)
    folder = file.parent
    if prices is None and document.prices is not None:
        prices = folder / document.prices
    runs = sweep(
        _workload(document.workload, folder, journal),
        config=[None if name == RECORDED else folder / name for name in document.configs],
        plugins=document.plugins,
        seed=_seeds(document.seeds),
        add_nodes=document.add_nodes,
        drop_nodes=document.drop_nodes,
        job_class=document.job_class,
    )
    return runs.across(
        node_mix=document.node_mixes, spot_nodes=document.spot_nodes, load=document.loads
    ).priced(prices)


def _document(file: Path) -> SweepDocument:
    documents = parse_yaml(read_text(file), str(file))
    if len(documents) != 1:
        raise ConfigFileError([f"{file}: expected one document of kind Sweep"])
    parsed = documents[0]
    decoder = StrictDecoder()
    found = None if parsed.problems else decoder.decode(parsed.value, SweepDocument)
    problems: list[Problem] = [*parsed.problems, *decoder.problems]
    if found is None or problems:
        raise ConfigFileError(f"{file}:{line}: {one}" for line, one in parsed.located(problems))
    return found


def _workload(
    given: SweepWorkload, folder: Path, journal: str | None
) -> History | ScenarioText | OpenbTables:
    if journal is not None or given.journal is not None:
        url = journal if journal is not None else _in_folder(given.journal or "", folder)
        return open_history(url).between(given.since, given.until)
    if given.scenario is not None:
        path = folder / given.scenario
        return ScenarioText(path.name, read_text(path))
    assert given.openb is not None, "exactly one is given"
    tables = given.openb
    return OpenbTables.of(folder / tables.nodes, folder / tables.pods, given.since)


def _in_folder(url: str, folder: Path) -> str:
    return url if "://" in url else str(folder / url)


def _seeds(given: int | tuple[int, ...] | None) -> tuple[int | None, ...]:
    if given is None:
        return (None,)
    return tuple(range(given)) if isinstance(given, int) else given


class SweepReport(msgspec.Struct, frozen=True, rename="camel"):
    """The JSON form of a sweep's result."""

    workload: str
    rows: tuple[Mapping[str, Value], ...]
    """By column; the columns are those of ``RunTable``."""
    best: Mapping[str, Value] | None = None

    @classmethod
    def of(cls, table: RunTable, best: Mapping[str, Value] | None) -> SweepReport:
        return cls(table.workload, table.values, best)
