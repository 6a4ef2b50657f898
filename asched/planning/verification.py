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

SEGMENTS: Final = 64
"""At most this many segments: enough for any number of workers, and few enough that restoring a
checkpoint for each costs little."""


def verify(
    history: History,
    executor: Executor | None = None,
    *,
    first_seq: int | None = None,
    last_seq: int | None = None,
    cache: ResultCache | None = None,
    progress: ProgressListener = lambda _: None,
) -> ReplayReport:
    """Repeats every decision of a journal and compares it and all checkpoints with the stored ones.

    Segments between checkpoints are replayed independently. The result is that of one replay of all
    records: the first divergence, and the counts until there. The period of ``history`` does not
    count; ``first_seq`` and ``last_seq`` limit the records. Without ``first_seq`` no checkpoint is
    trusted, unless the beginning of the journal is archived: then it is the first one.

    Raises PlanningError, LostWorkersError, JournalError.
    """
    items = plan(history, first_seq, last_seq)
    answers = execute(items, executor, cache=cache, progress=progress)
    reports = []
    for item, answer in zip(items, answers, strict=True):
        if answer.lost:
            records = f"records {item.segment.after_seq + 1:,} to {item.segment.last_seq:,}"
            raise LostWorkersError(f"{records}: {answer.error}")
        if answer.error:
            raise PlanningError(answer.error)
        reports.append(msgspec.json.decode(answer.result, type=ReplayReport))
    return merged(reports)


def plan(
    history: History, first_seq: int | None = None, last_seq: int | None = None
) -> list[SegmentItem]:
    """The work items of :func:`verify`. Raises JournalError."""
    return history.query(lambda journal: _items(journal, history, first_seq, last_seq))


async def _items(
    journal: JournalStore, history: History, first_seq: int | None, last_seq: int | None
) -> list[SegmentItem]:
    head = await journal.head()
    first = await first_replayable(journal) if first_seq is None else first_seq
    last = head.seq if last_seq is None else min(last_seq, head.seq)
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
        for segment in segments(first - 1, last, sorted(digests))
    ]


def segments(
    after_seq: int, last_seq: int, checkpoints: Sequence[int], most: int = SEGMENTS
) -> list[ReplaySegment]:
    """Segments of the records after ``after_seq`` up to ``last_seq`` that begin at checkpoints.

    There are at most ``most``, of similar length as far as the checkpoints permit.

    >>> [segment.after_seq for segment in segments(0, 100, [10, 20, 50, 90], most=2)]
    [0, 50]
    """
    inner = [seq for seq in checkpoints if after_seq < seq < last_seq]
    length = -(-(last_seq - after_seq) // most)
    begins = [after_seq]
    for seq in inner:
        if seq - begins[-1] >= length:
            begins.append(seq)
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
