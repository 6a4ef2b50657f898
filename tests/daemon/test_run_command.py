"""``asched run``: exit codes, error messages, signals."""

from __future__ import annotations

import json
import re
import signal
import socket
import sqlite3
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import aiohttp
import anyio
import pytest
import structlog
from typer.testing import CliRunner

from asched.cli.main import app
from asched.journal import open_journal
from tests.daemon.processes import NO_HEALTH, Command, Commands, commands, running
from tests.daemon.world import KUBE, OWN, TIMEOUT_S, World, world

WITH_HEALTH = f"{OWN}health: {{address: '127.0.0.1:0'}}\nlog: {{format: json}}\n"
STOP_LIMIT_S = 60.0
"""Limit of a stop. Draining bindings and sending Events take at most 23 s, longer on a busy
machine."""
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
    """A folder with valid files for a run; the API server's address is unused."""
    (tmp_path / "kubeconfig.yaml").write_text(KUBECONFIG)
    (tmp_path / "config.yaml").write_text(NO_HEALTH)
    yield tmp_path
    structlog.reset_defaults()  # a run in this process configures logging


def run(folder: Path, **changed: str) -> tuple[int, list[str]]:
    """Exit code and lines on stderr of a run that fails immediately."""
    options = {"kubeconfig": "kubeconfig.yaml", "config": "config.yaml", "journal": "journal.db"}
    arguments = []
    for option, file in (options | changed).items():
        arguments += [f"--{option}", file if "://" in file else str(folder / file)]
    result = CliRunner().invoke(app, ["run", *arguments], prog_name="asched")
    assert result.stdout == ""
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result.exit_code, result.stderr.splitlines()


def test_unusable_journal_path_is_reported(files: Path) -> None:
    path = files / "missing" / "journal.db"
    error = f"asched: cannot open {path}: {files / 'missing'} does not exist"
    assert run(files, journal="missing/journal.db") == (2, [error])
    assert run(files, journal=".") == (2, [f"asched: cannot open {files}: it is a directory"])
    code, lines = run(files, journal="oracle://elsewhere/db")
    assert (code, len(lines)) == (2, 1)
    assert lines[0].startswith("asched: cannot keep a journal in oracle://elsewhere/db: expected")


def test_unwritable_journal_lock_is_reported(files: Path) -> None:
    lock = files / "journal.db-lock"
    lock.mkdir()
    assert run(files) == (2, [f"asched: cannot write {lock}: Is a directory"])


def test_file_that_is_no_database_is_reported(files: Path) -> None:
    (files / "journal.db").write_text("This is not a database.\n" * 50)
    code, lines = run(files)
    assert (code, len(lines)) == (2, 1)
    assert f"{files / 'journal.db'} is not an asched journal" in lines[0]


def test_newer_schema_is_reported(files: Path) -> None:
    async def create() -> None:
        async with open_journal(str(files / "journal.db")):
            pass

    anyio.run(create)
    with closing(sqlite3.connect(files / "journal.db")) as connection, connection:
        connection.execute("update journal_schema set version_num = '9999'")
    code, lines = run(files)
    assert (code, len(lines)) == (2, 1)
    assert "the journal has schema 9999, newer than this asched's" in lines[0]
    assert lines[0].endswith("upgrade asched")


@pytest.mark.parametrize(
    "text", [None, "", "{", "apiVersion: v1\nkind: Config\n", "\0\1\2", "- just\n- a list\n"]
)
def test_unusable_kubeconfig_is_reported(files: Path, text: str | None) -> None:
    path = files / "kubeconfig.yaml"
    path.unlink()
    if text is not None:
        path.write_text(text)
    code, lines = run(files)
    assert (code, len(lines)) == (2, 1)
    assert lines[0].startswith("asched: ")
    assert str(path) in lines[0]


def test_failed_credential_plugin_exits_with_1(files: Path) -> None:
    path = files / "kubeconfig.yaml"
    plugin = (
        "{apiVersion: client.authentication.k8s.io/v1, command: 'false', interactiveMode: Never}"
    )
    path.write_text(KUBECONFIG.replace("user: {}", f"user: {{exec: {plugin}}}"))
    assert run(files) == (1, [f"asched: {path}: exec: false ended with code 1"])


def test_each_configuration_error_is_one_line(files: Path) -> None:
    path = files / "config.yaml"
    path.write_text(KUBE + "parallelism: many\nprofile: []\n")
    code, lines = run(files)
    assert code == 2
    assert lines == [
        f'{path}:3: document 1: parallelism: expected an integer, got the string "many"',
        f"{path}:4: document 1: profile: unknown field; did you mean profiles?",
    ]


def test_port_in_use_is_reported(files: Path) -> None:
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


# -- running processes ------------------------------------------------------------------------


def arguments(w: World, config: str = NO_HEALTH) -> list[str]:
    (w.folder / "config.yaml").write_text(config)
    options = ("--kubeconfig", w.kubeconfig, "--journal", w.journal)
    return ["run", *map(str, options), "--config", str(w.folder / "config.yaml")]


async def readiness(command: Command) -> str:
    (address,) = (line["health"] for line in logged(command) if "health" in line)
    async with aiohttp.ClientSession() as session:
        response = await session.get(f"http://{address}/readyz?verbose")
        return await response.text()


def shown_readiness() -> str:
    """What docs/reference/metrics.md shows as the answer of /readyz."""
    page = (Path(__file__).parents[2] / "docs" / "reference" / "metrics.md").read_text()
    return page.partition("/readyz?verbose'\n")[2].partition("```")[0]


async def stopped(runner: Commands, command: Command) -> int:
    """Stop the command with SIGTERM; returns its exit status."""
    began_s = time.monotonic()
    command.send(signal.SIGTERM)
    status = await runner.ended(command)
    assert time.monotonic() - began_s < STOP_LIMIT_S
    return status


def logged(command: Command) -> list[dict[str, object]]:
    """The output of the command, as JSON log lines."""
    return [json.loads(line) for line in command.lines]


async def until_logged(command: Command, text: str) -> None:
    with anyio.fail_after(TIMEOUT_S):
        while text not in command.output:  # noqa: ASYNC110  polls a file
            await anyio.sleep(0.01)


async def test_sigterm_drains_and_exits_with_0(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=3) as w, commands(tmp_path) as runner:
        async with running(runner, *arguments(w, WITH_HEALTH)) as command:
            w.add_pods(50, "p")
            await w.until(lambda: len(w.placements.order) >= 10)
            assert await readiness(command) == shown_readiness()
            assert await stopped(runner, command) == 0
        # On a slow machine some Events are dropped at the stop.
        lines = [line for line in logged(command) if "events not sent" not in str(line["event"])]
        (unsigned,) = (line for line in lines if line["level"] != "info")
        assert unsigned["event"] == "journal is not signed"
        # No decision without an effect is left for the next start.
        async with w.daemon() as daemon:
            await daemon.engine.synced.wait()
            assert not [e for e in daemon.cluster.pods.values() if e.assignment is not None]


async def test_sigterm_during_outage_exits_with_0(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=3) as w, commands(tmp_path) as runner:
        async with running(runner, *arguments(w)) as command:
            # Unresolved bindings: neither they nor reads of the pods are answered.
            w.faults.on_request = lambda verb, resource: w.touch()
            w.faults.drop(count=1000, resource="pods/binding")
            w.faults.drop(count=1000, verb="get", resource="pods")
            w.add_pods(20, "p")
            await w.until(lambda: w.faults.injected > 40)
            async with w.outage():
                assert await stopped(runner, command) == 0
        w.faults.clear()
        async with w.daemon():
            await w.until(lambda: not w.unbound())


async def test_second_signal_ends_immediately(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=1) as w, commands(tmp_path) as runner:
        w.faults.on_request = lambda verb, resource: w.touch()
        w.faults.delay(3600, count=10, resource="pods/binding")
        async with running(runner, *arguments(w)) as command:
            w.add_pod("p")
            await w.until(lambda: w.faults.injected > 0)
            command.send(signal.SIGINT)
            await until_logged(command, "stopping")
            assert await stopped(runner, command) == 0
        w.faults.clear()
        async with w.daemon():
            await w.until(lambda: w.node_of("p") == "n0")


async def test_start_waits_for_api_server(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=1) as w, commands(tmp_path) as runner:
        w.add_pod("p")
        options = arguments(w)
        async with w.outage():
            command = await runner.start(*options)
            await until_logged(command, "API server not reachable")
        await w.until(lambda: w.node_of("p") == "n0")
        assert await stopped(runner, command) == 0
        warnings = [line for line in logged(command) if line["level"] == "warning"]
        warnings = [line for line in warnings if "not signed" not in str(line["event"])]
        assert len(warnings) == 1
        assert warnings[0]["server"] == w.server.url
        assert "cannot connect to" in str(warnings[0]["error"])


async def test_claimed_journal_ends_with_one_line_error(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=1) as w, commands(tmp_path) as runner:
        async with running(runner, *arguments(w)) as command:
            await until_logged(command, "caches synced")
            async with open_journal(str(w.journal)) as store:
                await store.claim("another", claimed_at_ns=1)
            w.add_pod("p")
            assert await runner.ended(command) == 1
        assert command.lines[-1].startswith("asched: ")
        # Noticed by the append, or by the periodic check.
        assert re.search("another process (has )?claimed (this|the) journal", command.lines[-1])
        assert "Traceback" not in command.output


async def test_new_interpreter_schedules_pod(tmp_path: Path) -> None:
    """The only test with a new Python process, independent of earlier imports."""
    async with world(tmp_path, nodes=1) as w:
        w.add_pod("p")
        program = [sys.executable, "-m", "asched", *arguments(w)]
        async with await anyio.open_process(program, stderr=None) as process:
            await w.until(lambda: w.node_of("p") == "n0")
            process.send_signal(signal.SIGTERM)
            assert await process.wait() == 0


async def test_daemon_starts_with_an_archived_journal(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=1) as w, commands(tmp_path) as runner:
        async with running(runner, *arguments(w)) as first:
            w.add_pod("before")
            await w.until(lambda: w.node_of("before") == "n0")
            assert await stopped(runner, first) == 0
        archive = ("journal", "archive", "--before", "2100-01-01", "--to", str(tmp_path / "old"))
        async with running(runner, *archive, "--journal", str(w.journal)) as archiving:
            assert await runner.ended(archiving) == 0
            assert archiving.lines[-1].startswith("moved records 1 to ")
        async with running(runner, *arguments(w)) as second:
            w.add_pod("after")
            await w.until(lambda: w.node_of("after") == "n0")
            assert await stopped(runner, second) == 0
