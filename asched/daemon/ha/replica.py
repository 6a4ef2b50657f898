"""One of several schedulers of a cluster: a standby, and the leader if it wins the election.

A replica with its own journal is a daemon from the start, which observes and records but does not
decide until it leads. A replica that shares its journal must not write before it leads: it follows
the leader's records, keeps its watches running, and creates the daemon once it has won.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial

import anyio
import msgspec
import structlog

from asched.config.file import Configuration
from asched.core.inputs import sync_problem
from asched.daemon.daemon import Daemon, running_daemon
from asched.daemon.ha.follower import (
    BufferedChanges,
    BufferedWatch,
    JournalFollower,
    StartState,
)
from asched.daemon.ha.leadership import Leadership
from asched.daemon.reload.reconfigurer import (
    check_buildable,
    check_valid,
    profiles_record,
    restart_settings,
)
from asched.daemon.reload.reloader import ConfigApplied, ReconfigurationError
from asched.daemon.signing.start import check_against, check_unchanged, file_anchors, take_over
from asched.daemon.startup import (
    DaemonContext,
    annotations_of,
    cluster_watch,
    watch_when_reachable,
    watched_resources,
)
from asched.daemon.telemetry.health import Check
from asched.journal.chain_reader import ChainReader
from asched.journal.checkpoints import nearest
from asched.journal.errors import JournalBusyError, JournalIOError, reason_of
from asched.journal.signatures import ProofTips
from asched.journal.statistics import journal_id
from asched.kube.errors import KubeConfigError
from asched.kube.extenders import open_extenders
from asched.kube.timing import Backoff, RetryPolicy
from asched.model.resources import WatchedResource

_COMPARE_S = 2.0
"""How often a standby compares its journal with the leader's."""
_TAKEOVER_RETRY = RetryPolicy(initial_s=0.1, max_s=2.0)

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class Replica:
    """A running replica. Created by :func:`running_replica`."""

    def __init__(self, leadership: Leadership) -> None:
        self.synced = anyio.Event()
        """Set once everything was listed."""
        self.daemon: Daemon | None = None
        """None while it follows the leader's journal."""
        self.standby: Standby | None = None
        """None if it has its own journal, or was not started yet."""
        self.journal_problem = "the journal was not read yet"
        """Of a standby that was not started yet."""
        self.leadership = leadership
        self._config_lock = anyio.Lock()

    def checks(self) -> list[Check]:
        """Conditions of readiness, as a standby or as the leader."""
        return [
            *(Check(name, partial(self._problem, name)) for name in _CHECKS),
            # Its name shows the role. A standby is ready, too.
            Check("leading" if self.leadership.leads() else "standby", lambda: ""),
        ]

    def _problem(self, name: str) -> str:
        if self.daemon is not None:
            found = {check.name: check.problem for check in self.daemon.checks()}
            return found[name]()
        if self.standby is None:
            return self.journal_problem if name == "journal" else ""
        return self.standby.problem(name)

    def is_stuck(self) -> bool:
        """As :meth:`Daemon.is_stuck`."""
        return self.daemon is not None and self.daemon.is_stuck()

    async def apply_config(self, new: Configuration) -> ConfigApplied:
        """As :meth:`Daemon.apply_config`; a standby uses the configuration once it leads."""
        async with self._config_lock:
            if self.daemon is not None:
                return await self.daemon.apply_config(new)
            if self.standby is None:
                raise ReconfigurationError("nothing was started yet")
            return await self.standby.apply_config(new)

    async def lead(self, daemon: Daemon, standby: Standby, started_with: Configuration) -> None:
        """Become ``daemon``. A configuration that the standby got since is applied again, before
        any later one."""
        self.daemon = daemon
        # Acquired at once, or right after an `apply_config` of the standby.
        async with self._config_lock:
            if standby.configuration == started_with:
                return
            try:
                await daemon.apply_config(standby.configuration)
            except ReconfigurationError as error:
                log.error("configuration rejected after takeover", error=str(error))


_CHECKS = ("caches", "journal", "engine-turn", "bindings", "scheduler-names")


class Standby:
    """A replica that shares its journal with the leader, until it leads."""

    def __init__(
        self, context: DaemonContext, leadership: Leadership, follower: JournalFollower
    ) -> None:
        self.configuration = context.configuration
        """The one to decide by."""
        self._context = context
        self._leadership = leadership
        self._follower = follower
        self._claim_error = ""
        """Why this process, which leads, cannot claim the journal yet."""
        self._journal_id = ""
        self._other_journal = ""
        """Whether the leader uses another journal: the text of a failed check."""
        self._changes = BufferedChanges()
        load = context.registry.load
        self._watch = cluster_watch(context.configuration, context.client, self._changes, load)

    @property
    def resources(self) -> frozenset[WatchedResource]:
        """All watched resources."""
        return frozenset(reflector.resource for reflector in self._watch.reflectors)

    def problem(self, check: str) -> str:
        """What is wrong with its caches or with the followed journal."""
        if check == "journal" and self._claim_error:
            return f"the journal cannot be claimed: {self._claim_error}"
        if check == "journal" and self._follower.error:
            return f"the journal cannot be read: {self._follower.reason}"
        if check == "journal" and self._other_journal:
            return self._other_journal
        return sync_problem(self._changes.unsynced(self.resources)) if check == "caches" else ""

    async def apply_config(self, new: Configuration) -> ConfigApplied:
        """Decide by another configuration once it leads.

        Raises ReconfigurationError if a leader would (:meth:`Reconfigurer.apply_config`), because
        that would end the process at the takeover, or if other resources must be watched.
        """
        load = self._context.registry.load
        needs_restart = restart_settings(self._context.configuration, new)
        check_valid(new)
        check_buildable(profiles_record(new), self._follower.fold.state, load)
        if not self._watches_all(new):
            raise ReconfigurationError("it needs other watches: restart this standby")
        try:
            async with open_extenders(new.scheduler.extenders):
                pass  # their certificates are valid
        except KubeConfigError as error:
            raise ReconfigurationError(str(error)) from None
        changed = new != self.configuration
        self.configuration = new
        return ConfigApplied(changed, needs_restart)

    def _watches_all(self, new: Configuration) -> bool:
        load, profiles = self._context.registry.load, new.profiles
        return (
            frozenset(watched_resources(profiles, new.sessions, load)) == self.resources
            and annotations_of(profiles, load) == self._watch.annotations
            and bool(new.sessions) == self._watch.finished_pods
        )

    async def watch(self) -> None:
        """Run the watches until cancelled, also after the takeover."""
        await watch_when_reachable(self._context.client, self._watch)

    async def until_leading(self, synced: anyio.Event) -> StartState:
        """Follow the journal, and claim it once this process leads. Sets ``synced`` when everything
        was listed. The process is no candidate before that, or while it cannot read the journal.

        Raises :class:`~asched.journal.errors.JournalError` if the journal is unusable.
        """
        context, follower = self._context, self._follower
        async with anyio.create_task_group() as following:
            following.start_soon(follower.run)
            following.start_soon(self._compare_journals)
            await self._changes.wait_for_sync(self.resources)
            synced.set()
            await self._leadership.acquire(context.client, self._watch, lambda: not follower.error)
            following.cancel_scope.cancel()
        # The claim comes last: only the records since the last poll remain to be folded after it.
        before = follower.seq
        epoch = await self._claim()
        tips = await self._check_journal()
        log.info("journal claimed", epoch=epoch, records=follower.seq - before)
        return StartState(
            fold=follower.fold,
            next_seq=follower.seq + 1,
            checkpoint_seq=follower.checkpoint_seq,
            epoch=epoch,
            position=follower.position,
            tips=tips,
            journal_id=self._journal_id,
            buffered=BufferedWatch(self._watch, self._changes),
        )

    async def _compare_journals(self) -> None:
        """Compare the followed journal with the leader's until cancelled. The lease names it."""
        journal, clock = self._context.journal, self._context.runtime.clock
        while True:
            if not self._journal_id:
                # None before the first claim. The follower reports a failure.
                with suppress(JournalBusyError, JournalIOError):
                    self._journal_id = await journal_id(journal)
            problem = self._leadership.other_journal(self._journal_id)
            if problem and problem != self._other_journal:
                log.error("the leader uses another journal", reason=problem)
            self._other_journal = problem
            await clock.sleep(_COMPARE_S)

    async def _check_journal(self) -> ProofTips | None:
        """Compare what was folded with the signatures and anchors of the journal.

        The tips of a signed journal.
        Raises :class:`~asched.journal.errors.JournalError`.
        """
        context = self._context
        runtime = context.runtime
        anchors = file_anchors(context.configuration.settings.journal)
        anchors.append(self._leadership.anchor(runtime.instance, shared=True))
        checked = await take_over(context.journal, anchors, runtime.clock)
        check_unchanged(checked, self._follower.position)
        return None if checked is None else checked.tips

    async def _claim(self) -> int:
        """Claim the journal and fold it to its end; the epoch. Retried while this process leads:
        the writing connection was idle since the start and may be broken."""
        context, clock = self._context, self._context.runtime.clock
        backoff = Backoff(_TAKEOVER_RETRY, context.client.random)
        while True:
            try:
                epoch = await context.journal.claim(
                    context.runtime.instance, claimed_at_ns=clock.time_ns()
                )
                await self._follower.check_not_set_back()
                await self._follower.catch_up()
                self._journal_id = await journal_id(context.journal)
            except (JournalBusyError, JournalIOError) as error:
                self._claim_error = reason_of(error)
                log.warning("claiming the journal failed", error=str(error))
                await clock.sleep(backoff.next_s())
            else:
                return epoch


@asynccontextmanager
async def running_replica(
    context: DaemonContext, leadership: Leadership, *, shared: bool
) -> AsyncIterator[Replica]:
    """Take part as one of several schedulers until the block ends. ``shared``: whether they share
    the journal.

    The end of the block completes effects in flight and releases leadership. Raises as
    :func:`~asched.daemon.daemon.running_daemon`.
    """
    replica = Replica(leadership)
    if not shared:
        async with running_daemon(context, leadership=leadership) as daemon:
            replica.daemon = daemon
            replica.synced = daemon.engine.synced
            yield replica
        return
    async with anyio.create_task_group() as tasks:
        lifecycle = ReplicaLifecycle(context, replica)
        tasks.start_soon(lifecycle.run)
        yield replica
        lifecycle.stop()


class ReplicaLifecycle:
    """Runs a replica that shares its journal: first as a standby, then as the leader."""

    def __init__(self, context: DaemonContext, replica: Replica) -> None:
        self._context = context
        self._replica = replica
        self._stop = anyio.Event()
        self._following = anyio.CancelScope()
        self._starting = anyio.CancelScope()

    def stop(self) -> None:
        """Stop a standby immediately, a leader once its effects in flight are completed."""
        self._stop.set()
        self._following.cancel()
        self._starting.cancel()

    async def run(self) -> None:
        try:
            await self._run()
        except Exception:
            # Nothing was sent yet, so another process may lead at once.
            if self._replica.daemon is None:
                await self._replica.leadership.release()
            raise

    async def _run(self) -> None:
        context, replica = self._context, self._replica
        start: StartState | None = None
        async with anyio.create_task_group() as tasks:
            with self._following:
                follower = await self._read_journal()
                standby = replica.standby = Standby(context, replica.leadership, follower)
                tasks.start_soon(standby.watch)
                start = await standby.until_leading(replica.synced)
            if start is not None:
                await self._lead(start, standby)
            tasks.cancel_scope.cancel()

    async def _read_journal(self) -> JournalFollower:
        """Check and fold the journal. Retried while the database is unavailable."""
        context, replica = self._context, self._replica
        backoff = Backoff(_TAKEOVER_RETRY, context.client.random)
        while True:
            try:
                await check_against(context.journal, [])
                fold, seq = await nearest(context.journal, context.registry.load)
                reader = await ChainReader.after_checkpoint(context.journal, seq)
                follower = JournalFollower(reader, fold, seq, context.client.clock)
                await follower.catch_up()
            except (JournalBusyError, JournalIOError) as error:
                reason = f"the journal cannot be read: {reason_of(error)}"
                if reason != replica.journal_problem:
                    log.warning("reading the journal failed, retrying", error=str(error))
                replica.journal_problem = reason
            else:
                replica.journal_problem = ""
                return follower
            await context.runtime.clock.sleep(backoff.next_s())

    async def _lead(self, start: StartState, standby: Standby) -> None:
        configuration = standby.configuration
        context = msgspec.structs.replace(self._context, configuration=configuration)
        leadership = self._replica.leadership
        async with running_daemon(context, leadership=leadership, start=start) as daemon:
            with self._starting:
                await self._replica.lead(daemon, standby, configuration)
            await self._stop.wait()
