"""Replay: every decision is made once more from the journal and compared with the recorded one.

A decision is a pure function of the records before it, so the same code gives the same decision, to
the byte. What may differ is the code: another version of asched or of a plugin. Which plugins those
are is said, whether or not anything came out differently.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

import msgspec

from asched.audit.lookup import fold_before
from asched.config.registry import PluginRegistry
from asched.core.scheduler import SchedulerCore
from asched.cycle.shadow import ShadowDecider
from asched.framework.runtime.profile import PluginOrigin, ProfileError
from asched.journal.store import JournalStore
from asched.state.fold import Fold, FoldError
from asched.state.records import (
    DECISIONS,
    AnyRecord,
    Assigned,
    Decision,
    PermitAllowed,
    PermitRejected,
    ProfilesLoaded,
    Rejected,
    ShadowCompared,
)
from asched.state.session_records import EvictionDecided, PodGroupStatusDecided

PROGRESS_EVERY: Final = 500
"""Records between two reports of progress."""


class Divergence(msgspec.Struct, frozen=True, rename="camel"):
    """The first record that the replay does not bear out."""

    seq: int
    reason: str
    recorded: str = ""
    """The record as it is stored; empty where the journal ends."""
    decided: str = ""
    """The decision that was made once more; empty for none."""


class PluginDifference(msgspec.Struct, frozen=True, rename="camel"):
    """A plugin whose code is not that which decided."""

    plugin: str
    recorded: str
    """Distribution and version."""
    installed: str


class ReplayReport(msgspec.Struct, frozen=True, rename="camel"):
    """What a replay found. This is the JSON form (see ``docs/replay.md``)."""

    first_seq: int
    last_seq: int
    """The last record that was looked at."""
    records: int
    decisions: int
    """How many were made once more."""
    equal: bool
    divergence: Divergence | None = None
    plugins: tuple[PluginDifference, ...] = ()


class ReplayVerifier:
    """Follows a journal record by record and decides along with it."""

    def __init__(self, fold: Fold, *, from_the_start: bool) -> None:
        """``fold`` has folded what came before; ``from_the_start`` says that this is nothing."""
        self.decisions = 0
        self._core = SchedulerCore(fold)
        self._answering = ShadowDecider(fold.state)
        self._expected: deque[Decision] = deque()
        # What plugins say of held pods during an attempt follows it as decisions of their own, and
        # so does what comes of a session. Where the replay begins among those, what they belong to
        # lies before it.
        self._may_belong_before = not from_the_start

    def follow(self, seq: int, record: AnyRecord) -> Divergence | None:
        """Judge a record, and fold it. Raises ProfileError for a plugin that is not there."""
        try:
            divergence = self._judged(seq, record)
            if divergence is None:
                self._core.replay(record)
        except FoldError as error:
            return Divergence(seq, f"it contradicts the state: {error}", _stored(record))
        return divergence

    def end(self, next_seq: int) -> Divergence | None:
        """The journal ended: no decision may be left that it does not hold."""
        if not self._expected:
            return None
        return Divergence(next_seq, "the journal ends", decided=_stored(self._expected[0]))

    def _judged(self, seq: int, record: AnyRecord) -> Divergence | None:
        if isinstance(record, ShadowCompared):
            return self._compared(seq, record)
        if not isinstance(record, DECISIONS):
            self._may_belong_before = False
            if self._expected:
                # All decisions of one call are recorded together.
                reason = "a decision is missing before it"
                return Divergence(seq, reason, _stored(record), _stored(self._expected[0]))
            return None
        if self._may_belong_before and _follows_another(record):
            return None
        self._may_belong_before = False
        if not self._expected:
            self._expected.extend(self._core.propose())
        if not self._expected:
            return Divergence(seq, "there is nothing to decide", _stored(record))
        decided = self._expected.popleft()
        self.decisions += 1
        if _encode(decided) != _encode(record):
            return Divergence(seq, "another decision", _stored(record), _stored(decided))
        return None

    def _compared(self, seq: int, recorded: ShadowCompared) -> Divergence | None:
        """A decision of shadow mode: what we would have decided, beside what another did."""
        entry = self._core.state.entry(recorded.key, recorded.uid)
        if entry is None:
            return Divergence(seq, "there is no such pod to decide for", _stored(recorded))
        self.decisions += 1
        decided = self._answering.compared(
            recorded.number, entry.info, recorded.node, recorded.message
        )
        if _encode(decided) != _encode(recorded):
            return Divergence(seq, "another decision", _stored(recorded), _stored(decided))
        return None


def _follows_another(record: AnyRecord) -> bool:
    """Whether the decision may have been made together with the one before it."""
    match record:
        case PermitAllowed() | PermitRejected() | EvictionDecided() | PodGroupStatusDecided():
            return True
        case Assigned() | Rejected():
            return record.session > 0
        case _:
            return False


_encode: Final = msgspec.json.Encoder().encode
"""The bytes that are compared: the whole record."""


def _stored(record: AnyRecord) -> str:
    return _encode(record).decode()


async def first_replayable(journal: JournalStore) -> int:
    """The first record that can be replayed. Raises :class:`~asched.journal.errors.JournalError`."""
    archived = await journal.archived()
    if not archived.seq:
        return 1
    marks = await journal.checkpoint_marks()
    return (marks[0].seq if marks else archived.seq) + 1


async def replay(
    journal: JournalStore,
    registry: PluginRegistry,
    *,
    first_seq: int | None = None,
    last_seq: int | None = None,
    progress: Callable[[int], None] = lambda seq: None,
) -> ReplayReport:
    """Decide everything from ``first_seq`` to ``last_seq`` (the head by default) once more.

    By default it begins with the first record of which the state before is known: the first of all,
    or, where the beginning was archived, the one after the first checkpoint.

    Ends at the first divergence. ``progress`` is told the number of a record now and then. Raises
    :class:`~asched.journal.errors.JournalError`, and ProfileError for a recorded plugin that is not
    installed or refuses its arguments. FoldError where what lies before ``first_seq`` contradicts
    itself.
    """
    if first_seq is None:
        first_seq = await first_replayable(journal)
    head = await journal.head()
    last = head.seq if last_seq is None else min(last_seq, head.seq)
    fold = await fold_before(journal, registry.load, first_seq)
    judge = ReplayVerifier(fold, from_the_start=first_seq <= 1)
    differences: dict[str, PluginDifference] = {}
    _compare(registry, differences, [p.spec.origins for p in fold.state.profiles.values()])
    divergence: Divergence | None = None
    seq = first_seq - 1
    async for stored in journal.read(seq, last):
        seq, record = stored.seq, stored.record
        try:
            if isinstance(record, ProfilesLoaded):
                _compare(registry, differences, [spec.origins for spec in record.profiles])
            divergence = judge.follow(seq, record)
        except ProfileError as error:
            raise ProfileError(f"record {seq} cannot be replayed: {error}") from None
        if divergence is not None:
            break
        if seq % PROGRESS_EVERY == 0:
            progress(seq)
    else:
        divergence = judge.end(seq + 1) if last == head.seq else None
    progress(seq)
    return ReplayReport(
        first_seq, seq, seq - first_seq + 1, judge.decisions, divergence is None, divergence,
        tuple(differences.values()),
    )  # fmt: skip


def _compare(
    registry: PluginRegistry,
    found: dict[str, PluginDifference],
    recorded: list[tuple[PluginOrigin, ...]],
) -> None:
    """Add the plugins that were recorded with another version than is installed."""
    for origin in (origin for origins in recorded for origin in origins):
        here = registry.origin(origin.name)
        if here != origin:
            found[origin.name] = PluginDifference(origin.name, _label(origin), _label(here))


def _label(origin: PluginOrigin) -> str:
    return f"{origin.distribution} {origin.version}".strip()
