"""Logs of evictions and queues that are stored and continued."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from asched.audit.evictions import EvictionLog
from asched.audit.queue_log import CREDIT_PODS, PODS_PER_RECORD, QueueLog, QueueLogForm
from asched.audit.timeline import time_of
from asched.journal.opening import open_journal
from asched.state import records as r
from asched.state.cluster import ClusterState
from asched.state.fold import Fold
from asched.ui.logs import FollowedLogs, FollowedLogsForm
from tests.audit.recording import REGISTRY


@pytest.fixture
def journal(recorded_groups: Path) -> Path:
    return recorded_groups


async def records_of(journal: Path) -> list[r.AnyRecord]:
    async with open_journal(str(journal), read_only=True) as store:
        return [stored.record async for stored in store.read()]


def stored(form: FollowedLogsForm) -> FollowedLogsForm:
    """The form after it was written and read."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(form), type=FollowedLogsForm)


@pytest.mark.parametrize("every", [1, 7, 100])
async def test_stored_logs_are_continued(journal: Path, every: int) -> None:
    """Stored after every few records, they give the same answers as one that runs through."""
    records = await records_of(journal)
    fold = Fold(ClusterState(), REGISTRY.load)
    whole, parts = FollowedLogs(), FollowedLogs()
    for seq, one in enumerate(records, 1):
        fold.apply(one)
        whole.apply(seq, one, fold.state)
        parts.apply(seq, one, fold.state)
        if seq % every == 0:
            parts = FollowedLogs(stored(parts.form))
    last = len(records)
    assert parts.evictions.reports(last) == whole.evictions.reports(last)
    assert parts.queues.history(last) == whole.queues.history(last)
    assert whole.evictions.reports(last).total > 10
    assert len(whole.queues.history(last).sessions) > 5


async def test_reports_are_as_of_a_record(journal: Path) -> None:
    """A log that has read on gives the answer that it gave before."""
    records = await records_of(journal)
    fold, log = Fold(ClusterState(), REGISTRY.load), EvictionLog()
    then = []
    for seq, one in enumerate(records, 1):
        fold.apply(one)
        log.apply(seq, one, fold.state)
        then.append(log.reports(seq))
    for seq in range(1, len(records) + 1, 5):
        assert log.reports(seq) == then[seq - 1]


async def test_samples_do_not_cost_more_than_following(journal: Path) -> None:
    """Without credit, a session is sampled only after enough records."""
    records = await records_of(journal)
    fold, log = Fold(ClusterState(), REGISTRY.load), QueueLog(QueueLogForm(credit=0))
    visited = 0
    for seq, one in enumerate(records, 1):
        fold.apply(one)
        before = len(log.points)
        log.apply(seq, one, fold.state)
        visited += len(fold.state.pods) * (len(log.points) > before)
    assert 0 < visited <= PODS_PER_RECORD * len(records) + max(1, len(fold.state.pods))
    assert visited < CREDIT_PODS


async def test_periods_of_the_log(journal: Path) -> None:
    records = await records_of(journal)
    fold, log = Fold(ClusterState(), REGISTRY.load), QueueLog()
    for seq, one in enumerate(records, 1):
        fold.apply(one)
        log.apply(seq, one, fold.state)
    found = log.history(len(records))
    assert [point.at for point in found.points] == sorted(point.at for point in found.points)
    assert found.points[-1].at <= time_of(fold.state.date_ns)
    assert [one.number for one in found.sessions] == sorted(
        (one.number for one in found.sessions), reverse=True
    )
