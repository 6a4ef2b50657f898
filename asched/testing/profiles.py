"""Profiles for tests: the defaults with another plugin, a plugin alone, or a configuration file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from asched.config.file import load, parse
from asched.config.kube_scheduler import (
    KubeSchedulerConfiguration,
    PluginConfig,
    PluginRef,
    Plugins,
    PluginSet,
    ProfileConfig,
)
from asched.config.registry import PluginRegistry
from asched.config.resolve import resolve
from asched.framework.feature_gates import DEFAULT_FEATURE_GATES, FeatureGates
from asched.framework.interface import ExtensionPoint, Plugin
from asched.framework.runtime.profile import ProfileSpec, evaluate_in_process
from asched.framework.sessions import SessionSpec
from asched.simulator.loop import Latencies, SchedulerSettings, scheduler_from_config
from asched.state.records import QueueSettings

Arguments = Mapping[str, Any] | msgspec.Struct
"""A plugin's arguments, in the form of ``pluginConfig`` or as the plugin's own type."""

_REQUIRED = (
    (ExtensionPoint.QUEUE_SORT, "PrioritySort"),
    (ExtensionPoint.BIND, "DefaultBinder"),
)


class ProfileSetup(NamedTuple):
    """Profiles with their plugins, for :func:`asched.testing.schedule`."""

    profiles: tuple[ProfileSpec, ...]
    registry: PluginRegistry
    queue: QueueSettings = QueueSettings()
    sessions: tuple[SessionSpec, ...] = ()
    feature_gates: FeatureGates = DEFAULT_FEATURE_GATES

    @property
    def scheduler_name(self) -> str:
        """The scheduler name of the first profile."""
        return (self.profiles or self.sessions)[0].scheduler_name

    @property
    def scheduler_names(self) -> frozenset[str]:
        return frozenset(
            [p.scheduler_name for p in self.profiles] + [s.scheduler_name for s in self.sessions]
        )

    @property
    def pure(self) -> bool:
        """Whether all plugins declare to be pure, which makes repeated decisions equal."""
        names = {name for spec in self.profiles for name in spec.plugin_names}
        return all(self.registry.load(name).pure for name in names)

    def scheduler(self, seed: int = 0) -> SchedulerSettings:
        return SchedulerSettings(
            self.profiles,
            self.queue,
            seed,
            sessions=self.sessions,
            feature_gates=self.feature_gates,
        )


@cache
def installed_plugins() -> PluginRegistry:
    return PluginRegistry.discover()


def profile(
    *plugins: type[Plugin] | str,
    args_by_plugin: Mapping[str, Arguments] | None = None,
    weights: Mapping[str, int] | None = None,
    without: Iterable[str] = (),
    alone: bool = False,
) -> ProfileSetup:
    """The default profile, with these plugins enabled at all their extension points.

    ``plugins`` are classes, or names of installed plugins; ``weights`` are by plugin name, too.
    ``without`` disables default plugins; ``alone`` disables all except queue order and binder.
    Plugins that a daemon calls in a worker process run inline.

    Raises :class:`~asched.framework.runtime.strict.ConfigurationError` with every mistake.
    """
    classes = [plugin for plugin in plugins if not isinstance(plugin, str)]
    registry = installed_plugins().including(*classes)
    names = [plugin if isinstance(plugin, str) else plugin.name for plugin in plugins]
    if alone:
        served = [registry.load(name) for name in names]
        names += [
            name
            for point, name in _REQUIRED
            if not any(point.served_by(plugin) for plugin in served)
        ]
    by_name = weights or {}
    multi_point = PluginSet(
        enabled=tuple(PluginRef(name, by_name.get(name, 0)) for name in names),
        disabled=tuple(PluginRef(name) for name in (["*"] if alone else without)),
    )
    given = tuple(
        PluginConfig(name, _plain(value)) for name, value in (args_by_plugin or {}).items()
    )
    wanted = ProfileConfig(plugins=Plugins(multi_point=multi_point), plugin_config=given)
    specs = resolve(KubeSchedulerConfiguration(profiles=(wanted,)), registry)
    return ProfileSetup(evaluate_in_process(specs), registry)


def profile_setup(config: Path | str, *plugins: type[Plugin]) -> ProfileSetup:
    """The profiles of a configuration file, or of YAML text, as for ``asched run --config``.

    The configuration may name ``plugins`` in addition to the installed ones. Extenders are ignored.
    Raises :class:`~asched.config.file.ConfigFileError` with a line for each mistake.
    """
    registry = installed_plugins().including(*plugins)
    if isinstance(config, Path):
        found = load(config, registry)
    else:
        found = parse(config, "(text)", registry)
    scheduler = scheduler_from_config(found, Latencies())
    return ProfileSetup(
        scheduler.profiles,
        registry,
        scheduler.queue,
        scheduler.sessions,
        scheduler.feature_gates,
    )


def _plain(args: Arguments) -> dict[str, Any]:
    # Through JSON, as in a configuration: a tuple becomes a list.
    found: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(args))
    return found
