"""For a standby that shares its journal with the leader: follow the journal, buffer changes."""

from __future__ import annotations

from typing import NamedTuple

import anyio
import structlog

from asched.core.inputs import Batch, Change, ChangeSink, Deleted, Listed
from asched.journal.chain_reader import ChainReader
from asched.journal.checkpoints import apply_stored
from asched.journal.errors import (
    JournalBusyError,
    JournalCorruptError,
    JournalIOError,
    JournalReplacedError,
    reason_of,
)
from asched.journal.signatures import ProofTips
from asched.kube.reflector import ClusterWatch
from asched.kube.timing import Clock
from asched.model.resources import AnyObject, WatchedResource
from asched.proof.statements import Position
from asched.state.fold import Fold

POLL_INTERVAL_S = 0.5
"""How often a standby reads the journal. A takeover has to fold the records since the last poll."""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class JournalFollower:
    """Folds the records that another process appends."""

    def __init__(self, reader: ChainReader, fold: Fold, checkpoint_seq: int, clock: Clock) -> None:
        """``fold`` holds the records up to ``checkpoint_seq``, 0 for none, and ``reader`` reads
        those after it."""
        self.fold = fold
        self.checkpoint_seq = checkpoint_seq
        self.seq = checkpoint_seq
        """The last folded record."""
        self.error = ""
        """Why the journal cannot be read now; empty if it can."""
        self.reason = ""
        """The error without paths and hosts."""
        self._reader = reader
        self._clock = clock

    @property
    def position(self) -> Position:
        """The end of what it read."""
        return self._reader.position

    async def catch_up(self) -> None:
        """Fold all records written so far. Raises :class:`~asched.journal.errors.JournalError`."""
        async for stored in self._reader.read():
            apply_stored(self.fold, stored)
            self.seq = stored.seq

    async def check_not_set_back(self) -> None:
        """Check that the journal still has the last batch that was read. A failover may lose it.

        Raises :class:`JournalReplacedError`, which a restart resolves.
        """
        try:
            await self._reader.check_start()
        except JournalCorruptError:
            raise JournalReplacedError(
                f"the journal does not continue what was read from it: record {self.seq} is lost or"
                " differs, as after a failover that lost commits; a restart reads it again"
            ) from None

    async def run(self) -> None:
        """Fold new records until cancelled. Retries while the database is unavailable."""
        while True:
            try:
                await self.catch_up()
            except (JournalBusyError, JournalIOError) as error:
                if not self.error:
                    log.warning("reading the journal failed", error=str(error))
                self.error, self.reason = str(error), reason_of(error)
            else:
                self.error = ""
            await self._clock.sleep(POLL_INTERVAL_S)


class BufferedChanges:
    """A :class:`~asched.core.inputs.ChangeSink` that keeps the newest version of each object.

    A standby's watches deliver here until there is an engine. Then the objects are handed over as
    lists, and later changes are passed on.
    """

    def __init__(self) -> None:
        self._objects: dict[WatchedResource, dict[str, AnyObject]] = {}
        """By resource and key; a resource appears with its first list."""
        self._unreadable: dict[WatchedResource, set[str]] = {}
        self._versions: dict[WatchedResource, str] = {}
        self._sink: ChangeSink | None = None
        self._listed = anyio.Event()

    def put_changes(self, batch: Batch) -> None:
        if self._sink is not None:
            self._sink.put_changes(batch)
            return
        for change in batch:
            self._keep(change)

    async def wait_for_capacity(self) -> None:
        """The buffer needs no back-pressure; the engine's inbox does."""
        if self._sink is not None:
            await self._sink.wait_for_capacity()

    async def wait_for_sync(self, resources: frozenset[WatchedResource]) -> None:
        """Wait until each of ``resources`` was listed."""
        while self.unsynced(resources):
            await self._listed.wait()
            self._listed = anyio.Event()

    def unsynced(self, resources: frozenset[WatchedResource]) -> frozenset[WatchedResource]:
        """Those of ``resources`` that were not listed yet."""
        return resources - self._objects.keys()

    def forward_to(self, sink: ChangeSink) -> None:
        """Put the buffered objects into ``sink`` as lists, and pass later changes on to it."""
        self._sink = sink
        lists = tuple(
            Listed(
                resource,
                tuple(objects.values()),
                frozenset(self._unreadable[resource]),
                api_version=self._versions[resource],
            )
            for resource, objects in self._objects.items()
        )
        self._objects.clear()
        sink.put_changes(lists)

    def _keep(self, change: Change) -> None:
        resource = change.resource
        if isinstance(change, Listed):
            before = self._objects.get(resource, {})
            objects = {item.key: item for item in change.objects}
            # An object that no longer decodes keeps its last readable version.
            for key in change.unreadable & before.keys():
                objects[key] = before[key]
            self._objects[resource] = objects
            self._unreadable[resource] = set(change.unreadable)
            self._versions[resource] = change.api_version
            self._listed.set()
            return
        key = change.object.key
        self._unreadable[resource].discard(key)
        if isinstance(change, Deleted):
            self._objects[resource].pop(key, None)
        else:
            self._objects[resource][key] = change.object


class BufferedWatch(NamedTuple):
    """A running watch, and the buffer that it delivers to."""

    watch: ClusterWatch
    changes: BufferedChanges


class StartState(NamedTuple):
    """What a daemon starts with."""

    fold: Fold
    """Of the whole journal, which was claimed."""
    next_seq: int
    checkpoint_seq: int
    """Position of the checkpoint that the fold started from; 0 for none."""
    epoch: int
    """Of the claim."""
    position: Position
    """The end of the journal."""
    tips: ProofTips | None
    """Of a signed journal."""
    journal_id: str = ""
    """Identity of the journal."""
    buffered: BufferedWatch | None = None
    """A standby's watch, which already runs."""
