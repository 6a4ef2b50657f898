"""``asched demo --ui``: the journal in the browser while the demo runs."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from queue import Queue

import aiohttp
import anyio
import anyio.to_thread
import pytest
from anyio.abc import Process
from anyio.streams.text import TextReceiveStream

from asched.cli.demo.browser import browser_interface
from asched.journal.opening import open_journal
from tests.audit.recording import woken_pod

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
async def journal(tmp_path: Path) -> Path:
    path = tmp_path / "journal.db"
    async with open_journal(str(path)) as store:
        await woken_pod().store_in(store)
    return path


async def test_browser_is_shown_the_journal_until_the_end(journal: Path) -> None:
    """It need not return before: some end only when their user closes them."""
    shown: Queue[str] = Queue()
    closed = threading.Event()

    def show(url: str) -> None:
        shown.put(url)
        closed.wait()

    try:
        async with browser_interface(journal, show) as url, aiohttp.ClientSession(url) as http:
            assert await anyio.to_thread.run_sync(shown.get) == url
            async with http.get("/") as response:
                assert response.status == 200
        async with aiohttp.ClientSession() as http:
            with pytest.raises(aiohttp.ClientConnectionError):
                await http.get(url)
    finally:
        closed.set()


async def test_machine_without_browser_is_no_failure(journal: Path) -> None:
    def show(url: str) -> None:
        raise OSError("no display")

    async with browser_interface(journal, show) as url:
        assert url.startswith("http://127.0.0.1:")


async def test_interface_that_does_not_start_is_no_failure(tmp_path: Path) -> None:
    async with browser_interface(tmp_path / "absent.db", lambda url: None) as url:
        assert url == ""


@asynccontextmanager
async def _killed(process: Process) -> AsyncIterator[None]:
    """Without this, a failure would wait for the end of the process."""
    try:
        yield
    finally:
        if process.returncode is None:
            process.kill()


async def test_demo_opens_the_browser(tmp_path: Path) -> None:
    """The browser of this test writes its argument to a pipe."""
    opened = tmp_path / "opened"
    os.mkfifo(opened)
    browser = tmp_path / "browser"
    await anyio.Path(browser).write_text(f'#!/bin/sh\nprintf %s "$1" > {opened}\n')
    await anyio.Path(browser).chmod(0o755)
    command = [
        *(sys.executable, "-m", "asched", "demo", "--ui", "--nodes", "12", "--pods", "40"),
        *("--over", "0.5", "--journal", str(tmp_path / "demo.db")),
    ]
    environment = {
        "PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "TMPDIR": str(tmp_path),
        "PYTHONPATH": str(ROOT), "BROWSER": str(browser),
    }  # fmt: skip
    text = ""
    with anyio.fail_after(100):
        process = await anyio.open_process(command, env=environment, cwd=tmp_path)
        async with process, _killed(process):
            assert process.stdout is not None
            async for chunk in TextReceiveStream(process.stdout):
                text += chunk
                if "Ctrl-C ends them" in text:
                    break
            found = re.search(r"The journal in the browser: (http://127\.0\.0\.1:\d+)", text)
            assert found is not None
            url = found[1]
            shown = await anyio.to_thread.run_sync(opened.read_text, abandon_on_cancel=True)
            assert shown == url
            shown_pods = 0
            async with aiohttp.ClientSession(url) as http:
                while shown_pods <= 40:  # it reads what the daemon wrote last
                    query = {"q": "", "limit": "1"}
                    async with http.get("/api/v1/search", params=query) as response:
                        shown_pods = json.loads(await response.read())["total"]
            process.send_signal(signal.SIGINT)
            assert await process.wait() == 0
    assert "asched ui --journal" in text.replace(sys.argv[0], "asched") or " ui --journal" in text
