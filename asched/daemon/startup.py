"""Start of a daemon: claim and fold the journal, wait for the API server, watch the cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from random import Random
from typing import TypeVar

import msgspec
import structlog

from asched.config.file import Configuration
from asched.config.registry import PluginRegistry
from asched.core.inputs import ChangeSink
from asched.daemon.engine.attempt_mark import AttemptMark
from asched.daemon.ha.follower import StartState
from asched.daemon.process import Runtime
from asched.daemon.signing.start import check_unchanged, file_anchors, take_over
from asched.daemon.telemetry.metrics import Metrics
from asched.framework.interface import Plugin
from asched.framework.pod_groups import GANG_SCHEDULING
from asched.framework.runtime.profile import PluginLoader, ProfileError, ProfileSpec
from asched.framework.sessions import SessionSpec
from asched.journal.chain_reader import ChainReader
from asched.journal.checkpoints import apply_stored, nearest
from asched.journal.errors import (
    TRANSIENT_ERRORS,
    JournalUnreachableError,
)
from asched.journal.opening import open_journal, redacted
from asched.journal.statistics import journal_id
from asched.journal.store import JournalStore
from asched.kube.client import NO_RETRY, ApiClient, RequestOptions
from asched.kube.errors import ApiError, NoResponseError
from asched.kube.reflector import ClusterWatch, ReflectorSettings
from asched.kube.timing import Backoff, Clock, RetryPolicy
from asched.model.custom import CustomResource
from asched.model.resources import (
    GroupResource,
    WatchedResource,
    custom_resource,
    in_order_of_listing,
)
from asched.proof.keys import NO_KEYS, JournalKeys
from asched.state.attempt_budget import NS_PER_STEP
from asched.state.fold import Fold
from asched.state.seen_versions import SeenVersions, reading_of

T = TypeVar("T")

_CLAIM_RETRY_S = 5.0
_CONNECT_RETRY = RetryPolicy(initial_s=0.2, max_s=5.0)
_CONNECT_TIMEOUT_S = 10.0
_LOG_INTERVAL_S = 60.0
_PROGRESS_RECORDS = 100_000

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class DaemonContext(msgspec.Struct, frozen=True):
    """What a daemon or a replica runs with."""

    configuration: Configuration
    registry: PluginRegistry
    client: ApiClient
    journal: JournalStore
    metrics: Metrics = msgspec.field(default_factory=Metrics)
    runtime: Runtime = msgspec.field(default_factory=Runtime.of_this_process)
    step_ns: int = NS_PER_STEP
    """How long a counted step takes on this machine."""
    mark: AttemptMark | None = None
    """Where attempts are noted; None without a local file."""
    take_over_names: bool = False
    """As the setting of that name."""


async def recover(context: DaemonContext, *, wait: bool) -> StartState:
    """Claim the journal and fold it, from the latest checkpoint on.

    ``wait``: retry while the journal cannot be written, for a replica that resigned for that reason
    and returns as a standby. Raises a :class:`~asched.journal.errors.JournalError`.
    """
    journal, runtime = context.journal, context.runtime
    # The claim comes first: after it no other process can append.
    epoch = await _claim(journal, runtime, wait=wait)
    anchors = file_anchors(context.configuration.settings.journal)
    checked = await take_over(journal, anchors, runtime.clock)
    fold, checkpoint_seq = await nearest(journal, context.registry.load)
    reader = await ChainReader.after_checkpoint(journal, checkpoint_seq)
    next_seq = await fold_journal(fold, reader, checkpoint_seq)
    check_unchanged(checked, reader.position)
    identity = await journal_id(journal)
    return StartState(
        fold=fold,
        next_seq=next_seq,
        checkpoint_seq=checkpoint_seq,
        epoch=epoch,
        position=reader.position,
        tips=None if checked is None else checked.tips,
        journal_id=identity,
    )


async def _claim(journal: JournalStore, runtime: Runtime, *, wait: bool) -> int:
    """The epoch of the claim."""
    while True:
        try:
            return await journal.claim(runtime.instance, claimed_at_ns=runtime.clock.time_ns())
        except TRANSIENT_ERRORS as error:
            if not wait:
                raise
            log.warning("journal not claimed, retrying", error=str(error))
        await runtime.clock.sleep(_CLAIM_RETRY_S)


async def fold_journal(fold: Fold, reader: ChainReader, after_seq: int = 0) -> int:
    """Fold all records after ``after_seq``. Returns the number of the next record."""
    last_seq = after_seq
    async for stored in reader.read():
        apply_stored(fold, stored)
        last_seq = stored.seq
        if last_seq % _PROGRESS_RECORDS == 0:
            log.info("folding journal", records=last_seq)
    if last_seq:
        pods = len(fold.state.pods)
        log.info("journal folded", records=last_seq, checkpoint=after_seq, pods=pods)
    return last_seq + 1


PART_OBJECTS = 1_000
"""Objects of a list that are folded while the next ones are fetched. A million pods would not fit
into memory before the fold replaces what they share by their templates."""


def cluster_watch(
    configuration: Configuration,
    client: ApiClient,
    sink: ChangeSink,
    load: PluginLoader,
    part_objects: int | None = None,
    seen: SeenVersions | None = None,
) -> ClusterWatch:
    """A watch of all resources that the configuration uses. ``part_objects``: as
    :class:`ReflectorSettings`; ``seen``: as :class:`ClusterWatch`."""
    profiles, sessions = configuration.profiles, configuration.sessions
    return ClusterWatch(
        client,
        sink,
        watched_resources(profiles, sessions, load),
        finished_pods=bool(sessions),  # batch sessions count the finished pods of a job
        annotations=annotations_of(profiles, load),
        settings=ReflectorSettings(part_objects=part_objects),
        seen=seen,
    )


async def watch_when_reachable(client: ApiClient, watch: ClusterWatch) -> None:
    """Watch from the first answer of the API server on. Until then one line is logged, where
    otherwise every watch would log its own."""
    options = RequestOptions(None, NO_RETRY, _CONNECT_TIMEOUT_S)

    async def request() -> None:
        with suppress(ApiError):
            await client.request("GET", "/version", options=options)

    unreachable = partial(log.warning, "API server not reachable, retrying", server=client.server)
    await _until_reachable(request, unreachable, client.clock, client.random)
    await watch.run()


@asynccontextmanager
async def journal_when_reachable(
    url: str, clock: Clock, random: Random, keys: JournalKeys = NO_KEYS
) -> AsyncIterator[JournalStore]:
    """Open the journal at ``url`` with ``keys``, and close it at the end of the block.

    Waits for a database that does not answer or cannot be written during a failover: after a power
    failure everything starts at once. Raises any other
    :class:`~asched.journal.errors.JournalError`.
    """
    async with AsyncExitStack() as stack:

        async def open_it() -> JournalStore:
            return await stack.enter_async_context(open_journal(url, daemon=True, keys=keys))

        unreachable = partial(log.warning, "journal not reachable, retrying", journal=redacted(url))
        yield await _until_reachable(open_it, unreachable, clock, random)


async def _until_reachable(
    attempt: Callable[[], Awaitable[T]], warn: Callable[..., None], clock: Clock, random: Random
) -> T:
    """The result of the first attempt with an answer. Calls ``warn`` once a minute at most."""
    backoff, logged_at_s = Backoff(_CONNECT_RETRY, random), -_LOG_INTERVAL_S
    while True:
        try:
            return await attempt()
        except (JournalUnreachableError, NoResponseError) as error:
            now_s = clock.monotonic_s()
            if now_s - logged_at_s >= _LOG_INTERVAL_S:
                logged_at_s = now_s
                warn(error=str(error))
        await clock.sleep(backoff.next_s())


# -- what a configuration watches -----------------------------------------------------------------

_POD_GROUPS: frozenset[GroupResource] = frozenset(
    {
        GroupResource.COMPOSITE_POD_GROUPS,
        GroupResource.POD_GROUPS,
        GroupResource.INCUBATOR_POD_GROUPS,
        GroupResource.SIGS_POD_GROUPS,
        GroupResource.VOLCANO_POD_GROUPS,
    }
)


_OF_SESSIONS = frozenset(GroupResource) - {
    GroupResource.WORKLOADS,
    GroupResource.COMPOSITE_POD_GROUPS,
}


def watched_groups(
    profiles: Iterable[ProfileSpec], sessions: Collection[SessionSpec]
) -> frozenset[GroupResource]:
    """PodGroups and Queues for batch sessions; groups of any kind if a profile schedules gangs."""
    gangs = any(GANG_SCHEDULING in profile.plugin_names for profile in profiles)
    found = _POD_GROUPS if gangs else frozenset()
    return found | _OF_SESSIONS if sessions else found


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
    readers: dict[str, tuple[type[Plugin], type[CustomResource]]] = {}
    for plugin in _plugins(profiles, load):
        for kind in plugin.custom_resources:
            name = kind.definition.name
            first, known = readers.setdefault(name, (plugin, kind))
            if known is not kind:
                raise ProfileError(
                    f"plugins {first.name} and {plugin.name} both read {name}, by different structs"
                )
    return tuple(custom_resource(kind) for _, kind in readers.values())


def annotations_of(profiles: Collection[ProfileSpec], load: PluginLoader) -> frozenset[str]:
    """The annotations of pods that plugins read. Raises as :func:`watched_resources`."""
    return frozenset(key for p in _plugins(profiles, load) for key in p.reads_annotations)


def pod_reading(configuration: Configuration, load: PluginLoader) -> str:
    """Names what a daemon with the configuration reads of pods."""
    return reading_of(annotations_of(configuration.profiles, load), configuration.feature_gates)


def _plugins(profiles: Collection[ProfileSpec], load: PluginLoader) -> Iterator[type[Plugin]]:
    for name in dict.fromkeys(name for profile in profiles for name in profile.plugin_names):
        yield load(name)
