"""One side of a gate, computed in a process of its own: ``python -m asched.gate.side``.

The process reads a :class:`SideRequest` as JSON from standard input and writes a
:class:`SideResult` to standard output. Both forms have a version, because the other side may be
another release of asched.
"""

from __future__ import annotations

import os
import platform
import sys
from typing import Final

import anyio
import msgspec

from asched import __version__
from asched.config.file import ConfigFileError, parse
from asched.config.registry import PluginRegistry
from asched.core.heap import infrequent_gc
from asched.framework.runtime.profile import ProfileError
from asched.gate.agreement import Agreement, agreement_of
from asched.journal.chain import Head
from asched.journal.errors import JournalError
from asched.journal.opening import open_journal
from asched.planning.conditions import Value
from asched.planning.items import ConfigText, RunFigures, RunItem, RunSettings
from asched.planning.provenance import own_provenance
from asched.planning.table import AXES, RunRow
from asched.planning.worker import answer_to
from asched.planning.workloads import JournalPeriod
from asched.pricing.prices import Prices
from asched.simulator.loop import Latencies, SchedulerSettings, scheduler_from_config

FORMAT: Final = 1
"""Version of both forms."""
_OMITTED: Final = (*AXES, "error", "sha256")


class SideRequest(msgspec.Struct, frozen=True, rename="camel"):
    """What a side computes."""

    journal: str
    """URL."""
    head: Head
    since_ns: int
    until_ns: int
    config: ConfigText | None = None
    """None for the recorded configuration."""
    prices: Prices | None = None
    job_class: str = "namespace"
    format: int = FORMAT


class SideResult(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """What a side found. Fields are only added within a format."""

    format: int
    asched: str = ""
    """Version."""
    python: str = ""
    distributions: dict[str, str] = {}
    """asched and the distributions of plugins, with version and code hash."""
    figures: dict[str, Value] = {}
    """By column of a sweep; ``agreement`` and ``rejection_agreement`` are shares."""
    agreement: Agreement | None = None
    notes: tuple[str, ...] = ()
    invalid: tuple[str, ...] = ()
    """Mistakes in the configuration, one a line."""
    error: str = ""
    """Why there are no figures, in one line."""


def main() -> int:
    """Answer the request on standard input. Returns the exit code."""
    answers = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what plugins print is no answer
    with infrequent_gc():
        result = side_result(msgspec.json.decode(sys.stdin.buffer.read(), type=SideRequest))
    with open(answers, "wb") as file:
        file.write(msgspec.json.encode(result))
    return 0


def side_result(request: SideRequest) -> SideResult:
    """Computes a side with the code of this process."""
    provenance = own_provenance()
    result = SideResult(
        format=FORMAT,
        asched=__version__,
        python=platform.python_version(),
        distributions={one.name: f"{one.version} ({one.sha256[:8]})" for one in provenance.code},
    )
    registry, replace = PluginRegistry.discover(), msgspec.structs.replace
    try:
        scheduler = _scheduler(request.config, registry)
    except ConfigFileError as error:
        return replace(result, invalid=tuple(error.lines))
    period = JournalPeriod(request.journal, request.head, request.since_ns, request.until_ns)
    item = RunItem(period, RunSettings(request.config), request.job_class, request.prices)
    answer = answer_to(item)
    if answer.error:
        return replace(result, error=answer.error)
    run = msgspec.json.decode(answer.result, type=RunFigures)
    try:
        found = anyio.run(_agreement, period, scheduler, registry)
    except (JournalError, ProfileError) as error:
        return replace(result, error=" ".join(str(error).split()))
    columns = RunRow(item.settings, run, "", answer.run_cpu_s).values()
    figures = {name: value for name, value in columns.items() if name not in _OMITTED}
    figures |= {"agreement": found.share, "rejection_agreement": found.rejection_share}
    notes = (*run.notes, *([found.note] if found.note else []))
    return replace(result, figures=figures, agreement=found, notes=notes)


def _scheduler(config: ConfigText | None, registry: PluginRegistry) -> SchedulerSettings | None:
    if config is None:
        return None
    return scheduler_from_config(parse(config.text, config.name, registry), Latencies())


async def _agreement(
    period: JournalPeriod, scheduler: SchedulerSettings | None, registry: PluginRegistry
) -> Agreement:
    async with open_journal(period.url, read_only=True) as journal:
        return await agreement_of(journal, period, scheduler, registry.load)


if __name__ == "__main__":
    sys.exit(main())
