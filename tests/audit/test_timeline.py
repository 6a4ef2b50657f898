"""Timelines of pods from a journal."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from asched.audit.entries import (
    AssignmentEntry,
    BindingEntry,
    BindingFailureEntry,
    ChangeEntry,
    DeletionEntry,
    Entry,
    EvictionEntry,
    ObservedEntry,
    PodTimeline,
    QueueMoveEntry,
    RejectionEntry,
)
from asched.audit.history import node_timeline, timelines
from asched.audit.lookup import AuditError, PodName
from asched.framework.feature_gates import FeatureGates
from asched.framework.status import Code
from asched.state.records import (
    BindFailed,
    EvictionFailed,
    EvictionSucceeded,
    PodUpdated,
)
from tests.audit.recording import REGISTRY, Recording, node, pod, woken_pod

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


async def timelines_for(recording: Recording, name: str) -> list[PodTimeline]:
    return await timelines(await recording.journal(), PodName.parse(name), REGISTRY.load)


def after_s(entry: Entry) -> float:
    return (entry.at - BEGIN) / timedelta(seconds=1)


async def test_timeline_has_all_entries_in_order() -> None:
    [timeline] = await timelines_for(woken_pod(), "web")
    assert (timeline.namespace, timeline.name, timeline.uid) == ("default", "web", "uid-web")
    seen, queued, rejected, waits, woken, ready, assigned, bound, gone = timeline.entries
    assert isinstance(seen, ObservedEntry)
    assert seen.scheduler_name == "default-scheduler"
    assert isinstance(queued, QueueMoveEntry)
    assert (queued.before, queued.queue, queued.cause) == ("", "active", "it was observed")
    assert isinstance(rejected, RejectionEntry)
    assert rejected.attempt == 1
    assert rejected.message.startswith(
        "0/2 nodes are available: 1 Insufficient cpu, 1 node(s) had untolerated taint(s)."
    )
    assert rejected.unschedulable_plugins == ("NodeResourcesFit", "TaintToleration")
    assert isinstance(waits, QueueMoveEntry)
    assert (waits.before, waits.queue) == ("active", "unschedulable")
    assert waits.cause == "rejected by NodeResourcesFit, TaintToleration"
    assert isinstance(woken, QueueMoveEntry)
    assert (woken.before, woken.queue) == ("unschedulable", "backoff")
    assert (woken.cause, after_s(woken)) == ("node large was observed", 0.5)
    assert isinstance(ready, QueueMoveEntry)
    assert (ready.before, ready.queue, after_s(ready)) == ("backoff", "active", 1.25)
    assert isinstance(assigned, AssignmentEntry)
    assert (assigned.attempt, assigned.node, assigned.feasible_nodes) == (2, "large", 1)
    assert isinstance(bound, BindingEntry)
    assert bound.node == "large"
    assert isinstance(gone, DeletionEntry)
    assert after_s(gone) == 9.0
    assert [e.seq for e in timeline.entries] == sorted(e.seq for e in timeline.entries)


async def test_entry_seq_is_the_journal_record() -> None:
    recording = woken_pod()
    [timeline] = await timelines_for(recording, "default/web")
    for entry, kind in ((timeline.entries[2], "Rejected"), (timeline.entries[7], "Bound")):
        assert type(recording.records[entry.seq - 1]).__name__ == kind


async def test_pod_is_scheduled_early_in_its_backoff() -> None:
    recording = Recording(gates=FeatureGates())
    recording.see(node("small", cpu="1"), pod("web", "3"))
    recording.decide()
    recording.turn(0.5)
    recording.see(node("large"))
    recording.decide()
    (web,) = await timelines_for(recording, "web")
    backoff, assigned = web.entries[-2:]
    assert isinstance(backoff, QueueMoveEntry)
    assert (backoff.queue, backoff.cause) == ("backoff", "node large was observed")
    assert isinstance(assigned, AssignmentEntry)
    assert (assigned.attempt, assigned.node, after_s(assigned)) == (2, "large", 0.5)


async def test_pods_with_the_same_name_have_separate_timelines() -> None:
    recording = Recording()
    first, second = pod("db", uid="first"), pod("db", uid="second")
    recording.see(node("n"), first)
    recording.bind(recording.decide())
    # The deletion of the first pod is not observed.
    recording.see(second)
    recording.bind(recording.decide())
    recording.lose(second)
    timelines_found = await timelines_for(recording, "db")
    assert [timeline.uid for timeline in timelines_found] == ["first", "second"]
    for timeline in timelines_found:
        kinds = [type(entry) for entry in timeline.entries]
        assert kinds == [
            ObservedEntry,
            QueueMoveEntry,
            AssignmentEntry,
            BindingEntry,
            DeletionEntry,
        ]


async def test_late_effect_results_belong_to_the_deleted_pod() -> None:
    """A StatefulSet reuses pod names; results of effects may arrive after the deletion."""
    recording = Recording()
    first, second = pod("web-0", uid="first"), pod("web-0", uid="second")
    recording.see(node("n"), first)
    recording.decide()
    recording.lose(first)
    key, refused = "default/web-0", 'pods "web-0" not found'
    recording.add(BindFailed(key, "first", "n", Code.ERROR, "DefaultBinder", refused))
    recording.see(second)
    recording.add(EvictionSucceeded(key, "first"))
    recording.decide()
    recording.add(BindFailed(key, "first", "n", Code.ERROR, "DefaultBinder", refused))
    recording.lose(second)
    older, newer = await timelines_for(recording, "web-0")
    assert [type(entry) for entry in older.entries] == [
        ObservedEntry, QueueMoveEntry, AssignmentEntry, DeletionEntry, BindingFailureEntry,
        EvictionEntry, BindingFailureEntry,
    ]  # fmt: skip
    assert [type(entry) for entry in newer.entries] == [
        ObservedEntry,
        QueueMoveEntry,
        AssignmentEntry,
        DeletionEntry,
    ]
    # The second pod stays on the node until its deletion.
    of_node = await node_timeline(await recording.journal(), "n", REGISTRY.load)
    assert of_node is not None
    assert [entry.event for entry in of_node.entries] == [
        "observed", "assigned", "removed", "bindFailed", "assigned", "bindFailed", "removed",
    ]  # fmt: skip


async def test_failed_binding_requeues_with_backoff() -> None:
    recording = Recording()
    recording.see(node("n"), pod("p"))
    recording.decide()
    recording.turn(0.1)
    recording.add(
        BindFailed("default/p", "uid-p", "n", Code.ERROR, "DefaultBinder", "connection refused")
    )
    recording.turn(3.0)
    recording.decide()
    [timeline] = await timelines_for(recording, "p")
    failure, backoff, active, again = timeline.entries[3:]
    assert isinstance(failure, BindingFailureEntry)
    assert (failure.node, failure.code, failure.message) == ("n", "Error", "connection refused")
    assert isinstance(backoff, QueueMoveEntry)
    assert (backoff.queue, backoff.cause) == ("backoff", "its binding failed")
    assert isinstance(active, QueueMoveEntry)
    assert active.queue == "active"
    assert isinstance(again, AssignmentEntry)
    assert again.attempt == 2


async def test_changes_are_listed_as_differences() -> None:
    recording = Recording()
    recording.see(node("n"), pod("p"))
    recording.bind(recording.decide())
    recording.add(PodUpdated("default/p", "uid-p", node_name="n", phase="Running"))
    labelled = pod("p", nodeName="n")
    meta = msgspec.structs.replace(labelled.metadata, labels={"tier": "gold"})
    status = msgspec.structs.replace(labelled.status, phase="Running")
    recording.see(msgspec.structs.replace(labelled, metadata=meta, status=status))
    [timeline] = await timelines_for(recording, "p")
    short, full = timeline.entries[-2:]
    assert isinstance(short, ChangeEntry)
    assert short.changes == ("node (none) -> n", "phase (none) -> Running")
    assert isinstance(full, ChangeEntry)
    assert full.changes == ("label tier (none) -> gold",)


async def test_gated_pod_is_queued_when_its_gate_is_removed() -> None:
    recording = Recording()
    gated = pod("g", schedulingGates=[{"name": "example.com/quota"}])
    recording.see(node("n"), gated, pod("g"))
    [timeline] = await timelines_for(recording, "g")
    seen, held, changed, freed = timeline.entries
    assert isinstance(seen, ObservedEntry)
    assert seen.gates == ("example.com/quota",)
    assert isinstance(held, QueueMoveEntry)
    assert held.queue == "gated"
    assert isinstance(changed, ChangeEntry)
    assert changed.changes == ("scheduling gates ['example.com/quota'] -> (none)",)
    assert isinstance(freed, QueueMoveEntry)
    assert (freed.before, freed.queue) == ("gated", "active")


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("wep", "pod wep is not in the journal; did you mean default/web?"),
        ("prod/web", "pod prod/web is not in the journal; did you mean default/web?"),
        ("nothing-like-it", "pod nothing-like-it is not in the journal"),
        ("a/b/c", "'a/b/c' is not a pod name; expected NAME or NAMESPACE/NAME"),
        ("/web", "'/web' is not a pod name; expected NAME or NAMESPACE/NAME"),
        ("", "'' is not a pod name; expected NAME or NAMESPACE/NAME"),
    ],
)
async def test_unknown_pod_name_is_an_error(name: str, complaint: str) -> None:
    with pytest.raises(AuditError) as caught:
        await timelines_for(woken_pod(), name)
    assert str(caught.value) == complaint


async def test_name_in_two_namespaces_is_ambiguous() -> None:
    recording = Recording()
    recording.see(pod("p", namespace="a", uid="1"), pod("p", namespace="b", uid="2"))
    with pytest.raises(AuditError, match="several pods have that name: a/p, b/p"):
        await timelines_for(recording, "p")
    [timeline] = await timelines_for(recording, "b/p")
    assert timeline.uid == "2"


async def test_json_of_entries_is_tagged_and_decodes() -> None:
    [timeline] = await timelines_for(woken_pod(), "web")
    text = msgspec.json.encode(timeline)
    assert msgspec.json.decode(text, type=PodTimeline) == timeline
    plain = msgspec.json.decode(text)
    assert [entry["event"] for entry in plain["entries"]] == [
        "observed", "queued", "rejected", "queued", "queued", "queued", "assigned", "bound",
        "deleted",
    ]  # fmt: skip
    assert plain["entries"][6] == {
        "event": "assigned", "seq": plain["entries"][6]["seq"], "at": "2026-01-01T00:00:01.250000Z",
        "attempt": 2, "node": "large", "feasibleNodes": 1, "score": 0, "ties": 1,
        "evaluatedNodes": 0, "permitWaits": [], "devices": [],
    }  # fmt: skip


@pytest.mark.parametrize("failed", [False, True])
async def test_preemptor_is_requeued_when_an_eviction_makes_no_room(failed: bool) -> None:
    recording = Recording()
    victim = pod("victim", "3", nodeName="n", priority=0)
    recording.see(node("n"), victim, pod("web", "3", priority=10))
    recording.decide()
    recording.turn(0.5)
    recording.see(node("late"))
    recording.turn(1.5)
    if failed:
        recording.add(EvictionFailed(victim.key, victim.uid, "too many requests"))
    else:
        recording.add(EvictionSucceeded(victim.key, victim.uid, unplaced=True))
    recording.decide()
    (web,) = await timelines_for(recording, "web")
    moves = [(e.queue, e.cause) for e in web.entries if isinstance(e, QueueMoveEntry)]
    assert moves[2:] == [
        ("backoff", "node late was observed"),
        ("gated", "its backoff expired"),
        (
            "active",
            f"eviction of pod {victim.key} failed" if failed else f"pod {victim.key} was evicted",
        ),
    ]
    assert isinstance(web.entries[-1], AssignmentEntry)
    assert web.entries[-1].node == "late"
