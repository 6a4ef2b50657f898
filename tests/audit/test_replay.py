"""Replay of unaltered and altered journals."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from random import Random

import msgspec
import pytest
from typer.testing import CliRunner

from asched.audit.replay import ReplayReport, replay
from asched.cli.main import app
from asched.config.registry import PluginRegistry
from asched.framework.runtime.profile import PluginOrigin, ProfileError
from asched.journal.memory import MemoryStore
from asched.journal.opening import open_journal
from asched.state.records import (
    DECISIONS,
    AnyRecord,
    Assigned,
    PermitAllowed,
    PermitRejected,
    ProfilesLoaded,
    Rejected,
)
from tests.audit.recording import BEGIN_NS, REGISTRY, Recording, node, pod, woken_pod
from tests.audit.test_explain import busy_history
from tests.cycle.plugins import Doorman
from tests.cycle.scheduling import Scheduling
from tests.daemon.world import world
from tests.state.objects import a_node, a_pod
from tests.state.profiles import ESSENTIAL


async def replayed(
    records: Sequence[AnyRecord],
    registry: PluginRegistry = REGISTRY,
    first: int = 1,
    last: int | None = None,
) -> ReplayReport:
    store = MemoryStore()
    await store.claim("test", claimed_at_ns=BEGIN_NS)
    await store.append(records, written_at_ns=BEGIN_NS)
    return await replay(store, registry, first_seq=first, last_seq=last)


def place_of(records: Sequence[AnyRecord], kind: type[AnyRecord]) -> int:
    """The index of the first record of that type."""
    return next(i for i, record in enumerate(records) if isinstance(record, kind))


async def test_all_decisions_are_identical() -> None:
    records = busy_history(Random(5)).records
    report = await replayed(records)
    assert (report.equal, report.divergence, report.plugins) == (True, None, ())
    assert report.decisions == sum(isinstance(record, DECISIONS) for record in records)
    assert (report.first_seq, report.last_seq, report.records) == (1, len(records), len(records))


async def test_replay_of_a_range() -> None:
    records = busy_history(Random(5)).records
    for first, last in ((1, 20), (20, None), (30, 40), (len(records), None)):
        report = await replayed(records, first=first, last=last)
        part = records[first - 1 : last]
        assert report.equal
        assert report.decisions == sum(isinstance(record, DECISIONS) for record in part)


async def test_altered_decision_is_reported_with_both_forms() -> None:
    recording = Recording()
    recording.see(node("a", "4"), node("b", "8"), pod("p"))
    [decision] = recording.decide()
    assert isinstance(decision, Assigned)
    recording.records[-1] = msgspec.structs.replace(decision, node="a")
    report = await replayed(recording.records)
    assert not report.equal
    assert report.divergence is not None
    assert report.divergence.seq == len(recording.records)
    assert '"node":"a"' in report.divergence.recorded
    assert '"node":"b"' in report.divergence.decided


@pytest.mark.parametrize("field", ["attempt", "feasible_nodes", "score", "ties"])
async def test_every_decision_field_is_compared(field: str) -> None:
    recording = Recording()
    recording.see(node("a"), node("b"), pod("p"))
    [decision] = recording.decide()
    changed = msgspec.structs.replace(decision, **{field: getattr(decision, field) + 1})
    recording.records[-1] = changed
    report = await replayed(recording.records)
    assert report.divergence is not None
    assert report.divergence.reason == "different decision"


async def test_impossible_decision_diverges() -> None:
    recording = woken_pod()
    at = place_of(recording.records, Rejected)
    report = await replayed([*recording.records[: at + 1], recording.records[at]])
    assert report.divergence is not None
    assert (report.divergence.seq, report.divergence.reason) == (
        at + 2,
        "unexpected decision",
    )


async def test_missing_decision_diverges() -> None:
    recording = woken_pod()
    at = place_of(recording.records, Rejected)
    report = await replayed([*recording.records[:at], *recording.records[at + 1 :]])
    assert report.divergence is not None
    assert report.divergence.seq > at


async def test_contradicting_observation_diverges() -> None:
    recording = woken_pod()
    recording.records.append(PermitAllowed("default/web", "uid-web", "Doorman"))
    report = await replayed(recording.records[:-1])
    assert report.equal
    later = [*recording.records[:2], recording.records[place_of(recording.records, Assigned)]]
    assert not (await replayed(later)).equal


def permit_registry() -> PluginRegistry:
    return PluginRegistry().including(*ESSENTIAL, Doorman)


async def test_decisions_of_one_call_are_compared_together() -> None:
    """One attempt allows another pod: two records of one call. A range that begins between them
    does not diverge; a missing record does."""
    s = Scheduling(Doorman)
    s.see(a_node("n"), a_pod("first", labels={"hold": "60"}), a_pod("second", labels={"hold": "9"}))
    s.decide()
    s.see(a_pod("opener", labels={"open": "first"}), a_pod("closer", labels={"shut": "second"}))
    s.decide()
    assert {PermitAllowed, PermitRejected} < {type(record) for record in s.records}
    report = await replayed(s.records, permit_registry())
    assert report.equal
    assert report.decisions == sum(isinstance(record, DECISIONS) for record in s.records)
    for first in range(1, len(s.records) + 1):
        assert (await replayed(s.records, permit_registry(), first=first)).equal


async def test_plugins_of_other_versions_are_named() -> None:
    recording = woken_pod()
    at = place_of(recording.records, ProfilesLoaded)
    loaded = recording.records[at]
    assert isinstance(loaded, ProfilesLoaded)
    [spec] = loaded.profiles
    assert spec.origins
    older = tuple(
        PluginOrigin(o.name, o.distribution, "0.0.1") if o.name == "NodeResourcesFit" else o
        for o in spec.origins
    )
    recording.records[at] = msgspec.structs.replace(
        loaded, profiles=(msgspec.structs.replace(spec, origins=older),)
    )
    for first in (1, at + 3):
        report = await replayed(recording.records, first=first)
        assert report.equal
        [differs] = report.plugins
        assert (differs.plugin, differs.recorded) == ("NodeResourcesFit", "asched 0.0.1")


async def test_missing_plugin_is_named() -> None:
    records = woken_pod().records
    with pytest.raises(ProfileError, match=r"record 2 cannot be replayed: unknown plugin"):
        await replayed(records, PluginRegistry().including())


async def test_journal_of_a_restarted_daemon(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=3) as w:
        for life in ("first", "second"):
            async with w.daemon():
                w.add_pods(12, life)
                await w.until(lambda: not w.unbound())
        async with open_journal(str(w.journal), read_only=True) as store:
            report = await replay(store, REGISTRY)
    assert report.equal
    assert report.decisions >= 24


# -- the command ----------------------------------------------------------------------------------


@pytest.fixture
async def journal(tmp_path: Path) -> Path:
    path = tmp_path / "journal.db"
    async with open_journal(str(path)) as store:
        await busy_history(Random(5)).store_in(store)
    return path


def run(*args: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["replay", *args], prog_name="asched")
    return result.exit_code, result.stdout, result.stderr


def test_the_command(journal: Path) -> None:
    code, out, err = run("--verify", "--journal", str(journal))
    assert (code, err) == (0, "")
    assert out.endswith("decisions repeated, all identical\n")
    code, out, _ = run(
        "--verify", "--journal", str(journal), "--from", "9", "--to", "12", "-o", "json"
    )
    assert code == 0
    found = json.loads(out)
    assert (found["firstSeq"], found["lastSeq"], found["equal"]) == (9, 12, True)


@pytest.fixture
async def altered(tmp_path: Path) -> tuple[Path, int]:
    """A journal with one altered decision, and the number of that record."""
    recording = woken_pod()
    at = place_of(recording.records, Rejected)
    rejected = recording.records[at]
    recording.records[at] = msgspec.structs.replace(rejected, message="because")
    path = tmp_path / "altered.db"
    async with open_journal(str(path)) as store:
        await recording.store_in(store)
    return path, at + 1


def test_replay_command_at_a_divergence(altered: tuple[Path, int]) -> None:
    path, seq = altered
    code, out, err = run("--verify", "--journal", str(path))
    assert (code, err) == (1, "")
    assert f"record {seq}: different decision" in out
    assert '"message":"because"' in out
    assert '"message":"0/2 nodes are available' in out


@pytest.mark.parametrize("seed", ["0", "4242"])
def test_replay_under_any_hash_seed(journal: Path, seed: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "asched", "replay", "--verify", "--journal", str(journal)],
        env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert "all identical" in done.stdout


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        ((), "replay does nothing without --verify"),
        (("--verify", "--from", "9", "--to", "8"), "--to 8 is before --from 9"),
        (("--verify", "--from", "100000"), "--from 100000 is beyond the end of the journal"),
    ],
)
def test_mistakes(journal: Path, args: Sequence[str], complaint: str) -> None:
    code, out, err = run(*args, "--journal", str(journal))
    assert (code, out) == (2, "")
    assert complaint in err
