"""Every command that reads an altered journal names the record, in one line."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NamedTuple

import anyio
import pytest
import structlog
from typer.testing import CliRunner

from asched.cli.main import app
from asched.journal.errors import VERIFY_ADVICE
from asched.journal.opening import open_journal
from asched.state.records import Assigned, Bound, ObjectObserved
from tests.audit.recording import node, pod, woken_pod
from tests.daemon.processes import NO_HEALTH
from tests.daemon.test_run_command import KUBECONFIG
from tests.journal.test_verification import tamper


class Alteration(NamedTuple):
    record: type
    """The last one about pod ``next`` is changed."""
    assignment: str
    """SQL."""
    message: str


ALTERATIONS = {
    "unknown node": Alteration(
        Assigned,
        "payload = replace(payload, 'large', 'other')",
        "contradicts the records before it: pod default/next was assigned to other, which is",
    ),
    "unknown pod": Alteration(
        Assigned,
        "subject = 'pod/default/ghost'",
        "contradicts the records before it: ",
    ),
    "other uid": Alteration(
        Assigned,
        "payload = replace(payload, 'uid-next', 'uid-other')",
        "contradicts the records before it: ",
    ),
    "no JSON": Alteration(ObjectObserved, "payload = '{\"'", "cannot be decoded: "),
    "missing field": Alteration(
        Bound, "payload = replace(payload, '\"uid\"', '\"id\"')", "cannot be decoded: "
    ),
}
COMMANDS = {
    "run": ["run"],
    "explain": ["explain", "last"],
    "history": ["history", "last"],
    "unschedulable": ["history", "--unschedulable"],
    "checkpoint": ["checkpoint"],
}


class Altered(NamedTuple):
    folder: Path
    seq: int
    kind: str


@pytest.fixture(params=ALTERATIONS.values(), ids=list(ALTERATIONS), scope="module")
def original(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Altered, str]:
    """A journal with one altered record, and the files of a run."""
    folder = tmp_path_factory.mktemp("altered")
    change: Alteration = request.param
    recording = woken_pod()
    recording.see(node("spare", "8"), pod("next", "1"))
    recording.bind(recording.decide())
    seqs = [seq for seq, r in enumerate(recording.records, 1) if isinstance(r, change.record)]
    recording.turn(10.0)
    recording.see(pod("last", "1"))
    recording.bind(recording.decide())

    async def write() -> None:
        async with open_journal(str(folder / "journal.db")) as store:
            await recording.store_in(store)
        statement = f"UPDATE journal_record SET {change.assignment} WHERE seq = {seqs[-1]}"
        await tamper(str(folder / "journal.db"), statement)

    anyio.run(write)
    (folder / "kubeconfig.yaml").write_text(KUBECONFIG)
    (folder / "config.yaml").write_text(NO_HEALTH)
    return Altered(folder, seqs[-1], change.record.__name__), change.message


@pytest.fixture
def altered(original: tuple[Altered, str], tmp_path: Path) -> tuple[Altered, str]:
    """A copy of it."""
    journal, message = original
    shutil.copytree(journal.folder, tmp_path, dirs_exist_ok=True)
    return journal._replace(folder=tmp_path), message


def run(folder: Path, *arguments: str) -> tuple[int, str, list[str]]:
    options = ["--journal", str(folder / "journal.db")]
    if arguments[0] == "run":
        for name in ("kubeconfig", "config"):
            options += [f"--{name}", str(folder / f"{name}.yaml")]
    result = CliRunner().invoke(app, [*arguments, *options], prog_name="asched")
    structlog.reset_defaults()
    return result.exit_code, result.stdout, result.stderr.splitlines()


@pytest.mark.parametrize("command", COMMANDS.values(), ids=list(COMMANDS))
def test_command_names_record(altered: tuple[Altered, str], command: list[str]) -> None:
    (folder, seq, kind), message = altered
    code, out, lines = run(folder, *command)
    assert (code, out, len(lines)) == (2, "", 1)
    assert lines[0].endswith(VERIFY_ADVICE)
    if command in (["run"], ["checkpoint"]):
        # They check the hashes before they decode.
        assert seq in _named_batch(lines[0])
    else:
        assert lines[0].startswith(f"asched: record {seq} ({kind}")
        assert message in lines[0]


def _named_batch(line: str) -> range:
    first, last = line.partition("(records ")[2].partition(")")[0].split(" to ")
    return range(int(first), int(last) + 1)


def test_replay_names_record(altered: tuple[Altered, str]) -> None:
    """It may differ from the repeated decision before it contradicts the state."""
    (folder, seq, _), message = altered
    code, out, lines = run(folder, "replay", "--verify")
    if "decoded" in message:
        assert (code, len(lines)) == (2, 1)
        assert lines[0].startswith(f"asched: record {seq} (")
    else:
        assert (code, lines) == (1, [])
        assert out.startswith(f"record {seq}: ")


def test_advised_command_finds_record(altered: tuple[Altered, str]) -> None:
    (folder, seq, _), _ = altered
    code, _, lines = run(folder, "journal", "verify")
    assert (code, len(lines)) == (1, 1)
    assert seq in _named_batch(lines[0])


def test_missing_record_is_named(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"

    async def write() -> None:
        async with open_journal(str(path)) as store:
            await woken_pod().store_in(store)
        await tamper(str(path), "DELETE FROM journal_record WHERE seq = 5")

    anyio.run(write)
    code, out, lines = run(tmp_path, "checkpoint")
    assert (code, out) == (2, "")
    message = "record 5 is missing or out of place in batch 2 (records 3 to 7)"
    assert lines == [f"asched: {message}; {VERIFY_ADVICE}"]
