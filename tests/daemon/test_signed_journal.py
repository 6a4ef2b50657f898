"""A signed journal: what a program that can write the database cannot do unnoticed."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from hashlib import sha256
from pathlib import Path

import anyio
import pytest
import structlog
from structlog.testing import capture_logs
from typer.testing import CliRunner

from asched.cli.main import app
from asched.cli.serve import warn_about_proofs
from asched.config.file import parse
from asched.config.registry import PluginRegistry
from asched.daemon.daemon import Daemon
from asched.journal import open_journal
from asched.journal.checkpoints import nearest
from asched.journal.errors import JournalError
from asched.proof.anchors import read_anchors
from asched.proof.keys import NO_KEYS, JournalKeys, SigningKey
from asched.state.checkpoint import checkpoint_of
from tests.daemon.processes import NO_HEALTH, commands, running
from tests.daemon.test_run_command import stopped
from tests.daemon.world import OWN, World, world
from tests.journal import forging

KEY, OTHER = SigningKey.generate(), SigningKey.generate()
KEYS = JournalKeys(KEY)
ALTERED = "it was altered"


class Recorded:
    """A signed journal of two runs of a daemon, its key and its anchor file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.journal = folder / "journal.db"
        self.anchors = folder / "heads"
        self.key = folder / "key.pem"

    @property
    def config(self) -> str:
        files = f"signingKey: '{self.key}', anchorFile: '{self.anchors}', anchorInterval: 1ms"
        return f"{OWN}journal: {{{files}}}\n"

    async def run(self, *arguments: str | Path) -> tuple[int, str]:
        """Exit code of ``asched journal``, and its output or error."""
        command = ["journal", *map(str, arguments)]
        # A command has an event loop of its own.
        result = await anyio.to_thread.run_sync(
            lambda: CliRunner().invoke(app, command, prog_name="asched")
        )
        structlog.reset_defaults()
        return result.exit_code, result.stdout if result.exit_code == 0 else result.stderr

    async def verify(self, *arguments: str | Path) -> tuple[int, str]:
        return await self.run("verify", "--journal", self.journal, *arguments)

    async def fault(self, *arguments: str | Path) -> str:
        """The one line of a verification that fails."""
        code, line = await self.verify(*arguments)
        assert (code, line.count("\n")) == (1, 1), line
        return line

    @asynccontextmanager
    async def daemon(self, w: World, keys: JournalKeys = KEYS) -> AsyncIterator[Daemon]:
        async with (
            open_journal(str(self.journal), keys=keys) as store,
            w.daemon_on(store, self.config if keys.signing else OWN) as daemon,
        ):
            yield daemon

    async def start(self, keys: JournalKeys = KEYS) -> list[str]:
        """Start and stop a daemon on the journal, in a cluster without pods; its log.

        Raises JournalError.
        """
        (self.folder / "cluster").mkdir(exist_ok=True)
        async with world(self.folder / "cluster", nodes=1) as w:
            with capture_logs() as logs:
                async with self.daemon(w, keys) as daemon:
                    await daemon.engine.synced.wait()
        return [f"{entry['event']} {entry.get('reason', '')}".strip() for entry in logs]

    async def refusal(self, keys: JournalKeys = KEYS) -> str:
        """Why a daemon does not start on the journal."""
        with pytest.raises(JournalError) as raised:
            await self.start(keys)
        return str(raised.value)


async def record(folder: Path) -> None:
    made = Recorded(folder)
    KEY.save(made.key)
    OTHER.save(folder / "other.pem")
    async with world(folder, nodes=2) as w:
        for prefix in ("first", "second"):
            async with made.daemon(w):
                w.add_pods(5, prefix)
                await w.until(lambda: not w.unbound())
            shutil.copy(made.journal, folder / f"{prefix}.db")


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("original")
    anyio.run(record, folder)
    return folder


@pytest.fixture
def recorded(original: Path, tmp_path: Path) -> Recorded:
    return Recorded(Path(shutil.copytree(original, tmp_path / "copy")))


# -- without a forger -----------------------------------------------------------------------------


async def test_signed_journal_verifies_and_continues(recorded: Recorded) -> None:
    public = f"{recorded.key}.pub"
    code, output = await recorded.verify("--trusted-key", public, "--anchors", recorded.anchors)
    assert code == 0, output
    signed, key, anchored = output.splitlines()[1:4]
    assert (signed.split(",")[0], key) == (signed, f"key {KEY.id} (trusted)")
    heads = read_anchors(recorded.anchors)
    last = heads[-1].head.seq
    assert anchored == f"matches {len(heads)} anchored heads, up to record {last}"
    assert (
        (await recorded.verify())[1]
        .splitlines()[2]
        .startswith(f"key {KEY.id} (compare it with yours")
    )
    log = await recorded.start()
    assert "journal matches its signature" in log
    assert "unsigned records found in the journal" not in log
    assert (await recorded.verify("--trusted-key", public, "--anchors", recorded.anchors))[0] == 0
    assert await recorded.fault("--trusted-key", recorded.folder / "other.pem.pub") == (
        f"asched: the journal is signed by key {KEY.id}, not by key {OTHER.id}\n"
    )


async def test_crash_leaves_a_tail_without_signature(recorded: Recorded) -> None:
    """The next process reports it and signs it."""
    before = forging.stored_head(recorded.journal)
    async with world(recorded.folder / "..", nodes=1) as w:
        with anyio.CancelScope() as crash:
            async with recorded.daemon(w) as daemon:
                await daemon.engine.synced.wait()
                crash.cancel()
    size, _ = forging.stored_head(recorded.journal)
    with closing(sqlite3.connect(recorded.journal)) as connection:
        (batches,) = connection.execute("SELECT max(batch) FROM journal_batch").fetchone()
    assert before[0] <= size < batches
    code, output = await recorded.verify()
    assert code == 0
    assert "later records are not signed yet" in output
    assert "unsigned records found in the journal" in await recorded.start()
    assert "not signed yet" not in (await recorded.verify())[1]


async def test_unsigned_journal_is_signed_once_by_command(tmp_path: Path) -> None:
    made = Recorded(tmp_path)
    public = KEY.save(made.key).with_name("key.pem.pub")
    await made.start(NO_KEYS)
    code, output = await made.verify()
    assert (code, output.splitlines()[1]) == (
        0,
        "not signed: whoever can write the database can change all of it",
    )
    assert await made.fault("--trusted-key", public) == "asched: the journal is not signed\n"
    assert "without a signature, and a key is configured" in await made.refusal()
    code, output = await made.run("sign", "--journal", made.journal, "--signing-key", made.key)
    assert code == 0, output
    assert "is missing" in await made.refusal()
    made.anchors.touch()
    await made.start()
    assert (await made.verify("--trusted-key", public))[0] == 0
    assert "give its file with --signing-key" in await made.refusal(NO_KEYS)
    code, line = await made.run("sign", "--journal", made.journal, "--signing-key", made.key)
    assert (code, line) == (1, f"asched: the journal is signed by key {KEY.id} already\n")


async def test_key_is_rotated(recorded: Recorded) -> None:
    new = recorded.folder / "other.pem"
    command = ("rotate-key", "--journal", recorded.journal, "--new-key", new)
    assert (await recorded.run(*command))[0] == 2
    code, output = await recorded.run(*command, "--signing-key", recorded.key)
    assert code == 0, output
    assert output.startswith(f"key {OTHER.id} replaces key {KEY.id} after record ")
    assert "change the key with `asched journal rotate-key`" in await recorded.refusal()
    await recorded.start(JournalKeys(OTHER))
    for trusted in (recorded.key, new):
        code, output = await recorded.verify(
            "--trusted-key", f"{trusted}.pub", "--anchors", recorded.anchors
        )
        assert code == 0, output
        assert f"key {OTHER.id} (trusted)" in output


# -- rename a pod throughout and compute the hashes again ---------------------------------------


@pytest.mark.parametrize("forge", ["keep", "own key", "no signature"])
async def test_renamed_pod_is_detected(recorded: Recorded, forge: str) -> None:
    forging.rename(recorded.journal, "first-0", "other-0")
    public = f"{recorded.key}.pub"
    if forge == "keep":
        message = "is not the one of statement 2: it was altered"
        assert message in await recorded.fault()
        assert message in await recorded.fault("--trusted-key", public)
        assert ALTERED in await recorded.refusal()
        return
    forging.delete_proofs(recorded.journal)
    assert await recorded.fault("--trusted-key", public) == "asched: the journal is not signed\n"
    assert f"is signed by key {KEY.id}, the journal is not" in await recorded.refusal()
    if forge == "own key":
        other = recorded.folder / "other.pem"
        code, _ = await recorded.run("sign", "--journal", recorded.journal, "--signing-key", other)
        assert code == 0
        found = f"the journal is signed by key {OTHER.id}, not by key {KEY.id}"
        assert found in await recorded.fault("--trusted-key", public)
        assert found in await recorded.refusal()
    recorded.anchors.unlink()
    assert ("without a signature" if forge == "no signature" else "not by key") in (
        await recorded.refusal()
    )


# -- change only a checkpoint ---------------------------------------------------------------------


async def forged_state(recorded: Recorded) -> bytes:
    """A checkpoint in which a pod is elsewhere."""
    async with open_journal(str(recorded.journal), read_only=True) as store:
        fold, _ = await nearest(store, PluginRegistry.discover().load)
    del fold.state.pods["default/first-0"]
    return checkpoint_of(fold.state)


async def test_forged_checkpoint_is_not_used(recorded: Recorded) -> None:
    blob = await forged_state(recorded)
    with forging.without_triggers(recorded.journal) as connection:
        connection.execute("UPDATE journal_checkpoint SET blob = ?", (blob,))
    assert "was altered: its SHA-256 differs from that in statement" in await recorded.fault()
    log = await recorded.start()
    skipped = [line for line in log if line.startswith("checkpoint skipped its SHA-256 differs")]
    assert len(skipped) == 2
    async with open_journal(str(recorded.journal), read_only=True) as store:
        fold, _ = await nearest(store, PluginRegistry.discover().load)
    pods = [s async for s in _subjects(recorded.journal)]
    assert "pod/default/first-0" in pods
    assert fold.state.engine.epoch == 3


async def _subjects(path: Path) -> AsyncIterator[str]:
    async with open_journal(str(path), read_only=True) as store:
        for subject in await store.subjects("pod"):
            yield subject


async def test_statement_about_forged_checkpoint_is_not_signed(recorded: Recorded) -> None:
    """A forger can add a statement, but not a signature."""
    blob = await forged_state(recorded)
    async with open_journal(str(recorded.journal), keys=JournalKeys(OTHER)) as store:
        seq = (await store.checkpoint_marks())[-1].seq
        with pytest.raises(JournalError, match="change the key with"):
            await store.save_checkpoint(seq, blob)
    with closing(sqlite3.connect(recorded.journal)) as connection:
        last = connection.execute(
            "SELECT number, body, signatures FROM journal_statement ORDER BY number DESC LIMIT 1"
        ).fetchone()
    with forging.without_triggers(recorded.journal) as connection:
        connection.execute("UPDATE journal_checkpoint SET blob = ?", (blob,))
        old = connection.execute("SELECT body FROM journal_statement WHERE number = ?", last[:1])
        body = old.fetchone()[0]
        digest = body[body.index('"sha256":"') + 10 :][:64]
        forged = body.replace(digest, sha256(blob).hexdigest())
        connection.execute(
            "UPDATE journal_statement SET body = ? WHERE number = ?", (forged, last[0])
        )
    assert f"signature of statement {last[0]} by key {KEY.id} is wrong" in await recorded.fault()
    assert f"signature of statement {last[0]} by key {KEY.id} is wrong" in await recorded.refusal()


async def test_unsigned_checkpoint_is_bound_to_the_journal_too(tmp_path: Path) -> None:
    """Without a key, a change of nothing but a checkpoint is still detected."""
    made = Recorded(tmp_path)
    await made.start(NO_KEYS)
    await made.start(NO_KEYS)
    with closing(sqlite3.connect(made.journal)) as connection:
        connection.execute("UPDATE journal_checkpoint SET blob = blob || x'00'")
        connection.commit()
    assert "its SHA-256 differs from that in statement" in await made.fault()
    log = await made.start(NO_KEYS)
    assert [line for line in log if line.startswith("checkpoint skipped")]


# -- invent a segment of the archive and delete the records within it ---------------------------


@pytest.mark.parametrize("keys", [KEYS, NO_KEYS])
async def test_invented_segment_is_detected(
    recorded: Recorded, keys: JournalKeys, tmp_path: Path
) -> None:
    if keys is NO_KEYS:
        recorded = Recorded(tmp_path / "unsigned")
        recorded.folder.mkdir()
        await recorded.start(NO_KEYS)
        await recorded.start(NO_KEYS)
    forging.invent_segment(recorded.journal, 2)
    message = "segment 1 of the archive (records 1 to"
    for arguments in ((), ("--skip-archive",), ("--archive", tmp_path)):
        line = await recorded.fault(*arguments)
        assert message in line
        assert "was inserted: no statement is about it" in line
    assert message in await recorded.refusal(keys)


# -- cut the tail ---------------------------------------------------------------------------------


async def test_cut_tail_is_detected_by_the_signed_head(recorded: Recorded) -> None:
    size, _ = forging.stored_head(recorded.journal)
    forging.cut(recorded.journal, size - 1, with_proofs=False)
    assert "were cut off" in await recorded.fault()
    assert "cut off" in await recorded.refusal()


async def test_cut_tail_with_all_proofs_is_detected_by_anchors(
    recorded: Recorded, original: Path
) -> None:
    """The forger puts back a whole earlier journal, with its signed head."""
    shutil.copy(original / "first.db", recorded.journal)
    code, output = await recorded.verify("--trusted-key", f"{recorded.key}.pub")
    assert code == 0, output  # it was the journal once
    assert "not anchored: an earlier copy of this journal" in output
    head = output.splitlines()[-1].removeprefix("head ")
    assert "not anchored" not in (await recorded.verify("--head", head))[1]
    line = await recorded.fault("--anchors", recorded.anchors)
    assert "cut off" in line or "altered or deleted" in line
    found = await recorded.refusal()
    assert "cut off" in found or "altered or deleted" in found


async def test_missing_anchor_is_refused(recorded: Recorded, original: Path) -> None:
    """Without it nothing shows that the journal was put back."""
    shutil.copy(original / "first.db", recorded.journal)
    recorded.anchors.unlink()
    assert await recorded.refusal() == (
        f"the journal is signed, and anchor file {recorded.anchors} is missing: restore the file;"
        " if the journal was never anchored there, create an empty one"
    )
    assert not recorded.anchors.exists()
    code, line = await recorded.verify("--anchors", recorded.anchors)
    assert (code, "cannot read heads: No such file" in line) == (2, True)
    recorded.anchors = recorded.folder / "not mounted" / "heads"
    assert await recorded.refusal() == (
        f"{recorded.anchors}: cannot read heads: its directory does not exist"
    )


async def test_empty_anchor_file_is_a_new_anchor(recorded: Recorded, original: Path) -> None:
    shutil.copy(original / "first.db", recorded.journal)
    recorded.anchors.write_text("")
    code, line = await recorded.verify("--anchors", recorded.anchors)
    assert (code, "contains no signed head" in line) == (2, True)
    log = await recorded.start()
    assert "anchor has no head to compare the journal with" in log
    assert recorded.anchors.read_text()
    assert "anchor has no head to compare the journal with" not in await recorded.start()


@pytest.mark.parametrize(
    ("config", "keys", "warned"),
    [
        (OWN, NO_KEYS, "is not signed"),
        (OWN, KEYS, "journal is not anchored"),
        (f"{OWN}leaderElection: {{leaseDuration: 15s}}\n", KEYS, ""),
        (f"{OWN}journal: {{signingKey: k, anchorFile: f}}\n", KEYS, ""),
    ],
)
def test_start_warns_without_proofs(config: str, keys: JournalKeys, warned: str) -> None:
    with capture_logs() as logs:
        warn_about_proofs(parse(config, "test", PluginRegistry.discover()), keys)
    assert bool(logs) == bool(warned)
    assert all(warned in entry["event"] for entry in logs)


async def test_deleted_signed_head_is_detected(recorded: Recorded) -> None:
    forging.delete_proofs(recorded.journal, ["journal_signed_head"])
    assert "its signed head was deleted" in await recorded.fault()
    assert "its signed head was deleted" in await recorded.refusal()


async def test_records_after_a_stop_are_detected(recorded: Recorded) -> None:
    """A forger adds records in the name of the last writer, which has stopped."""
    with closing(sqlite3.connect(recorded.journal)) as connection:
        batch, _, seq, epoch, at_ns, _, last = connection.execute(
            "SELECT * FROM journal_batch ORDER BY batch DESC LIMIT 1"
        ).fetchone()
        connection.execute(
            "INSERT INTO journal_batch VALUES (?, ?, ?, ?, ?, ?, '')",
            (batch + 1, seq + 1, seq + 1, epoch, at_ns, last),
        )
        connection.execute(
            "INSERT INTO journal_record VALUES (?, ?, 'Bound', 1, 'pod/a/b', '{}')",
            (seq + 1, batch + 1),
        )
        connection.commit()
    with forging.without_triggers(recorded.journal) as connection:
        forging.rehash(connection)
    message = f"records {seq + 1} to {seq + 1} were inserted: the writer had stopped"
    assert message in await recorded.fault()
    assert message in await recorded.refusal()


async def test_change_between_check_and_fold_is_detected(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = nearest

    async def forge_then_load(*arguments: object) -> object:
        forging.rename(recorded.journal, "second-0", "other-0")
        forging.delete_proofs(recorded.journal, ["journal_checkpoint"])
        return await load(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr("asched.daemon.startup.nearest", forge_then_load)
    with pytest.raises(JournalError, match="was changed by another program"):
        await recorded.start()


# -- as a process ---------------------------------------------------------------------------------


async def test_process_signs_its_journal_and_refuses_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the key as a credential of systemd."""
    made = Recorded(tmp_path)
    credentials = tmp_path / "credentials"
    credentials.mkdir()
    KEY.save(credentials / "signing-key")
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(credentials))
    config = tmp_path / "signed.yaml"
    config.write_text(
        f"{NO_HEALTH}journal: {{signingKey: $CREDENTIALS_DIRECTORY/signing-key,"
        f" anchorFile: '{made.anchors}'}}\n"
    )
    async with world(tmp_path, nodes=1) as w, commands(tmp_path) as runner:
        options = [
            "run", "--config", str(config), "--kubeconfig", str(w.kubeconfig),
            "--journal", str(made.journal),
        ]  # fmt: skip
        async with running(runner, *options) as command:
            w.add_pod("p")
            await w.until(lambda: bool(w.node_of("p")))
            assert await stopped(runner, command) == 0
        assert "is not signed" not in command.output
        code, output = await made.verify(
            "--trusted-key", credentials / "signing-key.pub", "--anchors", made.anchors
        )
        assert code == 0, output
        assert "not signed yet" not in output
        forging.rename(made.journal, "default/p", "default/q")
        async with running(runner, *options) as command:
            assert await runner.ended(command) == 2
        assert command.lines[-1].startswith("asched: batch ")
        assert command.lines[-1].endswith(": it was altered")
        assert "Traceback" not in command.output
