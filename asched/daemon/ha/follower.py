"""What a standby does that shares its journal with the leader: it reads along, and keeps watching."""

from __future__ import annotations

from typing import NamedTuple

import anyio
import structlog

from asched.framework.runtime.profile import PluginLoader
from asched.journal.checkpoints import nearest
from asched.journal.errors import JournalBusyError, JournalIOError
from asched.journal.store import JournalStore
from asched.kube.changes import Batch, Change, ChangeSink, Deleted, Listed
from asched.kube.reflector import ClusterWatch
from asched.kube.timing import Clock
from asched.model.resources import AnyObject, WatchedResource
from asched.state.fold import Fold

FOLLOW_EVERY_S = 0.5
"""How often a standby looks for what the leader has written. What it has yet to fold at a takeover is
what came since."""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class JournalFollower:
    """Folds a journal that somebody else writes, close behind."""

    def __init__(self, journal: JournalStore, fold: Fold, kept_seq: int, clock: Clock) -> None:
        """``fold`` is that of the records up to ``kept_seq``."""
        self.fold = fold
        self.kept_seq = kept_seq
        """Where the checkpoint was from which this began; 0 for none."""
        self.seq = kept_seq
        """The last record that is folded."""
        self.trouble = ""
        """Why the journal cannot be read now; empty while it can."""
        self._journal = journal
        self._clock = clock

    @classmethod
    async def open(cls, journal: JournalStore, load: PluginLoader, clock: Clock) -> JournalFollower:
        """Begin with the newest checkpoint. Raises :class:`~asched.journal.errors.JournalError`."""
        fold, seq = await nearest(journal, load)
        return cls(journal, fold, seq, clock)

    async def catch_up(self) -> None:
        """Fold what is written by now. Raises :class:`~asched.journal.errors.JournalError`."""
        async for stored in self._journal.read(self.seq):
            self.fold.apply(stored.record)
            self.seq = stored.seq

    async def run(self) -> None:
        """Fold what is written, until cancelled. A database that is away for a while is waited for."""
        while True:
            try:
                await self.catch_up()
            except (JournalBusyError, JournalIOError) as error:
                if not self.trouble:
                    log.warning("the journal cannot be followed", error=str(error))
                self.trouble = str(error)
            else:
                self.trouble = ""
            await self._clock.sleep(FOLLOW_EVERY_S)


class Start(NamedTuple):
    """What a daemon begins with."""

    fold: Fold
    """Of the whole journal, which was claimed."""
    next_seq: int
    kept_seq: int
    """Where the checkpoint was from which the fold began; 0 for none."""
    epoch: int
    """Of the claim."""
    held: BufferedWatch | None = None
    """A watch that runs already."""


class BufferedWatch(NamedTuple):
    """A watch, and where it delivers until there is an engine."""

    watch: ClusterWatch
    room: BufferedChanges


class _Known(NamedTuple):
    """All that exists of a resource."""

    objects: dict[str, AnyObject]
    unreadable: set[str]


class BufferedChanges:
    """Where watches deliver while there is no engine: it keeps the newest of each object.

    To a new leader it hands over lists, as a start would have got them, and passes on what comes
    after.
    """

    def __init__(self) -> None:
        self._known: dict[WatchedResource, _Known] = {}
        self._sink: ChangeSink | None = None
        self._listed = anyio.Event()

    def put_changes(self, batch: Batch) -> None:
        """As the :class:`~asched.kube.changes.ChangeSink` of the reflectors."""
        if self._sink is not None:
            self._sink.put_changes(batch)
            return
        for change in batch:
            self._keep(change)

    async def until_room(self) -> None:
        """It always has room, as it keeps no history; not so whom it was handed over to."""
        if self._sink is not None:
            await self._sink.until_room()

    async def until_listed(self, resources: frozenset[WatchedResource]) -> None:
        """Wait until each of them was listed."""
        while not resources <= self._known.keys():
            await self._listed.wait()
            self._listed = anyio.Event()

    def missing(self, resources: frozenset[WatchedResource]) -> frozenset[WatchedResource]:
        """Those that were not listed yet."""
        return resources - self._known.keys()

    def hand_over(self, sink: ChangeSink) -> None:
        """From now on everything goes to ``sink``, and first what is known."""
        self._sink = sink
        lists = tuple(
            Listed(resource, tuple(known.objects.values()), frozenset(known.unreadable))
            for resource, known in self._known.items()
        )
        self._known.clear()
        sink.put_changes(lists)

    def _keep(self, change: Change) -> None:
        if isinstance(change, Listed):
            before = self._known.get(change.resource)
            objects = {item.key: item for item in change.objects}
            if before is not None:
                # What does not decode any more is kept as it was.
                kept = change.unreadable & before.objects.keys()
                objects.update((key, before.objects[key]) for key in kept)
            self._known[change.resource] = _Known(objects, set(change.unreadable))
            self._listed.set()
            return
        known = self._known[change.resource]
        known.unreadable.discard(change.object.key)
        if isinstance(change, Deleted):
            known.objects.pop(change.object.key, None)
        else:
            known.objects[change.object.key] = change.object
