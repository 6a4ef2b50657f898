"""One process's part in the election of a leader.

How an engine becomes the leader's, and how it ceases to be.

What a configuration says of the election of a leader.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager

import anyio
import structlog
from anyio.abc import TaskGroup
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from asched.config.file import Configuration
from asched.config.kube_scheduler import LeaderElection
from asched.daemon.engine.engine import Engine
from asched.daemon.engine.inbox import Inbox
from asched.daemon.ha.election import LeaseTiming
from asched.daemon.ha.lease import LeaderElector, LeaseName
from asched.daemon.telemetry.metrics import Metrics
from asched.kube.client import NO_RETRY, ApiClient
from asched.kube.errors import ApiError, NoResponseError
from asched.kube.reflector import ClusterWatch
from asched.model.resources import Resource
from asched.state.records import LeadershipGained, LeadershipLost

SETTLE_S = 0.25
"""So long a new leader leaves its watches to bring what the API server has, before it decides."""
WATCHES_WITHIN_S = 5.0
"""So long a new leader waits for watches that the API server does not answer."""
LAST_WORD_S = 1.0
"""So long a leader whose lease may end tries to write that down."""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class LeadershipLostError(Exception):
    """The process must end: somebody else leads, or may lead soon. The text is one line for the user."""


class Leadership:
    """Whether this process leads. Made by :func:`candidate`; it leads once at most."""

    def __init__(self, elector: LeaderElector, tasks: TaskGroup) -> None:
        self.on_loss: Callable[[], Awaitable[None]] = _nothing
        """Called when leadership was lost, before the process ends; cut short after a second."""
        self.won = anyio.Event()
        """Set when this process leads."""
        self._elector = elector
        self._tasks = tasks
        self._keeping: anyio.CancelScope | None = None

    @property
    def lease(self) -> str:
        """Namespace and name of the lease."""
        return str(self._elector.lease)

    def leads(self) -> bool:
        """Whether to decide, and to send what is decided, may begin now."""
        return self._elector.leads()

    def journal_patience_s(self) -> float:
        """For how long a journal of its own may fail this process before it had better leave the lead
        to others, whose journals may be well. Who stands by has no reason to end of that."""
        return self._elector.timing.lease_duration_s if self.leads() else math.inf

    def lease_left_s(self) -> float:
        """Seconds until somebody else may lead."""
        return self._elector.lease_left_s()

    async def win(self, client: ApiClient, watch: ClusterWatch, fit: Callable[[], bool]) -> None:
        """Wait until this process leads and its ``watch``, by ``client``, had time to catch up.

        It is no candidate while it is not ``fit`` to lead: one that cannot write its journal would win
        over others that could.

        From then on the lease is renewed. Where that fails LeadershipLostError ends the block of
        :func:`candidate`.
        """
        await self._elector.acquire(fit)
        await self._tasks.start(self._keep)
        await _catch_up(client, watch)
        self.won.set()

    async def release(self) -> None:
        """Stop leading and let the others know. To be called when nothing is under way any more."""
        if self._keeping is not None:
            self.forfeit()
            await self._elector.release()

    def forfeit(self) -> None:
        """Renew the lease no more, and leave it to run out."""
        if self._keeping is not None:
            self._keeping.cancel()
            self._keeping = None

    async def _keep(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        with anyio.CancelScope() as self._keeping:
            task_status.started()
            await self._elector.keep()
            await self._lost()

    async def _lost(self) -> None:
        holder = self._elector.election.holder
        log.error("leadership lost", lease=self.lease, holder=holder)
        with anyio.move_on_after(LAST_WORD_S):
            await self.on_loss()
        ours = holder == self._elector.election.identity
        why = "it could not be renewed in time" if ours else f"{holder or 'nobody'} holds it"
        raise LeadershipLostError(f"leadership lost: lease {self.lease}: {why}")


@asynccontextmanager
async def candidate(elector: LeaderElector) -> AsyncIterator[Leadership]:
    """Take part in the election during the block. What still leads at its regular end releases the
    lease."""
    async with anyio.create_task_group() as tasks:
        leadership = Leadership(elector, tasks)
        yield leadership
        await leadership.release()
        tasks.cancel_scope.cancel()


async def _catch_up(client: ApiClient, watch: ClusterWatch) -> None:
    """Have the watches bring what the leader before did last.

    A read that must be consistent makes the API server's own cache catch up with its storage. Watches
    that are begun anew then bring what that has, where the ones before hung or had broken off: after
    an outage the lease may be won before any of them has come back. What comes later still costs a
    conflict, which is read back.
    """
    try:
        await client.request(
            "GET", Resource.PODS.path, params={"limit": "1"}, retry=NO_RETRY, timeout_s=1.0
        )
    except (ApiError, NoResponseError) as error:
        log.warning("not read after leadership was won", error=str(error))
    behind = await watch.renew(WATCHES_WITHIN_S)
    if behind:
        names = ", ".join(resource.label for resource in behind)
        log.warning("leading with watches that may be behind", resources=names)
    await client.clock.sleep(SETTLE_S)


async def _nothing() -> None:
    """Nobody has anything to write down."""


class LeaderMetrics(Collector):
    """As client-go has them."""

    def __init__(self, elector: LeaderElector) -> None:
        self._elector = elector

    def collect(self) -> Iterator[Metric]:
        name = self._elector.lease.name
        status = GaugeMetricFamily(
            "leader_election_master_status",
            "Gauge of if the reporting system is master of the relevant lease, 0 indicates backup,"
            " 1 indicates master. 'name' is the string used to identify the lease.",
            labels=["name"],
        )
        status.add_metric([name], float(self._elector.leads()))
        yield status
        slow = CounterMetricFamily(
            "leader_election_slowpath",
            "Total number of slow path exercised in renewing leader leases. 'name' is the string"
            " used to identify the lease.",
            labels=["name"],
        )
        slow.add_metric([name], self._elector.slow_renewals)
        yield slow


class LeadershipController:
    """The engine of one process, and what makes it decide."""

    def __init__(
        self, leadership: Leadership, engine: Engine, inbox: Inbox, epoch: int, *, shared: bool
    ) -> None:
        """``epoch`` is that of the process's claim on its journal; ``shared``: whether the next leader
        has that journal."""
        self._leadership = leadership
        self._engine = engine
        self._inbox = inbox
        self._epoch = epoch
        self._shared = shared
        leadership.on_loss = self._lose

    async def take(self, client: ApiClient, watch: ClusterWatch) -> None:
        """For a standby with a journal of its own: let it decide once its caches are full and the
        lease is won, and it has folded what its watches brought until then. It is no candidate while
        its journal cannot be written."""
        await self._engine.synced.wait()
        await self._leadership.win(client, watch, lambda: not self._engine.journal_trouble)
        self._inbox.put_outcome(LeadershipGained(self._epoch))

    async def leave(self) -> None:
        """After the engine has stopped. Where nothing is under way any more the others are told, so
        that the next one need not wait until the lease runs out.

        A binding that may still arrive is under way, too, for a leader that does not know of it: it would
        give the room away. One that shares the journal binds that pod to the same node."""
        if not self._engine.drained:
            log.warning("leadership is left to run out: effects are under way")
            self._leadership.forfeit()
            return
        # Where the last commit failed, it may have been stored: nothing else can take its place.
        if self._engine.all_committed and self._engine.leading and self._leadership.leads():
            self._inbox.put_outcome(LeadershipLost(self._epoch))
            with anyio.move_on_after(LAST_WORD_S):
                await self._engine.turn()
        if self._engine.left_in_doubt and not self._shared:
            log.warning("leadership is left to run out: bindings are in doubt")
            self._leadership.forfeit()
            return
        await self._leadership.release()

    async def give_up(self) -> None:
        """The journal cannot be gone on with, and the process ends of that: what is under way is
        cancelled. Where nothing is, the others are told at once."""
        self._engine.depose()
        if self._engine.sending:
            log.warning("leadership is left to run out: effects are under way")
            self._leadership.forfeit()
        else:
            await self._leadership.release()

    async def _lose(self) -> None:
        self._engine.depose()
        if self._engine.leading:
            self._inbox.put_outcome(LeadershipLost(self._epoch))
            await self._engine.resigned.wait()


def election_of(configuration: Configuration) -> LeaderElection | None:
    """The election to take part in; None where one is not asked for."""
    election = configuration.settings.leader_election or configuration.scheduler.leader_election
    return election if election.leader_elect else None


@asynccontextmanager
async def taking_part(
    election: LeaderElection, client: ApiClient, metrics: Metrics, instance: str
) -> AsyncIterator[Leadership]:
    """Be a candidate during the block, as :func:`~asched.daemon.ha.leadership.candidate`. ``client`` should
    be of no other use: a renewal must not wait its turn behind bindings. ``instance`` names the process."""
    elector = LeaderElector(
        client,
        LeaseName(election.resource_namespace, election.resource_name),
        # No name of its own is enough, so that client-go adds a random one, too: a container that was restarted has the host name and the process number
        # of the one before, but is not the one that holds the lease.
        f"{instance}_{uuid.uuid4()}",
        LeaseTiming(
            election.lease_duration.total_seconds(),
            election.renew_deadline.total_seconds(),
            election.retry_period.total_seconds(),
        ),
    )
    metrics.show(LeaderMetrics(elector))
    async with candidate(elector) as leadership:
        yield leadership
