"""What is to be tried on a recorded history: a scheduler that differs from the recorded one.

``--plugins``: a few words that enable, disable and weigh plugins.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Final, NamedTuple

import msgspec

from asched.audit.lookup import AuditError
from asched.audit.whatif.measures import to_place
from asched.audit.whatif.recorded_history import RecordedHistory
from asched.config.registry import PluginRegistry
from asched.framework.interface import ExtensionPoint, Plugin
from asched.framework.runtime.profile import (
    PluginWeight,
    ProfileError,
    ProfileSpec,
    parse_arguments,
)
from asched.simulator.loop import Scheduler

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
    """``Name=WEIGHT,+Name,-Name``: set a weight at Score, enable, disable. ``Name`` enables too.

    Raises :class:`AuditError` for anything else.

    >>> parse_changes("NodeResourcesFit=5, -ImageLocality")[1]
    PluginChange(action=<Action.DISABLE: 'disable'>, name='ImageLocality', weight=1)
    """
    return tuple(_parsed(item.strip()) for item in text.split(","))


def _parsed(item: str) -> PluginChange:
    match = _ITEM.fullmatch(item)
    if match is None:
        raise AuditError(
            f'--plugins: "{item}" is no change; write Name=WEIGHT, +Name or -Name, separated by commas'
        )
    sign, name, weight = match["sign"], match["name"], match["weight"]
    if weight is None:
        return PluginChange(
            PluginChangeAction.DISABLE if sign == "-" else PluginChangeAction.ENABLE, name
        )
    if sign == "-":
        raise AuditError(f'--plugins: "{item}" disables a plugin and weighs it')
    if not (weight.isascii() and weight.isdigit() and 1 <= int(weight) <= MAX_WEIGHT):
        raise AuditError(
            f'--plugins: "{weight}" is no weight for {name}; it is a whole number from 1 to'
            f" {MAX_WEIGHT}"
        )
    return PluginChange(PluginChangeAction.WEIGH, name, int(weight))


def with_changes(
    profiles: Iterable[ProfileSpec], changes: Iterable[PluginChange], registry: PluginRegistry
) -> tuple[ProfileSpec, ...]:
    """Every profile with the changes made in their order.

    A plugin is enabled at all points that it serves and not yet enabled at, after those that are
    there, with its default arguments; one that orders the queue takes the place of the one before.

    Raises :class:`AuditError` for a plugin that is not there or does not score, for disabling one
    that no profile has, where there is no profile, and where one would be left that cannot work.
    """
    specs, wanted = tuple(profiles), tuple(changes)
    if wanted and not specs:
        raise AuditError("--plugins: there is no profile whose plugins could be changed")
    for change in wanted:
        plugin = _loaded(change.name, registry)
        enabled = any(change.name in spec.plugin_names for spec in specs)
        if change.action is PluginChangeAction.DISABLE and not enabled:
            raise AuditError(f"--plugins: -{change.name}: no profile has it enabled")
        if change.action is PluginChangeAction.WEIGH and not ExtensionPoint.SCORE.served_by(plugin):
            raise AuditError(f"--plugins: plugin {change.name} does not score: it has no weight")
        specs = tuple(_changed(spec, change, plugin, registry) for spec in specs)
    for spec in specs:
        _check(spec)
    return specs


def _loaded(name: str, registry: PluginRegistry) -> type[Plugin]:
    try:
        return registry.load(name)
    except ProfileError as error:
        raise AuditError(f"--plugins: {error}") from None


def _changed(
    spec: ProfileSpec, change: PluginChange, plugin: type[Plugin], registry: PluginRegistry
) -> ProfileSpec:
    match change.action:
        case PluginChangeAction.DISABLE:
            points = _without(spec.points, change.name)
        case PluginChangeAction.ENABLE:
            points = _with(spec.points, plugin)
        case PluginChangeAction.WEIGH:
            points = _weighed(spec.points, change)
    return _consistent(msgspec.structs.replace(spec, points=points), plugin, registry)


def _without(points: Points, name: str) -> dict[str, tuple[PluginWeight, ...]]:
    return {
        point: tuple(entry for entry in entries if entry.name != name)
        for point, entries in points.items()
    }


def _with(points: Points, plugin: type[Plugin]) -> dict[str, tuple[PluginWeight, ...]]:
    changed = dict(points)
    for point in ExtensionPoint:
        entries = points.get(point.field, ())
        if not point.served_by(plugin) or any(entry.name == plugin.name for entry in entries):
            continue
        before = () if point is ExtensionPoint.QUEUE_SORT else entries
        changed[point.field] = (*before, PluginWeight(plugin.name))
    return changed


def _weighed(points: Points, change: PluginChange) -> dict[str, tuple[PluginWeight, ...]]:
    field = ExtensionPoint.SCORE.field
    entries, weighed = points.get(field, ()), PluginWeight(change.name, change.weight)
    if any(entry.name == change.name for entry in entries):
        new = tuple(weighed if entry.name == change.name else entry for entry in entries)
    else:
        new = (*entries, weighed)
    return {**points, field: new}


def _consistent(spec: ProfileSpec, plugin: type[Plugin], registry: PluginRegistry) -> ProfileSpec:
    """Arguments and origins of just the plugins that are enabled."""
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
            f"--plugins: plugin {plugin.name} needs arguments; give them in a file with --config:"
            f" {error}"
        ) from None
    plain: dict[str, object] = msgspec.json.decode(msgspec.json.encode(arguments))
    return plain


def _check(spec: ProfileSpec) -> None:
    if len(spec.plugins_at(ExtensionPoint.QUEUE_SORT)) != 1:
        raise AuditError(
            f"--plugins: profile {spec.scheduler_name} is left without a plugin that orders the queue"
        )
    if not spec.plugins_at(ExtensionPoint.BIND):
        raise AuditError(
            f"--plugins: profile {spec.scheduler_name} is left without a plugin that binds"
        )


def candidate_scheduler(
    history: RecordedHistory,
    configured: Scheduler | None,
    changes: Iterable[PluginChange],
    registry: PluginRegistry,
    name: str,
) -> Scheduler:
    """The configured scheduler, or else the recorded one, with the changes; seed and pace are those
    of the recorded one. ``name`` is what messages call it.

    Raises :class:`AuditError` for changes that cannot be made, and where pods of the history ask for a
    scheduler that is not among its profiles.
    """
    recorded = history.scheduler
    scheduler = recorded
    if configured is not None:
        scheduler = msgspec.structs.replace(
            configured,
            seed=recorded.seed,
            latencies=recorded.latencies,
        )
    profiles = with_changes(scheduler.profiles, changes, registry)
    scheduler = msgspec.structs.replace(scheduler, profiles=profiles)
    _check_names(history, scheduler, name)
    return scheduler


def _check_names(history: RecordedHistory, scheduler: Scheduler, candidate: str) -> None:
    names = {profile.scheduler_name for profile in scheduler.profiles}
    names |= {session.scheduler_name for session in scheduler.sessions}
    asked = {pod.pod.spec.scheduler_name for pod in to_place(history.recorded)}
    if asked - names:
        missing = ", ".join(sorted(asked - names))
        raise AuditError(
            f"{candidate} has no profile named {missing}, which pods of the history ask for; it has"
            f" {', '.join(sorted(names))}"
        )
