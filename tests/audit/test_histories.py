"""Recorded journals of all versions are read, verified and replayed with identical decisions.

They are recorded by :mod:`tests.audit.record_histories`.
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
"""Of the histories of one version, in bytes."""


def registry() -> PluginRegistry:
    return registry_with(Doorman)


@pytest.fixture(params=RECORDED, ids=lambda path: f"{path.parent.name}-{path.name[:-6]}")
def history(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The path of a decompressed recorded journal."""
    path = tmp_path / "history.db"
    path.write_bytes(gzip.decompress(request.param.read_bytes()))
    return str(path)


async def test_history_is_verified(history: str) -> None:
    async with open_journal(history) as journal:
        verified = await verify_journal(journal)
        head = await journal.head()
    assert (verified.head.seq, verified.head.hash) == (head.seq, head.hash)
    assert verified.records == head.seq > 0


async def test_history_replays_with_identical_decisions(history: str) -> None:
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


async def test_history_is_restored_to_any_store(history: str, database_url: str) -> None:
    async with open_journal(history) as old, open_journal(database_url) as new:
        assert isinstance(new, SqlStore)
        head = await new.restore(all_batches(old, None), await old.writers())
        assert head == await old.head()
        assert [s async for s in new.read()] == [s async for s in old.read()]


def test_every_version_has_all_histories() -> None:
    versions = [path for path in HISTORIES.iterdir() if path.is_dir()]
    assert OF_0_1_0 in versions
    for folder in versions:
        files = sorted(folder.iterdir())
        assert sum(path.stat().st_size for path in files) < SIZE_LIMIT
    assert {path.name for path in OF_0_1_0.iterdir()} == {f"{name}.db.gz" for name in RECORDINGS}


async def test_histories_contain_every_record_kind(tmp_path: Path) -> None:
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
        "EvictionDecided",
        "EvictionFailed",
        "EvictionSucceeded",
        "ExtenderCallFailed",
        "ExtenderCallRequested",
        "ExtenderFiltered",
        "ExtenderPreemptionProcessed",
        "ExtenderPrioritized",
        "LeadershipGained",
        "LeadershipLost",
        "ObjectDeleted",
        "ObjectObserved",
        "PermitAllowed",
        "PermitRejected",
        "PodGroupStatusDecided",
        "PodGroupStatusWriteFailed",
        "PodGroupStatusWritten",
        "PodObserved",
        "PodUpdated",
        "ProfilesLoaded",
        "Rejected",
        "SessionExecuted",
        "SessionsLoaded",
        "ShadowCompared",
        "ShadowExplained",
        "TurnStarted",
    }
)


async def test_current_code_records_a_history_that_replays(tmp_path: Path) -> None:
    async with open_journal(str(tmp_path / "journal.db")) as journal:
        await record_eventful(journal)
        report = await replay(journal, registry())
    assert (report.divergence, report.plugins) == (None, ())
    assert report.decisions > 100
    assert __version__ in {path.name for path in HISTORIES.iterdir()}, (
        f"asched {__version__} has no histories: python -m tests.audit.record_histories"
    )
