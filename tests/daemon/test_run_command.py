"""``asched run`` as users and service managers meet it: exit codes, single lines, signals."""

from __future__ import annotations

import json
import signal
import socket
import sqlite3
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import anyio
import pytest
import structlog
from typer.testing import CliRunner

from asched.cli.main import app
from asched.journal import open_journal
from tests.daemon.processes import NO_HEALTH, Command, Commands, commands, running
from tests.daemon.world import KUBE, OWN, PATIENCE_S, World, world

PROMPTLY_S = 60.0
"""Stopping is bounded: by the drain of bindings under way and the flush of Events, 23 s together. That
this much more passes on a busy machine is no failure; that it never ends would be."""
KUBECONFIG = """
apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "http://127.0.0.1:9"}}]
users: [{name: u, user: {}}]
contexts: [{name: c, context: {cluster: c, user: u}}]
current-context: c
"""


@pytest.fixture
def files(tmp_path: Path) -> Iterator[Path]:
    """A folder with what a run needs, all of it good; nobody listens at the server's address."""
    (tmp_path / "kubeconfig.yaml").write_text(KUBECONFIG)
    (tmp_path / "config.yaml").write_text(NO_HEALTH)
    yield tmp_path
    structlog.reset_defaults()  # a run in this process sets up the logs of its own


def run(folder: Path, **changed: str) -> tuple[int, list[str]]:
    """Exit code and lines on stderr of a run that fails at once."""
    options = {"kubeconfig": "kubeconfig.yaml", "config": "config.yaml", "journal": "journal.db"}
    arguments = []
    for option, file in (options | changed).items():
        arguments += [f"--{option}", file if "://" in file else str(folder / file)]
    result = CliRunner().invoke(app, ["run", *arguments], prog_name="asched")
    assert result.stdout == ""
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result.exit_code, result.stderr.splitlines()


def test_a_journal_that_cannot_be_written(files: Path) -> None:
    path = files / "missing" / "journal.db"
    why = f"asched: cannot open {path}: {files / 'missing'} does not exist"
    assert run(files, journal="missing/journal.db") == (2, [why])
    assert run(files, journal=".") == (2, [f"asched: cannot open {files}: it is a directory"])
    code, lines = run(files, journal="oracle://elsewhere/db")
    assert (code, len(lines)) == (2, 1)
    assert lines[0].startswith("asched: cannot keep a journal in oracle://elsewhere/db: expected")


def test_a_journal_whose_lock_cannot_be_written(files: Path) -> None:
    lock = files / "journal.db-lock"
    lock.mkdir()
    assert run(files) == (2, [f"asched: cannot write {lock}: Is a directory"])


def test_a_file_that_is_no_database(files: Path) -> None:
    (files / "journal.db").write_text("My dear journal, today I scheduled pods.\n" * 50)
    code, lines = run(files)
    assert (code, len(lines)) == (1, 1)
    assert f"{files / 'journal.db'} is not an asched journal" in lines[0]


def test_a_database_of_a_newer_schema(files: Path) -> None:
    async def make() -> None:
        async with open_journal(str(files / "journal.db")):
            pass

    anyio.run(make)
    with closing(sqlite3.connect(files / "journal.db")) as connection, connection:
        connection.execute("update journal_schema set version_num = '9999'")
    code, lines = run(files)
    assert (code, len(lines)) == (2, 1)
    assert "the journal has schema 9999, newer than this asched's" in lines[0]
    assert lines[0].endswith("upgrade asched")


@pytest.mark.parametrize(
    "text", [None, "", "{", "apiVersion: v1\nkind: Config\n", "\0\1\2", "- just\n- a list\n"]
)
def test_a_kubeconfig_that_cannot_be_used(files: Path, text: str | None) -> None:
    path = files / "kubeconfig.yaml"
    path.unlink()
    if text is not None:
        path.write_text(text)
    code, lines = run(files)
    assert (code, len(lines)) == (2, 1)
    assert lines[0].startswith("asched: ")
    assert str(path) in lines[0]


def test_a_credential_plugin_that_fails_may_not_the_next_time(files: Path) -> None:
    path = files / "kubeconfig.yaml"
    plugin = (
        "{apiVersion: client.authentication.k8s.io/v1, command: 'false', interactiveMode: Never}"
    )
    path.write_text(KUBECONFIG.replace("user: {}", f"user: {{exec: {plugin}}}"))
    assert run(files) == (1, [f"asched: {path}: exec: process returned 1"])


def test_every_mistake_of_a_configuration_is_a_line(files: Path) -> None:
    path = files / "config.yaml"
    path.write_text(KUBE + "parallelism: many\nprofile: []\n")
    code, lines = run(files)
    assert code == 2
    assert lines == [
        f'{path}:3: document 1: parallelism: expected an integer, got the string "many"',
        f"{path}:4: document 1: profile: unknown field; did you mean profiles?",
    ]


def test_a_port_in_use(files: Path) -> None:
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        (files / "config.yaml").write_text(OWN + f"health: {{address: '{address}'}}\n")
        line = (
            f"asched: cannot serve health on {address}: Address already in use; health.address"
            " in the configuration names another, or none"
        )
        assert run(files) == (2, [line])


# -- processes that live for a while ----------------------------------------------------------


def arguments(w: World, config: str = NO_HEALTH) -> list[str]:
    (w.folder / "config.yaml").write_text(config)
    options = ("--kubeconfig", w.kubeconfig, "--journal", w.journal)
    return ["run", *map(str, options), "--config", str(w.folder / "config.yaml")]


async def stopped(made: Commands, command: Command) -> int:
    """Ask the command to stop; its exit status."""
    began_s = time.monotonic()
    command.send(signal.SIGTERM)
    status = await made.ended(command)
    assert time.monotonic() - began_s < PROMPTLY_S
    return status


def logged(command: Command) -> list[dict[str, object]]:
    """Everything that the command wrote is a log line of JSON."""
    return [json.loads(line) for line in command.lines]


async def until_logged(command: Command, text: str) -> None:
    with anyio.fail_after(PATIENCE_S):
        while text not in command.output:  # noqa: ASYNC110  a file tells nobody when it grows
            await anyio.sleep(0.01)


async def test_sigterm_drains_and_exits_0(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=3) as w, commands(tmp_path) as made:
        async with running(made, *arguments(w)) as command:
            w.add_pods(50, "p")
            await w.until(lambda: len(w.placements.order) >= 10)
            assert await stopped(made, command) == 0
        # Events are not waited for, as long as it takes where the machine is slow.
        told = [line for line in logged(command) if "events not sent" not in str(line["event"])]
        assert {line["level"] for line in told} == {"info"}
        # What was decided was carried out: nothing is left over for the next start.
        async with w.daemon() as daemon:
            await daemon.engine.synced.wait()
            assert not [e for e in daemon.cluster.pods.values() if e.assignment is not None]


async def test_sigterm_while_the_api_server_is_gone(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=3) as w, commands(tmp_path) as made:
        async with running(made, *arguments(w)) as command:
            # Bindings of unknown fate: neither they nor reading the pods back is answered.
            w.faults.on_request = lambda verb, resource: w.touch()
            w.faults.drop(count=1000, resource="pods/binding")
            w.faults.drop(count=1000, verb="get", resource="pods")
            w.add_pods(20, "p")
            await w.until(lambda: w.faults.injected > 40)
            async with w.outage():
                assert await stopped(made, command) == 0
        w.faults.clear()
        async with w.daemon():
            await w.until(lambda: not w.unbound())


async def test_a_second_signal_ends_at_once(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=1) as w, commands(tmp_path) as made:
        w.faults.on_request = lambda verb, resource: w.touch()
        w.faults.delay(3600, count=10, resource="pods/binding")
        async with running(made, *arguments(w)) as command:
            w.add_pod("p")
            await w.until(lambda: w.faults.injected > 0)
            command.send(signal.SIGINT)
            await until_logged(command, "stopping")
            assert await stopped(made, command) == 0
        w.faults.clear()
        async with w.daemon():
            await w.until(lambda: w.node_of("p") == "n0")


async def test_a_server_that_is_not_there_at_the_start(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=1) as w, commands(tmp_path) as made:
        w.add_pod("p")
        options = arguments(w)
        async with w.outage():
            command = await made.start(*options)
            await until_logged(command, "API server not reachable")
        await w.until(lambda: w.node_of("p") == "n0")
        assert await stopped(made, command) == 0
        complaints = [line for line in logged(command) if line["level"] == "warning"]
        assert len(complaints) == 1
        assert complaints[0]["server"] == w.server.url
        assert "cannot connect to" in str(complaints[0]["error"])


async def test_who_is_deposed_says_so_in_one_line(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=1) as w, commands(tmp_path) as made:
        async with running(made, *arguments(w)) as command:
            await until_logged(command, "caches synced")
            async with open_journal(str(w.journal)) as store:
                await store.claim("another", claimed_at_ns=1)
            w.add_pod("p")
            assert await made.ended(command) == 1
        assert command.lines[-1].startswith(f"asched: {w.journal}: another process has claimed")
        assert "Traceback" not in command.output


async def test_what_comes_with_a_plain_start(tmp_path: Path) -> None:
    """The one test that starts Python anew: nothing depends on what the others have imported."""
    async with world(tmp_path, nodes=1) as w:
        w.add_pod("p")
        program = [sys.executable, "-m", "asched", *arguments(w)]
        async with await anyio.open_process(program, stderr=None) as process:
            await w.until(lambda: w.node_of("p") == "n0")
            process.send_signal(signal.SIGTERM)
            assert await process.wait() == 0
