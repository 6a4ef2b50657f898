"""The commands. A measured workload has API server and scheduler in separate processes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import anyio
import msgspec
import pytest
import typer
from typer.testing import CliRunner

from benchmarks import engine, scheduler_perf
from benchmarks.measurement import Report

ROOT = Path(__file__).resolve().parents[2]
DEFINITION = """
- name: Basic
  workloadTemplate:
  - {opcode: createNodes, count: 4}
  - {opcode: createPods, count: 5}
  - {opcode: createPods, countParam: $measurePods, collectMetrics: true}
  workloads:
  - {name: Tiny, labels: [short], threshold: 3, params: {measurePods: 20}}
"""


async def command(*arguments: str) -> tuple[int, str, str]:
    program = [sys.executable, "-m", *arguments]
    done = await anyio.run_process(program, cwd=ROOT, check=False)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def invoke(main: Callable[..., None], *arguments: str) -> tuple[int, str, str]:
    """As :func:`command`, in this process."""
    app = typer.Typer()
    app.command()(main)
    done = CliRunner().invoke(app, arguments)
    return done.exit_code, done.stdout, done.stderr


@pytest.fixture
def definition(tmp_path: Path) -> Path:
    path = tmp_path / "performance-config.yaml"
    path.write_text(DEFINITION)
    return path


async def test_scheduler_perf_reports_workload(definition: Path, tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    code, output, errors = await command(
        *("benchmarks.scheduler_perf", "--config", str(definition)),
        *("--workload", "Basic/Tiny", "--json", str(file)),
    )
    assert code == 0, errors
    assert "Basic/Tiny: step 2: createPods" in errors
    report = msgspec.json.decode(file.read_bytes(), type=Report)
    assert report == msgspec.json.decode(output, type=Report)
    (phase,) = report.phases
    assert (report.pods_bound, phase.pods, report.threshold_pods_per_s) == (25, 20, 3)
    assert phase.scheduler_cpu_ms_per_pod > 0
    assert phase.observed_to_decided_ms is not None
    assert phase.observed_to_bound_ms is not None
    assert phase.observed_to_bound_ms.perc99 >= phase.observed_to_bound_ms.perc50 > 0
    assert report.scheduler_peak_rss_mib > 10
    assert report.journal_bytes_per_pod > report.journal_record_bytes_per_pod > 100


def test_list_shows_labels_and_thresholds(definition: Path) -> None:
    code, output, _ = invoke(scheduler_perf.main, "--config", str(definition), "--list")
    assert (code, output) == (0, "Basic/Tiny  [short]  threshold 3.0 pods/s\n")


def test_unknown_workload_is_one_line_error(definition: Path) -> None:
    arguments = ("--config", str(definition), "--workload", "Nothing")
    code, output, errors = invoke(scheduler_perf.main, *arguments)
    assert (code, output) == (1, "")
    assert errors == "scheduler_perf: unknown workload 'Nothing'; available: Basic/Tiny\n"


def test_engine_reports_each_kind_and_shape() -> None:
    code, output, errors = invoke(
        *(engine.main, "--kind", "basic,spread", "--nodes", "20", "--pods", "10"),
        *("--shapes", "1,all-different", "--runs", "1", "--json"),
    )
    assert code == 0, errors
    rows = msgspec.json.decode(output)
    assert [(row["kind"], row["shapes"]) for row in rows] == [
        ("basic", 1),
        ("basic", 10),
        ("spread", 1),
        ("spread", 10),
    ]
    assert all(row["total_ms"] > 0 and row["pods"] == 10 for row in rows)


async def test_engine_prints_profile() -> None:
    code, output, errors = await command(
        "benchmarks.engine", "--nodes", "20", "--pods", "10", "--profile", "--sort", "cumtime"
    )
    assert code == 0, errors
    assert "decide.py" in output
