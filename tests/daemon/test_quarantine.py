"""A pod that ends the process twice is quarantined; the scheduler goes on without it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from asched.audit.replay import replay
from asched.config.registry import PluginRegistry
from asched.cycle.precheck import QUARANTINED
from asched.daemon.engine.attempt_mark import AttemptMark
from asched.framework.pod_info import PodInfo
from asched.journal import open_journal
from asched.state.records import PodQuarantined
from tests.daemon.distributions import install
from tests.daemon.processes import NO_HEALTH, ROOT, commands, running
from tests.daemon.world import KUBE, world
from tests.state.objects import a_pod

PLUGIN = """\
import os
import signal

from asched.framework.interface import FilterPlugin
from asched.framework.status import SUCCESS


class Deadly(FilterPlugin):
    name = "Deadly"
    api_version = 1

    def filter(self, state, pod, node):
        if pod.name == "exits":
            os._exit(66)
        if pod.name == "killed":
            os.kill(os.getpid(), signal.SIGKILL)  # as the watchdog of a service manager
        return SUCCESS
"""


@pytest.fixture
def deadly_distribution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, "Deadly", PLUGIN)


@pytest.mark.usefixtures("deadly_distribution")
@pytest.mark.parametrize("name", ["exits", "killed"])
async def test_deadly_pod_is_quarantined_at_the_second_death(tmp_path: Path, name: str) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(
        f"{KUBE}profiles: [{{plugins: {{multiPoint: {{enabled: [{{name: Deadly}}]}}}}}}]\n"
        f"---\n{NO_HEALTH}"
    )
    async with world(tmp_path, nodes=2) as w, commands(tmp_path) as processes:
        arguments = (
            "run", "--kubeconfig", str(w.kubeconfig), "--config", str(config),
            "--journal", str(w.journal),
        )  # fmt: skip
        w.add_pod(name)
        for _ in range(2):
            async with running(processes, *arguments) as command:
                status = 66 if name == "exits" else -signal.SIGKILL
                assert await processes.ended(command) == status, command.output
                assert "pod quarantined" not in command.output
        w.add_pod("innocent")
        async with running(processes, *arguments) as command:
            await w.until(lambda: bool(w.node_of("innocent")))
            await w.until(lambda: w.message(name) == QUARANTINED)
            assert "pod quarantined" in command.output
            command.send(signal.SIGTERM)
            assert await processes.ended(command) == 0, command.output
        async with open_journal(str(w.journal), read_only=True) as store:
            found = [stored.record async for stored in store.read()]
            assert (await replay(store, PluginRegistry.discover())).equal
    (quarantined,) = (record for record in found if isinstance(record, PodQuarantined))
    assert quarantined.key == f"default/{name}"


def _die_with(path: Path, name: str) -> None:
    program = (
        "import os, sys, signal\n"
        "from pathlib import Path\n"
        "from asched.daemon.engine.attempt_mark import AttemptMark\n"
        "from asched.framework.pod_info import PodInfo\n"
        "from tests.state.objects import a_pod\n"
        "mark = AttemptMark.open(Path(sys.argv[1]))\n"
        "mark.begin(PodInfo(a_pod(sys.argv[2])))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    died = subprocess.run(
        [sys.executable, "-c", program, str(path), name],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert died.returncode == -signal.SIGKILL


def _after_death(path: Path) -> PodQuarantined | None:
    mark = AttemptMark.open(path)
    try:
        return mark.after_death()
    finally:
        mark.close()


def test_mark_survives_the_process(tmp_path: Path) -> None:
    path = tmp_path / "mark"
    assert _after_death(path) is None
    _die_with(path, "p")
    assert _after_death(path) is None
    assert _after_death(path) is None  # a start without an attempt
    _die_with(path, "p")
    assert _after_death(path) == PodQuarantined("default/p", "pod-p")
    _die_with(path, "p")
    assert _after_death(path) is None


def test_deaths_with_different_pods(tmp_path: Path) -> None:
    path = tmp_path / "mark"
    for name in ("p", "q", "p"):
        _die_with(path, name)
        assert _after_death(path) is None


def test_damaged_mark_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "mark"
    path.write_bytes(b"\x01\x00\x05{bad}" + b"\xff" * 100)
    assert _after_death(path) is None
    mark = AttemptMark.open(path)
    mark.begin(PodInfo(a_pod("p")))
    mark.end()
    mark.close()
    assert _after_death(path) is None
