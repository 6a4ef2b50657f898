"""The timeline of a pod, from the journal alone."""

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
from asched.framework.status import Code
from asched.state.records import (
    BindFailed,
    EvictionFailed,
    PodUpdated,
    EvictionSucceeded,
)
from tests.audit.recording import REGISTRY, Recording, node, pod, woken_pod

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


async def told(recording: Recording, name: str) -> list[PodTimeline]:
    return await timelines(await recording.journal(), PodName.parse(name), REGISTRY.load)


def after_s(entry: Entry) -> float:
    return (entry.at - BEGIN) / timedelta(seconds=1)


async def test_everything_that_happened_to_a_pod_in_order() -> None:
    [timeline] = await told(woken_pod(), "web")
    assert (timeline.namespace, timeline.name, timeline.uid) == ("default", "web", "uid-web")
    seen, queued, rejected, waits, woken, ready, assigned, bound, gone = timeline.entries
    assert isinstance(seen, ObservedEntry)
    assert seen.scheduler_name == "default-scheduler"
    assert isinstance(queued, QueueMoveEntry)
    assert (queued.before, queued.queue, queued.cause) == ("", "active", "it was seen")
    assert isinstance(rejected, RejectionEntry)
    assert rejected.attempt == 1
    assert rejected.message.startswith(
        "0/2 nodes are available: 1 Insufficient cpu, 1 node(s) had untolerated taint(s)."
    )
    assert rejected.plugins == ("NodeResourcesFit", "TaintToleration")
    assert isinstance(waits, QueueMoveEntry)
    assert (waits.before, waits.queue) == ("active", "unschedulable")
    assert waits.cause == "rejected by NodeResourcesFit, TaintToleration"
    assert isinstance(woken, QueueMoveEntry)
    assert (woken.before, woken.queue) == ("unschedulable", "backoff")
    assert (woken.cause, after_s(woken)) == ("node large was seen", 0.5)
    assert isinstance(ready, QueueMoveEntry)
    assert (ready.before, ready.queue, after_s(ready)) == ("backoff", "active", 1.25)
    assert isinstance(assigned, AssignmentEntry)
    assert (assigned.attempt, assigned.node, assigned.feasible) == (2, "large", 1)
    assert isinstance(bound, BindingEntry)
    assert bound.node == "large"
    assert isinstance(gone, DeletionEntry)
    assert after_s(gone) == 9.0
    assert [e.seq for e in timeline.entries] == sorted(e.seq for e in timeline.entries)


async def test_the_record_numbers_are_those_of_the_journal() -> None:
    recording = woken_pod()
    [timeline] = await told(recording, "default/web")
    for entry, kind in ((timeline.entries[2], "Rejected"), (timeline.entries[7], "Bound")):
        assert type(recording.records[entry.seq - 1]).__name__ == kind


async def test_pods_of_one_name_are_told_apart_by_uid() -> None:
    recording = Recording()
    first, second = pod("db", uid="first"), pod("db", uid="second")
    recording.see(node("n"), first)
    recording.bind(recording.decide())
    # The deletion of the first went unnoticed.
    recording.see(second)
    recording.bind(recording.decide())
    recording.lose(second)
    timelines_found = await told(recording, "db")
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


async def test_how_an_effect_ended_is_told_of_the_pod_that_it_was_for() -> None:
    """A StatefulSet's pod has its name from the one before, whose binding and eviction may end
    after it is gone."""
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
    older, newer = await told(recording, "web-0")
    assert [type(entry) for entry in older.entries] == [
        ObservedEntry, QueueMoveEntry, AssignmentEntry, DeletionEntry, BindingFailureEntry, EvictionEntry, BindingFailureEntry,
    ]  # fmt: skip
    assert [type(entry) for entry in newer.entries] == [
        ObservedEntry,
        QueueMoveEntry,
        AssignmentEntry,
        DeletionEntry,
    ]
    # The node keeps the second until that is gone.
    of_node = await node_timeline(await recording.journal(), "n", REGISTRY.load)
    assert of_node is not None
    assert [entry.event for entry in of_node.entries] == [
        "seen", "assigned", "left", "bindFailed", "assigned", "bindFailed", "left",
    ]  # fmt: skip


async def test_a_binding_that_failed_and_what_followed() -> None:
    recording = Recording()
    recording.see(node("n"), pod("p"))
    recording.decide()
    recording.turn(0.1)
    recording.add(
        BindFailed("default/p", "uid-p", "n", Code.ERROR, "DefaultBinder", "connection refused")
    )
    recording.turn(3.0)
    recording.decide()
    [timeline] = await told(recording, "p")
    failure, backoff, active, again = timeline.entries[3:]
    assert isinstance(failure, BindingFailureEntry)
    assert (failure.node, failure.code, failure.message) == ("n", "Error", "connection refused")
    assert isinstance(backoff, QueueMoveEntry)
    assert (backoff.queue, backoff.cause) == ("backoff", "its binding failed")
    assert isinstance(active, QueueMoveEntry)
    assert active.queue == "active"
    assert isinstance(again, AssignmentEntry)
    assert again.attempt == 2


async def test_changes_are_told_as_differences() -> None:
    recording = Recording()
    recording.see(node("n"), pod("p"))
    recording.bind(recording.decide())
    recording.add(PodUpdated("default/p", "uid-p", node_name="n", phase="Running"))
    labelled = pod("p", nodeName="n")
    meta = msgspec.structs.replace(labelled.metadata, labels={"tier": "gold"})
    status = msgspec.structs.replace(labelled.status, phase="Running")
    recording.see(msgspec.structs.replace(labelled, metadata=meta, status=status))
    [timeline] = await told(recording, "p")
    short, full = timeline.entries[-2:]
    assert isinstance(short, ChangeEntry)
    assert short.changes == ("node (none) -> n", "phase (none) -> Running")
    assert isinstance(full, ChangeEntry)
    assert full.changes == ("label tier (none) -> gold",)


async def test_a_gated_pod_waits_and_is_woken_by_its_own_change() -> None:
    recording = Recording()
    gated = pod("g", schedulingGates=[{"name": "example.com/quota"}])
    recording.see(node("n"), gated, pod("g"))
    [timeline] = await told(recording, "g")
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
        ("wep", "the journal knows no pod wep; did you mean default/web?"),
        ("prod/web", "the journal knows no pod prod/web; did you mean default/web?"),
        ("nothing-like-it", "the journal knows no pod nothing-like-it"),
        ("a/b/c", "'a/b/c' names no pod; expected NAME or NAMESPACE/NAME"),
        ("/web", "'/web' names no pod; expected NAME or NAMESPACE/NAME"),
        ("", "'' names no pod; expected NAME or NAMESPACE/NAME"),
    ],
)
async def test_a_name_that_fits_no_pod(name: str, complaint: str) -> None:
    with pytest.raises(AuditError) as caught:
        await told(woken_pod(), name)
    assert str(caught.value) == complaint


async def test_a_name_in_two_namespaces_must_be_told_apart() -> None:
    recording = Recording()
    recording.see(pod("p", namespace="a", uid="1"), pod("p", namespace="b", uid="2"))
    with pytest.raises(AuditError, match="more than one pod of that name: a/p, b/p"):
        await told(recording, "p")
    [timeline] = await told(recording, "b/p")
    assert timeline.uid == "2"


async def test_json_of_entries_is_tagged_and_read_back() -> None:
    [timeline] = await told(woken_pod(), "web")
    text = msgspec.json.encode(timeline)
    assert msgspec.json.decode(text, type=PodTimeline) == timeline
    plain = msgspec.json.decode(text)
    assert [entry["event"] for entry in plain["entries"]] == [
        "seen", "queued", "rejected", "queued", "queued", "queued", "assigned", "bound", "gone",
    ]  # fmt: skip
    assert plain["entries"][6] == {
        "event": "assigned", "seq": plain["entries"][6]["seq"], "at": "2026-01-01T00:00:01.250000Z",
        "attempt": 2, "node": "large", "feasible": 1, "score": 0, "ties": 1, "examined": 0,
        "heldBy": [],
    }  # fmt: skip


@pytest.mark.parametrize("failed", [False, True])
async def test_a_preemptor_goes_on_when_no_room_comes_of_an_eviction(failed: bool) -> None:
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
    (web,) = await told(recording, "web")
    moves = [(e.queue, e.cause) for e in web.entries if isinstance(e, QueueMoveEntry)]
    assert moves[2:] == [
        ("backoff", "node late was seen"),
        ("gated", "its time was up"),
        ("active", f"pod {victim.key} " + ("could not be evicted" if failed else "was evicted")),
    ]
    assert isinstance(web.entries[-1], AssignmentEntry)
    assert web.entries[-1].node == "late"
