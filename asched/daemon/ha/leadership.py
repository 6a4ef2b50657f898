"""Takes part in the leader election, and starts and stops the engine's decisions accordingly."""

from __future__ import annotations

import math
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

import anyio
import structlog
from anyio.abc import TaskGroup, TaskStatus
from prometheus_client.core import Metric

from asched.config.file import Configuration
from asched.config.kube_scheduler import LeaderElection
from asched.daemon.engine.engine import Engine
from asched.daemon.engine.inbox import Inbox
from asched.daemon.ha.election import LeaseTiming
from asched.daemon.ha.lease import LeaderElector, LeaseName
from asched.daemon.signing.start import LeaseAnchor, annotation_for
from asched.daemon.telemetry.metrics import Metrics, counter, gauge
from asched.kube.client import NO_RETRY, ApiClient, RequestOptions
from asched.kube.errors import ApiError, NoResponseError
from asched.kube.reflector import ClusterWatch
from asched.model.resources import Resource
from asched.state.records import LeadershipGained, LeadershipLost

SETTLE_S = 0.25
"""A new leader gives its watches this long to deliver the present state before it decides."""
WATCH_RESTART_TIMEOUT_S = 5.0
WITHOUT_CONFLICT: Final = (Resource.PODS, Resource.RESOURCE_CLAIMS)
"""The API server does not refuse a binding to a full node, nor a device that another claim has."""
LONG_WAIT_S: Final = 30.0
"""A new leader waits so long for those watches."""
LAST_TURN_TIMEOUT_S = 1.0
"""Limit for recording that leadership was lost or released."""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class LeadershipLostError(Exception):
    """The process must end: another one leads, or may lead soon. The text is one line."""


class Leadership:
    """Whether this process leads. Created by :func:`candidate`; it leads at most once."""

    def __init__(self, elector: LeaderElector, tasks: TaskGroup) -> None:
        self.on_loss: Callable[[], Awaitable[None]] | None = None
        """Called when leadership was lost, before the process ends; cancelled after
        :data:`LAST_TURN_TIMEOUT_S`."""
        self.acquired = anyio.Event()
        """Set once this process leads."""
        self.elector = elector
        self._tasks = tasks
        self._keeping: anyio.CancelScope | None = None

    def leads(self) -> bool:
        """Whether decisions and requests may start now."""
        return self.elector.leads()

    def use_journal(self, journal_id: str, *, shared: bool) -> None:
        """Write the identity of this process's journal to the lease while it leads. Warns if the
        last leader had another journal although they should share one."""
        last_id = self.elector.election.lease_journal_id
        self.elector.journal_id = journal_id
        if shared and last_id not in ("", journal_id):
            log.error(
                "last leader used another journal",
                lease=str(self.elector.lease),
                journal=journal_id,
                last_journal=last_id,
            )

    def other_journal(self, journal_id: str) -> str:
        """What is wrong if another process leads with another journal than this one, which should
        be shared; empty if nothing is."""
        election = self.elector.election
        leader_id = election.lease_journal_id
        if election.holder in ("", election.identity) or leader_id in ("", journal_id):
            return ""
        return (
            f"the leader {election.holder} uses journal {leader_id}, this replica"
            f" {journal_id or 'an empty one'}: journal.url of all replicas must name one database"
        )

    def journal_timeout_s(self) -> float:
        """How long this process's own journal may fail before it gives up leadership, because the
        journals of other replicas may work. Unlimited for a standby."""
        return self.elector.timing.lease_duration_s if self.leads() else math.inf

    async def acquire(
        self, client: ApiClient, watch: ClusterWatch, fit: Callable[[], bool]
    ) -> None:
        """Wait until this process leads and its ``watch`` had time to catch up.

        It is no candidate while ``fit`` returns False, for example while its journal cannot be
        written. Afterwards the lease is renewed; if that fails, LeadershipLostError ends the block
        of :func:`candidate`.
        """
        await self.elector.acquire(fit)
        await self._tasks.start(self._keep)
        await _catch_up(client, watch)
        self.acquired.set()

    def anchor(self, instance: str, *, shared: bool) -> LeaseAnchor:
        """The anchor in the lease for the journal of the process ``instance``."""
        return LeaseAnchor(self.elector, annotation_for(instance, shared=shared))

    async def release(self) -> None:
        """Stop leading and free the lease. Nothing may be in flight any longer."""
        if self._keeping is not None:
            self.let_expire()
            await self.elector.release()

    def let_expire(self) -> None:
        """Stop renewing the lease, without freeing it."""
        if self._keeping is not None:
            self._keeping.cancel()
            self._keeping = None

    async def _keep(self, *, task_status: TaskStatus[None]) -> None:
        with anyio.CancelScope() as self._keeping:
            task_status.started()
            await self.elector.keep()
            await self._lost()

    async def _lost(self) -> None:
        holder, lease = self.elector.election.holder, str(self.elector.lease)
        log.error("leadership lost", lease=lease, holder=holder)
        if self.on_loss is not None:
            with anyio.move_on_after(LAST_TURN_TIMEOUT_S):
                await self.on_loss()
        if holder == self.elector.election.identity:
            why = "it could not be renewed in time"
        else:
            why = f"{holder} holds it" if holder else "it is free"
        raise LeadershipLostError(f"leadership lost: lease {lease}: {why}")


@asynccontextmanager
async def candidate(elector: LeaderElector) -> AsyncIterator[Leadership]:
    """Take part in the election during the block. Its regular end releases the lease."""
    async with anyio.create_task_group() as tasks:
        leadership = Leadership(elector, tasks)
        yield leadership
        await leadership.release()
        tasks.cancel_scope.cancel()


async def _catch_up(client: ApiClient, watch: ClusterWatch) -> None:
    """Make the watches deliver the previous leader's last changes.

    A consistent read makes the API server's watch cache catch up with its storage. Restarted
    watches then deliver the cache's content, even if the old ones hung or were interrupted. A
    change that arrives later costs a conflict, which is read back.
    """
    options = RequestOptions(retry=NO_RETRY, timeout_s=1.0)
    try:
        await client.request("GET", Resource.PODS.path, params={"limit": "1"}, options=options)
    except (ApiError, NoResponseError) as error:
        log.warning("consistent read failed", error=str(error))
    behind = await watch.restart(WATCH_RESTART_TIMEOUT_S)
    await client.clock.sleep(SETTLE_S)
    # A watch may have failed since.
    if await watch.wait_for_responses(0.0, WITHOUT_CONFLICT):
        await watch.wait_for_responses(LONG_WAIT_S, WITHOUT_CONFLICT)
        await client.clock.sleep(SETTLE_S)
        behind = await watch.wait_for_responses(0.0)
    if behind:
        names = ", ".join(resource.label for resource in behind)
        log.warning("leading with stale watches", resources=names)


async def _do_nothing() -> None:
    pass


def leader_metrics(elector: LeaderElector) -> Iterator[Metric]:
    """client-go's metrics of a leader election."""
    name = [elector.lease.name]
    yield gauge(
        "leader_election_master_status",
        "Gauge of if the reporting system is master of the relevant lease, 0 indicates backup,"
        " 1 indicates master. 'name' is the string used to identify the lease.",
        ["name"],
        [(name, elector.leads())],
    )
    yield counter(
        "leader_election_slowpath",
        "Total number of slow path exercised in renewing leader leases. 'name' is the string"
        " used to identify the lease.",
        ["name"],
        [(name, elector.slow_renewals)],
    )


class LeadershipController:
    """Connects the election with one engine."""

    def __init__(
        self, leadership: Leadership, engine: Engine, inbox: Inbox, epoch: int, *, shared: bool
    ) -> None:
        """``epoch``: of the process's claim on its journal. ``shared``: whether the next leader
        uses the same journal."""
        self._leadership = leadership
        self._engine = engine
        self._inbox = inbox
        self._epoch = epoch
        self._shared = shared
        self.after_acquire: Callable[[], Awaitable[None]] = _do_nothing
        """Called before the first decision of a leader; an error ends the process."""
        self.before_release: Callable[[], Awaitable[None]] = _do_nothing
        """Called after the last record, before another process may lead."""
        leadership.on_loss = self._lose

    async def acquire(self, client: ApiClient, watch: ClusterWatch) -> None:
        """For a standby with its own journal: acquire leadership once the caches are synced, then
        let the engine decide after it folded what its watches delivered until then. The process is
        no candidate while its journal cannot be written."""
        await self._engine.synced.wait()
        await self._leadership.acquire(client, watch, lambda: not self._engine.journal_error)
        await self.after_acquire()
        self._inbox.put_outcome(LeadershipGained(self._epoch))

    async def release(self) -> None:
        """Give up leadership after the engine stopped.

        The lease is freed if nothing is in flight. A binding that may still reach the API server is
        in flight for a leader with another journal: it would assign the capacity again. A leader
        with the same journal binds that pod to the same node.
        """
        if not self._engine.drained:
            self._let_expire("effects in flight")
            return
        # After a failed commit the next record's position is unknown: it may be stored or not.
        if self._engine.all_committed and self._engine.leading and self._leadership.leads():
            self._inbox.put_outcome(LeadershipLost(self._epoch))
            with anyio.move_on_after(LAST_TURN_TIMEOUT_S):
                await self._engine.turn()
        await self.before_release()
        if self._engine.effects.has_unresolved_bindings and not self._shared:
            self._let_expire("bindings with unknown outcome")
            return
        await self._leadership.release()

    async def abandon(self) -> None:
        """Give up leadership because the journal is unusable and the process ends. Cancels effects;
        the lease is freed if none is in flight."""
        self._engine.effects.depose()
        if self._engine.effects.in_flight:
            self._let_expire("effects in flight")
        else:
            await self._leadership.release()

    def _let_expire(self, reason: str) -> None:
        log.warning("lease left to expire", reason=reason)
        self._leadership.let_expire()

    async def _lose(self) -> None:
        self._engine.effects.depose()
        if self._engine.leading:
            self._inbox.put_outcome(LeadershipLost(self._epoch))
            await self._engine.resigned.wait()


def election_of(configuration: Configuration) -> LeaderElection | None:
    """The settings of the election; None if leader election is disabled."""
    election = configuration.settings.leader_election or configuration.scheduler.leader_election
    return election if election.leader_elect else None


@asynccontextmanager
async def taking_part(
    election: LeaderElection, client: ApiClient, metrics: Metrics, instance: str
) -> AsyncIterator[Leadership]:
    """Be a candidate during the block, with metrics. ``client`` should serve nothing else, so that
    renewals do not wait behind bindings. ``instance`` names the process."""
    elector = LeaderElector(
        client,
        LeaseName(election.resource_namespace, election.resource_name),
        # Random, as in client-go: a restarted container has the same host name and process number,
        # but does not hold the lease.
        f"{instance}_{uuid.uuid4()}",
        LeaseTiming(
            election.lease_duration.total_seconds(),
            election.renew_deadline.total_seconds(),
            election.retry_period.total_seconds(),
        ),
    )
    metrics.show(partial(leader_metrics, elector))
    async with candidate(elector) as leadership:
        yield leadership
