"""A bounded what-if run: recorded history, simulated with another configuration."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from asched.audit.history import Period
from asched.audit.lookup import AuditError
from asched.audit.times import TIMES
from asched.audit.whatif.candidate import (
    BASELINE,
    CandidateConfig,
    compare_candidate,
    parse_changes,
)
from asched.audit.whatif.comparison import PlacedElsewhere, PlacedOnce
from asched.audit.whatif.measures import Figures
from asched.config.file import parse
from asched.config.registry import PluginRegistry
from asched.journal.store import JournalStore
from asched.simulator.loop import Latencies, scheduler_from_config

MAX_RECORDS: Final = 100_000
"""Records of a period that is simulated."""
_MAX_PODS: Final = 50
"""Pods in each list of the answer."""


class WhatIfQuestion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    plugins: Annotated[
        str,
        Meta(description="Changes to the recorded configuration: Name=WEIGHT, +Name, -Name;"
             " comma-separated."),
    ] = ""  # fmt: skip
    configuration: Annotated[
        str, Meta(description="A KubeSchedulerConfiguration (YAML) to use instead of it.")
    ] = ""
    since: Annotated[str, Meta(description=f"Begin of the period: {TIMES}.")] = ""
    until: Annotated[str, Meta(description=f"End of the period: {TIMES}.")] = ""


class WhatIfAnswer(msgspec.Struct, frozen=True, rename="camel"):
    """The figures of both runs, and the pods that differ."""

    begin: datetime
    end: datetime
    candidate_name: str
    baseline: Figures
    candidate: Figures
    recorded: Figures | None
    """What really happened, if the journal is of a scheduler that bound the pods."""
    differing_pods: int
    placed_elsewhere: tuple[PlacedElsewhere, ...]
    """The first of them, as in the other lists."""
    placed_in_baseline_only: tuple[PlacedOnce, ...]
    placed_in_candidate_only: tuple[PlacedOnce, ...]
    notes: tuple[str, ...]


async def what_if(
    journal: JournalStore,
    registry: PluginRegistry,
    asked: WhatIfQuestion,
    within: tuple[Period, int],
) -> WhatIfAnswer:
    """``within``: the period and its number of records. Raises AuditError for a period with more
    than :data:`MAX_RECORDS` records, ConfigFileError, JournalError, ProfileError."""
    period, records = within
    if records > MAX_RECORDS:
        raise AuditError(
            f"the period has {records} records, and {MAX_RECORDS} are simulated at most: give since"
            " and until, or run asched diff"
        )
    found = await compare_candidate(journal, _candidate(asked, registry), period, lambda _: None)
    report = found.report()
    elsewhere, base, other = (
        report.placed_elsewhere,
        report.placed_in_baseline_only,
        report.placed_in_candidate_only,
    )
    return WhatIfAnswer(
        begin=report.begin,
        end=report.end,
        candidate_name=report.candidate.name,
        baseline=report.baseline.figures,
        candidate=report.candidate.figures,
        recorded=None if report.recorded is None else report.recorded.figures,
        differing_pods=len(elsewhere) + len(base) + len(other),
        placed_elsewhere=elsewhere[:_MAX_PODS],
        placed_in_baseline_only=base[:_MAX_PODS],
        placed_in_candidate_only=other[:_MAX_PODS],
        notes=report.notes,
    )


def _candidate(asked: WhatIfQuestion, registry: PluginRegistry) -> CandidateConfig:
    if not asked.plugins and not asked.configuration:
        raise AuditError("nothing to compare with: give plugins, configuration or both")
    changes = parse_changes(asked.plugins) if asked.plugins else ()
    name = BASELINE if not asked.configuration else "configuration"
    if asked.plugins:
        name = f"{name} with {asked.plugins}"
    if not asked.configuration:
        return CandidateConfig(name, registry, changes=changes)
    configuration = parse(asked.configuration, "configuration", registry)
    settings = scheduler_from_config(configuration, Latencies())
    return CandidateConfig(name, registry, settings, changes)
