"""Explanations equal the recorded decisions."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import pytest

from asched.audit.explain import explain
from asched.audit.explanation import Explanation
from asched.audit.lookup import AuditError, PodName, attempts_of, fold_before
from asched.config.registry import PluginRegistry
from asched.journal.archive import archive
from asched.journal.checkpoints import checkpoint_before
from asched.journal.opening import open_journal
from asched.model.quantity import NS_PER_S
from asched.state.records import Assigned, ObjectObserved, PodObserved
from tests.audit.recording import BEGIN_NS, REGISTRY, Recording, node, pod, woken_pod


async def explained(recording: Recording, name: str, attempt: int | None = None) -> Explanation:
    journal = await recording.journal()
    return await explain(journal, PodName.parse(name), REGISTRY.load, attempt=attempt)


async def test_rejection_lists_every_plugin_of_every_node() -> None:
    found = await explained(woken_pod(), "web", attempt=1)
    assert (found.outcome, found.feasible, found.nodes_total) == ("unschedulable", 0, 2)
    assert found.decision.kind == "rejected"
    assert found.decision.message == found.message
    assert found.reproduced is True
    assert found.attempts == (1, 2)
    by_name = {n.name: [(r.plugin, r.reasons) for r in n.rejected_by] for n in found.nodes}
    assert by_name == {
        "small": [("NodeResourcesFit", ("Insufficient cpu",))],
        "tainted": [("TaintToleration", ("node(s) had untolerated taint(s)",))],
    }
    assert [(r.nodes, r.plugin) for r in found.reasons] == [
        (1, "NodeResourcesFit"),
        (1, "TaintToleration"),
    ]


async def test_decisive_rejection_comes_first() -> None:
    recording = Recording()
    recording.see(node("bad", "1", taint="dedicated"), pod("p", "2", nodeSelector={"disk": "ssd"}))
    recording.decide()
    found = await explained(recording, "p")
    [bad] = found.nodes
    assert [r.plugin for r in bad.rejected_by] == [
        "TaintToleration", "NodeAffinity", "NodeResourcesFit",
    ]  # fmt: skip
    assert [(r.nodes, r.plugin) for r in found.reasons] == [(1, "TaintToleration")]


async def test_assignment_has_consistent_scores_and_ranks() -> None:
    recording = Recording()
    recording.see(node("a", "4"), node("b", "8"), node("c", "8"), node("t", "8", taint="x"))
    recording.see(pod("p", "1"))
    [decision] = recording.decide()
    assert isinstance(decision, Assigned)
    found = await explained(recording, "p")
    feasible = [n for n in found.nodes if n.feasible]
    assert [n.rank for n in feasible] == [1, 1, 3]
    assert {n.name for n in feasible[:2]} == {"b", "c"}
    for n in feasible:
        assert n.total == sum(s.weighted for s in n.scores)
        assert all(s.weighted == s.normalized * s.weight for s in n.scores)
    chosen = next(n for n in feasible if n.name == decision.node)
    assert (chosen.rank, chosen.total) == (1, decision.score)
    assert found.decision.ties == 2
    assert found.reproduced is True


async def test_every_recorded_attempt_is_reproduced() -> None:
    recording = busy_history(Random(3))
    journal = await recording.journal()
    kinds = set()
    last_seq = len(recording.records)
    for key in sorted({*recording.state.pods}):
        for attempt in (await attempts_of(journal, key, last_seq)).made:
            found = await explain(
                journal, PodName.parse(key), REGISTRY.load, attempt=attempt.record.attempt
            )
            assert found.reproduced is True
            kinds.add(found.decision.kind)
            if isinstance(attempt.record, Assigned):
                best = [n.name for n in found.nodes if n.rank == 1]
                assert attempt.record.node in best
                assert (found.feasible, len(best)) == (
                    attempt.record.feasible_nodes,
                    attempt.record.ties,
                ) or (found.feasible == 1)
            else:
                assert found.message == found.decision.message
    assert kinds == {"assigned", "rejected"}


def busy_history(random: Random) -> Recording:
    recording = Recording()
    recording.see(*(node(f"n{i}", random.choice(["2", "4"]), random.choice(["", "", "x"]))
                    for i in range(6)))  # fmt: skip
    for step in range(8):
        recording.turn(step * 3.0)
        recording.see(*(pod(f"p{step}-{i}", random.choice(["500m", "1", "2", "9"]))
                        for i in range(4)))  # fmt: skip
        recording.bind(recording.decide())
    return recording


async def test_altered_decision_is_not_reproduced() -> None:
    recording = Recording()
    recording.see(node("a", "4"), node("b", "8"), pod("p"))
    [decision] = recording.decide()
    assert isinstance(decision, Assigned)
    assert decision.node == "b"
    recording.records[-1] = Assigned(
        decision.key, decision.uid, "a", 1, decision.feasible_nodes, decision.score
    )
    found = await explained(recording, "p")
    assert found.reproduced is False
    assert found.decision.node == "a"


async def test_gated_pod_without_attempts_is_explained() -> None:
    recording = Recording()
    recording.see(node("n"), pod("g", schedulingGates=[{"name": "example.com/quota"}]))
    found = await explained(recording, "g")
    assert (found.outcome, found.decision.kind, found.reproduced) == ("gated", "none", None)
    assert [r.plugin for r in found.pre_filter] == ["SchedulingGates"]
    assert "example.com/quota" in found.message


def recreated(**spec: Any) -> Recording:
    """``web-0`` runs and is deleted; five seconds later it is recreated."""
    recording = Recording()
    recording.see(node("n", "8"), pod("web-0", uid="first"))
    recording.bind(recording.decide())
    recording.lose(pod("web-0", uid="first"))
    recording.turn(5.0)
    recording.see(pod("web-0", uid="second", **spec))
    recording.decide()
    return recording


GATED: dict[str, Any] = {"schedulingGates": [{"name": "example.com/quota"}]}


async def test_recreated_pod_without_attempts_hides_the_deleted_one() -> None:
    found = await explained(recreated(**GATED), "web-0")
    assert (found.uid, found.outcome, found.attempts) == ("second", "gated", ())
    assert found.decision.kind == "none"


async def test_recreated_pod_from_a_template_is_explained() -> None:
    recording = recreated(**GATED)
    like = pod("other-0", uid="like", **GATED)
    recording.add(ObjectObserved(like, template=1))
    third_created_at = datetime(2026, 1, 1, tzinfo=UTC)
    recording.lose(pod("web-0", uid="second"))
    recording.add(PodObserved("default/web-0", "third", 1, third_created_at))
    found = await explained(recording, "web-0")
    assert (found.uid, found.outcome) == ("third", "gated")


async def test_explanation_before_the_recreation_is_of_the_deleted_pod() -> None:
    journal = await recreated(**GATED).journal()
    name, at_ns = PodName.parse("web-0"), BEGIN_NS + NS_PER_S
    found = await explain(journal, name, REGISTRY.load, at_ns=at_ns)
    assert (found.uid, found.decision.kind, found.attempts) == ("first", "assigned", (1,))


async def test_recreated_pod_has_only_its_own_attempts() -> None:
    found = await explained(recreated(), "web-0", 1)
    assert (found.uid, found.decision.kind, found.attempts) == ("second", "assigned", (1,))
    with pytest.raises(AuditError, match="no attempt 1: pod default/web-0 has no attempts"):
        await explained(recreated(**GATED), "web-0", 1)


async def test_pod_observed_in_the_archive_is_explained(tmp_path: Path) -> None:
    recording = Recording()
    recording.see(node("n", "8"), pod("web-0"))
    recording.turn(5.0)
    recording.decide()
    async with open_journal(str(tmp_path / "journal.db")) as store:
        await recording.store_in(store)
        before_ns = BEGIN_NS + 4_000_000_000
        await checkpoint_before(store, REGISTRY.load, before_ns)
        assert await archive(store, tmp_path, before_ns=before_ns, archived_at_ns=1)
        found = await explain(store, PodName.parse("web-0"), REGISTRY.load)
    assert (found.uid, found.decision.kind) == ("uid-web-0", "assigned")


async def test_prefilter_limits_the_nodes() -> None:
    recording = Recording()
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["b"]}]}
    affinity = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    recording.see(node("a"), node("b", "1"))
    recording.see(pod("p", "2", affinity={"nodeAffinity": affinity}))
    recording.decide()
    found = await explained(recording, "p")
    assert found.only_nodes == ("b",)
    assert {n.name: n.rejected_by[0].plugin for n in found.nodes} == {
        "a": "NodeAffinity",
        "b": "NodeResourcesFit",
    }
    assert found.message == found.decision.message


@pytest.mark.parametrize(
    ("name", "attempt", "complaint"),
    [
        ("web", 3, "no attempt 3: attempts 1 to 2 exist"),
        ("gone", None, "pod default/gone has no attempts and is gone"),
        ("gone", 1, "no attempt 1: pod default/gone has no attempts"),
        ("foreign", None, "pod default/foreign names scheduler other, which has no profile"),
        (
            "placed",
            None,
            "pod default/placed has no attempts: another scheduler bound it to large",
        ),
        ("webb", None, "pod webb is not in the journal; did you mean default/web?"),
    ],
)
async def test_unexplainable_pod_is_an_error(
    name: str, attempt: int | None, complaint: str
) -> None:
    recording = woken_pod()
    gone = pod("gone", schedulingGates=[{"name": "example.com/quota"}])
    recording.see(gone, pod("foreign", schedulerName="other"), pod("placed", nodeName="large"))
    recording.lose(gone)
    with pytest.raises(AuditError) as caught:
        await explained(recording, name, attempt)
    assert str(caught.value) == complaint


async def test_state_before_a_record_excludes_it() -> None:
    recording = woken_pod()
    journal = await recording.journal()
    before = (await fold_before(journal, REGISTRY.load, 1)).state
    assert (before.now_ns, before.profiles, len(before.pods)) == (0, {}, 0)
    last_seq = len(recording.records)
    [rejected, assigned] = (await attempts_of(journal, "default/web", last_seq)).made
    then = (await fold_before(journal, REGISTRY.load, rejected.seq)).state
    assert "default/web" in then.queue.active
    assert then.nodes.cluster_size == 2
    later = (await fold_before(journal, REGISTRY.load, assigned.seq)).state
    assert later.nodes.cluster_size == 3
    last = (await fold_before(journal, REGISTRY.load, last_seq + 1)).state
    assert not last.pods


async def test_missing_plugin_is_named() -> None:
    journal = await woken_pod().journal()
    with pytest.raises(AuditError, match="unknown plugin"):
        await explain(journal, PodName.parse("web"), PluginRegistry().load)
