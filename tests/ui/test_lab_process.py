"""``asched ui`` with a what-if lab as a process."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from asched.ui.lab.forgery import TOKEN_HEADER
from tests.ui.serving import run_command
from tests.ui.test_lab import ENDLESS

TIMEOUT_S = 60


@asynccontextmanager
async def ui_process(journal: str, results: Path) -> AsyncIterator[tuple[Any, str]]:
    """The process and its URL. It is ended after the block."""
    command = (sys.executable, "-m", "asched", "ui", "--journal", journal)
    options = ("--listen", "127.0.0.1:0", "--results-dir", str(results))
    process = await asyncio.create_subprocess_exec(*command, *options, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        async with asyncio.timeout(TIMEOUT_S):
            line = (await process.stdout.readline()).decode()
        found = re.search(r"http://\S+?(?=,)", line)
        assert found is not None, line
        yield process, found[0]
    finally:
        if process.returncode is None:
            process.kill()
        # The end of its output is the end of all processes that it started.
        async with asyncio.timeout(TIMEOUT_S):
            await process.communicate()


async def running_worker(url: str, server: int) -> int:
    """Starts a run that does not end. Returns the process id of its worker."""
    async with aiohttp.ClientSession(url) as session, asyncio.timeout(TIMEOUT_S):
        async with session.get("/api/v1/lab") as response:
            token = (await response.json())["formToken"]
        form = {"source": "scenario", "scenario": ENDLESS}
        headers = {TOKEN_HEADER: token}
        status: int = HTTPStatus.SERVICE_UNAVAILABLE  # while the journal is read
        while status == HTTPStatus.SERVICE_UNAVAILABLE:
            async with session.post("/api/v1/lab/runs", json=form, headers=headers) as response:
                status, answer = response.status, await response.json()
        run = answer["id"]
        while True:
            async with session.get(f"/api/v1/lab/runs/{run}") as response:
                if (await response.json())["activity"] not in ("", "starting"):
                    return children_of(server)[0]
            await asyncio.sleep(0.05)


def children_of(process_id: int) -> list[int]:
    text = Path(f"/proc/{process_id}/task/{process_id}/children").read_text()
    return [int(word) for word in text.split()]


@pytest.mark.parametrize("reason", [signal.SIGTERM, signal.SIGKILL])
async def test_worker_ends_with_the_server(
    demo_journal: str, tmp_path: Path, reason: signal.Signals
) -> None:
    async with ui_process(demo_journal, tmp_path / "results") as (process, url):
        worker = await running_worker(url, process.pid)
        # A pidfd is readable once its process has ended.
        descriptor = os.pidfd_open(worker)
        ended = asyncio.Event()
        asyncio.get_running_loop().add_reader(descriptor, ended.set)
        process.send_signal(reason)
        async with asyncio.timeout(TIMEOUT_S):
            await ended.wait()
            await process.wait()
        asyncio.get_running_loop().remove_reader(descriptor)
        os.close(descriptor)
    assert process.returncode == (0 if reason is signal.SIGTERM else -reason)


async def test_unusable_folder_is_one_line(demo_journal: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    folder = str(tmp_path / "file" / "results")
    code, out, err = await run_command(
        "ui", "--journal", demo_journal, "--results-dir", folder, "--listen", "127.0.0.1:0"
    )
    assert (code, out) == (2, "")
    assert err == f"asched: --results-dir {folder}: Not a directory\n"
