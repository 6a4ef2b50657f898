"""``asched demo`` on a small cluster: results, output and shutdown."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from typer.testing import CliRunner

from asched.cli.main import app
from asched.config.registry import PluginRegistry
from asched.cycle.decide import Decider
from asched.journal.opening import open_journal
from asched.state.cluster import ClusterState
from asched.state.fold import Fold
from asched.state.records import Assigned, AttemptFailed, Rejected
from tests.demo.running import DEMO_TIMEOUT_S, demo, logged

CONFIG = """
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- schedulerName: mine
  plugins: {score: {disabled: [{name: ImageLocality}]}}
"""


class SmallDemo(NamedTuple):
    done: Any
    """The ended process."""
    journal: Path
    left: tuple[str, ...]
    """Folders that it left behind."""


@pytest.fixture(scope="module")
def small_demo(tmp_path_factory: pytest.TempPathFactory) -> SmallDemo:
    """A demo with 20 nodes and 120 pods, one scheduler name and a seed."""
    folder = tmp_path_factory.mktemp("demo")
    journal, config = folder / "run.db", folder / "mine.yaml"
    config.write_text(CONFIG)
    done = demo(
        "--nodes", "20", "--pods", "120", "--over", "1", "--seed", "5", "--journal", str(journal),
        "--config", str(config), cwd=folder,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return SmallDemo(done, journal, tuple(path.name for path in folder.iterdir() if path.is_dir()))


def test_small_demo_binds_all_schedulable_pods(small_demo: SmallDemo) -> None:
    done, journal = small_demo.done, small_demo.journal
    assert not [event for event in logged(done.stderr) if event["level"] == "error"]
    out = done.stdout
    assert re.search(r"schedulable pods\t120\s", out)
    assert re.search(r"bound\t120\s", out)
    assert re.search(r"observed to bound\tp50 \d+ ms, p99 \d+ ms", out)
    assert "Insufficient nvidia.com/gpu" in out
    assert "gated by SchedulingGates" in out
    assert re.search(r"bound 120/120", out), "a progress line, because this is not a terminal"
    assert "\x1b" not in out
    assert small_demo.left == ()
    commands = [line.strip() for line in out.splitlines() if f"--journal {journal}" in line]
    names = [shlex.split(line)[1] for line in commands]
    assert names == ["history", "explain", "explain", "ui"]
    for line in commands[:-1]:
        result = CliRunner().invoke(app, shlex.split(line)[1:], prog_name="asched")
        assert (result.exit_code, result.stderr) == (0, "")


async def test_decisions_of_a_demo_are_reproducible(small_demo: SmallDemo) -> None:
    fold = Fold(ClusterState(), PluginRegistry.discover().load)
    decider, repeated = Decider(fold.state), 0
    async with open_journal(str(small_demo.journal), read_only=True) as store:
        async for stored in store.read():
            if isinstance(stored.record, Assigned | Rejected | AttemptFailed):
                assert decider.next() == (stored.record,)
                repeated += 1
            fold.apply(stored.record)
    assert repeated >= 120
    assert fold.state.profiles.keys() == {"mine"}


def test_timeout_with_unbound_pods_exits_with_1(tmp_path: Path) -> None:
    done = demo(
        "--nodes", "70", "--pods", "3000", "--over", "0.1", "--timeout", "0", cwd=tmp_path
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert "NOT BOUND" in done.stdout
    logged(done.stderr)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--nodes", "10", "--pods", "5000"), "asched: 10 nodes take at most 495 pods here\n"),
        (("--config", "none.yaml"), "none.yaml: cannot be read: No such file or directory\n"),
        (("--journal", "there.db"), "asched: there.db exists; the demo writes a new journal\n"),
        (
            ("--journal", "no/such/folder.db"),
            "asched: cannot write a journal in no/such: not a folder\n",
        ),
    ],
)
def test_bad_input_is_one_line_and_exit_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, args: tuple[str, ...], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there.db").touch()
    done = CliRunner().invoke(app, ["demo", *args], prog_name="asched")
    assert (done.exit_code, done.stdout, done.stderr) == (2, "", message)


def test_killed_demo_leaves_no_server(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "asched", "demo", "--nodes", "10", "--pods", "50", "--over", "30"],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        assert process.stderr is not None
        running = next(line for line in process.stdout if "  created " in line)
        assert "/5" in running
        process.send_signal(signal.SIGKILL)
        # The server shares stderr, which ends when both processes have ended.
        process.communicate(timeout=DEMO_TIMEOUT_S)
    assert process.returncode == -signal.SIGKILL


def test_keep_runs_until_signal(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "asched", "demo", "--nodes", "10", "--pods", "30", "--over", "0.2",
         "--keep"],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    with process:
        assert process.stdout is not None
        lines = iter(process.stdout)
        kubectl = next(line for line in lines if "kubectl --kubeconfig" in line)
        assert Path(shlex.split(kubectl)[2]).is_file()
        assert next(line for line in lines if "Ctrl-C" in line)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=DEMO_TIMEOUT_S)
    assert process.returncode == 0
    logged(stderr)
