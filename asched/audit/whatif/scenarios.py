"""Simulates a scenario with the default configuration and with another one."""

from __future__ import annotations

import msgspec

from asched.audit.whatif.candidate import (
    CandidateConfig,
    ProgressListener,
    WhatIfProgress,
    simulate_trace,
    with_changes,
)
from asched.audit.whatif.comparison import Comparison, NamedRun, compare
from asched.audit.whatif.node_changes import with_node_changes
from asched.config.file import ConfigFileError, Configuration, parse, parse_yaml
from asched.config.schema import Schema, schema_of
from asched.config.yaml import Document
from asched.pricing.prices import Prices
from asched.simulator.expansion import expand
from asched.simulator.loop import Latencies, SchedulerSettings, scheduler_from_config
from asched.simulator.scenario import (
    API_VERSION,
    KIND,
    Scenario,
    ScenarioError,
    read_scenario,
)
from asched.simulator.trace import WorkloadTrace

DEFAULTS = "default configuration"


def default_scheduler_name(configuration: Configuration) -> str:
    """The scheduler of pods that name none: the first profile, or the first batch session."""
    names = [profile.scheduler_name for profile in configuration.profiles]
    return [*names, *(session.scheduler_name for session in configuration.sessions)][0]


def parse_scenario(text: str, name: str) -> tuple[Document, Scenario]:
    """The scenario in a file called ``name``.

    Raises ConfigFileError with a line for each mistake of form.
    """
    documents = parse_yaml(text, name)
    if len(documents) != 1:
        count = len(documents)
        raise ConfigFileError([f"{name}: expected one document of kind Scenario, got {count}"])
    document = documents[0]
    try:
        if document.problems:
            raise ScenarioError(document.problems)
        return document, read_scenario(document.value)
    except ScenarioError as error:
        raise _located(error, document, name) from None


def scenario_trace(text: str, name: str, scheduler_name: str) -> WorkloadTrace:
    """The workload of a scenario; ``scheduler_name`` is the default of its pods.

    Raises ConfigFileError with a line for each mistake.
    """
    document, scenario = parse_scenario(text, name)
    try:
        return expand(scenario, scheduler_name)
    except ScenarioError as error:
        raise _located(error, document, name) from None


def _located(error: ScenarioError, document: Document, name: str) -> ConfigFileError:
    placed = sorted((document.line(p.path), n, p) for n, p in enumerate(error.problems))
    return ConfigFileError(f"{name}:{line}: {problem}" for line, _, problem in placed)


def compare_on_scenario(
    text: str,
    name: str,
    candidate: CandidateConfig,
    progress: ProgressListener = lambda _: None,
    *,
    prices: Prices | None = None,
) -> Comparison:
    """Simulates a scenario with the default configuration, as ``asched simulate`` does without
    ``--config``, and with the candidate. ``prices`` adds costs.

    Pods that name no scheduler belong to the first profile of each. Raises ConfigFileError,
    AuditError, SimulationStuckError, ProfileError.
    """
    registry = candidate.registry
    progress(WhatIfProgress("reading the scenario"))
    defaults = parse("", "(defaults)", registry, empty_is_defaults=True)
    before = scheduler_from_config(defaults, Latencies())
    after = candidate.scheduler or before
    profiles = with_changes(after.profiles, candidate.changes, registry)
    after = msgspec.structs.replace(after, profiles=profiles)
    first, own_first = first_scheduler_name(before), first_scheduler_name(after)
    trace = scenario_trace(text, name, first)
    own_trace = trace if own_first == first else scenario_trace(text, name, own_first)
    changed = with_node_changes(own_trace, candidate.nodes)
    shown = (f"simulating {DEFAULTS}", progress)
    baseline = simulate_trace(trace, before, registry.load, shown)
    other = simulate_trace(
        changed.trace, after, registry.load, (f"simulating {candidate.name}", progress)
    )
    progress(WhatIfProgress("comparing"))
    return compare(
        NamedRun(DEFAULTS, baseline),
        NamedRun(candidate.name, other),
        notes=(*candidate.notes, *changed.notes),
        prices=prices,
    )


def first_scheduler_name(scheduler: SchedulerSettings) -> str:
    """As :func:`default_scheduler_name`."""
    names = [profile.scheduler_name for profile in scheduler.profiles]
    return [*names, *(session.scheduler_name for session in scheduler.sessions)][0]


def scenario_schema() -> Schema:
    """The JSON schema of a scenario."""
    schema = schema_of([Scenario])
    fields = schema["$defs"]["Scenario"]["properties"]
    fields["apiVersion"]["const"], fields["kind"]["const"] = API_VERSION, KIND
    return {**schema, "$ref": "#/$defs/Scenario"}
