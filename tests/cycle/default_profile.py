"""The profile of a scheduler without configuration."""

from __future__ import annotations

from functools import cache
from typing import Any

from asched.config.kube_scheduler import API_VERSION, KIND, KubeSchedulerConfiguration
from asched.config.registry import PluginRegistry
from asched.config.resolve import resolve
from asched.framework.runtime.profile import ProfileSpec
from asched.state.cluster import ClusterState
from asched.state.fold import Fold
from asched.state.records import ProfilesLoaded
from tests.cycle.scheduling import Scheduling
from tests.framework.decoding import decode_configuration


@cache
def installed() -> PluginRegistry:
    return PluginRegistry.discover()


@cache
def default_profiles() -> tuple[ProfileSpec, ...]:
    return resolve(KubeSchedulerConfiguration(), installed())


def default_fold(**plugins: Any) -> Fold:
    """A fold over an empty state with the default profile, but for these sets of plugins."""
    fold = Fold(ClusterState(), installed().load)
    profiles = default_profiles()
    if plugins:
        profile = {"schedulerName": "default-scheduler", "plugins": plugins}
        document = {"apiVersion": API_VERSION, "kind": KIND, "profiles": [profile]}
        profiles = resolve(decode_configuration(document), installed())
    fold.apply(ProfilesLoaded(profiles))
    return fold


def default_scheduling() -> Scheduling:
    plugins = tuple(installed().load(name) for name in default_profiles()[0].plugin_names)
    return Scheduling(*plugins, profiles=default_profiles())
