"""The demo's API server: ``asched apiserver`` in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, NamedTuple

import anyio
from anyio.abc import Process
from anyio.streams.text import TextReceiveStream

from asched.cli.errors import CommandError

START_TIMEOUT_S: Final = 30.0
STOP_TIMEOUT_S: Final = 10.0


class Kubeconfigs(NamedTuple):
    """How to reach the cluster as one user or another."""

    admin: Path
    scheduler: Path
    """With the permissions of ``system:kube-scheduler`` alone."""


@asynccontextmanager
async def api_server(folder: Path, pod_start_s: float) -> AsyncIterator[Kubeconfigs]:
    """Serve an empty cluster until the block ends; kubeconfigs are written into ``folder``.

    Raises CommandError if the server does not come up.
    """
    files = Kubeconfigs(folder / "kubeconfig.yaml", folder / "kubeconfig-scheduler.yaml")
    command = [
        sys.executable, "-m", "asched", "apiserver", "--until-stdin-closes",
        "--kubeconfig", str(files.admin), "--scheduler-kubeconfig", str(files.scheduler),
        "--pod-start", str(pod_start_s),
    ]  # fmt: skip
    # In a session of its own, so that Ctrl-C reaches us alone and the daemon can finish first. If
    # we are killed, the end of its input stops it.
    process = await anyio.open_process(
        command, stdin=subprocess.PIPE, stderr=None, start_new_session=True
    )
    try:
        await _ready(process)
        yield files
    finally:
        with anyio.CancelScope(shield=True):
            await _stop(process)
        for file in files:
            file.unlink(missing_ok=True)  # nobody answers there any more


async def _ready(process: Process) -> None:
    """Until the server says that it listens: it prints a line then and not before."""
    assert process.stdout is not None
    with anyio.move_on_after(START_TIMEOUT_S):
        async for text in TextReceiveStream(process.stdout):
            if "\n" in text:
                return
        raise CommandError("asched: the demo's API server ended before it listened")
    raise CommandError(f"asched: the demo's API server did not listen in {START_TIMEOUT_S:.0f} s")


async def _stop(process: Process) -> None:
    assert process.stdin is not None
    await process.stdin.aclose()
    with anyio.move_on_after(STOP_TIMEOUT_S):
        await process.wait()
    if process.returncode is None:
        process.kill()
        await process.wait()
    await process.aclose()
