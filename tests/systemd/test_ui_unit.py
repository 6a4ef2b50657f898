"""asched-ui.service: as hardened as asched.service, and sufficient for ``asched ui``."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path

import anyio
import pytest
from anyio.streams.text import TextReceiveStream

from asched.cli.options import JOURNAL_ENV
from tests.docs.command_lines import parsed
from tests.systemd.test_unit import (
    _WITH_MDWE,
    MAX_EXPOSURE,
    _named,
    analyze,
    needs_mdwe,
    needs_strace,
    needs_systemd,
)
from tests.systemd.unit import FOLDER, UNIT, directives
from tests.ui.tenants import preempting_tenants, stored

UI_UNIT = FOLDER / "asched-ui.service"
ROOT = Path(__file__).resolve().parents[2]
OF_DAEMON = {
    "Type", "NotifyAccess", "TimeoutStartSec", "WatchdogSec", "KillMode", "TimeoutStopSec",
    "RestartPreventExitStatus", "Environment", "EnvironmentFile", "LoadCredential", "ExecStart",
    "ExecReload", "StateDirectory", "StateDirectoryMode", "WorkingDirectory",
}  # fmt: skip
"""Directives of the daemon that the interface has with other values, or not at all."""


def test_hardening_is_that_of_the_daemon() -> None:
    ours, daemons = directives(UI_UNIT), directives(UNIT)
    wanted = {
        name: values
        for name, values in daemons.items()
        if name.startswith("Service.") and name.removeprefix("Service.") not in OF_DAEMON
    }
    assert len(wanted) > 25
    assert {name: ours.get(name) for name in wanted} == wanted


def test_journal_is_mounted_read_only() -> None:
    found = directives(UI_UNIT)
    ((mount,), (environment,)) = (
        found["Service.BindReadOnlyPaths"],
        found["Service.Environment"],
    )
    source, _, target = mount.partition(":")
    (state,) = directives(UNIT)["Service.StateDirectory"]
    # The state directory of a dynamic user; asched.service has no other name for its user.
    assert source == f"/var/lib/private/{state}"
    assert found["Service.User"] == [UNIT.stem]
    assert environment == f"{JOURNAL_ENV}={target}/journal.db"
    assert "Service.ReadWritePaths" not in found
    assert found["Service.StateDirectory"] == ["asched-ui"]
    assert found["Service.StateDirectoryMode"] == ["0700"]


def test_exec_start_parses() -> None:
    (line,) = directives(UI_UNIT)["Service.ExecStart"]
    options = parsed(line)
    assert options["listen"] == "127.0.0.1:8080"
    assert options["token_file"] == Path("${CREDENTIALS_DIRECTORY}/ui-token")
    assert options["index_dir"] == Path("${STATE_DIRECTORY}/index")
    assert options["results_dir"] == Path("${STATE_DIRECTORY}/results")
    (credential,) = directives(UI_UNIT)["Service.LoadCredential"]
    assert credential == "ui-token:/etc/asched/ui-token"


@needs_systemd
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / UI_UNIT.name
    (line,) = directives(UI_UNIT)["Service.ExecStart"]
    unit.write_text(UI_UNIT.read_text().replace(line.split()[0], sys.executable))
    done = analyze("verify", "--man=no", str(unit))
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    limit = round(MAX_EXPOSURE * 10)
    done = analyze("security", "--offline=true", f"--threshold={limit}", str(UI_UNIT))
    assert done.returncode == 0, done.stdout


@needs_systemd
@needs_strace
@needs_mdwe
async def test_command_runs_with_syscall_filter(tmp_path: Path) -> None:
    url = await stored(preempting_tenants(), tmp_path / "journal.db")
    refused = _named("@privileged") | _named("@resources")
    refusal = ",".join(f"?{name}" for name in sorted(refused))
    trace = tmp_path / "trace"
    program = [
        *("strace", "-f", "-qq", "-o", str(trace), "-e", f"inject={refusal}:error=EPERM"),
        *(sys.executable, "-c", _WITH_MDWE, sys.executable),
        *("-m", "asched", "ui", "--journal", url, "--listen", "127.0.0.1:0"),
    ]
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)}
    async with await anyio.open_process(program, stderr=None, env=environment) as process:
        assert process.stdout is not None
        line = await TextReceiveStream(process.stdout).receive()
        assert line.startswith("serving ")
        main = int((await anyio.Path(trace).read_text()).split(maxsplit=1)[0])
        os.kill(main, signal.SIGTERM)
        assert await process.wait() == 0
    text = await anyio.Path(trace).read_text()
    used = set(re.findall(r"^\d+ +([a-z_0-9]+)\(", text, re.M))
    assert used - _named("@system-service") - refused == set()


@pytest.mark.parametrize("name", ["asched.service", "asched-ui.service"])
def test_units_are_documented(name: str) -> None:
    pages = "".join(path.read_text() for path in (ROOT / "docs").glob("*/*.md"))
    assert name in pages
