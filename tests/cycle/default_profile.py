"""The profile of a scheduler without configuration."""

from __future__ import annotations

from functools import cache

from asched.config.kube_scheduler import KubeSchedulerConfiguration
from asched.config.registry import PluginRegistry
from asched.config.resolve import resolve
from asched.framework.runtime.profile import ProfileSpec
from asched.state.cluster import ClusterState
from asched.state.fold import Fold
from asched.state.records import ProfilesLoaded
from tests.cycle.scheduling import Scheduling


@cache
def installed() -> PluginRegistry:
    return PluginRegistry.discover()


@cache
def default_profiles() -> tuple[ProfileSpec, ...]:
    return resolve(KubeSchedulerConfiguration(), installed())


def default_fold() -> Fold:
    """A fold over an empty state with the default profile."""
    fold = Fold(ClusterState(), installed().load)
    fold.apply(ProfilesLoaded(default_profiles()))
    return fold


def default_scheduling() -> Scheduling:
    plugins = tuple(installed().load(name) for name in default_profiles()[0].plugin_names)
    return Scheduling(*plugins, profiles=default_profiles())
