"""Runs the exec plugin of a kubeconfig (client.authentication.k8s.io).

The plugin runs in a process group of its own with a limited environment. Its output contains
credentials, and its error output may, so no error message quotes them.
"""

from __future__ import annotations

import base64
import os
import signal
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import Any, Final, NamedTuple

import anyio
import msgspec
from anyio.abc import ByteReceiveStream, Process

from asched.kube.child_environment import exec_plugin_environment
from asched.kube.errors import CredentialPluginError, KubeConfigError
from asched.model.nesting import decode_any_depth

EXEC_TIMEOUT_S: Final = 30.0
"""Limit for one run. Credentials are renewed this long before they expire, so requests use the old
ones meanwhile."""
OUTPUT_LIMIT_BYTES: Final = 1024 * 1024


class ExecSpec(NamedTuple):
    """``users[].user.exec`` of a kubeconfig."""

    api_version: str
    command: str
    arguments: tuple[str, ...]
    environment: dict[str, str]


class _Status(msgspec.Struct, frozen=True, rename="camel"):
    token: str = ""
    client_certificate_data: str = ""
    client_key_data: str = ""
    expiration_timestamp: datetime | None = None


class _ExecCredential(msgspec.Struct, frozen=True, rename="camel"):
    api_version: str
    kind: str
    status: _Status


class ExecCredential(NamedTuple):
    """What the plugin returned, as a kubeconfig's user, and when it expires."""

    user: dict[str, str]
    expires_at: datetime | None


_decoder = msgspec.json.Decoder(_ExecCredential)


def exec_spec(section: Any, folder: Path) -> ExecSpec:
    """The validated section. A relative command with a slash is relative to ``folder``, the
    kubeconfig's. Raises KubeConfigError."""
    if not isinstance(section, dict):
        raise KubeConfigError("exec: not a mapping")
    for key in ("command", "apiVersion"):
        if not isinstance(section.get(key), str) or not section[key]:
            raise KubeConfigError(f"exec: {key} is missing or not a string")
    if section.get("interactiveMode") == "Always":
        raise KubeConfigError("exec: interactiveMode is Always, but there is no terminal")
    arguments, variables = section.get("args") or [], section.get("env") or []
    if not isinstance(arguments, list):
        raise KubeConfigError("exec: args is not a list")
    environment: dict[str, str] = {}
    for item in variables if isinstance(variables, list) else [None]:
        if not isinstance(item, dict) or not isinstance(item.get("name"), str):
            raise KubeConfigError("exec: env is not a list of names and values")
        environment[item["name"]] = str(item.get("value", ""))
    command = section["command"]
    if os.sep in command:
        command = str(folder / command)
    return ExecSpec(section["apiVersion"], command, tuple(map(str, arguments)), environment)


async def run_exec_plugin(spec: ExecSpec) -> ExecCredential:
    """Run the plugin once. Raises CredentialPluginError; after a timeout no process is left."""
    info = {
        "apiVersion": spec.api_version,
        "kind": "ExecCredential",
        "spec": {"interactive": False},
    }
    environment = {
        **exec_plugin_environment(),
        **spec.environment,
        "KUBERNETES_EXEC_INFO": msgspec.json.encode(info).decode(),
    }
    try:
        # A start that is cancelled would leave a process without an owner.
        with anyio.CancelScope(shield=True):
            process = await anyio.open_process(
                [spec.command, *spec.arguments],
                stdin=DEVNULL,
                stdout=PIPE,
                stderr=PIPE,
                env=environment,
                start_new_session=True,
            )
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else "cannot start"
        raise CredentialPluginError(f"exec: {spec.command}: {why}") from None
    ended = False
    try:
        with anyio.fail_after(EXEC_TIMEOUT_S):
            output, errors = await _read_output(process)
            ended = True
    except TimeoutError:
        raise CredentialPluginError(
            f"exec: {spec.command} did not end within {EXEC_TIMEOUT_S:g} s and was killed"
        ) from None
    finally:
        await _release(process, kill=not ended)
    if process.returncode != 0:
        hint = "; its error output is not shown, because it may hold secrets" if errors else ""
        raise CredentialPluginError(
            f"exec: {spec.command} ended with code {process.returncode}{hint}"
        )
    if len(output) > OUTPUT_LIMIT_BYTES:
        raise CredentialPluginError(
            f"exec: {spec.command} wrote more than {OUTPUT_LIMIT_BYTES} bytes"
        )
    return _credential(spec, output)


async def _read_output(process: Process) -> tuple[bytes, bytes]:
    """Standard output and error output, once the process has ended and closed both."""
    assert process.stdout is not None
    assert process.stderr is not None
    output, errors = bytearray(), bytearray()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_read, process.stdout, output)
        tasks.start_soon(_read, process.stderr, errors)
    await process.wait()
    return bytes(output), bytes(errors)


async def _read(stream: ByteReceiveStream, into: bytearray) -> None:
    """Read to the end, and keep a little more than the limit."""
    async for piece in stream:
        if len(into) <= OUTPUT_LIMIT_BYTES:
            into += piece


async def _release(process: Process, *, kill: bool) -> None:
    """Kill the process group if it is to end, and release the pipes."""
    with anyio.CancelScope(shield=True):
        if kill:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        await process.aclose()


def _credential(spec: ExecSpec, output: bytes) -> ExecCredential:
    # The decoder's message may quote the output.
    try:
        answer = decode_any_depth(_decoder, output)
    except msgspec.DecodeError:
        raise CredentialPluginError(
            f"exec: {spec.command} did not write an ExecCredential with a status"
        ) from None
    if answer.kind != "ExecCredential" or answer.api_version != spec.api_version:
        raise CredentialPluginError(
            f"exec: {spec.command} did not write an ExecCredential of {spec.api_version}"
        )
    status = answer.status
    user: dict[str, str] = {}
    if status.token:
        user["token"] = status.token
    if status.client_certificate_data and status.client_key_data:
        user["client-certificate-data"] = _base64(status.client_certificate_data)
        user["client-key-data"] = _base64(status.client_key_data)
    if not user:
        raise CredentialPluginError(
            f"exec: {spec.command} wrote neither a token nor a client certificate with its key"
        )
    expires_at = status.expiration_timestamp
    if expires_at is not None and expires_at.tzinfo is None:
        raise CredentialPluginError(f"exec: {spec.command} wrote an expiry without a time zone")
    return ExecCredential(user, expires_at)


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
