"""The browser interface of a demo: ``asched ui`` as a process, and a browser that shows it."""

from __future__ import annotations

import subprocess
import sys
import threading
import webbrowser
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final

import anyio
import structlog
from anyio.abc import Process
from anyio.streams.text import TextReceiveStream

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

START_TIMEOUT_S: Final = 60.0
_STOP_TIMEOUT_S: Final = 5.0


@asynccontextmanager
async def browser_interface(
    journal: Path, show: Callable[[str], object] = webbrowser.open
) -> AsyncIterator[str]:
    """Serve the journal until the end of the block, which receives the URL, and ``show`` it.

    A machine without a browser is no failure; neither is an interface that does not start: it is
    logged, and the URL is empty.
    """
    command = [sys.executable, "-m", "asched", "ui", "--journal", str(journal)]
    command += ["--listen", "127.0.0.1:0", "--until-stdin-closes"]
    # A process and a session of its own: decisions do not wait for it, nor does it get Ctrl-C.
    process = await anyio.open_process(
        command, stdin=subprocess.PIPE, stderr=None, start_new_session=True
    )
    try:
        url = await _url_of(process)
        if url:
            # Not awaited: a browser may end only when its user closes it.
            threading.Thread(target=_shown, args=(show, url), daemon=True).start()
        else:
            log.warning("browser interface did not start")
        yield url
    finally:
        with anyio.CancelScope(shield=True):
            await _stop(process)


async def _url_of(process: Process) -> str:
    """What the process prints in its first line; empty if it ends or prints nothing in time."""
    assert process.stdout is not None
    text = ""
    with anyio.move_on_after(START_TIMEOUT_S):
        async for chunk in TextReceiveStream(process.stdout):
            text += chunk
            if "\n" in text:
                words = text.split("\n")[0].split()
                return next((word.rstrip(",") for word in words if word.startswith("http")), "")
    return ""


def _shown(show: Callable[[str], object], url: str) -> None:
    # Browsers are found and started in many ways; a failure of one must not end the demo.
    with suppress(Exception):
        show(url)


async def _stop(process: Process) -> None:
    assert process.stdin is not None
    await process.stdin.aclose()
    with anyio.move_on_after(_STOP_TIMEOUT_S):
        await process.wait()
    if process.returncode is None:
        process.kill()
        await process.wait()
    await process.aclose()
