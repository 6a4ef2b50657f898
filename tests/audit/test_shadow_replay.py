"""Replay of shadow journals."""

from __future__ import annotations

from pathlib import Path

import anyio
import msgspec
import pytest
from typer.testing import CliRunner

from asched.audit.replay import ReplayReport, replay
from asched.cli.main import app
from asched.journal.memory import MemoryJournal, MemoryStore
from asched.journal.opening import open_journal
from asched.journal.store import JournalStore
from asched.journal.verification import verify_journal
from asched.state.records import AnyRecord, ObjectDeleted, ShadowCompared
from tests.audit.record_histories import (
    append_turns,
    record_shadow,
    shadow_records,
    written_tape,
)
from tests.audit.recording import BEGIN_NS, REGISTRY
from tests.daemon.world import world
from tests.run_size import run_share
from tests.shadow.tapes import play, recorded_churn
from tests.shadow.test_live import shadow_of


async def replayed(path: Path) -> ReplayReport:
    async with open_journal(str(path), read_only=True) as journal:
        return await verified(journal)


async def verified(journal: JournalStore) -> ReplayReport:
    await verify_journal(journal)
    return await replay(journal, REGISTRY)


async def test_shadow_journal_of_a_small_recording(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    await record_shadow(written_tape(tmp_path), path)
    report = await replayed(path)
    assert (report.divergence, report.decisions) == (None, 37)


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> list[AnyRecord]:
    return play(written_tape(tmp_path_factory.mktemp("tape")))[0]


@pytest.fixture
def records(played: list[AnyRecord]) -> list[AnyRecord]:
    return [*played]


async def replay_of(records: list[AnyRecord], path: Path) -> ReplayReport:
    async with open_journal(str(path)) as journal:
        await journal.claim("test", claimed_at_ns=BEGIN_NS)
        await journal.append(records, written_at_ns=BEGIN_NS)
        return await replay(journal, REGISTRY)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("best", ("n4",)),
        ("score", 1),
        ("feasible_nodes", 4),
        ("agreed", True),
        ("own_message", "because"),
        ("node", "n3"),  # then both agree
    ],
)
async def test_every_comparison_field_is_compared(
    records: list[AnyRecord], tmp_path: Path, field: str, value: object
) -> None:
    at, compared = next(
        (index, record)
        for index, record in enumerate(records)
        if isinstance(record, ShadowCompared) and record.node and not record.agreed
    )
    records[at] = msgspec.structs.replace(compared, **{field: value})
    report = await replay_of(records, tmp_path / "altered.db")
    assert report.divergence is not None
    assert (report.divergence.seq, report.divergence.reason) == (at + 1, "different decision")
    assert report.divergence.recorded != report.divergence.decided != ""


async def test_comparison_of_unknown_pod_diverges(records: list[AnyRecord], tmp_path: Path) -> None:
    at = next(i for i, record in enumerate(records) if isinstance(record, ShadowCompared))
    compared = records[at]
    assert isinstance(compared, ShadowCompared)
    records.insert(at, ObjectDeleted("Pod", compared.key, compared.uid))
    report = await replay_of(records, tmp_path / "altered.db")
    assert report.divergence is not None
    assert report.divergence.seq == at + 2
    assert report.divergence.reason == "unknown pod"


async def test_live_shadow_replays(tmp_path: Path) -> None:
    """With another scheduler over HTTP and a restart."""
    async with world(tmp_path, nodes=4, cpu="3") as w, w.daemon():
        for start in range(2):
            async with shadow_of(w) as watcher:
                for number in range(8):
                    w.add_pod(f"p-{start}-{number}", "300m")
                w.add_pod(f"huge-{start}", "50")
                for name in (f"p-{start}-7", f"huge-{start}"):
                    await watcher.findings_about(name)
    report = await replayed(tmp_path / "shadow.db")
    assert report.divergence is None
    assert report.decisions >= 4


@pytest.mark.shared
async def test_recorded_churn_of_24_nodes_replays(shared_dir: Path, tmp_path: Path) -> None:
    """A shadow of the real kube-scheduler, from a recording. In memory: it has thousands of
    turns."""
    journal = MemoryStore(MemoryJournal())
    await append_turns(shadow_records(recorded_churn(shared_dir, tmp_path)), journal)
    report = await verified(journal)
    assert report.divergence is None
    assert report.decisions > run_share(2000)


def test_the_command(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    anyio.run(record_shadow, written_tape(tmp_path), path)
    result = CliRunner().invoke(app, ["replay", "--verify", "--journal", str(path)])
    assert result.exit_code == 0, result.stderr
    assert "37 decisions repeated, all identical" in result.stdout
