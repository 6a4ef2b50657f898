"""Replay: repeats every decision from the journal and compares it with the recorded one.

A decision is a pure function of the records before it, so the same code gives the same decision, to
the byte. Only another version of asched or of a plugin can decide differently; the report names the
plugins with another version, whether or not a decision differs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

import msgspec

from asched.audit.lookup import fold_before
from asched.config.registry import PluginRegistry
from asched.consolidation.plan import plan_consolidation
from asched.core.scheduler import SchedulerCore
from asched.cycle.shadow import ShadowDecider
from asched.framework.runtime.profile import PluginOrigin, ProfileError
from asched.journal.checkpoints import FOLD_ERRORS, contradiction_reason
from asched.journal.errors import VERIFY_ADVICE, JournalError
from asched.journal.store import JournalStore, StoredRecord
from asched.state.checkpoint import checkpoint_of, same_content
from asched.state.cluster import ClusterState
from asched.state.consolidation_records import ConsolidationDecided
from asched.state.fold import Fold
from asched.state.group_records import PodGroupAttempted
from asched.state.records import (
    DECISIONS,
    AnyRecord,
    Assigned,
    AttemptFailed,
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
    """The first record that differs from the replay."""

    seq: int
    reason: str
    recorded: str = ""
    """The stored record; empty at the end of the journal."""
    decided: str = ""
    """The repeated decision; empty if there was none."""


class PluginDifference(msgspec.Struct, frozen=True, rename="camel"):
    """A plugin with another version than the recorded one."""

    plugin: str
    recorded: str
    """Distribution and version."""
    installed: str


class ReplayReport(msgspec.Struct, frozen=True, rename="camel"):
    """Result of a replay, in its JSON form (``docs/how-to/replay.md``)."""

    first_seq: int
    last_seq: int
    """The last record that was compared."""
    records: int
    decisions: int
    """Number of repeated decisions."""
    equal: bool
    divergence: Divergence | None = None
    plugins: tuple[PluginDifference, ...] = ()
    checkpoints: int = 0
    """Number of checkpoints that were compared with the state: those of the present format."""


class ReplaySegment(msgspec.Struct, frozen=True):
    """Records that are replayed from a state that is restored."""

    after_seq: int
    """The segment begins after this record."""
    last_seq: int
    checkpoints: tuple[int, ...] = ()
    """Records in the segment with checkpoints to compare, ascending."""
    continued: bool = False
    """Whether another segment follows. Decisions at the end of this segment may then belong to a
    group that ends in the next one: this segment repeats all of the group."""


class ReplayVerifier:
    """Repeats the decisions of a journal, record by record."""

    def __init__(self, fold: Fold, *, complete: bool) -> None:
        """``fold`` holds the state before the first record; ``complete``: that is the empty
        state."""
        self.decisions = 0
        self._load = fold.load
        self._core = SchedulerCore(fold)
        self._shadow = ShadowDecider(fold.state)
        self._expected: deque[Decision] = deque()
        # Some decisions belong to the one before them: answers of Permit plugins, and results of a
        # batch session. A replay that starts among them cannot repeat them.
        self._may_be_partial = not complete

    def verify(self, seq: int, record: AnyRecord) -> Divergence | None:
        """Compare a record and fold it. Raises ProfileError for a plugin that is not installed."""
        divergence = self._compare_decision(seq, record)
        if divergence is not None:
            return divergence
        try:
            self._core.replay(record)
        except ProfileError:
            raise
        except FOLD_ERRORS as error:
            reason = f"contradicts the state: {contradiction_reason(error)}; {VERIFY_ADVICE}"
            return Divergence(seq, reason, _stored(record))
        return None

    def is_between_decisions(self, following: AnyRecord) -> bool:
        """Whether a replay that starts with ``following`` compares it and all later decisions."""
        return not self._expected and not _follows_another(following)

    @property
    def state(self) -> ClusterState:
        """The state after the last record. Read-only."""
        return self._core.state

    def end(self, next_seq: int) -> Divergence | None:
        """The divergence at the end of the journal: a decision that is not recorded."""
        if not self._expected:
            return None
        return Divergence(next_seq, "end of journal", decided=_stored(self._expected[0]))

    def _compare_decision(self, seq: int, record: AnyRecord) -> Divergence | None:
        if isinstance(record, ShadowCompared):
            return self._compare_shadow(seq, record)
        if isinstance(record, ConsolidationDecided):
            return self._compare_plan(seq, record)
        if not isinstance(record, DECISIONS):
            self._may_be_partial = False
            if self._expected:
                # All decisions of one round are recorded together.
                reason = "missing decision"
                return Divergence(seq, reason, _stored(record), _stored(self._expected[0]))
            return None
        if self._may_be_partial and _follows_another(record):
            return None
        self._may_be_partial = False
        if not self._expected:
            self._expected.extend(self._core.propose())
        if not self._expected:
            return Divergence(seq, "unexpected decision", _stored(record))
        decided = self._expected.popleft()
        self.decisions += 1
        if _encode(decided) != _encode(record):
            return Divergence(seq, "different decision", _stored(record), _stored(decided))
        return None

    def _compare_shadow(self, seq: int, recorded: ShadowCompared) -> Divergence | None:
        """Compare a record of shadow mode."""
        entry = self._core.state.entry(recorded.key, recorded.uid)
        if entry is None:
            return Divergence(seq, "unknown pod", _stored(recorded))
        self.decisions += 1
        decided = self._shadow.compare(recorded.number, entry.info, recorded.node, recorded.message)
        if _encode(decided) != _encode(recorded):
            return Divergence(seq, "different decision", _stored(recorded), _stored(decided))
        return None

    def _compare_plan(self, seq: int, recorded: ConsolidationDecided) -> Divergence | None:
        """Compare a plan of ``asched consolidate``."""
        self.decisions += 1
        plan = plan_consolidation(self._core.state, self._load, recorded.settings)
        decided = ConsolidationDecided(recorded.settings, plan.freed)
        if _encode(decided) != _encode(recorded):
            return Divergence(seq, "different decision", _stored(recorded), _stored(decided))
        return None


def _follows_another(record: AnyRecord) -> bool:
    """Whether the decision may belong to the one before it."""
    if isinstance(record, Assigned | Rejected):
        return record.session > 0 or record.grouped
    if isinstance(record, AttemptFailed):
        return record.grouped
    if isinstance(record, PodGroupAttempted):
        return bool(record.root)
    return isinstance(
        record, PermitAllowed | PermitRejected | EvictionDecided | PodGroupStatusDecided
    )


_encode: Final = msgspec.json.Encoder().encode
"""Encodes whole records for comparison."""


def _stored(record: AnyRecord) -> str:
    return _encode(record).decode()


async def first_replayable(journal: JournalStore) -> int:
    """The first record that can be replayed. Raises
    :class:`~asched.journal.errors.JournalError`."""
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
    """Repeat every decision from ``first_seq`` to ``last_seq`` (by default the head).

    The default start is the first record with a known previous state: the first of the journal,
    or the one after the first checkpoint if earlier records were archived. Ends at the first
    divergence. ``progress`` receives record numbers. Raises
    :class:`~asched.journal.errors.JournalError`, and ProfileError for a recorded plugin that is
    not installed or rejects its arguments.
    """
    if first_seq is None:
        first_seq = await first_replayable(journal)
    head_seq = (await journal.head()).seq
    last = head_seq if last_seq is None else min(last_seq, head_seq)
    return await replay_segment(journal, registry, ReplaySegment(first_seq - 1, last), progress)


async def replay_segment(
    journal: JournalStore,
    registry: PluginRegistry,
    segment: ReplaySegment,
    progress: Callable[[int], None] = lambda seq: None,
) -> ReplayReport:
    """Repeat every decision of a segment, and compare the state with its checkpoints.

    Ends at the first divergence. Raises as :func:`replay`, and JournalError for a checkpoint that
    no longer exists.
    """
    fold = await fold_before(journal, registry.load, segment.after_seq + 1)
    replayed = _SegmentReplay(journal, registry, segment, fold)
    last = None if segment.continued else segment.last_seq
    async for stored in journal.read(segment.after_seq, last):
        if await replayed.is_over(stored):
            break
        if stored.seq % PROGRESS_EVERY == 0:
            progress(min(stored.seq, segment.last_seq))
    report = await replayed.report()
    progress(report.last_seq)
    return report


class _SegmentReplay:
    """The progress of one segment."""

    def __init__(
        self, journal: JournalStore, registry: PluginRegistry, segment: ReplaySegment, fold: Fold
    ) -> None:
        self._journal = journal
        self._registry = registry
        self._segment = segment
        self._checkpoints = deque(segment.checkpoints)
        self._verifier = ReplayVerifier(fold, complete=segment.after_seq == 0)
        self._seq = segment.after_seq
        self._decisions = self._compared = 0
        self._divergence: Divergence | None = None
        self._differences: dict[str, PluginDifference] = {}
        specs = [profile.spec for profile in fold.state.profiles.values()]
        _compare(registry, self._differences, [spec.origins for spec in specs])

    async def is_over(self, stored: StoredRecord) -> bool:
        """Compares the next record. True if it belongs to the next segment or differs."""
        seq, record = stored.seq, stored.record
        beyond = seq > self._segment.last_seq
        if beyond and self._verifier.is_between_decisions(record):
            return True
        try:
            if isinstance(record, ProfilesLoaded):
                origins = [spec.origins for spec in record.profiles]
                _compare(self._registry, self._differences, origins)
            self._divergence = self._verifier.verify(seq, record)
        except ProfileError as error:
            raise ProfileError(f"record {seq} cannot be replayed: {error}") from None
        if beyond and self._divergence is None:
            return False  # the next segment counts this record
        self._seq, self._decisions = seq, self._verifier.decisions
        if self._divergence is None and self._checkpoints and self._checkpoints[0] == seq:
            self._divergence = await self._compare_checkpoint(self._checkpoints.popleft())
        return self._divergence is not None

    async def _compare_checkpoint(self, seq: int) -> Divergence | None:
        stored = await self._journal.load_checkpoint(seq)
        if stored is None or stored.seq != seq:
            raise JournalError(
                f"the checkpoint at record {seq} was deleted during the replay; start it again"
            )
        same = same_content(stored.blob, checkpoint_of(self._verifier.state))
        if same is not None:
            self._compared += 1
        if same is False:
            return Divergence(seq, "checkpoint differs from the state of the records")
        return None

    async def report(self) -> ReplayReport:
        divergence = self._divergence
        head_seq = (await self._journal.head()).seq
        if divergence is None and self._seq == head_seq and not self._segment.continued:
            divergence = self._verifier.end(self._seq + 1)
        return ReplayReport(
            first_seq=self._segment.after_seq + 1,
            last_seq=self._seq,
            records=self._seq - self._segment.after_seq,
            decisions=self._decisions,
            equal=divergence is None,
            divergence=divergence,
            plugins=tuple(self._differences.values()),
            checkpoints=self._compared,
        )


def _compare(
    registry: PluginRegistry,
    found: dict[str, PluginDifference],
    recorded: list[tuple[PluginOrigin, ...]],
) -> None:
    """Add the plugins with an installed version that differs from the recorded one."""
    for origin in (origin for origins in recorded for origin in origins):
        here = registry.origin(origin.name)
        if here != origin:
            found[origin.name] = PluginDifference(origin.name, _label(origin), _label(here))


def _label(origin: PluginOrigin) -> str:
    return f"{origin.distribution} {origin.version}".strip()
