"""Applies another configuration to a running engine."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final, NamedTuple

import anyio
import msgspec

from asched.config.file import Configuration
from asched.config.kube_scheduler import Section, in_call_order
from asched.config.resolve import without_ignored_resources
from asched.daemon.effects.external_calls import ExtenderPool, ExtenderReplacement
from asched.daemon.engine.engine import Engine
from asched.daemon.engine.inbox import Inbox, Reconfiguration
from asched.daemon.reload.reloader import ConfigApplied, ReconfigurationError, SessionFiles
from asched.daemon.startup import annotations_of, pod_reading, watched_resources
from asched.framework.feature_gates import kept_fields
from asched.framework.runtime.profile import PluginLoader, Profile, ProfileError
from asched.kube.errors import KubeConfigError
from asched.kube.reflector import ClusterWatch
from asched.model.resources import Resource, WatchedResource
from asched.state.cluster import ClusterState, ProfileHandle
from asched.state.records import ProfilesLoaded, QueueSettings
from asched.state.session_records import SessionsLoaded

RELOADABLE: Final = frozenset(
    {
        "profiles",
        "extenders",
        "percentageOfNodesToScore",
        "podInitialBackoffSeconds",
        "podMaxBackoffSeconds",
        "engine.pluginTimeLimit",
        "engine.turnTimeSlice",
        "engine.unschedulableFlushInterval",
        "featureGates",
        "batch",
        "log",
        "plugins",
    }
)
"""Settings that may change while the daemon runs."""
IGNORED_SETTINGS: Final = frozenset({"parallelism", "enableProfiling", "enableContentionProfiling"})


class ReloadTargets(NamedTuple):
    """The parts of a daemon that a configuration changes."""

    engine: Engine
    inbox: Inbox
    extenders: ExtenderPool
    files: SessionFiles
    watch: ClusterWatch
    cluster: ClusterState
    """Read-only."""
    load: PluginLoader


def profiles_record(configuration: Configuration) -> ProfilesLoaded:
    """The record of the profiles, the queue settings and the extenders."""
    scheduler, settings = configuration.scheduler, configuration.settings.engine
    return ProfilesLoaded(
        without_ignored_resources(configuration.profiles, scheduler.extenders),
        QueueSettings(
            scheduler.pod_initial_backoff_seconds,
            scheduler.pod_max_backoff_seconds,
            settings.unschedulable_flush_interval.total_seconds(),
        ),
        tuple(extender.spec for extender in in_call_order(scheduler.extenders)),
        configuration.feature_gates,
    )


def check_valid(new: Configuration) -> None:
    """Raise :class:`ReconfigurationError` if parsing the configuration found faults."""
    if new.faults:
        raise ReconfigurationError("; ".join(new.faults))


def check_buildable(record: ProfilesLoaded, cluster: ClusterState, load: PluginLoader) -> None:
    """Raise :class:`ReconfigurationError` if the profiles cannot be built on the present state. The
    fold, which builds them later, must not fail."""
    try:
        watched_resources(record.profiles, (), load)
        for spec in record.profiles:
            handle = ProfileHandle(cluster, spec.scheduler_name, record.feature_gates)
            Profile(spec, load, handle)
    except ProfileError as error:
        raise ReconfigurationError(str(error)) from None


def restart_settings(start: Configuration, new: Configuration) -> tuple[str, ...]:
    """Names of the settings that differ from those at the start and need a restart."""
    return tuple(name for name in _differing(start, new) if name not in RELOADABLE)


class Reconfigurer:
    """Applies configurations, one at a time."""

    def __init__(self, start: Configuration, targets: ReloadTargets) -> None:
        """``start``: the configuration that the daemon was started with."""
        self._start = start
        self._present = start
        self._profiles = profiles_record(start)
        self._targets = targets

    async def apply_config(self, new: Configuration) -> ConfigApplied:
        """Decide by another configuration from now on. Returns when its records are folded. Raises
        :class:`ReconfigurationError`; nothing has changed then."""
        needs_restart = restart_settings(self._start, new)
        check_valid(new)
        records: list[ProfilesLoaded | SessionsLoaded] = []
        profiles = profiles_record(new)
        # Certificate files of extenders may have changed although their settings are equal.
        if profiles != self._profiles or new.scheduler.extenders:
            check_buildable(profiles, self._targets.cluster, self._targets.load)
            records.append(profiles)
        if new.sessions != self._targets.cluster.sessions.specs:
            records.append(SessionsLoaded(new.sessions))
        replacement = await self._extenders(new) if profiles in records else None
        await self._fold(new, tuple(records), replacement)
        others = any(name in RELOADABLE for name in _differing(self._present, new))
        self._profiles, self._present = profiles, new
        return ConfigApplied(bool(records) or others, needs_restart)

    async def _extenders(self, new: Configuration) -> ExtenderReplacement:
        try:
            return await self._targets.extenders.replacement(new.scheduler.extenders)
        except KubeConfigError as error:
            raise ReconfigurationError(str(error)) from None

    async def _fold(
        self,
        new: Configuration,
        records: tuple[ProfilesLoaded | SessionsLoaded, ...],
        replacement: ExtenderReplacement | None,
    ) -> None:
        targets, done = self._targets, anyio.Event()
        other_fields = kept_fields(new.feature_gates) != kept_fields(self._present.feature_gates)
        unsynced = self._lists_to_await(new, relist_pods=other_fields)
        folded = partial(self._folded, new, replacement, done)
        targets.inbox.put_outcome(Reconfiguration(records, unsynced, folded))
        await done.wait()
        await targets.watch.extend(
            watched_resources(new.profiles, new.sessions, targets.load),
            finished_pods=bool(new.sessions),
            annotations=annotations_of(new.profiles, targets.load),
            relist_pods=other_fields,
        )

    def _lists_to_await(
        self, new: Configuration, *, relist_pods: bool
    ) -> dict[WatchedResource, int]:
        """Relist count, by resource, of the lists that decisions must wait for: those of
        newly watched resources, and of pods if the new watch shows more of them or the state keeps
        other fields (``relist_pods``)."""
        watch, load = self._targets.watch, self._targets.load
        relist_counts = {
            reflector.resource: reflector.relist_count for reflector in watch.reflectors
        }
        wanted = watched_resources(new.profiles, new.sessions, load)
        unsynced: dict[WatchedResource, int] = dict.fromkeys(
            (resource for resource in wanted if resource not in relist_counts), 0
        )
        annotations = annotations_of(new.profiles, load) - watch.annotations
        if relist_pods or annotations or (new.sessions and not watch.finished_pods):
            # A list that was requested before lacks them, even if it arrives only now.
            unsynced[Resource.PODS] = relist_counts[Resource.PODS] + 1
        return unsynced

    def _folded(
        self, new: Configuration, replacement: ExtenderReplacement | None, done: anyio.Event
    ) -> None:
        targets = self._targets
        if pod_reading(new, targets.load) != targets.cluster.seen.reading:
            targets.cluster.seen.end()
        if replacement is not None:
            targets.engine.effects.use_extenders(replacement.extenders)
            replacement.use()
        targets.engine.effects.limits.configure(new.settings.plugins)
        targets.files.configure(new.settings.batch, new.sessions)
        targets.engine.limit_turns(new.settings.engine.turn_time_slice.total_seconds())
        done.set()


def _differing(before: Configuration, after: Configuration) -> Iterator[str]:
    """Names of the settings that differ, without ignored ones."""
    yield from _differing_in(before.scheduler, after.scheduler)
    yield from _differing_in(before.settings, after.settings)


def _differing_in(before: Section, after: Section, prefix: str = "") -> Iterator[str]:
    for field in msgspec.structs.fields(before):
        name = prefix + field.encode_name
        old, new = getattr(before, field.name), getattr(after, field.name)
        if old == new or name in IGNORED_SETTINGS:
            continue
        if isinstance(old, Section) and isinstance(new, Section) and name not in RELOADABLE:
            yield from _differing_in(old, new, f"{name}.")
        else:
            yield name
