"""Logs and tracebacks hold no values of variables, and every line has the configured format."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

CANARY = "canary-7f3a"
PROGRAM = """
import logging, sys, structlog
from asched.config.settings import LogFormat, LogLevel, LogSettings
from asched.daemon.telemetry.logs import configure_logs

configure_logs(LogSettings(format=LogFormat(sys.argv[1]), level=LogLevel("debug")))
log = structlog.get_logger()

def connect():
    token = "-".join(["canary", "7f3a"])
    headers = {"Authorization": token}
    raise KeyError("nothing")

try:
    connect()
except KeyError as error:
    log.critical("stopped by an internal error", exc_info=error)
    logging.getLogger("library").error("it failed", exc_info=error)
    logging.getLogger("library").warning("text with %s", "arguments")
"""


@pytest.mark.parametrize("form", ["console", "json"])
def test_tracebacks_show_no_variables(form: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, form], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "KeyError" in done.stderr
    assert "in connect" in done.stderr
    assert CANARY not in done.stderr + done.stdout
    if form == "json":
        events = [json.loads(line) for line in done.stderr.splitlines()]
        assert [event["event"] for event in events] == [
            "stopped by an internal error",
            "it failed",
            "text with arguments",
        ]
        assert [event.get("logger") for event in events] == [None, "library", "library"]
        assert [event["level"] for event in events] == ["critical", "error", "warning"]
