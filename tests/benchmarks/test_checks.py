"""The measurements of ``benchmarks.checks``, in the smallest size."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import checks, latency, workload_files
from benchmarks.checks import Fault
from benchmarks.latency import Load
from benchmarks.results import HTTP_TARGETS, OWN
from benchmarks.suite import OWN_WORKLOADS
from benchmarks.templates import Template
from benchmarks.workload_run import RunOptions


async def test_start_measures_empty_and_full_journal() -> None:
    first, second = await checks.start(3, 10, lambda text: None)
    assert (first.name, second.name) == ("first start", "start with the journal of the first")
    for figures in (first, second):
        assert (figures.nodes, figures.pods) == (3, 10)
        assert figures.first_decision_s > 0
        assert figures.cpu_s > 0
        assert figures.peak_rss_mib > 10


async def test_steady_measures_latencies() -> None:
    figures = await checks.steady(5, 40, 1, lambda text: None)
    assert (figures.pods_per_s, figures.pods) == (40, 40)
    assert figures.observed_to_decided_p99_ms >= figures.observed_to_decided_p50_ms > 0
    assert figures.created_to_bound_p99_ms >= figures.created_to_bound_p50_ms > 0


def test_latency_measures_pods_with_tokens() -> None:
    result = latency.measure_in_turns(
        Load(5, 40, 1), 1, RunOptions(token_volumes=True), None, lambda text: None
    )
    (run,) = result.asched
    assert run.pods == 40
    assert run.p99_ms >= run.p50_ms > 0
    assert not result.kube_scheduler


@pytest.mark.parametrize("fault", [Fault.UNRESPONSIVE_EXTENDER, Fault.SLOW_PLUGIN])
async def test_plain_pods_are_scheduled_during_fault(fault: Fault, tmp_path: Path) -> None:
    progress: list[str] = []
    (figures,) = await checks.interference(10, 30, tmp_path, progress.append, [fault])
    assert figures.fault == fault
    assert figures.pods_per_s > 0
    assert "step 2: createPods" in progress


def test_own_workloads_contain_all_targets() -> None:
    workloads = workload_files.load(OWN_WORKLOADS / "performance-config.yaml")
    for target in HTTP_TARGETS:
        if target.file == OWN:
            assert workload_files.find(workloads, target.workload).name == target.workload
    template = Template(OWN_WORKLOADS / "pod-different.yaml")
    first, second = (template.render(number, 2)["spec"] for number in range(2))
    assert first != second
