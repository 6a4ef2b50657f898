"""The checks beside Kubernetes' workloads, in the smallest size."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import checks, workload_files
from benchmarks.checks import Trouble
from benchmarks.results import HTTP_TARGETS, OWN
from benchmarks.suite import OWN_WORKLOADS
from benchmarks.templates import Template


async def test_two_starts_in_a_full_cluster() -> None:
    first, second = await checks.start(3, 10, lambda text: None)
    assert (first.name, second.name) == ("first start", "start with the journal of the first")
    for figures in (first, second):
        assert (figures.nodes, figures.pods) == (3, 10)
        assert figures.first_decision_s > 0
        assert figures.cpu_s > 0
        assert figures.peak_rss_mib > 10


async def test_a_steady_stream() -> None:
    figures = await checks.steady(5, 40, 1, lambda text: None)
    assert (figures.pods_per_s, figures.pods) == (40, 40)
    assert figures.seen_to_decided_p99_ms >= figures.seen_to_decided_p50_ms > 0
    assert figures.created_to_bound_p99_ms >= figures.created_to_bound_p50_ms > 0


@pytest.mark.parametrize("trouble", [Trouble.SILENT_EXTENDER, Trouble.SLOW_PLUGIN])
async def test_plain_pods_are_scheduled_while_others_wait(trouble: Trouble, tmp_path: Path) -> None:
    said: list[str] = []
    (figures,) = await checks.interference(10, 30, tmp_path, said.append, [trouble])
    assert figures.trouble == trouble
    assert figures.pods_per_s > 0
    assert "step 2: createPods" in said


def test_our_own_workloads_are_what_they_are_called() -> None:
    workloads = workload_files.load(OWN_WORKLOADS / "performance-config.yaml")
    for target in HTTP_TARGETS:
        if target.file == OWN:
            assert workload_files.find(workloads, target.workload).name == target.workload
    template = Template(OWN_WORKLOADS / "pod-different.yaml")
    first, second = (template.render(number, 2)["spec"] for number in range(2))
    assert first != second
