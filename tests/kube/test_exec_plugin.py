"""Exec plugins of a kubeconfig as real processes: time limit, environment, output."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from structlog.testing import capture_logs

from asched.kube import exec_plugin
from asched.kube.child_environment import exec_plugin_environment, worker_environment
from asched.kube.connection import KubeConfig
from asched.kube.errors import CredentialPluginError, KubeConfigError
from tests.extenders.certificates import CERTIFICATE, KEY
from tests.kube.harness import BEGIN, TIMEOUT_S
from tests.kube.test_connection import kubeconfig

VERSION = "client.authentication.k8s.io/v1"


def script(folder: Path, body: str) -> dict[str, Any]:
    """An exec section that runs a shell script."""
    file = folder / "plugin"
    file.write_text(f"#!/bin/sh\n{body}\n")
    file.chmod(0o700)
    return {"apiVersion": VERSION, "command": str(file)}


def answer(**status: str) -> str:
    credential = {"apiVersion": VERSION, "kind": "ExecCredential", "status": status}
    return f"echo {shlex.quote(msgspec.json.encode(credential).decode())}"


async def test_hanging_plugin_and_its_children_are_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fifo = tmp_path / "alive"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    # The plugin, its child and its grandchild hold the pipe open.
    body = f"exec 3>{fifo}; echo started >&3; sh -c 'sleep 600' & sleep 600"
    path = kubeconfig(tmp_path, "http://api", {"exec": script(tmp_path, body)})
    monkeypatch.setattr(exec_plugin, "EXEC_TIMEOUT_S", 1.0)
    with pytest.raises(CredentialPluginError, match=r"did not end within 1 s and was killed"):
        await KubeConfig([path]).load(BEGIN)
    with anyio.fail_after(TIMEOUT_S):
        while True:  # the end of the pipe: no process is left that holds it
            await anyio.wait_readable(reader)
            if not os.read(reader, 100):
                break
    os.close(reader)


async def test_cancelled_plugin_is_killed(tmp_path: Path) -> None:
    fifo = tmp_path / "alive"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    body = f"exec 3>{fifo}; echo started >&3; sleep 600"
    path = kubeconfig(tmp_path, "http://api", {"exec": script(tmp_path, body)})
    with anyio.fail_after(TIMEOUT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(KubeConfig([path]).load, BEGIN)
            await anyio.wait_readable(reader)
            assert os.read(reader, 100) == b"started\n"
            tasks.cancel_scope.cancel()
        await anyio.wait_readable(reader)
        assert os.read(reader, 100) == b""
    os.close(reader)


async def test_plugin_gets_allowed_variables_and_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASCHED_JOURNAL", "postgresql+asyncpg://u:canary@h/d")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=canary")
    monkeypatch.setenv("PGPASSWORD", "canary")
    monkeypatch.setenv("AWS_PROFILE", "cluster")
    section = script(tmp_path, f"env > {tmp_path}/env; {answer(token='t')}")
    section["env"] = [{"name": "MINE", "value": "yes"}]
    found = await KubeConfig([kubeconfig(tmp_path, "http://api", {"exec": section})]).load(BEGIN)
    assert found.authorization == "Bearer t"
    text = (tmp_path / "env").read_text()
    assert "canary" not in text
    variables = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    assert variables["AWS_PROFILE"] == "cluster"
    assert variables["MINE"] == "yes"
    assert variables["PATH"] == os.environ["PATH"]
    info = msgspec.json.decode(variables["KUBERNETES_EXEC_INFO"])
    assert info["spec"] == {"interactive": False}


def test_environments_are_lists_of_names() -> None:
    given = dict.fromkeys(
        ["PATH", "HOME", "LC_ALL", "AWS_SECRET_ACCESS_KEY", "GOOGLE_APPLICATION_CREDENTIALS",
         "AZURE_CLIENT_ID", "PYTHONPATH", "ASCHED_JOURNAL", "OTEL_EXPORTER_OTLP_HEADERS",
         "PGPASSWORD", "KUBECONFIG", "NOTIFY_SOCKET", "SOMETHING_ELSE"],
        "x",
    )  # fmt: skip
    assert worker_environment(given).keys() == {"PATH", "HOME", "LC_ALL", "PYTHONPATH"}
    assert exec_plugin_environment(given).keys() == {
        "PATH", "HOME", "LC_ALL", "AWS_SECRET_ACCESS_KEY", "GOOGLE_APPLICATION_CREDENTIALS",
        "AZURE_CLIENT_ID",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("echo canary; echo canary >&2; exit 3", "ended with code 3; its error output is not"),
        ("echo canary", "did not write an ExecCredential"),
        (f'echo \'{{"apiVersion":"{VERSION}","kind":"canary","status":{{}}}}\'', "of client"),
        (answer(other="canary"), "neither a token nor a client certificate"),
        (answer(token="canary", expirationTimestamp="canary"), "did not write an ExecCredential"),
        (answer(token="canary", expirationTimestamp="2026-01-01T00:00:00"), "time zone"),
        ("printf '%s' '\\377'; echo canary", "did not write an ExecCredential"),
        ("yes canary | head -c 2000000", "more than 1048576 bytes"),
    ],
)
async def test_errors_name_the_plugin_and_not_its_output(
    body: str, says: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = kubeconfig(tmp_path, "http://api", {"exec": script(tmp_path, body)})
    with capture_logs() as logs, pytest.raises(CredentialPluginError) as caught:
        await KubeConfig([path]).load(BEGIN)
    assert says in str(caught.value)
    assert str(tmp_path / "plugin") in str(caught.value)
    assert "canary" not in str(caught.value) + str(logs) + "".join(capfd.readouterr())


async def test_client_certificate_of_plugin_is_loaded(tmp_path: Path) -> None:
    body = answer(clientCertificateData="garbage", clientKeyData="garbage")
    path = kubeconfig(tmp_path, "https://api", {"exec": script(tmp_path, body)})
    with pytest.raises(KubeConfigError, match="client certificate"):
        await KubeConfig([path]).load(BEGIN)


async def test_renewed_client_certificates_leave_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    static = {"client-certificate-data": "AA==", "client-key-data": "AA=="}
    opened = set[int]()
    for number in range(3):
        # Text before a certificate does not count, so each has another content.
        certificate, key = f"{number}\n{CERTIFICATE}", f"{number}\n{KEY}"
        returned = answer(clientCertificateData=certificate, clientKeyData=key)
        section = script(tmp_path, returned.replace("echo", "printf %s", 1))
        path = kubeconfig(tmp_path, "https://api", {"exec": section, **static})
        found = await KubeConfig([path]).load(BEGIN)
        assert found.tls is not None
        opened.add(len(os.listdir("/proc/self/fd")))
    assert len(opened) == 1
    assert not os.listdir(tmp_path / "tmp")


async def test_relative_command_is_relative_to_kubeconfig(tmp_path: Path) -> None:
    section = script(tmp_path, answer(token="t"))
    section["command"] = "./plugin"
    found = await KubeConfig([kubeconfig(tmp_path, "http://api", {"exec": section})]).load(BEGIN)
    assert found.authorization == "Bearer t"


@pytest.mark.parametrize(
    ("section", "says"),
    [
        ("canary", "not a mapping"),
        ({"command": 3, "apiVersion": "v"}, "command is missing"),
        ({"command": "c", "apiVersion": "v", "args": "canary"}, "args is not a list"),
        ({"command": "c", "apiVersion": "v", "env": ["canary"]}, "env is not a list"),
        ({"command": "c", "apiVersion": "v", "interactiveMode": "Always"}, "no terminal"),
    ],
)
async def test_invalid_section_is_one_line(section: object, says: str, tmp_path: Path) -> None:
    path = kubeconfig(tmp_path, "http://api", {"exec": section})
    with pytest.raises(KubeConfigError, match=says) as caught:
        await KubeConfig([path]).load(BEGIN)
    assert "canary" not in str(caught.value)


async def test_command_that_does_not_exist(tmp_path: Path) -> None:
    section = {"apiVersion": VERSION, "command": "/no/such/plugin"}
    path = kubeconfig(tmp_path, "http://api", {"exec": section})
    with pytest.raises(CredentialPluginError, match=r"/no/such/plugin: No such file"):
        await KubeConfig([path]).load(BEGIN)
    assert sys.executable
