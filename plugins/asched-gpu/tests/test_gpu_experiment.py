"""The experiment on a small trace: arrivals, results and tables."""

from __future__ import annotations

from pathlib import Path

import gpu_experiment as experiment
import msgspec
import pytest
from asched_gpu.gpu_share import PolicyName

NODES = "sn,cpu_milli,memory_mib,gpu,model\n" + "".join(
    f"n{number},64000,262144,{4 * (number > 0)},{'T4' * (number > 0)}\n" for number in range(6)
)
_KINDS = (("12000", "1", "1000", ""), ("4000", "1", "470", "T4"), ("3000", "1", "810", ""))
PODS = (
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,"
    "deletion_time,scheduled_time\n"
    + "".join(
        f"p{number},{cpu},1024,{gpus},{milli},{spec},LS,Running,{number},9999,{number}\n"
        for number in range(15)
        for cpu, gpus, milli, spec in [_KINDS[number % 3]]
    )
    + "cpu,9000,1024,0,0,,BE,Running,20,9999,\n"
)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "nodes.csv").write_text(NODES)
    (tmp_path / "openb_pod_list_default.csv").write_text(PODS)
    (tmp_path / "openb_pod_list_other.csv").write_text(PODS)
    return tmp_path


def read(folder: Path, mix: str = "default") -> experiment.Trace:
    return experiment.read_trace(folder / "nodes.csv", folder / f"openb_pod_list_{mix}.csv")


def test_pods_arrive_until_requests_reach_130_percent(files: Path) -> None:
    trace = read(files)
    assert (len(trace.nodes), len(trace.pods), trace.gpu_milli) == (5, 16, 20_000)
    nodes, pods = experiment.inflated(trace, 7)
    assert sorted(n.name for n in nodes) == ["n1", "n2", "n3", "n4", "n5"]
    assert sorted(p.name for p in pods[:16]) == sorted(p.name for p in trace.pods)
    asked = sum(map(experiment.gpu_milli_of, pods))
    assert 25_000 < asked <= 26_000
    assert experiment.inflated(trace, 7) == (nodes, pods)
    assert experiment.inflated(trace, 8) != (nodes, pods)


def test_recorded_results_are_not_computed_again(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = files / "results.jsonl"

    def run(mix: str, *policies: str) -> int:
        pods = files / f"openb_pod_list_{mix}.csv"
        experiment.main(
            ["run", "--nodes", str(files / "nodes.csv"), "--pods", str(pods), "--seeds", "1-2",
             "--results", str(results), "--policies", *policies]
        )  # fmt: skip
        return len(capsys.readouterr().out.splitlines())

    assert run("default", "fgd", "random") == 4
    assert run("default", "fgd", "fgd-aligned") == 2
    assert run("other", "fgd", "fgd-aligned") == 4
    found = experiment.Results(results)
    for outcome in found.outcomes:
        at_full, at_end = outcome.allocated
        assert 50 < at_full <= at_end <= 100
    readme = files / "README.md"
    readme.write_text(
        "before\n<!-- table: default -->\nold\n<!-- end: default -->\n"
        "<!-- table: mixes --><!-- end: mixes -->\nafter\n"
    )
    experiment.main(["table", "--results", str(results), "--readme", str(readme)])
    text = readme.read_text()
    assert "old" not in text
    fgd = found.of("default", PolicyName.FGD)
    mean = sum(outcome.allocated[0] for outcome in fgd) / 2
    assert f"| FGD | 2 | {mean:.2f} | " in text
    assert "| other | 2 | " in text
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")


def test_equal_seeds_give_equal_outcomes(files: Path) -> None:
    once, again = (experiment.run(read(files), PolicyName.RANDOM, 3) for _ in range(2))
    assert msgspec.structs.replace(once, cpu_s=again.cpu_s) == again
