"""Profiles for tests: the defaults with a plugin more, a plugin alone, or a configuration file."""

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
from asched.framework.interface import ExtensionPoint, Plugin
from asched.framework.runtime.profile import ProfileSpec, evaluate_in_process
from asched.framework.sessions import SessionSpec
from asched.simulator.loop import Latencies, Scheduler
from asched.simulator.settings import scheduler_of
from asched.state.records import QueueSettings

Arguments = Mapping[str, Any] | msgspec.Struct
"""A plugin's arguments, as ``pluginConfig`` has them or as the plugin's own type."""

_INDISPENSABLE = (
    (ExtensionPoint.QUEUE_SORT, "PrioritySort"),
    (ExtensionPoint.BIND, "DefaultBinder"),
)


class ProfileSetup(NamedTuple):
    """Profiles with the plugins they consist of: what :func:`asched.testing.schedule` takes."""

    profiles: tuple[ProfileSpec, ...]
    registry: PluginRegistry
    queue: QueueSettings = QueueSettings()
    sessions: tuple[SessionSpec, ...] = ()

    @property
    def scheduler_name(self) -> str:
        """Of the first profile."""
        names = [*(p.scheduler_name for p in self.profiles)]
        return [*names, *(session.scheduler_name for session in self.sessions)][0]

    @property
    def scheduler_names(self) -> frozenset[str]:
        """All that are served."""
        return frozenset(
            [p.scheduler_name for p in self.profiles] + [s.scheduler_name for s in self.sessions]
        )

    @property
    def pure(self) -> bool:
        """Whether all plugins declare to be pure, so that everything is decided the same once more."""
        names = {name for spec in self.profiles for name in spec.plugin_names}
        return all(self.registry.load(name).pure for name in names)

    def scheduler(self, seed: int = 0) -> Scheduler:
        """As a simulation takes it."""
        return Scheduler(self.profiles, self.queue, seed, sessions=self.sessions)


@cache
def installed() -> PluginRegistry:
    """All plugins that are installed here."""
    return PluginRegistry.discover()


def profile(
    *plugins: type[Plugin] | str,
    args: Mapping[str, Arguments] | None = None,
    weights: Mapping[str, int] | None = None,
    without: Iterable[str] = (),
    alone: bool = False,
) -> ProfileSetup:
    """The default profile, with these plugins enabled wherever they serve.

    ``plugins`` are classes, or names of installed ones. ``args`` and ``weights`` are by plugin name.
    ``without`` names default plugins to leave out; ``alone`` leaves out all of them but the order of
    the queue and the binder.

    A plugin that a daemon asks outside decisions, in a worker or to record its answers, is asked here
    as part of them.

    Raises :class:`~asched.framework.runtime.strict.ConfigurationError` with all that is wrong, as a daemon with
    that configuration would refuse to start.
    """
    classes = [plugin for plugin in plugins if not isinstance(plugin, str)]
    registry = installed().including(*classes)
    names = [plugin if isinstance(plugin, str) else plugin.name for plugin in plugins]
    if alone:
        served = [registry.load(name) for name in names]
        names += [
            name
            for point, name in _INDISPENSABLE
            if not any(point.served_by(plugin) for plugin in served)
        ]
    weighed = weights or {}
    multi_point = PluginSet(
        enabled=tuple(PluginRef(name, weighed.get(name, 0)) for name in names),
        disabled=tuple(PluginRef(name) for name in (["*"] if alone else without)),
    )
    given = tuple(PluginConfig(name, _plain(value)) for name, value in (args or {}).items())
    wanted = ProfileConfig(plugins=Plugins(multi_point=multi_point), plugin_config=given)
    specs = resolve(KubeSchedulerConfiguration(profiles=(wanted,)), registry)
    return ProfileSetup(evaluate_in_process(specs), registry)


def configured(config: Path | str, *plugins: type[Plugin]) -> ProfileSetup:
    """What a configuration makes: a file's, or that of YAML text, as for ``asched run --config``.

    ``plugins`` are classes that it may name beside the installed ones. Extenders are left out: nobody
    would answer. Raises :class:`~asched.config.file.ConfigFileError` with a line for each mistake.
    """
    registry = installed().including(*plugins)
    if isinstance(config, Path):
        found = load(config, registry)
    else:
        found = parse(config, "(text)", registry)
    scheduler = scheduler_of(found, Latencies())
    return ProfileSetup(scheduler.profiles, registry, scheduler.queue, scheduler.sessions)


def _plain(args: Arguments) -> dict[str, Any]:
    # Through JSON, as a configuration would have it: a tuple is a list there.
    found: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(args))
    return found
