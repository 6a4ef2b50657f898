"""Shadow mode on recordings: small ones with known results, and a real scheduler's."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from asched.cli.main import app
from asched.config.registry import PluginRegistry
from asched.cycle.shadow import ShadowDecider
from asched.cycle.shadow_report import Report
from asched.daemon.shadow.explainer import Window
from asched.daemon.shadow.follower import UncomparedPod
from asched.state.cluster import ClusterState
from asched.state.fold import Fold
from asched.state.records import DisagreementCause, ShadowCompared, ShadowExplained
from tests.run_size import run_share
from tests.shadow.tapes import TapeWriter, play, recorded_churn

NO_ROOM = (
    "0/1 nodes are available: 1 Insufficient cpu. no new claims to deallocate, preemption: "
    "0/1 nodes are available: 1 No preemption victims found for incoming pod."
)
TOO_SMALL = NO_ROOM.replace(
    "No preemption victims found for incoming pod", "Preemption is not helpful for scheduling"
)
MEBIBYTE = 1024 * 1024
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "costs.md"


@pytest.fixture
def tape() -> TapeWriter:
    return TapeWriter()


def report_of(tape: TapeWriter, folder: Path) -> Report:
    return play(tape.write(folder / "tape.gz"))[1]


def cause_of_the_only_difference(tape: TapeWriter, folder: Path) -> tuple[DisagreementCause, str]:
    [difference] = report_of(tape, folder).differences
    assert difference.explained
    return difference.cause, difference.detail


def test_bindings_to_the_best_node_agree(tape: TapeWriter, tmp_path: Path) -> None:
    tape.node("big", "8")
    tape.node("small", "4")
    tape.node("small-too", "4")
    tape.pod("p")
    tape.bind("p", "big")
    tape.pod("q", nodeSelector={"none": "such"})
    tape.node("big", "8", cordoned=True)
    tape.pod("r")
    tape.bind("r", "small-too")
    found = report_of(tape, tmp_path)
    assert (found.bindings.compared, found.bindings.agreed) == (2, 2)
    assert found.sole_best == 1  # for r both small nodes are as good
    assert found.messages.compared == 0
    assert (found.differences, found.not_compared) == ([], {})


def test_worse_node_is_a_difference_with_both_scores(tape: TapeWriter, tmp_path: Path) -> None:
    tape.node("big", "8")
    tape.node("small", "4")
    tape.pod("p")
    tape.bind("p", "small")
    found = report_of(tape, tmp_path)
    assert (found.bindings.compared, found.bindings.agreed) == (1, 0)
    assert found.bindings.causes == {DisagreementCause.UNEXPLAINED: 1}
    [difference] = found.differences
    assert (difference.pod, difference.node, difference.best) == ("default/p", "small", ("big",))
    theirs, ours = difference.nodes
    assert (theirs.name, ours.name) == ("small", "big")
    assert theirs.total is not None
    assert ours.total is not None
    assert theirs.total < ours.total
    assert theirs.scores["NodeResourcesFit"] < ours.scores["NodeResourcesFit"]


def test_infeasible_node_is_a_difference_with_the_reason(tape: TapeWriter, tmp_path: Path) -> None:
    tape.node("big", "8")
    tape.node("small", "1")
    tape.pod("p", "2")
    tape.bind("p", "small")
    [difference] = report_of(tape, tmp_path).differences
    assert difference.nodes[0].rejection == "NodeResourcesFit: Insufficient cpu"
    assert difference.nodes[0].total is None


def test_each_new_message_is_compared_once(tape: TapeWriter, tmp_path: Path) -> None:
    tape.node("n", "1")
    tape.pod("p", "2")
    tape.reject("p", TOO_SMALL)
    tape.reject("p", TOO_SMALL)  # shown again, but nothing new was said
    tape.pod("q", "3")
    tape.reject("q", "0/7 nodes are available")
    found = report_of(tape, tmp_path)
    assert (found.messages.compared, found.messages.agreed) == (2, 1)
    [difference] = found.differences
    assert (difference.message, difference.own_message) == ("0/7 nodes are available", TOO_SMALL)


def test_recorded_pods_have_no_messages(tape: TapeWriter, tmp_path: Path) -> None:
    tape.node("n", "1")
    tape.pod("p", "2")
    tape.reject("p", TOO_SMALL)
    records, _ = play(tape.write(tmp_path / "tape.gz"))
    mentions = [type(r) for r in records if TOO_SMALL.encode() in msgspec.json.encode(r)]
    assert mentions == [ShadowCompared]


def test_uncompared_pods_are_counted(tape: TapeWriter, tmp_path: Path) -> None:
    tape.node("n", "8")
    tape.pod("born-bound", nodeName="n")
    tape.pod("foreign", schedulerName="another")
    tape.bind("foreign", "n")
    tape.pod("failed")
    tape.reject("failed", "out of luck", "SchedulerError")
    tape.pod("unseen")
    tape.bind_unseen("unseen", "n")
    tape.list_pods()
    tape.pod("gated", schedulingGates=[{"name": "g"}])
    tape.reject("gated", "blocked", "SchedulingGated")
    tape.phase("unseen", "Succeeded")
    found = report_of(tape, tmp_path)
    assert found.bindings.compared == found.messages.compared == 0
    assert found.not_compared == {
        UncomparedPod.FIRST_SEEN_DECIDED: 1,
        UncomparedPod.NO_PROFILE: 1,
        UncomparedPod.ERROR: 1,
        UncomparedPod.LISTED: 1,
    }


# -- causes ---------------------------------------------------------------------------------------


def test_cause_is_assumed_pod(tape: TapeWriter, tmp_path: Path) -> None:
    tape.node("big", "8")
    tape.node("small", "6")
    tape.pod("first", "5")
    tape.pod("second")
    tape.bind("second", "small")  # decided after first, but its binding is seen before
    tape.bind("first", "big")
    cause, detail = cause_of_the_only_difference(tape, tmp_path)
    assert cause is DisagreementCause.ASSUMED_POD
    assert "pod default/first was bound to big, observed 1.0 ms after" in detail


def test_pods_created_later_are_not_assumed(tape: TapeWriter, tmp_path: Path) -> None:
    tape.node("big", "8")
    tape.node("small", "6")
    tape.pod("second")
    tape.bind("second", "small")
    tape.pod("first", "5")
    tape.bind("first", "big")
    assert cause_of_the_only_difference(tape, tmp_path)[0] is DisagreementCause.UNEXPLAINED


def test_pods_rejected_in_between_are_not_assumed(tape: TapeWriter, tmp_path: Path) -> None:
    tape.node("big", "8")
    tape.node("small", "6")
    tape.pod("first", "5")
    tape.pod("second")
    tape.bind("second", "small")
    tape.reject("first", "not now")
    tape.bind("first", "big")
    found = report_of(tape, tmp_path)
    assert found.bindings.causes == {DisagreementCause.UNEXPLAINED: 1}


def test_cause_is_unseen_node(tape: TapeWriter, tmp_path: Path) -> None:
    tape.node("old", "4")
    tape.pod("p")
    tape.node("new", "8")
    tape.bind("p", "old")
    cause, detail = cause_of_the_only_difference(tape, tmp_path)
    assert cause is DisagreementCause.UNSEEN_CHANGE
    assert detail == "agrees on the state before node new was created, 1.0 ms before"


def test_cause_is_unseen_deletion(tape: TapeWriter, tmp_path: Path) -> None:
    tape.node("n", "2")
    tape.pod("old", "1")
    tape.bind("old", "n")
    tape.pod("p", "2")
    tape.delete("old")
    tape.reject("p", NO_ROOM)
    cause, detail = cause_of_the_only_difference(tape, tmp_path)
    assert cause is DisagreementCause.UNSEEN_CHANGE
    assert "pod default/old was deleted" in detail


def test_changes_before_the_window_are_ignored(tape: TapeWriter, tmp_path: Path) -> None:
    tape.node("n", "2")
    tape.pod("old", "1")
    tape.bind("old", "n")
    tape.pod("p", "2")
    tape.delete("old")
    tape.at_s += 10
    tape.reject("p", NO_ROOM)
    path = tape.write(tmp_path / "tape.gz")
    [difference] = play(path, window=Window(back_s=9.0))[1].differences
    assert difference.cause is DisagreementCause.UNEXPLAINED
    [difference] = play(path, window=Window(back_s=11.0))[1].differences
    assert difference.cause is DisagreementCause.UNSEEN_CHANGE


def test_cause_is_nominated_pod(tape: TapeWriter, tmp_path: Path) -> None:
    tape.node("big", "8")
    tape.node("small", "4")
    tape.pod("important", "8", priority=10)
    tape.pod("p")
    tape.bind("p", "small")
    tape.nominate("important", "big")
    cause, detail = cause_of_the_only_difference(tape, tmp_path)
    assert cause is DisagreementCause.NOMINATED_POD
    assert "pod default/important was nominated to big" in detail


def test_cause_is_later_change(tape: TapeWriter, tmp_path: Path) -> None:
    tape.node("big", "8", cordoned=True)
    tape.node("small", "4")
    tape.pod("p")
    tape.bind("p", "big")
    tape.node("big", "8")
    cause, detail = cause_of_the_only_difference(tape, tmp_path)
    assert cause is DisagreementCause.LATER_CHANGE
    assert "node big was updated" in detail


def test_cause_is_image_size(tape: TapeWriter, tmp_path: Path) -> None:
    tape.node("a", "8", image_bytes=900 * MEBIBYTE)
    tape.node("b", "8", image_bytes=30 * MEBIBYTE)
    tape.node("c", "9")
    tape.pod("p")
    tape.bind("p", "c")
    cause, detail = cause_of_the_only_difference(tape, tmp_path)
    assert cause is DisagreementCause.IMAGE_SIZE
    assert detail == f"agrees if app:v1 has {30 * MEBIBYTE} bytes, as b reports"


def test_cause_is_sampled_nodes(tape: TapeWriter, tmp_path: Path) -> None:
    tape.node("big", "8")
    for number in range(120):
        tape.node(f"small-{number}", "4")
    tape.pod("p")
    tape.bind("p", "small-7")
    cause, detail = cause_of_the_only_difference(tape, tmp_path)
    assert cause is DisagreementCause.SAMPLED_NODES
    assert detail == "121 nodes are feasible, kube-scheduler stops at 100"


def test_hypotheses_are_reverted_completely(tape: TapeWriter, tmp_path: Path) -> None:
    """Disagreements of all kinds, each followed by a pod with a known result."""
    tape.node("big", "8", image_bytes=900 * MEBIBYTE)
    tape.node("small", "6", image_bytes=30 * MEBIBYTE)
    for number in range(12):
        tape.pod(f"first-{number}", "500m", priority=number)
        tape.pod(f"second-{number}", "100m")
        tape.nominate(f"first-{number}", "small")
        tape.bind(f"second-{number}", "small")
        tape.bind(f"first-{number}", "big")
    records, found = play(tape.write(tmp_path / "tape.gz"))
    assert found.bindings.compared == 24
    assert len(found.differences) > 3
    # The trail took the same records, so each of its explanations is made from the true state.
    explained = [r for r in records if isinstance(r, ShadowExplained)]
    assert [r.number for r in explained] == [d.number for d in found.differences]
    again, _ = play(tmp_path / "tape.gz")
    assert again == records


# -- records --------------------------------------------------------------------------------------


def test_comparisons_are_reproducible_from_records(tape: TapeWriter, tmp_path: Path) -> None:
    tape.node("big", "8")
    tape.node("small", "6")
    for number in range(10):
        tape.pod(f"p-{number}", "700m")
        tape.bind(f"p-{number}", ("big", "small")[number % 2])
    tape.pod("huge", "9")
    tape.reject("huge", "no")
    records, found = play(tape.write(tmp_path / "tape.gz"))
    fold = Fold(ClusterState(), PluginRegistry.discover().load)
    decider, repeated = ShadowDecider(fold.state), 0
    for record in records:
        if isinstance(record, ShadowCompared):
            decision = decider.decide(fold.state.pods[record.key].info)
            assert (decision.best, decision.score, decision.feasible) == (
                record.best, record.score, record.feasible_nodes,
            )  # fmt: skip
            assert decision.agrees_with(record) is record.agreed
            repeated += 1
        fold.apply(record)
    assert repeated == found.bindings.compared + found.messages.compared == 11


# -- the command ----------------------------------------------------------------------------------


def test_command_prints_every_difference(tape: TapeWriter, tmp_path: Path) -> None:
    tape.node("big", "8")
    tape.node("small", "4")
    tape.pod("p")
    tape.bind("p", "small")
    tape.pod("q")
    tape.bind("q", "big")
    path = tape.write(tmp_path / "tape.gz")
    result = CliRunner().invoke(app, ["shadow", "--tape", str(path)], prog_name="asched")
    assert result.exit_code == 0, result.stderr
    assert "50.00 %" in result.stdout
    for text in ("theirs: bound to small", "ours:   big", "small: total", "cause:  unexplained"):
        assert text in result.stdout
    result = CliRunner().invoke(app, ["shadow", "--tape", str(path), "-o", "json"])
    document = json.loads(result.stdout)
    assert document["bindings"] == {"compared": 2, "agreed": 1, "causes": {"unexplained": 1}}
    assert [d["pod"] for d in document["differences"]] == ["default/p"]


def test_prices_add_costs_of_the_other_choice(tape: TapeWriter, tmp_path: Path) -> None:
    tape.node("big", "8", pool="spot")
    tape.node("small", "4")
    tape.pod("p")
    tape.bind("p", "small")
    tape.node("big", "8", cordoned=True, pool="spot")
    tape.node("small-too", "4")
    tape.node("spot", "4", pool="spot")
    tape.pod("q")
    tape.bind("q", "small")  # the other two are as good
    tape.pod("r")
    tape.reject("r", "no")  # no node to compare with
    path, prices = tape.write(tmp_path / "tape.gz"), tmp_path / "prices.yaml"
    prices.write_text(
        "{apiVersion: asched.dev/v1, kind: Prices, currency: EUR, resources: {cpu: 0.5},"
        " nodes: [{labels: {pool: spot}, perHour: 0.8}]}"
    )
    command = ["shadow", "--tape", str(path), "--prices", str(prices)]
    found = msgspec.json.decode(
        CliRunner().invoke(app, [*command, "-o", "json"]).stdout, type=Report
    )
    first, second, third = found.differences
    # A core is an eighth of the big node and a quarter of the others.
    assert [(n.name, n.node_per_hour, n.pod_per_hour) for n in first.nodes] == [
        ("small", 2.0, 0.5),
        ("big", 0.8, 0.1),
    ]
    assert first.pod_difference == pytest.approx(0.5 - 0.1)
    assert second.best == ("small-too", "spot")
    assert second.pod_difference == pytest.approx(0.5 - (0.5 + 0.2) / 2)
    assert (third.node, third.pod_difference) == ("", None)
    costs = found.costs
    assert costs is not None
    assert (costs.currency, costs.disagreements) == ("EUR", 2)
    assert (costs.theirs_per_hour, costs.ours_per_hour) == pytest.approx((1.0, 0.45))
    printed = CliRunner().invoke(app, command).stdout
    [total] = [line for line in printed.splitlines() if line.startswith("costs by the hour")]
    assert f"    {total}\n" in PAGE.read_text()
    assert "+0.4000 EUR by the hour" in printed


def test_invalid_tape_is_one_line(tmp_path: Path) -> None:
    result = CliRunner().invoke(
        app, ["shadow", "--tape", str(tmp_path / "none")], prog_name="asched"
    )
    assert (result.exit_code, result.stdout) == (2, "")
    assert len(result.stderr.splitlines()) == 1
    both = CliRunner().invoke(
        app, ["shadow", "--tape", "t.gz", "--journal", "j.db"], prog_name="asched"
    )
    assert (both.exit_code, len(both.stderr.splitlines())) == (2, 1)


# -- the real scheduler ---------------------------------------------------------------------------


@pytest.mark.shared
def test_recorded_churn_agrees(shared_dir: Path, tmp_path: Path) -> None:
    _, found = play(recorded_churn(shared_dir, tmp_path))
    assert found.bindings.compared > run_share(300)
    assert found.messages.compared > run_share(1500)
    assert found.bindings.share is not None
    assert found.bindings.share >= 0.95
    assert found.messages.share is not None
    assert found.messages.share >= 0.95
    missing = found.bindings.compared - found.bindings.agreed
    missing += found.messages.compared - found.messages.agreed
    assert len(found.differences) == missing
    assert all(difference.explained for difference in found.differences)
    causes = {difference.cause for difference in found.differences}
    assert DisagreementCause.UNEXPLAINED not in causes
