"""asched answers like kube-scheduler: in recorded data, if present, and in cases derived by
hand."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from asched.config.registry import PluginRegistry
from tests.conformance.__main__ import main
from tests.conformance.runner import CaseResult, results, topics_in

CASES = Path(__file__).parent / "cases"


def assert_all_agree(found: Iterable[CaseResult]) -> None:
    found = list(found)
    lines = [f"{r.place}: {line}" for r in found for line in r.differences]
    assert found
    assert not lines, f"{len(lines)} differences\n" + "\n".join(lines[:20])


def recorded(directory: Path) -> list[CaseResult]:
    """The results of all recorded documents."""
    registry = PluginRegistry.discover()
    topics = topics_in(directory)
    assert topics
    return [result for topic, paths in topics.items() for result in results(topic, paths, registry)]


@pytest.mark.shared
def test_cases_recorded_by_kube_scheduler(shared_dir: Path) -> None:
    assert_all_agree(recorded(shared_dir / "golden" / "kube"))


@pytest.mark.shared
def test_cases_recorded_by_kube_batch(shared_dir: Path) -> None:
    assert_all_agree(recorded(shared_dir / "golden" / "batch"))


@pytest.mark.shared
def test_devices_recorded_by_kube_scheduler(shared_dir: Path) -> None:
    """Pods with ResourceClaims, queueing hints, expressions, and pods resized in place."""
    assert_all_agree(recorded(shared_dir / "golden" / "dra"))


@pytest.mark.shared
def test_groups_recorded_by_kube_scheduler(shared_dir: Path) -> None:
    found = recorded(shared_dir / "golden" / "groups")
    assert_all_agree(found)
    in_full = sum(not result.rule for result in found)
    assert in_full >= 0.85 * len(found)


@pytest.mark.parametrize("topic", sorted(topics_in(CASES)))
def test_cases_derived_by_hand(topic: str) -> None:
    assert_all_agree(results(topic, topics_in(CASES)[topic], PluginRegistry.discover()))


# -- the runner itself ----------------------------------------------------------------------------


@pytest.fixture
def preemption(tmp_path: Path) -> Path:
    shutil.copytree(CASES / "preemption", tmp_path / "preemption")
    return tmp_path


def change(directory: Path, case: int, **expect: Any) -> None:
    path = directory / "preemption" / "preemption-1.json"
    document = json.loads(path.read_text())
    document["cases"][case]["expect"].update(expect)
    path.write_text(json.dumps(document))


def test_report_shows_agreement_by_topic(
    preemption: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(preemption)]) == 0
    assert capsys.readouterr().out == "preemption  2 passed, 0 failed\n2 passed, 0 failed\n"


REFUSED = ["NodeResourcesFit", "Unschedulable", ["Insufficient cpu"]]


@pytest.mark.parametrize(
    ("expect", "line"),
    [
        ({"outcome": "scheduled"}, "outcome: expected scheduled, got unschedulable"),
        ({"message": "no"}, "message: expected no, got 0/3 nodes are available: 3"),
        (
            {"filter": {"nodes": dict.fromkeys("abx", REFUSED)}},
            f"filter.nodes.x: expected {REFUSED}, got (absent)",
        ),
        (
            {"filter": {"nodes": dict.fromkeys("ab", REFUSED)}},
            f"filter.nodes.c: expected (absent), got {REFUSED}",
        ),
        (
            {"preemption": {"candidates": {"b": {"victims": [], "pdbViolations": 1}}}},
            "preemption.candidates.b.pdbViolations: expected 1, got 0",
        ),
        ({"somethingNew": 1}, "somethingNew: expected 1, got (absent)"),
    ],
)
def test_report_shows_differences(
    preemption: Path,
    capsys: pytest.CaptureFixture[str],
    expect: Mapping[str, Any],
    line: str,
) -> None:
    change(preemption, 0, **expect)
    assert main([str(preemption), "--diffs", "100"]) == 1
    out = capsys.readouterr().out
    assert "preemption-1 case 0 (default/urgent)\n" in out
    assert f"\n    {line}" in out
    assert out.endswith("\n1 passed, 1 failed\n")


def test_unusable_document_fails(preemption: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (preemption / "preemption" / "broken-1.json").write_text("{")
    (preemption / "preemption" / "half-1.json").write_text("{}")
    assert main([str(preemption)]) == 1
    out = capsys.readouterr().out
    assert "broken-1\n    cannot be used: broken-1.json is no recorded document" in out
    assert out.endswith("\n2 passed, 2 failed\n")


def test_topics_can_be_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(CASES), "--topic", "edge", "--topic", "volumes"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in out] == ["edge", "volumes", "3"]


@pytest.fixture
def sessions(tmp_path: Path) -> Path:
    shutil.copytree(CASES / "batch", tmp_path / "batch")
    return tmp_path


@pytest.mark.parametrize(
    ("stable", "varies", "line"),
    [
        ({"binds": {"ns/g-0": "n2"}}, {}, "binds.ns/g-0: expected n2, got n1"),
        ({"binds": {}}, {}, "binds.ns/g-0: expected (absent), got n1"),
        (
            {"binds": {"ns/g-1": "n1", "ns/g-2": "n1"}},
            {"binds": {"ns/g-0": {"outcomes": [{"value": "n7"}, {"absent": True}]}}},
            "binds.ns/g-0: expected one of ['n7', '(absent)'], got n1",
        ),
        (
            {"trace": {}},
            {"trace": {"allocate": {"commonPrefix": ["queue x"]}}},
            "trace.allocate: expected to begin with ['queue x'], got ['queue q'",
        ),
        ({"somethingNew": 1}, {}, "somethingNew: expected 1, got (absent)"),
    ],
)
def test_report_shows_differences_of_a_session(
    sessions: Path,
    capsys: pytest.CaptureFixture[str],
    stable: Mapping[str, Any],
    varies: Mapping[str, Any],
    line: str,
) -> None:
    path = sessions / "batch" / "batch-1.json"
    document = json.loads(path.read_text())
    document["expect"].update(stable=stable, varies=varies)
    path.write_text(json.dumps(document))
    assert main([str(sessions)]) == 1
    out = capsys.readouterr().out
    assert "batch-1 session 1\n" in out
    assert f"\n    {line}" in out


def test_both_modes_are_compared(sessions: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(sessions), "--compare-modes"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    # Only the incomplete gang differs: it releases its reservations.
    assert last == "| all | 6 | 6 | 7 → 7 | 3 → 3 | 4 → 4 | 2 → 0 |"


@pytest.fixture
def groups(tmp_path: Path) -> Path:
    shutil.copytree(CASES / "groups", tmp_path / "groups")
    return tmp_path


def test_report_counts_groups_that_a_rule_excludes(
    groups: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(groups)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "groups  2 passed, 0 failed, 1 of them by rule",
        "1 compared in full (50.0%); by rule:",
        "  surplus-preempts: 1",
        "2 passed, 0 failed",
    ]


@pytest.mark.parametrize(
    ("path", "value", "line"),
    [
        (("outcome",), "unschedulable", "outcome: expected unschedulable, got scheduled"),
        (("run", "cycles", 0, "pods", "g-0", "node"), "a", "nodes: expected {'g-0': 'a'"),
        (("run", "cycles", 0, "popped"), ["g-0", "g-1"], "popped: expected ['g-0', 'g-1']"),
        (("run", "cycles", 0, "condition", 0), "False", "condition: expected ['False'"),
        (("run", "cycles", 0, "trace", 1, "message"), "no", "steps: expected [('r0', 'g-1'"),
    ],
)
def test_report_shows_differences_of_a_group(
    groups: Path,
    capsys: pytest.CaptureFixture[str],
    path: tuple[str | int, ...],
    value: Any,
    line: str,
) -> None:
    document = groups / "groups" / "groups-1.json"
    recorded = json.loads(document.read_text())
    found: Any = recorded["cases"][0]["expect"]["canonical"]
    for key in path[:-1]:
        found = found[key]
    found[path[-1]] = value
    document.write_text(json.dumps(recorded))
    assert main([str(groups)]) == 1
    assert f"\n    {line}" in capsys.readouterr().out


def test_run_without_cases_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path)]) == 2
    assert "no documents" in capsys.readouterr().err
