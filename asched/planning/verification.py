"""Replays a journal in parallel, with the result of a serial replay."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import Executor
from typing import Final

import msgspec

from asched.audit.replay import ReplayReport, ReplaySegment, first_replayable
from asched.journal.store import JournalStore
from asched.planning.errors import LostWorkersError, PlanningError
from asched.planning.execution import ProgressListener, execute
from asched.planning.history import History
from asched.planning.items import SegmentItem
from asched.planning.result_cache import ResultCache

MAX_SEGMENTS: Final = 96
"""Enough for 64 workers; of a longer journal, each segment is longer."""
OVERHEAD: Final = 0.04
"""The part of the CPU time that the division into segments may cost, by the estimate below. A fifth
less than the promised 5 %, because caches of the processor are not in the estimate."""
_SEGMENT_RECORDS: Final = 1_000
_BYTES_PER_RECORD: Final = 150
"""What a segment costs beyond its records, in records: opening the journal and filling caches as
much as 1,000, restoring its checkpoint as much as one for each 150 bytes. Measured in clusters of
200 and 2,500 nodes."""


def verify(
    history: History,
    executor: Executor | None = None,
    *,
    first_seq: int | None = None,
    last_seq: int | None = None,
    max_segments: int | None = None,
    cache: ResultCache | None = None,
    progress: ProgressListener = lambda _: None,
) -> ReplayReport:
    """Repeats every decision of a journal and compares it and all checkpoints with the stored ones.

    Segments that begin at checkpoints are replayed independently. The result is that of one replay
    of all records: the first divergence, and the counts until there. The period of ``history`` does
    not count; ``first_seq`` and ``last_seq`` limit the records. Without ``first_seq`` no checkpoint
    is trusted, unless the beginning of the journal is archived: then it is the first one. There are
    at most ``max_segments``, by default as many as cost at most 5 % of the CPU time.

    Raises PlanningError, LostWorkersError, JournalError.
    """
    items = plan(history, first_seq, last_seq, max_segments)
    # The longest first, so that workers end at about the same time.
    order = sorted(range(len(items)), key=lambda index: -_records(items[index]))
    done = execute([items[index] for index in order], executor, cache=cache, progress=progress)
    answers = dict(zip(order, done, strict=True))
    reports = []
    for index, item in enumerate(items):
        answer = answers[index]
        if answer.lost:
            records = f"records {item.segment.after_seq + 1:,} to {item.segment.last_seq:,}"
            raise LostWorkersError(f"{records}: {answer.error}")
        if answer.error:
            raise PlanningError(answer.error)
        reports.append(msgspec.json.decode(answer.result, type=ReplayReport))
    return merged(reports)


def plan(
    history: History,
    first_seq: int | None = None,
    last_seq: int | None = None,
    max_segments: int | None = None,
) -> list[SegmentItem]:
    """The work items of :func:`verify`. Raises JournalError."""
    return history.query(
        lambda journal: _items(journal, history, (first_seq, last_seq), max_segments)
    )


def _records(item: SegmentItem) -> int:
    return item.segment.last_seq - item.segment.after_seq


async def _items(
    journal: JournalStore,
    history: History,
    limits: tuple[int | None, int | None],
    max_segments: int | None,
) -> list[SegmentItem]:
    first_seq, last_seq = limits
    head = await journal.head()
    first = await first_replayable(journal) if first_seq is None else first_seq
    last = head.seq if last_seq is None else min(last_seq, head.seq)
    if max_segments is None:
        sizes = [mark.size for mark in await journal.checkpoint_marks() if mark.seq <= last]
        max_segments = useful_segments(last - first + 1, sizes[-1] if sizes else 0)
    digests = {found.seq: found.sha256 for found in await journal.checkpoint_digests()}
    url = history.worker_url
    return [
        SegmentItem(
            url=url,
            head=head,
            segment=segment,
            checkpoints=tuple(
                (seq, digests[seq])
                for seq in (segment.after_seq, *segment.checkpoints)
                if seq in digests
            ),
        )
        for segment in segments(first - 1, last, sorted(digests), max_segments)
    ]


def useful_segments(records: int, checkpoint_bytes: int) -> int:
    """How many segments cost at most :data:`OVERHEAD`, if restoring a state takes as long as for a
    checkpoint of that size. An even number, so that two workers have equally many.

    >>> [useful_segments(records, 20_000) for records in (1_000, 125_000, 10_000_000)]
    [1, 4, 96]
    """
    cost = _SEGMENT_RECORDS + checkpoint_bytes / _BYTES_PER_RECORD
    return max(1, min(MAX_SEGMENTS, 2 * int(records * OVERHEAD / cost / 2)))


def segments(
    after_seq: int, last_seq: int, checkpoints: Sequence[int], most: int
) -> list[ReplaySegment]:
    """Segments of the records after ``after_seq`` up to ``last_seq`` that begin at checkpoints.

    There are at most ``most``, of similar length as far as the checkpoints permit.

    >>> [segment.after_seq for segment in segments(0, 100, [10, 20, 45, 90], most=2)]
    [0, 45]
    """
    inner = [seq for seq in checkpoints if after_seq < seq < last_seq]
    if most <= len(inner):
        length = (last_seq - after_seq) / most
        ideal = [after_seq + length * number for number in range(1, most)]
        inner = sorted({min(inner, key=lambda seq: abs(seq - begin)) for begin in ideal})
    begins = [after_seq, *inner]
    ends = [*begins[1:], last_seq]
    return [
        ReplaySegment(
            after_seq=begin,
            last_seq=end,
            checkpoints=tuple(seq for seq in checkpoints if begin < seq <= end),
            continued=end < last_seq,
        )
        for begin, end in zip(begins, ends, strict=True)
    ]


def merged(reports: Iterable[ReplayReport]) -> ReplayReport:
    """The report of one replay from those of its segments, in order. Raises ValueError for none."""
    found: ReplayReport | None = None
    for report in reports:
        found = report if found is None else _following(found, report)
        if not found.equal:
            break
    if found is None:
        raise ValueError("no segment")
    return found


def _following(before: ReplayReport, report: ReplayReport) -> ReplayReport:
    plugins = {one.plugin: one for one in (*before.plugins, *report.plugins)}
    return ReplayReport(
        first_seq=before.first_seq,
        last_seq=report.last_seq,
        records=before.records + report.records,
        decisions=before.decisions + report.decisions,
        equal=report.equal,
        divergence=report.divergence,
        plugins=tuple(plugins.values()),
        checkpoints=before.checkpoints + report.checkpoints,
    )
