"""``asched history`` and ``asched explain`` on a journal file."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import anyio
import msgspec
import pytest
from typer.testing import CliRunner

from asched.audit.entries import Entry
from asched.cli.main import app
from asched.journal.opening import open_journal
from tests.audit.recording import Recording, node, pod, woken_pod

runner = CliRunner()


@pytest.fixture
async def journal(tmp_path: Path) -> Path:
    path = tmp_path / "journal.db"
    recording = woken_pod()
    recording.see(node("spare", "8"), pod("next", "1"))
    recording.bind(recording.decide())
    async with open_journal(str(path)) as store:
        await recording.store_in(store)
    return path


def run(journal: Path, *args: str) -> tuple[int, str, str]:
    result = runner.invoke(app, [*args, "--journal", str(journal)], prog_name="asched")
    return result.exit_code, result.stdout, result.stderr


def test_history_table(journal: Path) -> None:
    code, out, err = run(journal, "history", "web")
    assert (code, err) == (0, "")
    assert "pod default/web, uid uid-web" in out
    events = [line.split()[5] for line in out.splitlines() if line.strip().startswith("2026-")]
    assert events == [
        "observed", "queued", "rejected", "queued", "queued", "queued", "assigned", "bound",
        "deleted",
    ]  # fmt: skip
    assert "from unschedulable to backoff: node large was observed" in out
    assert "+0.500 s" in out


def test_history_names_the_day_once_where_columns_are_few(
    journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for columns, day_in_rows in ((80, False), (100, True)):
        monkeypatch.setenv("COLUMNS", str(columns))
        title, *lines = run(journal, "history", "web")[1].splitlines()
        assert title.endswith(", 2026-01-01") is not day_in_rows
        first = next(line for line in lines if "observed   " in line)
        assert first.startswith(" 2026-01-01 ") is day_in_rows


def test_history_of_a_period_without_entries(journal: Path) -> None:
    code, out, err = run(journal, "history", "web", "--since", "2999-01-01")
    assert (code, out, err) == (0, "no events in this period\n", "")


async def keep_an_unreadable_checkpoint(path: Path) -> None:
    async with open_journal(str(path)) as store:
        await store.claim("test", claimed_at_ns=1)
        await store.save_checkpoint((await store.head()).seq, b"of another release")


def test_entries_before_the_period_are_excluded(journal: Path) -> None:
    anyio.run(keep_an_unreadable_checkpoint, journal)
    code, out, err = run(
        journal, "history", "--unschedulable", "--since", "2999-01-01", "-o", "json"
    )
    assert (code, json.loads(out)) == (0, {"pods": []})
    assert "checkpoint skipped" in err


def test_history_json(journal: Path) -> None:
    code, out, err = run(journal, "history", "default/web", "-o", "json")
    assert (code, err) == (0, "")
    [found] = json.loads(out)["pods"]
    assert set(found) == {"namespace", "name", "uid", "entries"}
    assert [e["event"] for e in found["entries"]][-1] == "deleted"


def test_explain_rejection(journal: Path) -> None:
    code, out, err = run(journal, "explain", "web", "--attempt", "1")
    assert (code, err) == (0, "")
    assert "recomputed from the journal: identical" in out
    assert "0 of 2 nodes feasible" in out
    rejections = [line.split("\t") for line in out.splitlines() if "Unschedulable" in line]
    assert [(number, names) for number, names, _ in rejections] == [
        ("1", "small"),
        ("1", "tainted"),
    ]
    assert [why.partition(":")[0] for *_, why in rejections] == [
        "NodeResourcesFit",
        "TaintToleration",
    ]
    _, out, _ = run(journal, "explain", "web", "--attempt", "1", "--all")
    rejections = [line.split("\t")[:1] for line in out.splitlines() if "Unschedulable" in line]
    assert rejections == [["small"], ["tainted"]]


def test_explain_assignment_names_the_chosen_node(journal: Path) -> None:
    code, out, err = run(journal, "explain", "next")
    assert (code, err) == (0, "")
    [chosen] = [line for line in out.splitlines() if "<-" in line]
    assert chosen.split()[0] == "1"
    assert "NodeResourcesFit x1" in out


async def test_nodes_of_equal_scores_share_a_row(tmp_path: Path) -> None:
    recording = Recording()
    nodes = [node("small", "4"), *(node(f"large-{number}", "8") for number in range(6))]
    recording.see(*nodes, pod("web", "1"))
    recording.decide()
    path = tmp_path / "journal.db"
    async with open_journal(str(path)) as store:
        await recording.store_in(store)
    lines = (await anyio.to_thread.run_sync(run, path, "explain", "web"))[1].splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("RANK\tNODES"))
    rank, number, names, *_ = lines[at + 1].split("\t")
    assert (rank, number) == ("1", "6")
    assert re.fullmatch(r"large-\d <-, large-\d, \.\.\.", names)
    assert lines[at + 2].split("\t")[:3] == ["7", "1", "small"]
    assert lines[at + 3] == "... of 7; --all shows all, --node NODE the details of one"
    lines = (await anyio.to_thread.run_sync(run, path, "explain", "web", "--all"))[1].splitlines()
    assert len([line for line in lines if line.startswith(("1\t", "7\t"))]) == 7


def test_explain_lists_unblocking_changes(journal: Path) -> None:
    _, out, _ = run(journal, "explain", "web", "--attempt", "1")
    [title] = [line for line in out.splitlines() if "pass all filters" in line]
    table = out[out.index(title) :]
    nodes = [line.split("\t")[0] for line in table.splitlines() if "Fit\t" in line or "Tol" in line]
    assert nodes == ["tainted", "small"], "the node without a shortage is nearer"
    assert "1 cpu more on the node" in table
    assert "the pod tolerates dedicated:NoSchedule" in table
    _, out, _ = run(journal, "explain", "web", "--attempt", "1", "--no-unblock")
    assert "pass all filters" not in out


def test_explain_at_time(journal: Path) -> None:
    for at, kind in (("00:00:00Z", "rejected"), ("00:00:02Z", "assigned")):
        code, out, _ = run(journal, "explain", "web", "--at", f"2026-01-01T{at}", "-o", "json")
        assert code == 0
        assert json.loads(out)["decision"]["kind"] == kind
    code, _, err = run(journal, "explain", "web", "--at", "2025-12-31T23:59:59Z")
    assert (code, err) == (
        2,
        "asched: pod default/web has no attempts up to that time and did not exist\n",
    )
    code, _, err = run(journal, "explain", "web", "--at", "tomorrow")
    assert (code, "is not a time; write " in err) == (2, True)


def test_explain_one_node(journal: Path) -> None:
    code, out, _ = run(journal, "explain", "next", "--node", "spare", "-o", "json")
    assert code == 0
    [found] = json.loads(out)["nodes"]
    assert found["name"] == "spare"
    assert found["total"] == sum(score["weighted"] for score in found["scores"])
    code, out, _ = run(journal, "explain", "next", "--node", "tainted")
    assert code == 0
    assert "REJECTS tainted BECAUSE" in out


def test_explain_costs_of_a_decision_and_its_alternatives(tmp_path: Path) -> None:
    recording = Recording()
    recording.see(node("a-spot", "2", kind="spot"), node("b", "2"), node("c", "8"))
    recording.see(node("d", "8"), node("full", "500m", kind="spot"), pod("p", "1"), pod("q", "9"))
    recording.bind(recording.decide())
    journal, prices = tmp_path / "journal.db", tmp_path / "prices.yaml"
    anyio.run(save, recording, journal)
    prices.write_text(
        "apiVersion: asched.dev/v1\nkind: Prices\ncurrency: EUR\nresources: {cpu: 0.5}\n"
        "nodes: [{labels: {kind: spot}, perHour: 0.25}]\n"
    )
    with_prices = ("--prices", str(prices))
    code, out, _ = run(journal, "explain", "p", *with_prices, "-o", "json")
    assert code == 0
    costs = json.loads(out)["costs"]
    chosen, runner_up = costs["chosen"], costs["runnerUp"]
    assert {chosen["node"], runner_up["node"]} == {"c", "d"}
    assert (chosen["nodePerHour"], chosen["podPerHour"], chosen["podDifference"]) == (4, 0.5, 0)
    assert (runner_up["nodeDifference"], runner_up["podDifference"]) == (0, 0)
    assert costs["cheapest"] == {
        "node": "a-spot", "nodePerHour": 0.25, "podPerHour": 0.125,
        "nodeDifference": -3.75, "podDifference": -0.375,
    }, "the infeasible spot node is no alternative"  # fmt: skip
    code, out, _ = run(journal, "explain", "p", *with_prices)
    [cheapest] = [line for line in out.splitlines() if "cheapest" in line]
    assert cheapest.split() == ["a-spot", "cheapest", "0.2500", "-3.7500", "0.1250", "-0.3750"]
    assert "costs by the hour, EUR" in out
    rejected = run(journal, "explain", "q", *with_prices, "-o", "json")
    assert (rejected[0], json.loads(rejected[1])["costs"]) == (0, None)
    code, _, err = run(journal, "explain", "--group", "a/b", *with_prices)
    assert (code, "--prices: costs are those of a pod's decision" in err) == (2, True)


async def save(recording: Recording, path: Path) -> None:
    async with open_journal(str(path)) as store:
        await recording.store_in(store)


def test_explain_json_fields_are_documented(journal: Path) -> None:
    _, out, _ = run(journal, "explain", "next", "-o", "json")
    documented = (Path(__file__).parents[2] / "docs" / "how-to" / "explain.md").read_text()
    for field in json.loads(out):
        assert f"`{field}`" in documented, field


@pytest.mark.parametrize("entry", get_args(Entry), ids=lambda entry: entry.__name__)
def test_history_events_and_fields_are_documented(entry: type[msgspec.Struct]) -> None:
    documented = (Path(__file__).parents[2] / "docs" / "how-to" / "history.md").read_text()
    tag = msgspec.inspect.type_info(entry).tag  # type: ignore[attr-defined]
    [row] = [line for line in documented.splitlines() if line.startswith(f"| `{tag}` ")]
    for field in entry.__struct_encode_fields__:
        assert field in ("seq", "at") or f"`{field}`" in row, field


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("history", "wep"), "asched: pod wep is not in the journal; did you mean default/web?\n"),
        (("explain", "wep"), "asched: pod wep is not in the journal; did you mean default/web?\n"),
        (
            ("explain", "web", "--attempt", "9"),
            "asched: no attempt 9: attempts 1 to 2 exist\n",
        ),
        (
            ("explain", "web", "--node", "smal"),
            "asched: no node 'smal' at that time; did you mean small?\n",
        ),
        (
            ("history", "web", "--since", "2026-01-02", "--until", "2026-01-01"),
            "asched: --until 2026-01-01 is before --since 2026-01-02\n",
        ),
        (
            ("history", "web", "--until", "1900-01-01"),
            "asched: --until 1900-01-01 is before 1970\n",
        ),
        (
            ("history", "a/b/c"),
            "asched: 'a/b/c' is not a pod name; expected NAME or NAMESPACE/NAME\n",
        ),
    ],
)
def test_error_is_one_line(journal: Path, args: Sequence[str], message: str) -> None:
    assert run(journal, *args) == (2, "", message)


@pytest.mark.parametrize("command", ["history", "explain"])
def test_missing_journal_is_reported(tmp_path: Path, command: str) -> None:
    path = tmp_path / "none.db"
    assert run(path, command, "web") == (2, "", f"asched: cannot open {path}: no such file\n")


def test_queries_do_not_change_the_journal(journal: Path) -> None:
    before = journal.read_bytes()
    run(journal, "history", "web")
    run(journal, "explain", "web")
    assert journal.read_bytes() == before
