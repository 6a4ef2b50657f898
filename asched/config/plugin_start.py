"""Profiles with what the settings say of single plugins, before anything is decided by them.

A plugin that is missing or broken is refused in one line. One that the settings call optional is left
out instead, and said so.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import msgspec

from asched.config.registry import PluginRegistry
from asched.config.settings import PluginSettings
from asched.framework.binding import ExecutionMode
from asched.framework.interface import EnqueueExtensions
from asched.framework.runtime.observation import to_printable
from asched.framework.runtime.profile import (
    BINDING_POINTS,
    OUTSIDE_POINTS,
    PluginPolicy,
    ProfileSpec,
    parse_arguments,
    unsupported_point,
)
from asched.state.cluster import ClusterState, ProfileHandle


class Prepared(NamedTuple):
    """Profiles as they are recorded."""

    profiles: tuple[ProfileSpec, ...]
    warnings: tuple[str, ...]
    errors: tuple[str, ...]


def prepared(
    profiles: Sequence[ProfileSpec], registry: PluginRegistry, settings: Sequence[PluginSettings]
) -> Prepared:
    """The profiles with their plugins' policies, and without the optional ones that cannot be made.

    The plugins of ``profiles`` can be loaded.
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
        whole = _without(spec, broken.keys())
        policies = _policies(whole, registry, by_name)
        errors += _misplaced(whole, policies)
        found.append(msgspec.structs.replace(whole, policies=policies))
    return Prepared(tuple(found), tuple(warnings), tuple(errors))


def _broken(
    spec: ProfileSpec, registry: PluginRegistry, settings: Mapping[str, PluginSettings]
) -> dict[str, str]:
    """Optional plugins that cannot be made, and why."""
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
        except BaseException as error:  # noqa: BLE001  third-party code, tried before anything runs
            reason = " ".join(f"{type(error).__name__}: {to_printable(error)}".split())
            label = f"{origin.distribution} {origin.version}".strip()
            broken[name] = f"{label}: {reason}" if label else reason
    return broken


def _without(spec: ProfileSpec, left_out: Collection[str]) -> ProfileSpec:
    if not left_out:
        return spec
    return msgspec.structs.replace(
        spec,
        points={
            point: tuple(plugin for plugin in plugins if plugin.name not in left_out)
            for point, plugins in spec.points.items()
        },
        arguments={k: v for k, v in spec.arguments.items() if k not in left_out},
        origins=tuple(origin for origin in spec.origins if origin.name not in left_out),
    )


def _policies(
    spec: ProfileSpec, registry: PluginRegistry, settings: Mapping[str, PluginSettings]
) -> tuple[PluginPolicy, ...]:
    found = []
    for name in sorted(spec.plugin_names):
        plugin, said = registry.load(name), settings.get(name)
        isolation = plugin.execution_mode
        if said is not None and said.isolation is not None:
            isolation = said.isolation
        breaker = said.circuit_breaker if said is not None else None
        policy = PluginPolicy(
            name,
            outside=not plugin.pure or isolation is ExecutionMode.WORKER,
            optional=said is not None and said.optional,
            breaker=None if breaker is None else breaker.spec,
        )
        if policy != PluginPolicy(name):
            found.append(policy)
    return tuple(found)


def _misplaced(spec: ProfileSpec, policies: Sequence[PluginPolicy]) -> list[str]:
    outside = {policy.name for policy in policies if policy.outside}
    served = {point.field for point in (*OUTSIDE_POINTS, *BINDING_POINTS)}
    return [
        f"profile {spec.scheduler_name}: plugin {plugin.name} {unsupported_point(field)}"
        for field, plugins in spec.points.items()
        for plugin in plugins
        if plugin.name in outside and field not in served
    ]
