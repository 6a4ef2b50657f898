"""Start of a daemon: claim and fold the journal, wait for the API server, watch the cluster."""

from __future__ import annotations

import msgspec
import structlog

from asched.config.file import Configuration
from asched.config.registry import PluginRegistry
from asched.core.inputs import ChangeSink
from asched.daemon.engine.runtime import Runtime
from asched.daemon.ha.follower import StartState
from asched.daemon.reload.watched import annotations_of, watched_resources
from asched.daemon.telemetry.metrics import Metrics
from asched.framework.runtime.profile import PluginLoader
from asched.journal.checkpoints import nearest
from asched.journal.errors import JournalBusyError, JournalFullError, JournalIOError
from asched.journal.folding import apply_stored
from asched.journal.store import JournalStore
from asched.kube.client import NO_RETRY, ApiClient, RequestOptions
from asched.kube.errors import ApiError, NoResponseError
from asched.kube.reflector import ClusterWatch
from asched.kube.timing import Backoff, RetryPolicy
from asched.state.fold import Fold

TRANSIENT = (JournalBusyError, JournalFullError, JournalIOError)
"""Journal errors that a later attempt may not meet."""
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


async def recover(context: DaemonContext, *, wait: bool) -> StartState:
    """Claim the journal and fold it, from the latest checkpoint on.

    ``wait``: retry while the journal cannot be written, for a replica that resigned for that reason
    and returns as a standby. Raises a :class:`~asched.journal.errors.JournalError`.
    """
    journal = context.journal
    # The claim comes first: after it no other process can append.
    epoch = await _claim(journal, context.runtime, wait=wait)
    fold, checkpoint_seq = await nearest(journal, context.registry.load)
    next_seq = await fold_journal(fold, journal, checkpoint_seq)
    return StartState(fold, next_seq, checkpoint_seq, epoch)


async def _claim(journal: JournalStore, runtime: Runtime, *, wait: bool) -> int:
    """The epoch of the claim."""
    while True:
        try:
            return await journal.claim(runtime.instance, claimed_at_ns=runtime.clock.time_ns())
        except TRANSIENT as error:
            if not wait:
                raise
            log.warning("journal not claimed, retrying", error=str(error))
        await runtime.clock.sleep(_CLAIM_RETRY_S)


async def fold_journal(fold: Fold, journal: JournalStore, after_seq: int = 0) -> int:
    """Fold all records after ``after_seq``. Returns the number of the next record."""
    last_seq = after_seq
    async for stored in journal.read(after_seq):
        apply_stored(fold, stored)
        last_seq = stored.seq
        if last_seq % _PROGRESS_RECORDS == 0:
            log.info("folding journal", records=last_seq)
    if last_seq:
        pods = len(fold.state.pods)
        log.info("journal folded", records=last_seq, checkpoint=after_seq, pods=pods)
    return last_seq + 1


def cluster_watch(
    configuration: Configuration, client: ApiClient, sink: ChangeSink, load: PluginLoader
) -> ClusterWatch:
    """A watch of all resources that the configuration uses."""
    profiles, sessions = configuration.profiles, configuration.sessions
    return ClusterWatch(
        client,
        sink,
        watched_resources(profiles, sessions, load),
        finished_pods=bool(sessions),  # batch sessions count the finished pods of a job
        annotations=annotations_of(profiles, load),
    )


async def watch_when_reachable(client: ApiClient, watch: ClusterWatch) -> None:
    """Watch from the first answer of the API server on. Until then one line is logged, where
    otherwise every watch would log its own."""
    await _first_answer(client)
    await watch.run()


async def _first_answer(client: ApiClient) -> None:
    backoff = Backoff(_CONNECT_RETRY, client.random)
    options = RequestOptions(None, NO_RETRY, _CONNECT_TIMEOUT_S)
    logged_at_s = -_LOG_INTERVAL_S
    while True:
        try:
            await client.request("GET", "/version", options=options)
        except ApiError:
            return
        except NoResponseError as error:
            now_s = client.clock.monotonic_s()
            if now_s - logged_at_s >= _LOG_INTERVAL_S:
                logged_at_s = now_s
                log.warning(
                    "API server not reachable, retrying", server=client.server, error=str(error)
                )
        else:
            return
        await client.clock.sleep(backoff.next_s())
