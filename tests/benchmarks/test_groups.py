"""The comparison of ways to schedule gangs: every way runs the same jobs to their end."""

from __future__ import annotations

from pathlib import Path

import pytest

from asched.config.registry import PluginRegistry
from benchmarks.groups.jobs import NODES_TABLE, PODS_TABLE, JobTrace, Size, openb, philly
from benchmarks.groups.measure import GangFigures, measure, table
from benchmarks.groups.passes import WORKLOADS, Pass
from benchmarks.groups.ways import WAYS, Way

SIZE = Size(nodes=16, jobs=12, load=2.0)


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("openb")
    nodes = [f"n{number},128000,786432,8,G2" for number in range(16)]
    pods = [f"p{n},8000,30000,{1 + n % 4},1000,,LS,Running,{n},{n + 900},{n}" for n in range(20)]
    (folder / NODES_TABLE).write_text("\n".join(["sn,cpu_milli,memory_mib,gpu,model", *nodes]))
    columns = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase"
    header = f"{columns},creation_time,deletion_time,scheduled_time"
    (folder / PODS_TABLE).write_text("\n".join([header, *pods]))
    return folder


@pytest.mark.parametrize("draw", [openb, philly])
def test_seed_determines_the_jobs(tables: Path, draw) -> None:  # type: ignore[no-untyped-def]
    drawn: list[JobTrace] = [draw(tables, seed, SIZE) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1]
    assert drawn[0].jobs != drawn[2].jobs


@pytest.mark.parametrize("way", WAYS, ids=[way.name for way in WAYS])
def test_all_jobs_end(tables: Path, way: Way) -> None:
    figures = measure(way, openb(tables, 1, SIZE), PluginRegistry.discover())
    assert figures.unfinished == 0
    assert figures.makespan_h > 0
    assert 0 < figures.utilization <= 1
    assert figures.racks >= 1


def test_single_evictions_leave_gangs_incomplete(tables: Path) -> None:
    """Pod by pod, a worker of a gang is evicted alone. A group that declares the disruption mode
    All is evicted as a whole by group preemption."""
    found = {
        way.name: measure(way, openb(tables, 3, SIZE._replace(jobs=40)), PluginRegistry.discover())
        for way in WAYS[1:3]
    }
    whole, single = found["whole groups"], found["pod by pod"]
    assert whole.evictions
    assert single.evictions
    assert not whole.incomplete_h
    assert single.incomplete_h > 0


def test_table_has_median_and_range() -> None:
    figures = [GangFigures(h, 0.5, h / 10, 0.2, 1.0, 1.0, 0, 0.0, 2.0, 0) for h in (3.0, 1.0, 2.0)]
    row = [*table([("a way", figures)])][-1]
    assert row.startswith("| a way | 2.0 h (1.0-3.0 h) | 50.0% | 0.20 h (0.10-0.30 h) |")


@pytest.mark.parametrize("number", range(len(WORKLOADS)))
def test_pass_attempts_each_gang_once(number: int) -> None:
    """:meth:`Pass.measure` checks that."""
    gangs = WORKLOADS[number]
    small = gangs._replace(gangs=min(gangs.gangs, 3), members=5)
    assert Pass(nodes=20, pods=40).measure(small) > 0
