"""Another configuration for an engine that runs: what is recorded of it, and what changes with it.

Which resources a configuration has a use for, beyond those that every scheduler watches.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from functools import partial
from typing import Final, NamedTuple

import anyio
import msgspec

from asched.config.extenders import in_order_of_asking, spec_of, without_ignored_resources
from asched.config.file import Configuration
from asched.config.kube_scheduler import Section
from asched.daemon.effects.dispatcher import Effects
from asched.daemon.effects.extenders import ExtenderPool, ExtenderReplacement
from asched.daemon.engine.engine import Engine
from asched.daemon.engine.inbox import Inbox, Reconfiguration
from asched.daemon.reload.session_files import SessionFiles
from asched.framework.interface import Plugin
from asched.framework.pod_groups import GANG_SCHEDULING
from asched.framework.runtime.profile import PluginLoader, Profile, ProfileError, ProfileSpec
from asched.framework.sessions import SessionSpec
from asched.kube.errors import KubeConfigError
from asched.kube.reflector import ClusterWatch
from asched.model.custom import CustomResource
from asched.model.resources import (
    GroupResource,
    Resource,
    WatchedResource,
    custom_resource,
    in_order_of_listing,
)
from asched.state.cluster import ClusterState, ProfileHandle
from asched.state.records import ProfilesLoaded, QueueSettings
from asched.state.session_records import SessionsLoaded

POD_GROUPS = frozenset(
    {
        GroupResource.POD_GROUPS,
        GroupResource.INCUBATOR_POD_GROUPS,
        GroupResource.SIGS_POD_GROUPS,
        GroupResource.VOLCANO_POD_GROUPS,
    }
)


def groups_of_use(
    profiles: Iterable[ProfileSpec], sessions: Collection[SessionSpec] = ()
) -> frozenset[GroupResource]:
    """All, where there are batch sessions; PodGroups, where any profile schedules gangs."""
    if sessions:
        return frozenset(GroupResource) - {GroupResource.WORKLOADS}
    gangs = any(GANG_SCHEDULING in profile.plugin_names for profile in profiles)
    return POD_GROUPS if gangs else frozenset()


def watched_for(
    profiles: Collection[ProfileSpec], sessions: Collection[SessionSpec], load: PluginLoader
) -> tuple[WatchedResource, ...]:
    """All that is to be watched, in the order of listing. Raises
    :class:`~asched.framework.runtime.profile.ProfileError` where a plugin cannot be had."""
    groups = groups_of_use(profiles, sessions)
    return in_order_of_listing(groups, custom_resources_read(profiles, load))


def custom_resources_read(
    profiles: Collection[ProfileSpec], load: PluginLoader
) -> tuple[WatchedResource, ...]:
    """The custom resources that plugins read. Raises as :func:`watched_for`, and where two read the
    same one by different structs: what is recorded of it is what the struct says."""
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


def annotations_read(profiles: Collection[ProfileSpec], load: PluginLoader) -> frozenset[str]:
    """The annotations of pods that plugins read. Raises as :func:`watched_for`."""
    return frozenset(key for p in _plugins(profiles, load) for key in p.reads_annotations)


def _plugins(profiles: Collection[ProfileSpec], load: PluginLoader) -> Iterator[type[Plugin]]:
    for name in dict.fromkeys(name for profile in profiles for name in profile.plugin_names):
        yield load(name)


TAKEN_UP: Final = frozenset(
    {
        "profiles",
        "extenders",
        "percentageOfNodesToScore",
        "podInitialBackoffSeconds",
        "podMaxBackoffSeconds",
        "engine.pluginTimeLimit",
        "engine.turnTimeSlice",
        "engine.unschedulableFlushInterval",
        "batch",
        "log",
        "plugins",
    }
)
"""What may change while the daemon runs."""
WITHOUT_EFFECT: Final = frozenset({"parallelism", "enableProfiling", "enableContentionProfiling"})
"""What changes nothing at any time."""


class ReconfigurationError(Exception):
    """The configuration cannot be used; one line says why."""


class ConfigApplied(NamedTuple):
    """What became of a configuration that can be used."""

    changed: bool
    """False where it says the same as the one before."""
    kept: tuple[str, ...]
    """Settings that it changes and that count at the next start only, as they are written."""


class Running(NamedTuple):
    """The parts of a daemon that a configuration changes."""

    engine: Engine
    effects: Effects
    inbox: Inbox
    extenders: ExtenderPool
    files: SessionFiles
    watch: ClusterWatch
    cluster: ClusterState
    """For reading only."""
    load: PluginLoader


def profiles_record(configuration: Configuration) -> ProfilesLoaded:
    """What is recorded of the profiles, their queue and their extenders."""
    scheduler, settings = configuration.scheduler, configuration.settings.engine
    return ProfilesLoaded(
        without_ignored_resources(configuration.profiles, scheduler.extenders),
        QueueSettings(
            scheduler.pod_initial_backoff_seconds,
            scheduler.pod_max_backoff_seconds,
            settings.unschedulable_flush_interval.total_seconds(),
        ),
        tuple(map(spec_of, in_order_of_asking(scheduler.extenders))),
        lets_go=True,
    )


def refuse_faults(new: Configuration) -> None:
    """Raise :class:`ReconfigurationError` for a configuration that says of itself that it cannot be
    used."""
    if new.faults:
        raise ReconfigurationError("; ".join(new.faults))


def try_out(record: ProfilesLoaded, cluster: ClusterState, load: PluginLoader) -> None:
    """Build the profiles once, on the cluster as it is: the fold must not be the first to try. Raises
    :class:`ReconfigurationError` where that fails."""
    try:
        watched_for(record.profiles, (), load)
        for spec in record.profiles:
            Profile(spec, load, ProfileHandle(cluster, spec.scheduler_name))
    except ProfileError as error:
        raise ReconfigurationError(str(error)) from None


def kept_until_restart(start: Configuration, new: Configuration) -> tuple[str, ...]:
    """Settings that differ from those of the start and count at the next one, as they are written."""
    return tuple(name for name in _differing(start, new) if name not in TAKEN_UP)


class Reconfigurer:
    """Takes up one configuration after the other."""

    def __init__(self, start: Configuration, running: Running) -> None:
        """``start``: what the daemon was started with."""
        self._start = start
        self._present = start
        self._profiles = profiles_record(start)
        self._running = running

    async def take_up(self, new: Configuration) -> ConfigApplied:
        """Decide by another configuration from now on. One at a time.

        Returns when it is folded, after what was decided by the one before. Raises
        :class:`ReconfigurationError`, and nothing has changed then.
        """
        kept = kept_until_restart(self._start, new)
        refuse_faults(new)
        records: list[ProfilesLoaded | SessionsLoaded] = []
        profiles = profiles_record(new)
        # Certificates of extenders may be others though nothing says so.
        if profiles != self._profiles or new.scheduler.extenders:
            try_out(profiles, self._running.cluster, self._running.load)
            records.append(profiles)
        if new.sessions != self._running.cluster.sessions.specs:
            records.append(SessionsLoaded(new.sessions))
        replacement = await self._extenders(new) if profiles in records else None
        await self._in_turn(new, tuple(records), replacement)
        others = any(name in TAKEN_UP for name in _differing(self._present, new))
        self._profiles, self._present = profiles, new
        return ConfigApplied(bool(records) or others, kept)

    async def _extenders(self, new: Configuration) -> ExtenderReplacement:
        try:
            return await self._running.extenders.replacement(new.scheduler.extenders)
        except KubeConfigError as error:
            raise ReconfigurationError(str(error)) from None

    async def _in_turn(
        self,
        new: Configuration,
        records: tuple[ProfilesLoaded | SessionsLoaded, ...],
        replacement: ExtenderReplacement | None,
    ) -> None:
        running, done = self._running, anyio.Event()
        awaited = self._newly_watched(new)
        folded = partial(self._folded, new, replacement, done)
        running.inbox.put_outcome(Reconfiguration(records, awaited, folded))
        await done.wait()
        await running.watch.extend(
            watched_for(new.profiles, new.sessions, running.load),
            finished_pods=bool(new.sessions),
            annotations=annotations_read(new.profiles, running.load),
        )

    def _newly_watched(self, new: Configuration) -> dict[WatchedResource, int]:
        """What has to be listed first: resources that are not watched yet, and pods once more where there
        is to be more of them. Of which generation that list is, by resource."""
        watch, load = self._running.watch, self._running.load
        generations = {reflector.resource: reflector.generation for reflector in watch.reflectors}
        wanted = watched_for(new.profiles, new.sessions, load)
        awaited: dict[WatchedResource, int] = dict.fromkeys(
            (resource for resource in wanted if resource not in generations), 0
        )
        annotations = annotations_read(new.profiles, load) - watch.annotations
        if annotations or (new.sessions and not watch.finished_pods):
            # A list that was asked for before is without them, though it may arrive only now.
            awaited[Resource.PODS] = generations[Resource.PODS] + 1
        return awaited

    def _folded(
        self, new: Configuration, replacement: ExtenderReplacement | None, done: anyio.Event
    ) -> None:
        running = self._running
        if replacement is not None:
            running.effects.ask_others(replacement.extenders)
            replacement.use()
        running.effects.limits.take_up(new.settings.plugins)
        running.files.follow(new.settings.batch, new.sessions)
        running.engine.limit_turns(new.settings.engine.turn_time_slice.total_seconds())
        done.set()


def _differing(before: Configuration, after: Configuration) -> Iterator[str]:
    """The settings that differ and have an effect, as they are written."""
    yield from _differing_in(before.scheduler, after.scheduler)
    yield from _differing_in(before.settings, after.settings)


def _differing_in(before: Section, after: Section, prefix: str = "") -> Iterator[str]:
    for field in msgspec.structs.fields(before):
        name = prefix + field.encode_name
        old, new = getattr(before, field.name), getattr(after, field.name)
        if old == new or name in WITHOUT_EFFECT:
            continue
        if isinstance(old, Section) and isinstance(new, Section) and name not in TAKEN_UP:
            yield from _differing_in(old, new, f"{name}.")
        else:
            yield name
