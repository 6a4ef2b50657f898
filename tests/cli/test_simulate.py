"""``asched simulate``: output, journal and determinism."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from asched import __version__
from asched.cli.main import app
from tests.simulator.test_openb import NODES, PODS

SCENARIO = Path(__file__).parents[2] / "docs" / "examples" / "scenario.yaml"
KUBE = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
runner = CliRunner()


def run(*args: str | Path) -> tuple[int, str, str]:
    result = runner.invoke(app, [*map(str, args)], prog_name="asched")
    return result.exit_code, result.stdout, result.stderr


def figure(out: str, label: str) -> str:
    """A figure in the table."""
    (value,) = [
        line.partition("\t")[2] for line in out.splitlines() if line.startswith(f"{label}\t")
    ]
    return value


def test_table_output() -> None:
    code, out, err = run("simulate", SCENARIO)
    assert (code, err) == (0, "")
    assert out.startswith("2026-01-01 00:00:00 to 2026-01-01 02:00:00 UTC, 4 nodes\n")
    assert figure(out, "pods to place") == "50"
    assert figure(out, "placed") == "50"
    assert (figure(out, "finished"), figure(out, "deleted")) == ("44", "6")
    assert figure(out, "nvidia.com/gpu utilisation, peak") == "100.0%"


def test_feature_gates(tmp_path: Path) -> None:
    off = "SchedulerPopFromBackoffQ=false"
    code, out, err = run("simulate", SCENARIO, "--feature-gates", off)
    assert (code, err) == (0, "")
    assert figure(out, "placed") == "50"
    for command in (("simulate", SCENARIO), ("run",), ("shadow",)):
        code, out, err = run(*command, "--feature-gates", "SchedulerQueueingHints=false")
        assert (code, out) == (2, "")
        assert err == (
            "--feature-gates: SchedulerQueueingHints: cannot be false: it is locked to true in"
            " Kubernetes 1.36\n"
        )
    file = tmp_path / "config.yaml"
    file.write_text(f"{KUBE}")
    code, out, err = run("config", "check", file, "--feature-gates", "A")
    assert (code, err) == (2, 'asched: --feature-gates: "A" is not NAME=true or NAME=false\n')


def test_gates_are_recorded_with_the_profiles(tmp_path: Path) -> None:
    journal = tmp_path / "j.db"
    off = "SchedulerPopFromBackoffQ=false"
    assert run("simulate", SCENARIO, "--feature-gates", off, "--journal", journal)[0] == 0
    exported = tmp_path / "j.jsonl"
    assert run("journal", "export", "--to", exported, "--journal", journal)[0] == 0
    (loaded,) = [x for x in exported.read_text().splitlines() if '"ProfilesLoaded"' in x]
    assert '"feature_gates":{"scheduler_pop_from_backoff_q":false}' in loaded
    assert run("replay", "--verify", "--journal", journal)[0] == 0


def test_json_lists_every_pod() -> None:
    code, out, err = run("simulate", SCENARIO, "-o", "json", "--until", "10m")
    assert (code, err) == (0, "")
    report = json.loads(out)
    assert (report["begin"], report["end"]) == ("2026-01-01T00:00:00Z", "2026-01-01T00:10:00Z")
    pods = {pod["pod"]: pod for pod in report["pods"]}
    assert pods["default/web-0"].keys() == {
        "pod", "createdSeconds", "node", "boundSeconds", "attempts",
    }  # fmt: skip
    assert pods["jobs/train-0"]["node"] == "gpu-0"
    assert (pods["jobs/train-0"]["createdSeconds"], pods["jobs/train-0"]["boundSeconds"]) == (
        180,
        300,
    )
    ended = [pod for pod in pods.values() if "end" in pod]
    assert report["ends"] == {"finished": len(ended)}
    assert report["run"]["figures"]["pods"] == len(pods)


def test_output_is_identical_for_any_hash_seed() -> None:
    """This process has another one."""
    command = (sys.executable, "-m", "asched", "simulate", str(SCENARIO), "-o", "json")
    environment = {**os.environ, "PYTHONHASHSEED": "2"}
    done = subprocess.run(command, env=environment, capture_output=True, check=True, text=True)
    assert done.stdout == run("simulate", SCENARIO, "-o", "json")[1]


def test_decision_and_bind_time_delay_pods() -> None:
    quick, slow = (
        json.loads(run("simulate", SCENARIO, "-o", "json", "--until", "1m", *pace)[1])["pods"]
        for pace in ((), ("--decision-time", "1s", "--bind-time", "500ms"))
    )
    assert [pod["boundSeconds"] for pod in quick[:6]] == [0] * 6
    assert [pod["boundSeconds"] for pod in slow[:6]] == [1.5, 2.5, 3.5, 4.5, 5.5, 6.5]


def test_journal_works_with_other_commands(tmp_path: Path) -> None:
    journal = tmp_path / "simulated.db"
    code, out, err = run("simulate", SCENARIO, "--journal", journal, "-o", "json")
    assert (code, err) == (0, "")
    assert out == run("simulate", SCENARIO, "-o", "json")[1]
    code, out, _ = run("replay", "--verify", "--journal", journal)
    assert (code, "all identical" in out) == (0, True)
    code, out, _ = run("journal", "verify", "--journal", journal)
    assert code == 0
    code, out, _ = run("history", "default/web-0", "--journal", journal)
    assert code == 0
    # Its node was drained; it was recreated with another uid.
    assert "uid pod-default-web-0-1" in out
    code, out, _ = run("explain", "jobs/train-0", "--attempt", "1", "--journal", journal)
    assert (code, "node(s) didn't match Pod's node affinity/selector" in out) == (0, True)
    code, _, err = run("simulate", SCENARIO, "--journal", journal)
    assert (code, err) == (2, "asched: the journal is not empty; a simulation writes a new one\n")


def test_html_report_contains_charts(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    assert run("simulate", SCENARIO, "--until", "5m", "--html", page)[0] == 0
    text = page.read_text()
    assert "Simulation of scenario.yaml" in text
    assert "<svg" in text


def test_configuration_determines_placements(tmp_path: Path) -> None:
    config = tmp_path / "packing.yaml"
    strategy = "{scoringStrategy: {type: MostAllocated}}"
    config.write_text(
        f"{KUBE}profiles:\n- schedulerName: packing\n  pluginConfig:\n"
        f"  - name: NodeResourcesFit\n    args: {strategy}\n"
        "  plugins:\n    score: {disabled: [{name: '*'}], enabled: [{name: NodeResourcesFit}]}\n"
        "extenders:\n- urlPrefix: http://127.0.0.1:1\n  filterVerb: filter\n"
    )
    scenario = tmp_path / "s.yaml"
    scenario.write_text(
        "{apiVersion: asched.dev/v1, kind: Scenario,"
        " nodes: [{name: n, count: 3, allocatable: {cpu: 4, memory: 8Gi, pods: 9}}],"
        " pods: [{name: p, count: 4, template: {spec: {containers:"
        " [{name: c, image: i, resources: {requests: {cpu: 1, memory: 1Gi}}}]}}}]}"
    )
    code, out, err = run("simulate", scenario, "--config", config, "-o", "json")
    assert (code, err) == (0, "asched: a simulation does not call extenders\n")
    packed = json.loads(out)
    assert packed["run"]["name"] == str(config)
    assert packed["notes"] == [f"asched {__version__}; configuration: {config}, seed 0"]
    assert len({pod["node"] for pod in packed["pods"]}) == 1
    spread = json.loads(run("simulate", scenario, "-o", "json")[1])
    assert len({pod["node"] for pod in spread["pods"]}) == 3


def test_openb_trace_is_simulated(tmp_path: Path) -> None:
    nodes, pods = tmp_path / "nodes.csv", tmp_path / "pods.csv"
    nodes.write_text(NODES)
    pods.write_text(PODS)
    code, out, err = run("simulate", "--openb-nodes", nodes, "--openb-pods", pods)
    assert (code, err) == (0, "")
    assert out.startswith("2023-01-01 00:00:00 to ")
    assert (figure(out, "placed"), figure(out, "finished"), figure(out, "deleted")) == (
        "6",
        "6",
        "1",
    )
    nodes.write_text("sn\n")
    code, _, err = run("simulate", "--openb-nodes", nodes, "--openb-pods", pods)
    missing = "no column cpu_milli, memory_mib"
    assert (code, err.partition(";")[0]) == (2, f"{nodes}:1: {missing}")


def test_scenario_mistakes_are_reported_with_line_numbers(tmp_path: Path) -> None:
    text = SCENARIO.read_text()
    broken = tmp_path / "broken.yaml"
    broken.write_text(text.replace("count: 40", "count: x").replace("seed:", "sed:"))
    code, out, err = run("simulate", broken)
    assert (code, out) == (2, "")
    assert err.splitlines() == [
        f"{broken}:3: sed: unknown field; did you mean seed?",
        f'{broken}:33: pods[1].count: expected an integer, got the string "x"',
    ]
    broken.write_text(text.replace("cpu: 500m", "cpu: lots"))
    code, _, err = run("simulate", broken)
    assert (code, err.startswith(f"{broken}:36: pods[1].template: Pod in version")) == (2, True)
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", ":1: not valid YAML: "),
        ("", ": expected one document of kind Scenario, got 0"),
        ("a: 1\n---\nb: 1\n", ": expected one document of kind Scenario, got 2"),
        ("[1]", ":1: expected a mapping, got "),
        ("a: 1\na: 2\n", ":1: a: duplicate key, on lines 1 and 2"),
    ],
)
def test_invalid_scenario_file_is_rejected(tmp_path: Path, text: str, message: str) -> None:
    broken = tmp_path / "broken.yaml"
    broken.write_text(text)
    code, _, err = run("simulate", broken)
    assert code == 2
    assert err.startswith(f"{broken}{message}")
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((), "asched: expected a SCENARIO, or --openb-nodes and --openb-pods together; see "),
        (("no.yaml",), "no.yaml: cannot be read: No such file or directory"),
        ((SCENARIO, "--openb-pods", "x"), "asched: expected a SCENARIO, or "),
        (
            (SCENARIO, "--until", "soon"),
            'asched: --until: "soon" is not a duration; write one like',
        ),
        ((SCENARIO, "--bind-time=-1s"), "asched: --bind-time: expected at least 0s, got -1s"),
        ((SCENARIO, "--config", "no.yaml"), "no.yaml: cannot be read: No such file or directory"),
        (
            (SCENARIO, "--until", "1s", "--html", "/dev/null/x"),
            "asched: /dev/null/x: cannot be written: ",
        ),
    ],
)
def test_bad_input_is_one_line_and_exit_2(args: tuple[str | Path, ...], message: str) -> None:
    code, out, err = run("simulate", *args)
    assert (code, out) == (2, "")
    assert err.startswith(message)
    assert len(err.splitlines()) == 1


def test_two_configurations_are_compared(tmp_path: Path) -> None:
    packing = tmp_path / "packing.yaml"
    packing.write_text(
        f"{KUBE}profiles:\n- pluginConfig:\n  - name: NodeResourcesFit\n"
        "    args: {scoringStrategy: {type: MostAllocated}}\n"
    )
    spreading = tmp_path / "spreading.yaml"
    spreading.write_text(KUBE)
    page = tmp_path / "both.html"
    both = ("--config", spreading, "--config", packing)
    code, out, err = run("simulate", SCENARIO, *both, "--html", page)
    assert (code, err) == (0, "")
    assert f"\t{spreading}\t{packing}\tCHANGE" in out
    assert f"note: asched {__version__}; configuration: {packing}, seed 0" in out
    assert "pod(s) placed differently" in out
    assert str(packing) in page.read_text()
    report = json.loads(run("simulate", SCENARIO, *both, "-o", "json")[1])
    names = report["baseline"]["name"], report["candidate"]["name"]
    assert names == (str(spreading), str(packing))
    alone = json.loads(run("simulate", SCENARIO, "--config", packing, "-o", "json")[1])
    assert report["candidate"]["figures"] == alone["run"]["figures"]
    code, _, err = run("simulate", SCENARIO, *both, "--config", packing)
    assert (code, "two configurations can be compared" in err) == (2, True)
    code, _, err = run("simulate", SCENARIO, *both, "--journal", tmp_path / "j.db")
    assert (code, err) == (2, "asched: --journal: a journal holds one run; give one --config\n")


def figures(*args: str | Path) -> dict[str, Any]:
    code, out, err = run("simulate", SCENARIO, "-o", "json", *args)
    assert (code, err) == (0, "")
    report: dict[str, Any] = json.loads(out)
    return report


def test_load_and_nodes_change_the_workload() -> None:
    plain = figures()
    more = figures("--load", "2", "--seed", "3")
    assert more["run"]["figures"]["pods"] == 2 * plain["run"]["figures"]["pods"]
    assert more["notes"][1:] == ["load 2, seed 3", "100 pods arrive instead of 50"]
    assert figures("--load", "2", "--seed", "3") == more
    fewer = figures("--load", "0.5")
    assert 0 < fewer["run"]["figures"]["pods"] < 50
    nodes = sorted({pod["node"] for pod in plain["pods"]})
    only = figures("--only-nodes", nodes[0])
    assert {pod.get("node", "") for pod in only["pods"]} <= {nodes[0], ""}
    assert only["notes"][1:] == [f"only nodes {nodes[0]}"]
    added = figures("--add-nodes", f"{nodes[0]}=2", "--remove-nodes", nodes[1])
    assert added["notes"][1] == f"2 more like {nodes[0]}, without {nodes[1]}"
    assert nodes[1] not in {pod.get("node") for pod in added["pods"]}


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--only-nodes", "gpu-x*"), "asched: --only-nodes: gpu-x*: no node has such a name\n"),
        (("--remove-nodes", "absent"), 'asched: --remove-nodes: the history has no node "absent"'),
        (("--add-nodes", "a"), 'asched: --add-nodes: invalid item "a"'),
        (("--load", "101"), "asched: Invalid value for '--load'"),
    ],
)
def test_impossible_changes_are_one_line(args: tuple[str, str], message: str) -> None:
    code, out, err = run("simulate", SCENARIO, *args)
    assert (code, out) == (2, "")
    assert err.startswith(message)
    assert err.count("\n") == 1
