"""asched.service: valid for systemd, consistent with the daemon, and sufficient for it."""

from __future__ import annotations

import os
import platform
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from asched.cli.errors import BadInput
from asched.cli.options import JOURNAL_ENV
from asched.config.file import load
from asched.config.registry import PluginRegistry
from asched.daemon.daemon import DRAIN_S, EVENT_FLUSH_S
from asched.daemon.engine.engine import SLOW_TURN_S
from asched.daemon.telemetry.health import START_EXTENSION_S
from tests.daemon.processes import NO_HEALTH
from tests.daemon.world import world
from tests.docs.command_lines import parsed
from tests.systemd.unit import FOLDER, UNIT, directives, one, seconds

MAX_EXPOSURE = 2.0
needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd is not installed here"
)
needs_strace = pytest.mark.skipif(
    shutil.which("strace") is None, reason="strace is not installed here"
)
needs_mdwe = pytest.mark.skipif(
    tuple(map(int, re.findall(r"\d+", platform.release())[:2])) < (6, 3),
    reason="this kernel has no PR_SET_MDWE",
)
_WITH_MDWE = (
    "import ctypes, os, sys\n"
    "status = ctypes.CDLL(None).prctl(65, 1, 0, 0, 0)\n"  # PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN
    "os.execv(sys.argv[1], sys.argv[1:]) if status == 0 else sys.exit(99)\n"
)
"""Runs a program that can never make memory executable that was not before (Linux 6.3)."""


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["systemd-analyze", *arguments], capture_output=True, text=True, timeout=60, check=False
    )


# -- systemd's own tools ----------------------------------------------------------------------


@needs_systemd
def test_systemd_verify_passes(tmp_path: Path) -> None:
    unit = tmp_path / UNIT.name
    # It wants to see the program; here that is not in /opt.
    program = one("Service.ExecStart").split()[0]
    unit.write_text(UNIT.read_text().replace(program, sys.executable))
    done = analyze("verify", "--man=no", str(unit))
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    unit.write_text(unit.read_text().replace("ProtectSystem=strict", "ProtectSystem=stric"))
    done = analyze("verify", "--man=no", str(unit))
    assert "Failed to parse" in done.stderr, "a mistake is reported"


@needs_systemd
def test_exposure_is_low() -> None:
    done = analyze(
        "security", "--offline=true", f"--threshold={round(MAX_EXPOSURE * 10)}", "--no-pager",
        str(UNIT),
    )  # fmt: skip
    found = re.search(r"exposure level for asched.service: (\d+\.\d)", done.stdout)
    assert found is not None, done.stderr
    assert float(found[1]) <= MAX_EXPOSURE
    assert done.returncode == 0


# -- what it says, without systemd ------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("Type", "notify"),
        ("NotifyAccess", "main"),
        ("DynamicUser", "yes"),
        ("StateDirectory", "asched"),
        ("ProtectSystem", "strict"),
        ("ProtectHome", "yes"),
        ("PrivateTmp", "yes"),
        ("PrivateDevices", "yes"),
        ("PrivateUsers", "yes"),
        ("ProtectProc", "invisible"),
        ("ProtectKernelTunables", "yes"),
        ("ProtectKernelModules", "yes"),
        ("ProtectKernelLogs", "yes"),
        ("ProtectControlGroups", "yes"),
        ("ProtectClock", "yes"),
        ("ProtectHostname", "yes"),
        ("CapabilityBoundingSet", ""),
        ("AmbientCapabilities", ""),
        ("NoNewPrivileges", "yes"),
        ("RestrictNamespaces", "yes"),
        ("RestrictRealtime", "yes"),
        ("RestrictSUIDSGID", "yes"),
        ("RestrictAddressFamilies", "AF_INET AF_INET6 AF_UNIX"),
        ("LockPersonality", "yes"),
        ("MemoryDenyWriteExecute", "yes"),
        ("SystemCallArchitectures", "native"),
        ("UMask", "0077"),
    ],
)
def test_unit_is_hardened(name: str, value: str) -> None:
    assert one(f"Service.{name}") == value


def test_system_calls_are_filtered() -> None:
    allowed, refused = directives()["Service.SystemCallFilter"]
    assert (allowed, refused) == ("@system-service", "~@privileged @resources")


# -- in step with the daemon ------------------------------------------------------------------


def test_stop_timeout_exceeds_drain() -> None:
    assert seconds(one("Service.TimeoutStopSec")) >= DRAIN_S + EVENT_FLUSH_S + 10
    # With "mixed" the signal goes to the daemon alone, and SIGKILL to all remaining processes.
    assert (one("Service.KillMode"), one("Service.KillSignal")) == ("mixed", "SIGTERM")


def test_watchdog_exceeds_slow_turn() -> None:
    assert seconds(one("Service.WatchdogSec")) >= 2 * SLOW_TURN_S


def test_start_extension_is_shorter_than_timeout() -> None:
    assert seconds(one("Service.TimeoutStartSec")) > START_EXTENSION_S / 2


def test_bad_input_is_not_restarted() -> None:
    assert int(one("Service.RestartPreventExitStatus")) == BadInput("").exit_code


def test_failures_are_restarted_without_limit() -> None:
    """By default systemd gives up after five starts in ten seconds.

    A slow API server, a credential plugin without a network, or a full disk may last longer.
    """
    assert one("Service.Restart") == "on-failure"
    assert one("Unit.StartLimitIntervalSec") == "0"
    assert seconds(one("Service.RestartSec")) >= 5


def test_reload_sends_sighup() -> None:
    """What it does on it: tests/daemon/test_reloader.py."""
    assert one("Service.ExecReload") == "kill -HUP $MAINPID"


def test_exec_start_parses() -> None:
    options = parsed(one("Service.ExecStart"))
    assert options["config"] == Path("/etc/asched/asched.yaml")
    assert (options["kubeconfig"], options["journal"]) == (None, None)
    assert JOURNAL_ENV in one("Service.Environment")


def test_example_files_are_valid() -> None:
    configuration = load(FOLDER / "asched.yaml", PluginRegistry.discover())
    assert [profile.scheduler_name for profile in configuration.profiles] == ["asched"]
    assert (configuration.warnings, configuration.faults) == ((), ())
    names = re.findall(r"^#?([A-Z_]+)=", (FOLDER / "asched.env").read_text(), re.M)
    assert names == [JOURNAL_ENV]


# -- what the daemon does under it ------------------------------------------------------------


def _named(group: str) -> set[str]:
    found: set[str] = set()
    for line in analyze("syscall-filter", "--no-pager", group).stdout.splitlines():
        word = line.strip()
        if word.startswith("@") and word != group:
            found |= _named(word)
        elif word and not word.startswith(("#", "@")):
            found.add(word)
    return found


@needs_systemd
@needs_strace
@needs_mdwe
async def test_daemon_runs_with_syscall_filter(tmp_path: Path) -> None:
    """Runs a daemon with the restrictions of the unit: filtered system calls, no writable code."""
    refused = _named("@privileged") | _named("@resources")
    # A name with "?" may be one that strace does not know.
    refusal = ",".join(f"?{name}" for name in sorted(refused))
    trace, config = tmp_path / "trace", tmp_path / "config.yaml"
    config.write_text(NO_HEALTH)
    async with world(tmp_path, nodes=1) as w:
        w.add_pod("p")
        program = [
            *("strace", "-f", "-qq", "-o", str(trace), "-e", f"inject={refusal}:error=EPERM"),
            *(sys.executable, "-c", _WITH_MDWE, sys.executable),
            *("-m", "asched", "run", "--config", str(config)),
            *("--kubeconfig", str(w.kubeconfig), "--journal", str(w.journal)),
        ]
        async with await anyio.open_process(program, stderr=None) as process:
            await w.until(lambda: w.node_of("p") == "n0")
            daemon = int(trace.read_text().split(maxsplit=1)[0])
            os.kill(daemon, signal.SIGTERM)
            assert await process.wait() == 0
    used = set(re.findall(r"^\d+ +([a-z_0-9]+)\(", trace.read_text(), re.M))
    assert len(used) > 40
    assert used - _named("@system-service") - refused == set()
