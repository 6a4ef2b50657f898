"""Journals of all releases: today's code opens them, proves them, and decides the same once more.

How they were recorded: :mod:`tests.audit.record_histories`.
"""

from __future__ import annotations

import gzip
from collections import Counter
from pathlib import Path

import pytest

from asched import __version__
from asched.audit.replay import replay
from asched.config.registry import PluginRegistry
from asched.journal.archive import all_batches
from asched.journal.codec import KINDS
from asched.journal.opening import open_journal
from asched.journal.sql import SqlStore
from asched.journal.verification import verify_journal
from asched.state.records import DECISIONS, ShadowCompared
from tests.audit.eventful import record_eventful
from tests.audit.record_histories import HISTORIES, RECORDINGS
from tests.cycle.plugins import Doorman
from tests.daemon.world import registry_with

RECORDED = sorted(HISTORIES.glob("*/*.db.gz"))
OF_0_1_0 = HISTORIES / "0.1.0"
SIZE_LIMIT = 300_000
"""Bytes of one release's histories."""


def registry() -> PluginRegistry:
    return registry_with(Doorman)


@pytest.fixture(params=RECORDED, ids=lambda path: f"{path.parent.name}-{path.name[:-6]}")
def history(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A recorded journal, unpacked; once for each."""
    path = tmp_path / "history.db"
    path.write_bytes(gzip.decompress(request.param.read_bytes()))
    return str(path)


async def test_it_is_proven(history: str) -> None:
    async with open_journal(history) as journal:
        proven = await verify_journal(journal)
        head = await journal.head()
    assert (proven.head.seq, proven.head.hash) == (head.seq, head.hash)
    assert proven.records == head.seq > 0


async def test_every_decision_is_made_again(history: str) -> None:
    async with open_journal(history) as journal:
        decisions = [
            stored.record
            async for stored in journal.read()
            if isinstance(stored.record, (*DECISIONS, ShadowCompared))
        ]
        report = await replay(journal, registry())
    assert report.divergence is None
    assert len(decisions) > 30
    assert report.decisions == len(decisions)


async def test_it_is_read_in_any_store(history: str, database_url: str) -> None:
    """The rows as they were written, in a database of today, give the same records."""
    async with open_journal(history) as old, open_journal(database_url) as new:
        assert isinstance(new, SqlStore)
        head = await new.restore(all_batches(old, None), await old.writers())
        assert head == await old.head()
        assert [s async for s in new.read()] == [s async for s in old.read()]


def test_each_release_has_all_histories_and_they_are_small() -> None:
    releases = [path for path in HISTORIES.iterdir() if path.is_dir()]
    assert OF_0_1_0 in releases
    for folder in releases:
        files = sorted(folder.iterdir())
        assert sum(path.stat().st_size for path in files) < SIZE_LIMIT
    assert {path.name for path in OF_0_1_0.iterdir()} == {f"{name}.db.gz" for name in RECORDINGS}


async def test_together_they_hold_every_kind_of_record_of_their_time(tmp_path: Path) -> None:
    found: Counter[str] = Counter()
    for number, path in enumerate(sorted(OF_0_1_0.iterdir())):
        unpacked = tmp_path / f"{number}.db"
        unpacked.write_bytes(gzip.decompress(path.read_bytes()))
        async with open_journal(str(unpacked)) as journal:
            found.update([row.kind async for sealed in journal.batches() for row in sealed.rows])
    assert found.keys() == KINDS_OF_0_1_0
    assert found.keys() <= KINDS.keys()


KINDS_OF_0_1_0 = frozenset(
    {
        "Assigned",
        "AttemptFailed",
        "BindFailed",
        "Bound",
        "EngineStarted",
        "EvictionFailed",
        "ExtenderCallRequested",
        "ExtenderCallFailed",
        "ExtenderFiltered",
        "ExtenderPrioritized",
        "ExtenderPreemptionProcessed",
        "LeadershipGained",
        "LeadershipLost",
        "ObjectDeleted",
        "ObjectObserved",
        "PermitAllowed",
        "PermitRejected",
        "PodUpdated",
        "PodObserved",
        "ProfilesLoaded",
        "Rejected",
        "ShadowCompared",
        "ShadowExplained",
        "TurnStarted",
        "EvictionSucceeded",
    }
)


async def test_today_s_code_records_a_history_that_replays(tmp_path: Path) -> None:
    """What a release of today would be recorded with."""
    async with open_journal(str(tmp_path / "journal.db")) as journal:
        await record_eventful(journal)
        report = await replay(journal, registry())
    assert (report.divergence, report.plugins) == (None, ())
    assert report.decisions > 100
    assert __version__ in {path.name for path in HISTORIES.iterdir()}, (
        f"asched {__version__} has no histories: python -m tests.audit.record_histories"
    )
