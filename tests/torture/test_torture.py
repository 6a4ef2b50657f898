"""A short run with real processes, and the checks against histories that violate them."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from random import Random

import pytest

from asched.apiserver.cluster import EmbeddedCluster
from asched.model.quantity import NS_PER_S
from tests.daemon.processes import ROOT
from tests.torture.campaign import Options, run
from tests.torture.canaries import CANARIES, leaks
from tests.torture.history import HealthSample, History, wrongly_ready
from tests.torture.load import Load
from tests.torture.replica_process import ClockOffset
from tests.torture.report import Timeline

YEAR_S = 365 * 86400
SHORT = {
    "own": ("kill the leader", "responses lost", "no descriptor left"),
    "shared": ("PostgreSQL crashes", "5xx after the effect", "step the clock"),
}


@pytest.mark.parametrize("journals", ["own", "shared"])
async def test_short_run_has_no_breach(
    journals: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("torture")
    options = Options(
        journals=journals, seed=1, run_s=3, longest_fault_s=1.5, only=SHORT[journals], prints=False
    )
    summary = await run(options, folder)
    assert summary.breaches == [], f"see {folder / 'timeline'}"
    assert summary.faults
    assert summary.checks["bindings accepted"] > 0
    assert summary.checks["journal verify"] == (2 if journals == "own" else 1)
    assert summary.checks["files searched for secrets"] >= 3


# -- the checks find breaches ---------------------------------------------------------------------


def _cluster() -> tuple[EmbeddedCluster, History, Load]:
    cluster = EmbeddedCluster(seed=1)
    history, load = History(cluster), Load(cluster, Random(1))
    load.add_nodes()
    return cluster, history, load


def _bind(cluster: EmbeddedCluster, name: str, node: str) -> None:
    cluster.bind("default", name, node)


def test_overcommitted_node_is_a_breach() -> None:
    cluster, history, load = _cluster()
    for number in range(21):
        load.add(f"p{number}")
        _bind(cluster, f"p{number}", "n0")
        assert bool(history.breaches()) == (number == 20)


def test_moved_pod_is_a_breach() -> None:
    """The API server prevents it; its storage does not."""
    cluster, history, load = _cluster()
    load.add("p")
    _bind(cluster, "p", "n0")
    assert history.breaches() == []
    bound = cluster.get("pods", "p", namespace="default")
    moved = {**bound, "spec": {**bound["spec"], "nodeName": "n1"}}
    cluster.api.storage(cluster.resource("pods")).write("default/p", moved)
    assert history.breaches() == ["p moved from n0 to n1"]


def test_waiting_pod_counts_as_unbound() -> None:
    cluster, history, load = _cluster()
    assert history.unbound_for_s(1e9) == 0
    load.add("p")
    assert history.unbound_for_s(history.pending["p"] + 11) == pytest.approx(11)
    _bind(cluster, "p", "n0")
    assert history.unbound_for_s(1e9) == 0


@pytest.mark.parametrize(
    ("ready", "silent_s", "breach"),
    [
        ([True] * 24, 11, True),
        ([True] * 24, 9, False),
        ([True] * 20 + [False] + [True] * 3, 11, False),
        ([True] * 4, 11, False),
    ],
    ids=["ready", "not silent for long", "was not ready once", "observed too briefly"],
)
def test_readiness_during_a_silence(ready: list[bool], silent_s: float, breach: bool) -> None:
    now_s = 100.0
    first_s = now_s - len(ready) / 2
    samples = [HealthSample(first_s + n / 2, value, "") for n, value in enumerate(ready)]
    assert wrongly_ready(samples, silent_s, now_s) is breach


def test_secrets_are_found() -> None:
    content = " ".join(CANARIES.values()).encode()
    assert leaks(content, "log") == [f"log shows {what}" for what in CANARIES]
    assert leaks(b"nothing", "log") == []


def test_same_breach_is_reported_once(tmp_path: Path) -> None:
    timeline = Timeline(tmp_path / "timeline", prints=False)
    timeline.breach("a pod moved")
    timeline.breach("a pod moved")
    assert [breach.text for breach in timeline.breaches] == ["a pod moved"]
    assert (tmp_path / "timeline").read_text().count("BREACH") == 1


def test_stepped_clock(tmp_path: Path) -> None:
    """In a process of its own: the step replaces methods of a class."""
    offset = ClockOffset(tmp_path / "clock")
    offset.ns = -10 * YEAR_S * NS_PER_S
    program = (
        "import pathlib, sys; from asched.kube.timing import SystemClock;"
        " from tests.torture.replica_process import ClockOffset, step_system_clock;"
        " step_system_clock(ClockOffset(pathlib.Path(sys.argv[1])));"
        " print(SystemClock().time_ns(), round(SystemClock().utc().timestamp()))"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "clock")]
    output = subprocess.run(command, check=True, capture_output=True, cwd=ROOT, text=True).stdout
    time_ns, utc_s = map(int, output.split())
    assert time.time() - time_ns / NS_PER_S > 9 * YEAR_S
    assert abs(time_ns / NS_PER_S - utc_s) < 2
