"""Runs ``asched demo`` in a separate process."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

DEMO_TIMEOUT_S = 100
"""Only reached by a failing test."""


def demo(*args: str, cwd: Path, command: Sequence[str] = (sys.executable, "-m", "asched")) -> Any:
    """Run the demo to its end, its temporary files under ``cwd``."""
    return subprocess.run(
        [*command, "demo", *args],
        cwd=cwd,
        env={"PATH": "/usr/bin:/bin", "TMPDIR": str(cwd), "HOME": str(cwd)},
        capture_output=True,
        text=True,
        timeout=DEMO_TIMEOUT_S,
        check=False,
    )


def logged(stderr: str) -> list[dict[str, Any]]:
    """The log events in ``stderr``. Fails on anything else."""
    events = [json.loads(line) for line in stderr.splitlines()]
    assert all({"event", "level", "timestamp"} <= event.keys() for event in events)
    return events
