"""Which resources, and which annotations of pods, a configuration makes the daemon watch."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from asched.framework.interface import Plugin
from asched.framework.pod_groups import GANG_SCHEDULING
from asched.framework.runtime.profile import PluginLoader, ProfileError, ProfileSpec
from asched.framework.sessions import SessionSpec
from asched.model.custom import CustomResource
from asched.model.resources import (
    GroupResource,
    WatchedResource,
    custom_resource,
    in_order_of_listing,
)

_POD_GROUPS = frozenset(
    {
        GroupResource.POD_GROUPS,
        GroupResource.INCUBATOR_POD_GROUPS,
        GroupResource.SIGS_POD_GROUPS,
        GroupResource.VOLCANO_POD_GROUPS,
    }
)


def watched_groups(
    profiles: Iterable[ProfileSpec], sessions: Collection[SessionSpec] = ()
) -> frozenset[GroupResource]:
    """All group resources for batch sessions; PodGroups if a profile schedules gangs."""
    if sessions:
        return frozenset(GroupResource) - {GroupResource.WORKLOADS}
    gangs = any(GANG_SCHEDULING in profile.plugin_names for profile in profiles)
    return _POD_GROUPS if gangs else frozenset()


def watched_resources(
    profiles: Collection[ProfileSpec], sessions: Collection[SessionSpec], load: PluginLoader
) -> tuple[WatchedResource, ...]:
    """All resources to watch, in the order of listing. Raises
    :class:`~asched.framework.runtime.profile.ProfileError` if a plugin cannot be loaded."""
    groups = watched_groups(profiles, sessions)
    return in_order_of_listing(groups, custom_resources_of(profiles, load))


def custom_resources_of(
    profiles: Collection[ProfileSpec], load: PluginLoader
) -> tuple[WatchedResource, ...]:
    """The custom resources that plugins read.

    Raises as :func:`watched_resources`, and if two plugins read the same resource by different
    structs: the struct determines what the journal records.
    """
    readers: dict[str, type[Plugin]] = {}
    found: dict[str, type[CustomResource]] = {}
    for plugin in _plugins(profiles, load):
        for kind in plugin.custom_resources:
            name = kind.definition.name
            first = readers.setdefault(name, plugin)
            if found.setdefault(name, kind) is not kind:
                raise ProfileError(
                    f"plugins {first.name} and {plugin.name} both read {name}, by different structs"
                )
    return tuple(map(custom_resource, found.values()))


def annotations_of(profiles: Collection[ProfileSpec], load: PluginLoader) -> frozenset[str]:
    """The annotations of pods that plugins read. Raises as :func:`watched_resources`."""
    return frozenset(key for p in _plugins(profiles, load) for key in p.reads_annotations)


def _plugins(profiles: Collection[ProfileSpec], load: PluginLoader) -> Iterator[type[Plugin]]:
    for name in dict.fromkeys(name for profile in profiles for name in profile.plugin_names):
        yield load(name)
