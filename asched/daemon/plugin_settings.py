"""What an operator says of single plugins, beside KubeSchedulerConfiguration."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Annotated

import msgspec

from asched.framework.config import Section
from asched.framework.plugin_policy import BreakerSpec
from asched.framework.safety import Isolation


class BreakerSettings(Section, frozen=True):
    """Leave a plugin alone that fails again and again."""

    failures: Annotated[int, msgspec.Meta(ge=1)] = 5
    """So many failures ..."""
    window: timedelta = timedelta(minutes=1)
    """... within this time open the circuit."""
    open_for: timedelta = timedelta(seconds=30)
    """How long the plugin is not asked then."""

    def __post_init__(self) -> None:
        if self.window <= timedelta() or self.open_for <= timedelta():
            raise ValueError("window and openFor must be greater than 0")

    @property
    def spec(self) -> BreakerSpec:
        return BreakerSpec(
            self.failures, self.window.total_seconds(), self.open_for.total_seconds()
        )


class PluginSettings(Section, frozen=True):
    """One plugin, in whichever profiles it is enabled."""

    name: str
    optional: bool = False
    """Pods are scheduled without it where it is missing or broken at the start, where it does not
    answer from its worker, and while its circuit is open."""
    isolation: Isolation | None = None
    """Where it is asked at Filter and Score; by default what the plugin itself says."""
    time_limit: timedelta | None = None
    """How long one call may take: in a worker, and in PreBind, Bind and PostBind. In the daemon's own
    process a longer call is only reported."""
    circuit_breaker: BreakerSettings | None = None

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("name must not be empty")
        if self.time_limit is not None and self.time_limit <= timedelta():
            raise ValueError("timeLimit must be greater than 0")


class PluginLimits:
    """The settings of all plugins, by name; what is taken up anew counts from the next call on."""

    def __init__(self, settings: Iterable[PluginSettings] = ()) -> None:
        self._of: dict[str, PluginSettings] = {}
        self.take_up(settings)

    def take_up(self, settings: Iterable[PluginSettings]) -> None:
        self._of = {plugin.name: plugin for plugin in settings}

    def limit_s(self, plugin: str) -> float | None:
        """How long a call of the plugin may take; None where that is not said."""
        settings = self._of.get(plugin)
        if settings is None or settings.time_limit is None:
            return None
        return settings.time_limit.total_seconds()

    def isolation(self, plugin: str) -> Isolation | None:
        settings = self._of.get(plugin)
        return None if settings is None else settings.isolation
