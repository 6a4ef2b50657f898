"""Compares a recorded history with a candidate, such as the plugin changes of ``--plugins``."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Final, NamedTuple

import msgspec

from asched.audit.history import ALWAYS, Period
from asched.audit.lookup import AuditError
from asched.audit.whatif.comparison import Comparison, NamedRun, compare
from asched.audit.whatif.measures import to_place
from asched.audit.whatif.node_changes import (
    NO_NODE_CHANGES,
    NodeChanges,
    parse_node_changes,
    with_node_changes,
)
from asched.audit.whatif.recorded_history import RecordedHistory, recorded_history
from asched.config.file import Configuration
from asched.config.registry import PluginRegistry
from asched.framework.interface import ExtensionPoint, Plugin
from asched.framework.runtime.profile import (
    PluginLoader,
    PluginWeight,
    ProfileError,
    ProfileSpec,
    parse_arguments,
)
from asched.journal.store import JournalStore
from asched.pricing.prices import Prices
from asched.simulator.loop import (
    Latencies,
    SchedulerSettings,
    SimulationStuckError,
    scheduler_from_config,
    simulate,
)
from asched.simulator.trace import WorkloadRun, WorkloadTrace
from asched.state.fold import FoldError

BASELINE: Final = "recorded configuration"
MAX_WEIGHT: Final = 2**31 - 1
_ITEM: Final = re.compile(r"(?P<sign>[+-]?)(?P<name>[^\s=+-][^\s=]*)(?:=(?P<weight>\S*))?")

Points = Mapping[str, tuple[PluginWeight, ...]]


class PluginChangeAction(Enum):
    ENABLE = "enable"
    DISABLE = "disable"
    WEIGH = "weigh"


class PluginChange(NamedTuple):
    """One item of ``--plugins``."""

    action: PluginChangeAction
    name: str
    weight: int = 1


def parse_changes(text: str) -> tuple[PluginChange, ...]:
    """Parses ``Name=WEIGHT,+Name,-Name``: set the Score weight, enable, disable. ``Name`` also
    enables.

    Raises :class:`AuditError` for other text.

    >>> parse_changes("NodeResourcesFit=5, -ImageLocality")[1]
    PluginChange(action=<PluginChangeAction.DISABLE: 'disable'>, name='ImageLocality', weight=1)
    """
    return tuple(_parsed(item.strip()) for item in text.split(","))


def _parsed(item: str) -> PluginChange:
    match = _ITEM.fullmatch(item)
    if match is None:
        raise AuditError(
            f'--plugins: invalid change "{item}"; expected Name=WEIGHT, +Name or -Name, separated'
            " by commas"
        )
    sign, name, weight = match["sign"], match["name"], match["weight"]
    if weight is None:
        return PluginChange(
            PluginChangeAction.DISABLE if sign == "-" else PluginChangeAction.ENABLE, name
        )
    if sign == "-":
        raise AuditError(f'--plugins: "{item}" disables a plugin, so it cannot have a weight')
    if not (weight.isascii() and weight.isdigit() and 1 <= int(weight) <= MAX_WEIGHT):
        raise AuditError(
            f'--plugins: invalid weight "{weight}" for {name}; expected a whole number from 1 to'
            f" {MAX_WEIGHT}"
        )
    return PluginChange(PluginChangeAction.WEIGH, name, int(weight))


def with_changes(
    profiles: Iterable[ProfileSpec], changes: Iterable[PluginChange], registry: PluginRegistry
) -> tuple[ProfileSpec, ...]:
    """Every profile with the changes, in their order.

    Enables a plugin at all of its extension points, after the others and with default arguments. A
    QueueSort plugin replaces the previous one.

    Raises :class:`AuditError` for an unknown plugin, a weight of a plugin that does not score,
    disabling a plugin that no profile enables, changes without profiles, and invalid results.
    """
    specs, requested = tuple(profiles), tuple(changes)
    if requested and not specs:
        raise AuditError("--plugins: there is no profile to change")
    for change in requested:
        try:
            plugin = registry.load(change.name)
        except ProfileError as error:
            raise AuditError(f"--plugins: {error}") from None
        enabled = any(change.name in spec.plugin_names for spec in specs)
        if change.action is PluginChangeAction.DISABLE and not enabled:
            raise AuditError(f"--plugins: -{change.name}: no profile enables it")
        if change.action is PluginChangeAction.WEIGH and not ExtensionPoint.SCORE.served_by(plugin):
            raise AuditError(f"--plugins: plugin {change.name} is not a Score plugin")
        specs = tuple(_changed(spec, change, plugin, registry) for spec in specs)
    for spec in specs:
        _check(spec)
    return specs


def _changed(
    spec: ProfileSpec, change: PluginChange, plugin: type[Plugin], registry: PluginRegistry
) -> ProfileSpec:
    points = dict(spec.points)
    match change.action:
        case PluginChangeAction.DISABLE:
            for point, entries in spec.points.items():
                points[point] = tuple(entry for entry in entries if entry.name != change.name)
        case PluginChangeAction.ENABLE:
            points |= _enabled(spec.points, plugin)
        case PluginChangeAction.WEIGH:
            field = ExtensionPoint.SCORE.field
            weights = {entry.name: entry for entry in spec.points.get(field, ())}
            weights[change.name] = PluginWeight(change.name, change.weight)
            points[field] = tuple(weights.values())
    return _consistent(msgspec.structs.replace(spec, points=points), plugin, registry)


def _enabled(points: Points, plugin: type[Plugin]) -> Points:
    """The points that the plugin serves, with the plugin."""
    changed = {}
    for point in ExtensionPoint:
        entries = points.get(point.field, ())
        if not point.served_by(plugin) or any(entry.name == plugin.name for entry in entries):
            continue
        before = () if point is ExtensionPoint.QUEUE_SORT else entries
        changed[point.field] = (*before, PluginWeight(plugin.name))
    return changed


def _consistent(spec: ProfileSpec, plugin: type[Plugin], registry: PluginRegistry) -> ProfileSpec:
    """The spec with arguments and origins of exactly the enabled plugins."""
    names = spec.plugin_names
    arguments = {name: args for name, args in spec.arguments.items() if name in names}
    origins = {origin.name: origin for origin in spec.origins if origin.name in names}
    if plugin.name in names:
        if plugin.arguments is not None and plugin.name not in arguments:
            arguments[plugin.name] = _default_arguments(plugin)
        origins.setdefault(plugin.name, registry.origin(plugin.name))
    return msgspec.structs.replace(
        spec, arguments=arguments, origins=tuple(origins[name] for name in sorted(origins))
    )


def _default_arguments(plugin: type[Plugin]) -> dict[str, object]:
    try:
        arguments = parse_arguments(plugin, None)
    except ValueError as error:
        raise AuditError(
            f"--plugins: plugin {plugin.name} requires arguments; set them in a file for --config:"
            f" {error}"
        ) from None
    plain: dict[str, object] = msgspec.json.decode(msgspec.json.encode(arguments))
    return plain


def _check(spec: ProfileSpec) -> None:
    if len(spec.plugins_at(ExtensionPoint.QUEUE_SORT)) != 1:
        raise AuditError(f"--plugins: profile {spec.scheduler_name} would have no QueueSort plugin")
    if not spec.plugins_at(ExtensionPoint.BIND):
        raise AuditError(f"--plugins: profile {spec.scheduler_name} would have no Bind plugin")


class CandidateConfig(NamedTuple):
    """What to compare with the recorded configuration."""

    name: str
    registry: PluginRegistry
    scheduler: SchedulerSettings | None = None
    """None for the recorded one."""
    changes: tuple[PluginChange, ...] = ()
    notes: tuple[str, ...] = ()
    """Notes for the reader."""
    nodes: NodeChanges = NO_NODE_CHANGES


class WhatIfSettings(NamedTuple):
    """What a user changes, as text."""

    name: str = ""
    """The name of the configuration; empty for the recorded one."""
    plugins: str = ""
    """See :func:`parse_changes`; empty for none."""
    add_nodes: str = ""
    remove_nodes: str = ""
    """See :func:`~asched.audit.whatif.node_changes.parse_node_changes`."""


def candidate_config(
    settings: WhatIfSettings, configuration: Configuration | None, registry: PluginRegistry
) -> CandidateConfig:
    """The candidate of these settings; ``configuration`` is None for the recorded one.

    Raises :class:`AuditError`.
    """
    changes = parse_changes(settings.plugins) if settings.plugins else ()
    nodes = parse_node_changes(settings.add_nodes, settings.remove_nodes)
    base = settings.name or BASELINE
    changed = [text for text in (settings.plugins, str(nodes)) if text]
    name = f"{base} with {', '.join(changed)}" if changed else base
    if configuration is None:
        return CandidateConfig(name, registry, changes=changes, nodes=nodes)
    extenders = f"{name} configures extenders; a simulation does not call them"
    return CandidateConfig(
        name=name,
        registry=registry,
        scheduler=scheduler_from_config(configuration, Latencies()),
        changes=changes,
        notes=(extenders,) if configuration.scheduler.extenders else (),
        nodes=nodes,
    )


class WhatIfProgress(NamedTuple):
    """How far a comparison is."""

    activity: str
    done: int = 0
    total: int = 0
    """The unit of both depends on the activity; 0 if it is unknown."""


ProgressListener = Callable[[WhatIfProgress], None]

WHAT_IF_ERRORS: Final = (AuditError, SimulationStuckError, ProfileError)
"""What a comparison raises, besides a JournalError. The texts are one line for the user."""


async def compare_candidate(
    journal: JournalStore,
    candidate: CandidateConfig,
    period: Period = ALWAYS,
    progress: ProgressListener = lambda _: None,
    *,
    prices: Prices | None = None,
) -> Comparison:
    """Simulates a period of a journal with the recorded configuration and with the candidate.
    ``prices`` adds costs.

    Raises :class:`AuditError` for invalid changes, and for pods of the history that name a
    scheduler without a profile; SimulationStuckError; and as :func:`recorded_history`.
    """
    load = candidate.registry.load
    history = await _history(journal, load, period, progress)
    scheduler = candidate_scheduler(history.scheduler, candidate)
    check_scheduler_names(history.recorded, scheduler, candidate.name)
    changed = with_node_changes(history.trace, candidate.nodes)
    simulating = f"simulating {BASELINE}"
    baseline = simulate_trace(history.trace, history.scheduler, load, (simulating, progress))
    simulating = f"simulating {candidate.name}"
    other = simulate_trace(changed.trace, scheduler, load, (simulating, progress))
    progress(WhatIfProgress("comparing"))
    return compare(
        NamedRun(BASELINE, baseline),
        NamedRun(candidate.name, other),
        history.recorded,
        (*history.notes, *candidate.notes, *changed.notes),
        prices=prices,
    )


async def _history(
    journal: JournalStore, load: PluginLoader, period: Period, progress: ProgressListener
) -> RecordedHistory:
    reading = "reading the journal"
    progress(WhatIfProgress(reading))
    end_seq = (await journal.head()).seq
    return await recorded_history(
        journal, load, period, lambda seq: progress(WhatIfProgress(reading, seq, end_seq))
    )


def candidate_scheduler(
    recorded: SchedulerSettings, candidate: CandidateConfig
) -> SchedulerSettings:
    """The candidate with its changes and the recorded seed and latencies.

    Raises :class:`AuditError`.
    """
    scheduler = msgspec.structs.replace(
        candidate.scheduler or recorded, seed=recorded.seed, latencies=recorded.latencies
    )
    profiles = with_changes(scheduler.profiles, candidate.changes, candidate.registry)
    return msgspec.structs.replace(scheduler, profiles=profiles)


def simulate_trace(
    trace: WorkloadTrace,
    scheduler: SchedulerSettings,
    load: PluginLoader,
    shown: tuple[str, ProgressListener],
) -> WorkloadRun:
    """Simulates, and reports the progress of the named activity.

    Raises SimulationStuckError, ProfileError.
    """
    activity, progress = shown
    last = trace.events[-1].at_ns if trace.events else trace.begin_ns
    total = (last if trace.end_ns is None else trace.end_ns) - trace.begin_ns

    def at(now_ns: int) -> None:
        progress(WhatIfProgress(activity, min(now_ns - trace.begin_ns, total), total))

    progress(WhatIfProgress(activity))
    try:
        return simulate(trace, scheduler, load, at)
    except (SimulationStuckError, FoldError) as error:
        raise SimulationStuckError(f"the simulation failed: {error}") from error


def check_scheduler_names(recorded: WorkloadRun, scheduler: SchedulerSettings, name: str) -> None:
    """Raises :class:`AuditError` if pods of the history name a scheduler that ``scheduler``, called
    ``name``, does not serve."""
    names = {profile.scheduler_name for profile in scheduler.profiles}
    names |= {session.scheduler_name for session in scheduler.sessions}
    used = {pod.pod.spec.scheduler_name for pod in to_place(recorded)}
    if used - names:
        missing = ", ".join(sorted(used - names))
        raise AuditError(
            f"{name} has no profile {missing}, which pods of the history name; its profiles"
            f" are {', '.join(sorted(names))}"
        )
