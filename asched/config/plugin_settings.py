"""Applies the settings of plugins to profiles before they are used.

A missing or broken plugin is an error. One that the settings mark as optional is omitted with a
warning.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from asched.config.kube_scheduler import Extender
from asched.config.registry import PluginRegistry
from asched.config.settings import PluginSettings
from asched.framework.binding import ExecutionMode
from asched.framework.interface import EnqueueExtensions
from asched.framework.pod_groups import GANG_SCHEDULING
from asched.framework.runtime.observation import to_printable
from asched.framework.runtime.profile import (
    BINDING_POINTS,
    EXTERNAL_POINTS,
    PluginPolicy,
    ProfileSpec,
    parse_arguments,
    unsupported_point,
)
from asched.state.cluster import ClusterState, ProfileHandle


class ConfiguredProfiles(NamedTuple):
    profiles: tuple[ProfileSpec, ...]
    warnings: tuple[str, ...]
    errors: tuple[str, ...]


def apply_plugin_settings(
    profiles: Sequence[ProfileSpec], registry: PluginRegistry, settings: Sequence[PluginSettings]
) -> ConfiguredProfiles:
    """Add the plugins' policies, and remove optional plugins that cannot be instantiated.

    All plugins of ``profiles`` must be loadable.
    """
    by_name = {plugin.name: plugin for plugin in settings}
    warnings: list[str] = []
    errors: list[str] = []
    found = []
    for spec in profiles:
        broken = _broken(spec, registry, by_name)
        warnings += [
            f"profile {spec.scheduler_name}: without optional plugin {name}: {why}"
            for name, why in broken.items()
        ]
        complete = _without(spec, broken.keys())
        policies = _policies(complete, registry, by_name)
        errors += _misplaced(complete, policies)
        found.append(msgspec.structs.replace(complete, policies=policies))
    return ConfiguredProfiles(tuple(found), tuple(warnings), tuple(errors))


def _broken(
    spec: ProfileSpec, registry: PluginRegistry, settings: Mapping[str, PluginSettings]
) -> dict[str, str]:
    """Optional plugins that cannot be instantiated, with the reason."""
    broken: dict[str, str] = {}
    for name in spec.plugin_names:
        if name not in settings or not settings[name].optional:
            continue
        plugin = registry.load(name)
        origin = registry.origin(name)
        try:
            arguments = parse_arguments(plugin, spec.arguments.get(name))
            made = plugin(arguments, ProfileHandle(ClusterState(), spec.scheduler_name))
            if isinstance(made, EnqueueExtensions):
                made.events_to_register()
        except BaseException as error:  # noqa: BLE001  third-party code
            reason = " ".join(f"{type(error).__name__}: {to_printable(error)}".split())
            label = f"{origin.distribution} {origin.version}".strip()
            broken[name] = f"{label}: {reason}" if label else reason
    return broken


def _without(spec: ProfileSpec, omitted: Collection[str]) -> ProfileSpec:
    if not omitted:
        return spec
    return msgspec.structs.replace(
        spec,
        points={
            point: tuple(plugin for plugin in plugins if plugin.name not in omitted)
            for point, plugins in spec.points.items()
        },
        arguments={k: v for k, v in spec.arguments.items() if k not in omitted},
        origins=tuple(origin for origin in spec.origins if origin.name not in omitted),
    )


def _policies(
    spec: ProfileSpec, registry: PluginRegistry, settings: Mapping[str, PluginSettings]
) -> tuple[PluginPolicy, ...]:
    found = []
    for name in sorted(spec.plugin_names):
        plugin, own = registry.load(name), settings.get(name)
        isolation = plugin.execution_mode
        if own is not None and own.isolation is not None:
            isolation = own.isolation
        breaker = own.circuit_breaker if own is not None else None
        policy = PluginPolicy(
            name,
            external=not plugin.pure or isolation is ExecutionMode.WORKER,
            optional=own is not None and own.optional,
            breaker=None if breaker is None else breaker.spec,
        )
        if policy != PluginPolicy(name):
            found.append(policy)
    return tuple(found)


def _misplaced(spec: ProfileSpec, policies: Sequence[PluginPolicy]) -> list[str]:
    outside = {policy.name for policy in policies if policy.external}
    served = {point.field for point in (*EXTERNAL_POINTS, *BINDING_POINTS)}
    return [
        f"profile {spec.scheduler_name}: plugin {plugin.name} {unsupported_point(field)}"
        for field, plugins in spec.points.items()
        for plugin in plugins
        if plugin.name in outside and field not in served
    ]


def group_cycle_problems(
    profiles: Iterable[ProfileSpec], extenders: Collection[Extender]
) -> Iterator[str]:
    """Why profiles cannot schedule whole groups: a group cycle is one decision, which cannot wait
    for answers from outside."""
    for spec in profiles:
        if not spec.arguments.get(GANG_SCHEDULING, {}).get("groupCycle"):
            continue
        outside = ["extenders"] if extenders else []
        outside += [f"plugin {plugin.name}, which is external" for plugin in spec.external]
        for what in outside:
            yield (
                f"profile {spec.scheduler_name}: groupCycle of {GANG_SCHEDULING} is not possible"
                f" with {what}: set it to false"
            )
