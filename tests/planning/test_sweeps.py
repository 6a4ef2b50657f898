"""Sweeps: their runs, tables and files."""

from __future__ import annotations

import json
import math
import resource
import signal
import sqlite3
from collections.abc import Iterator, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from shutil import copy

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet
from typer.testing import CliRunner

from asched import planning
from asched.audit.history import ALWAYS
from asched.audit.lookup import AuditError
from asched.audit.whatif.candidate import WhatIfSettings, candidate_config, compare_candidate
from asched.audit.whatif.comparison import WaitPercentiles
from asched.capacity.node_counts import node_changes
from asched.cli.errors import BadInput
from asched.cli.main import app
from asched.cli.output import write_page
from asched.config.file import ConfigFileError
from asched.journal.opening import open_journal
from asched.planning.errors import ExecutionError, PlanningError
from asched.planning.items import RunSettings, WorkAnswer, item_key
from asched.planning.provenance import own_provenance
from asched.planning.result_cache import ResultCache
from asched.planning.sweep_file import read_sweep
from asched.planning.table import RunRow, RunTable
from asched.simulator.expansion import expand
from asched.simulator.scenario import read_scenario
from tests.audit.recording import REGISTRY
from tests.planning.journals import SCENARIO

RUNNER = CliRunner()


async def test_runs_are_those_of_diff(journal: Path, processes: Executor) -> None:
    """One row for the recorded configuration, one for the candidate of ``asched diff``."""
    changes = "NodeResourcesFit=5,-ImageLocality"
    runs = planning.sweep(planning.open(journal), plugins=["", changes], drop_nodes=[0, "large-0"])
    table = runs.run(processes)
    settings = WhatIfSettings(plugins=changes, remove_nodes="large-0")
    async with open_journal(str(journal), read_only=True) as store:
        comparison = await compare_candidate(
            store, candidate_config(settings, None, REGISTRY), ALWAYS
        )
    for row, expected in ((0, comparison.baseline), (3, comparison.candidate)):
        found = table.rows[row].figures
        assert found is not None
        assert found.figures == expected.figures
        assert found.waits == WaitPercentiles.of(expected.to_bind_ns)
        assert found.nodes == len({span.node.name for span in expected.run.nodes})
    assert table.rows[0].figures != table.rows[3].figures


def test_node_hours_and_classes(journal: Path, processes: Executor) -> None:
    history = planning.open(journal)
    (row,) = planning.sweep(history, job_class="priority").run(processes).rows
    assert row.figures is not None
    assert row.figures.node_hours == pytest.approx(6 * row.figures.span_s / 3600)
    classes = row.figures.classes
    assert set(classes) == {"0", "urgent"}
    assert sum(one.pods for one in classes.values()) == row.figures.figures.pods
    assert sum(one.placed for one in classes.values()) == row.figures.figures.placed


def test_failed_run_is_a_row(journal: Path, processes: Executor, tmp_path: Path) -> None:
    runs = planning.sweep(planning.open(journal), drop_nodes=[0, "large-7"])
    table = runs.run(processes, cache=tmp_path)
    assert table.rows[0].figures is not None
    assert table.rows[1].figures is None
    assert 'no node "large-7"; did you mean large-' in table.rows[1].error
    assert len([*tmp_path.iterdir()]) == 1, "errors are not kept"


def test_settings_are_checked_before_the_work(journal: Path, tmp_path: Path) -> None:
    history = planning.open(journal)
    with pytest.raises(AuditError, match="invalid change"):
        planning.sweep(history, plugins=["="])
    with pytest.raises(AuditError, match='job class "team" is unknown; expected namespace'):
        planning.sweep(history, job_class="team")
    with pytest.raises(PlanningError, match=r"none\.yaml cannot be read"):
        planning.sweep(history, config=[tmp_path / "none.yaml"])
    with pytest.raises(PlanningError, match="a sweep of 0 runs"):
        planning.sweep(history, seed=[])
    with pytest.raises(PlanningError, match="is not a time"):
        history.between("yesterday")
    with pytest.raises(PlanningError, match="begins after the journal's end"):
        planning.sweep(history.between("2999-01-01"))


def test_key_depends_on_content_not_on_place(journal: Path, tmp_path: Path) -> None:
    copied = Path(copy(journal, tmp_path / "elsewhere.db"))
    mine, other = (planning.sweep(planning.open(path)).items[0] for path in (journal, copied))
    code = own_provenance()
    assert item_key(mine, code) == item_key(other, code)
    (seeded,) = planning.sweep(planning.open(journal), seed=[4]).items
    assert item_key(seeded, code) != item_key(mine, code)
    changed = msgspec.structs.replace(code, numpy="0")
    assert item_key(mine, changed) != item_key(mine, code)


async def test_another_journal_in_its_place_is_an_error(journal: Path, tmp_path: Path) -> None:
    path = Path(copy(journal, tmp_path / "j.db"))
    runs = planning.sweep(planning.open(path))
    with sqlite3.connect(path) as database:
        for (name,) in database.execute(
            "SELECT name FROM sqlite_master WHERE type = 'trigger'"
        ).fetchall():
            database.execute(f"DROP TRIGGER {name}")
        database.execute("UPDATE journal_batch SET hash = '00'")
    database.close()
    with ThreadPoolExecutor(1) as thread, pytest.raises(ExecutionError, match="another journal"):
        runs.run(thread)


# -- numbers of nodes ------------------------------------------------------------------------------


@given(count=st.integers(0, 5), seed=st.integers(0, 50))
def test_dropped_nodes_are_distinct_and_drawn_by_seed(count: int, seed: int) -> None:
    trace = expand(read_scenario(SCENARIO), "default-scheduler")
    found = node_changes(trace, "", str(count), seed)
    assert len(set(found.removed)) == len(found.removed) == count
    assert found == node_changes(trace, "", str(count), seed)


@given(count=st.integers(0, 40), seed=st.integers(0, 50))
def test_added_nodes_keep_the_mix(count: int, seed: int) -> None:
    """Four large and two small nodes: two thirds of the copies are large, up to rounding."""
    trace = expand(read_scenario(SCENARIO), "default-scheduler")
    added = node_changes(trace, str(count), "", seed).added
    assert sum(one.number for one in added) == count
    large = sum(one.number for one in added if one.template.startswith("large"))
    assert abs(large - count * 2 / 3) < 2


@pytest.mark.parametrize(
    ("add", "drop", "message"),
    [
        ("", "6", "6 of 6 nodes cannot be dropped"),
        ("99999999", "", "at most 10,000 nodes"),
        ("2000%", "", "more than ten times"),
        ("x=", "", "expected NODE=COUNT"),
    ],
)
def test_invalid_numbers_of_nodes(add: str, drop: str, message: str) -> None:
    trace = expand(read_scenario(SCENARIO), "default-scheduler")
    with pytest.raises(AuditError, match=message):
        node_changes(trace, add, drop, 0)


# -- tables ----------------------------------------------------------------------------------------


class Values(RunTable):
    """A table with given values."""

    def __init__(self, *values: Mapping[str, float | None]) -> None:
        super().__init__(
            [RunRow(RunSettings(seed=i), None, "", 0.0) for i in range(len(values))], ""
        )
        self._values = [{**row, **given} for row, given in zip(self._values, values, strict=True)]


def test_best_run() -> None:
    table = Values(
        {"wait": 10.0, "evictions": 4}, {"wait": 5.0, "evictions": 9}, {"wait": 7.0, "evictions": 4}
    )
    assert table.best("wait")["seed"] == 1
    assert table.best("wait", {"evictions": "<= baseline"})["seed"] == 2
    assert table.best("wait", {"evictions": "<= 2 * baseline", "wait": ">6"})["seed"] == 2
    assert table.best("wait", {"evictions": "==9"})["seed"] == 1
    assert table.best("wait", most=True)["seed"] == 0
    with pytest.raises(PlanningError, match="no run with wait meets: wait < 1"):
        table.best("wait", {"wait": "< 1"})
    with pytest.raises(PlanningError, match='no column "waits"; there are'):
        table.best("waits")
    with pytest.raises(PlanningError, match='"about 3" is not a condition'):
        table.best("wait", {"wait": "about 3"})


@given(st.lists(st.tuples(st.integers(0, 9), st.none() | st.integers(0, 9)), min_size=1))
def test_pareto_front(points: list[tuple[int, int | None]]) -> None:
    table = Values(*({"cost": float(x), "wait": y} for x, y in points))
    front = table.pareto("cost", "wait")
    known = [(x, math.inf if y is None else y) for x, y in points]
    for index in front:
        x, y = known[index]
        assert y < math.inf
        assert not any((a <= x and b < y) or (a < x and b <= y) for a, b in known)
    for x, y in known:
        if y < math.inf:
            assert any(known[index][0] <= x and known[index][1] <= y for index in front)


def test_table_as_parquet(journal: Path, processes: Executor, tmp_path: Path) -> None:
    table = planning.sweep(planning.open(journal), seed=[None, 2]).run(processes)
    table.write_parquet(tmp_path / "runs.parquet")
    read = parquet.read_table(tmp_path / "runs.parquet").to_pylist()
    assert read == [{name: row.get(name) for name in table.columns} for row in table.values]
    with pytest.raises(PlanningError, match="cannot be written"):
        table.write_parquet(tmp_path / "none" / "runs.parquet")


# -- results folder --------------------------------------------------------------------------------


@pytest.fixture
def short_files() -> Iterator[None]:
    """A limit of the process acts like a full disk: a write fails in the middle."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.usefixtures("short_files")
def test_full_disk_leaves_no_part_of_a_report(tmp_path: Path) -> None:
    table = RunTable([], "nothing")
    with pytest.raises(PlanningError, match=r"r\.parquet cannot be written"):
        table.write_parquet(tmp_path / "r.parquet")
    with pytest.raises(BadInput, match=r"r\.html: cannot be written"):
        write_page(tmp_path / "r.html", "x" * 5000)
    assert not [*tmp_path.iterdir()]
    with pytest.raises(PlanningError, match="Is a directory"):
        table.write_parquet(tmp_path)


@pytest.mark.usefixtures("short_files")
def test_full_disk_leaves_no_part_of_a_result(tmp_path: Path) -> None:
    cache = ResultCache(tmp_path)
    cache.put("small", WorkAnswer(worker="w"))
    with pytest.raises(ExecutionError, match="cannot be written"):
        cache.put("large", WorkAnswer(error="x" * 5000))
    assert [file.name for file in tmp_path.iterdir()] == ["small.json"]
    assert cache.get("small") == WorkAnswer(worker="w")
    assert cache.get("large") is None


def test_damaged_result_is_computed_again(
    journal: Path, processes: Executor, tmp_path: Path
) -> None:
    runs = planning.sweep(planning.open(journal))
    first = runs.run(processes, cache=tmp_path)
    (file,) = tmp_path.iterdir()
    content = file.read_bytes()
    file.write_bytes(content[:100])
    again = runs.run(processes, cache=tmp_path)
    assert again.rows[0].figures == first.rows[0].figures
    assert msgspec.json.decode(file.read_bytes(), type=WorkAnswer).result


def test_folder_that_cannot_be_created(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ExecutionError, match="cannot be created"):
        ResultCache(tmp_path / "file" / "runs")


# -- files and commands ----------------------------------------------------------------------------


def sweep_file(folder: Path, text: str) -> Path:
    file = folder / "sweep.yaml"
    file.write_text(f"apiVersion: asched.dev/v1\nkind: Sweep\n{text}")
    return file


def test_sweep_command(journal: Path, tmp_path: Path) -> None:
    copy(journal, tmp_path / "journal.db")
    (tmp_path / "packing.yaml").write_text(
        "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
    )
    file = sweep_file(
        tmp_path,
        "workload: {journal: journal.db}\nconfigs: [recorded, packing.yaml]\nseeds: 2\n"
        "addNodes: [0, 1]\n",
    )
    options = ["--jobs", "1", "--html", str(tmp_path / "r.html"), "--best", "p95_wait_s"]
    options += ["--subject-to", "evictions <= baseline", "--cache", str(tmp_path / "runs")]
    ran = RUNNER.invoke(app, ["sweep", str(file), *options, "-o", "json"])
    assert ran.exit_code == 0, ran.output
    found = json.loads(ran.stdout)
    settings = [(row["config"], row["seed"], row["add_nodes"]) for row in found["rows"]]
    assert settings == [
        (config, seed, add)
        for config in ("", "packing.yaml")
        for seed in (0, 1)
        for add in ("", "1")
    ]
    assert found["best"]["p95_wait_s"] == min(row["p95_wait_s"] for row in found["rows"])
    page = (tmp_path / "r.html").read_text()
    assert page.count("</title></circle>") == 8
    assert [page.count(f'<circle class="point run{number}') for number in (0, 1)] == [5, 5]
    over_seeds = page.partition("Over seeds")[2].partition("<h2>")[0]
    assert over_seeds.count("<tr>") == 1 + 4
    assert "<td>packing.yaml</td><td>1</td><td>2</td>" in over_seeds
    assert "Sweep: sweep" in page
    assert "<script" not in page
    table = RUNNER.invoke(app, ["sweep", str(file), "--jobs", "1", *options[2:]])
    assert table.exit_code == 0, table.output
    assert "8 runs" in table.stdout
    assert "best p95_wait_s: config=" in table.stdout
    unknown = RUNNER.invoke(
        app, ["sweep", str(file), "--jobs", "1", "--cache", options[-1], "--best", "waits"]
    )
    assert (unknown.exit_code, "8 runs" in unknown.stdout) == (2, True), "the rows are not lost"
    assert 'no column "waits"' in unknown.stderr


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("workload: {journal: j.db}\nseed: 3\n", ":4: seed: unknown field; did you mean seeds?"),
        ("workload: {}\n", ":3: workload: expected exactly one of journal, scenario and openb"),
        ("workload: {scenario: s.yaml, since: 1h}\n", "since needs a journal or an openb trace"),
        ("workload: {openb: {nodes: n, pods: p}, until: 1h}\n", "until needs a journal"),
        ("workload: {journal: j.db}\naddNodes: [1.5]\n", ":4: addNodes[0]"),
        ("workload: {journal: [}\n", ":3:"),
    ],
)
def test_mistakes_in_a_file_are_located(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigFileError) as failed:
        read_sweep(sweep_file(tmp_path, text))
    assert message in "\n".join(failed.value.lines)


def test_file_of_another_kind(tmp_path: Path) -> None:
    file = tmp_path / "sweep.yaml"
    file.write_text("apiVersion: asched.dev/v1\nkind: Scenario\nworkload: {journal: j}\n")
    with pytest.raises(ConfigFileError, match=r"expected apiVersion asched\.dev/v1 and kind Sweep"):
        read_sweep(file)


def test_bad_input_of_the_command(tmp_path: Path) -> None:
    file = sweep_file(tmp_path, "workload: {journal: none.db}\n")
    ran = RUNNER.invoke(app, ["sweep", str(file), "--jobs", "1"])
    assert (ran.exit_code, "none.db" in ran.output) == (2, True)
    ran = RUNNER.invoke(app, ["sweep", str(file), "--subject-to", "evictions"])
    assert (ran.exit_code, "is not a condition; write" in ran.output) == (2, True)


def test_axes_of_nodes_load_and_prices(journal: Path, tmp_path: Path) -> None:
    copy(journal, tmp_path / "journal.db")
    (tmp_path / "prices.yaml").write_text(
        "apiVersion: asched.dev/v1\nkind: Prices\nresources: {cpu: 1}\n"
        "nodes: [{labels: {type: spot}, perHour: 0.5}]\n"
    )
    file = sweep_file(
        tmp_path,
        "workload: {journal: journal.db}\nprices: prices.yaml\n"
        "nodeMixes: [{}, {name: wide, replace: 2, each: 0.5, allocatable: {cpu: 16}}]\n"
        "spotNodes: [{}, {nodes: '50%', perHour: 4, returnsAfter: 5m, labels: {type: spot}}]\n"
        "loads: [{}, {scale: 1.5}]\n",
    )
    ran = RUNNER.invoke(app, ["sweep", str(file), "--jobs", "1", "-o", "json"])
    assert ran.exit_code == 0, ran.output
    rows = json.loads(ran.stdout)["rows"]
    axes = [(row["node_mix"], row["spot_nodes"], row["load"]) for row in rows]
    assert axes == [
        (mix, spot, load)
        for mix in ("", "2 wide")
        for spot in ("", "50% x 4/h")
        for load in ("", "1.5x")
    ]
    assert len({row["sha256"] for row in rows}) == 8
    assert all(rows[i + 1]["pods"] > rows[i]["pods"] for i in range(0, 8, 2))
    assert rows[2]["cost"] < rows[0]["cost"], "spot nodes have a lower price"
    assert [row["nodes"] for row in rows] == [6, 6, 6, 6, 5, 5, 5, 5]


def test_replay_command_with_jobs(journal: Path) -> None:
    run = ["replay", "--verify", "--journal", str(journal), "-o", "json"]
    serial = RUNNER.invoke(app, run)
    assert serial.exit_code == 0, serial.output
    assert json.loads(serial.stdout)["checkpoints"] > 10
    parallel = RUNNER.invoke(app, [*run, "--jobs", "2"])
    assert parallel.stdout == serial.stdout
    both = RUNNER.invoke(app, [*run, "--jobs", "2", "--scheduler", "tcp://127.0.0.1:1"])
    assert (both.exit_code, "not both" in both.output) == (2, True)
