"""Secrets in the kubeconfig, the environment, the journal's URL and the output of an exec plugin
are in no log, no record, and no child process."""

from __future__ import annotations

import shlex
import signal
import sys
from pathlib import Path

import anyio
import msgspec
import pytest
import yaml

from asched.journal import open_journal
from asched.journal.codec import CODEC
from tests.daemon.external_plugins import NodeChooser
from tests.daemon.processes import NO_HEALTH, ROOT, Command, commands, running
from tests.daemon.test_third_party_plugins import enabled
from tests.daemon.world import TIMEOUT_S, World, world

CANARY = "canary-5d1e"
SECRETS = {
    "ASCHED_JOURNAL": f"postgresql+asyncpg://u:{CANARY}@127.0.0.1:9/d",
    "PGPASSWORD": CANARY,
    "OTEL_EXPORTER_OTLP_HEADERS": f"authorization={CANARY}",
    "SOME_TOKEN": CANARY,
}
LOG_FORMATS = ("json", "console")


def write_kubeconfig(w: World, folder: Path, exit_code: int = 0) -> Path:
    """A kubeconfig with secrets: an exec plugin that stores its environment."""
    credential = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "status": {"token": CANARY},
    }
    output = shlex.quote(msgspec.json.encode(credential).decode())
    plugin = folder / "plugin"
    plugin.write_text(
        f"#!/bin/sh\nenv > {folder}/plugin-env\necho {output}\necho {CANARY} >&2\n"
        f"exit {exit_code}\n"
    )
    plugin.chmod(0o700)
    config = yaml.safe_load(w.kubeconfig.read_text())
    config["users"][0]["user"] = {
        "password": CANARY,
        "exec": {
            "apiVersion": credential["apiVersion"],
            "command": str(plugin),
            "env": [{"name": "OWN", "value": "own-value"}],
        },
    }
    path = folder / "secret-kubeconfig.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


async def until(command: Command, text: str) -> None:
    with anyio.fail_after(TIMEOUT_S):
        while text not in command.output:  # noqa: ASYNC110  another process writes it
            await anyio.sleep(0.01)


@pytest.mark.parametrize("form", LOG_FORMATS)
async def test_run_shows_no_secret(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    config = tmp_path / "config.yaml"
    config.write_text(NO_HEALTH.replace("json", form))
    async with world(tmp_path, nodes=1) as w, commands(tmp_path) as runner:
        kubeconfig = write_kubeconfig(w, tmp_path)
        options = ("--kubeconfig", kubeconfig, "--config", config, "--journal", w.journal)
        async with running(runner, "--debug", "run", "--debug", *map(str, options)) as command:
            w.add_pod("p")
            await w.until(lambda: not w.unbound())
            command.send(signal.SIGTERM)
            assert await runner.ended(command) == 0
        output = command.output
    async with open_journal(str(w.journal), read_only=True) as journal:
        records = [CODEC.encode(stored.record).payload async for stored in journal.read()]
    environment = (tmp_path / "plugin-env").read_text()
    assert "OWN=own-value" in environment
    assert CANARY not in output
    assert CANARY not in environment
    assert CANARY not in "".join(records)
    assert "caches synced" in output


async def test_failing_plugin_shows_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    async with world(tmp_path, nodes=1) as w:
        kubeconfig = write_kubeconfig(w, tmp_path, exit_code=1)
        for arguments in (("run",), ("--debug", "run", "--debug")):
            options = ("--kubeconfig", str(kubeconfig), "--journal", str(w.journal))
            command = [sys.executable, "-m", "asched", *arguments, *options]
            done = await anyio.run_process(command, check=False, cwd=ROOT)
            assert done.returncode == 1
            assert b"ended with code 1" in done.stderr
            assert CANARY.encode() not in done.stderr + done.stdout


async def test_worker_gets_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = {**SECRETS, "AWS_SECRET_ACCESS_KEY": CANARY}
    for name, value in secrets.items():
        monkeypatch.setenv(name, value)
    async with world(tmp_path, nodes=1) as w, w.daemon(enabled("NodeChooser"), NodeChooser):
        w.add_pod("p", labels={"target": "environment"})
        await w.until(lambda: "variables" in w.message("p"))
        variables = set(w.message("p").split())
    assert "PATH" in variables
    assert not variables & secrets.keys()


@pytest.mark.parametrize("form", LOG_FORMATS)
async def test_unreachable_journal_shows_no_password(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    config = tmp_path / "config.yaml"
    config.write_text(NO_HEALTH.replace("json", form))
    async with world(tmp_path, nodes=1) as w, commands(tmp_path) as runner:
        options = ("--kubeconfig", str(w.kubeconfig), "--config", str(config))
        async with running(runner, "--debug", "run", "--debug", *options) as command:
            await until(command, "127.0.0.1:9")
            command.send(signal.SIGTERM)
            await runner.ended(command)
        assert CANARY not in command.output
