"""Explanations and histories of whole groups: attempts, members, bad input, and large groups."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from msgspec.structs import replace

from asched.audit.explain import explain
from asched.audit.lookup import AuditError, PodName
from asched.audit.pod_group.explain import GroupQuestion, explain_pod_group, parse_group
from asched.audit.pod_group.forms import GroupChangeKind, GroupReasonKind
from asched.audit.pod_group.history import PodGroupHistory, pod_group_history
from asched.audit.pod_group.trial import MAX_TRIED, GroupTrial
from asched.journal.store import JournalStore
from asched.model.groups import (
    CompositeGangPolicy,
    CompositePodGroup,
    CompositePodGroupSpec,
    CompositeSchedulingPolicy,
    PodGroup,
)
from asched.model.meta import ObjectMeta
from asched.state.group_records import GroupOutcome
from asched.state.records import EvictionSucceeded, ObjectDeleted
from tests.audit.group_recording import GroupRecording, group, members, rack_node, racks, used
from tests.audit.recording import REGISTRY
from tests.docs.shown_messages import is_shown


def at(seconds: float) -> datetime:
    return datetime.fromtimestamp(datetime(2026, 1, 1, tzinfo=UTC).timestamp() + seconds, UTC)


def rejected_then_scheduled() -> GroupRecording:
    """The group fits once another pod is gone, runs, and ends."""
    recording = GroupRecording()
    recording.see(*racks(2, 1), used("x", "r0n1", "3"))
    recording.see(group("a", 2, rack=True), *members("a", 2, "3"))
    recording.decide()
    recording.turn(20)
    recording.add(ObjectDeleted("Pod", "default/x", "uid-x"))
    recording.turn(40)
    recording.bind(recording.decide())
    recording.turn(90)
    for name in ("a0", "a1"):
        recording.add(ObjectDeleted("Pod", f"default/{name}", f"uid-{name}"))
    return recording


async def history(journal: JournalStore, key: str = "default/a") -> PodGroupHistory:
    return await pod_group_history(journal, REGISTRY.load, key)


async def test_history_of_a_group_is_one_thing() -> None:
    found = await history(await rejected_then_scheduled().journal())
    assert [(one.outcome, one.placed, one.domain, one.at) for one in found.attempts] == [
        (GroupOutcome.UNSCHEDULABLE, 1, "r0", at(0)),
        (GroupOutcome.SCHEDULED, 2, "r0", at(40)),
    ]
    assert (found.first_at, found.started_at, found.ended_at) == (at(0), at(40), at(90))
    assert (found.wait_s, found.domain, found.minimum) == (40.0, "r0", 2)
    assert found.outcomes == {"unschedulable": 1, "scheduled": 1}
    assert found.member_attempts == 4
    assert {member.node for member in found.members} == {"r0n0", "r0n1"}


async def test_history_names_victims() -> None:
    recording = GroupRecording(preempts=True)
    recording.see(*racks(1), used("x", "r0n0", "3", priority=1))
    recording.see(group("a", 1, priority=10), *members("a", 1, "3", priority=10))
    recording.decide()
    recording.turn(5)
    recording.add(EvictionSucceeded("default/x", "uid-x"))
    recording.add(ObjectDeleted("Pod", "default/x", "uid-x"))
    found = await history(await recording.journal())
    assert [one.victims for one in found.attempts] == [("default/x",)]
    assert [one.victim.name for one in found.victims] == ["x"]
    assert found.started_at is None
    assert found.ended_at is None


async def test_history_of_a_group_pod_by_pod_has_no_attempts_as_a_whole() -> None:
    recording = GroupRecording(whole=False)
    recording.see(*racks(2), group("a", 2), *members("a", 2, "3"))
    recording.turn(3)
    recording.bind(recording.decide())
    found = await history(await recording.journal())
    assert found.attempts == ()
    assert found.member_attempts == 2
    assert (found.started_at, found.wait_s) == (at(3), 3.0)


async def test_recorded_attempt_is_repeated() -> None:
    recording = rejected_then_scheduled()
    found = await recording.explained(attempt=1)
    assert found.attempt is not None
    assert (found.attempt.outcome, found.attempt.placed) == (GroupOutcome.UNSCHEDULABLE, 1)
    assert found.reproduced
    assert found.sentence == "needs 6 cpu in one rack; the largest free domain has 5 (r0)"
    later = await recording.explained()
    assert later.reason is GroupReasonKind.NO_PODS
    assert later.attempt is not None
    assert later.attempt.outcome is GroupOutcome.SCHEDULED


def in_a_tree(name: str) -> PodGroup:
    made = group(name, 1)
    return replace(made, spec=replace(made.spec, parent_composite_pod_group_name="root"))


async def test_group_of_a_tree_is_examined_alone() -> None:
    recording = GroupRecording()
    recording.see(*racks(2), in_a_tree("a"), *members("a", 1), in_a_tree("b"))
    recording.decide()
    found = await recording.explained()
    problem = "PodGroup default/a: its parent CompositePodGroup default/root not found"
    assert (found.reason, found.sentence) == (GroupReasonKind.PLUGIN, problem)
    recording.turn(20)
    gang = CompositeSchedulingPolicy(gang=CompositeGangPolicy(min_group_count=2))
    metadata = ObjectMeta(name="root", namespace="default", uid="root")
    spec = CompositePodGroupSpec(scheduling_policy=gang)
    recording.see(CompositePodGroup(metadata=metadata, spec=spec))
    recording.decide()
    found = await recording.explained()
    assert found.reason is GroupReasonKind.FITS
    assert found.notes == ("CompositePodGroup default/root is not considered: it may not fit",)
    shortage = "CompositePodGroup default/root is unschedulable: 1 of its 2 required child groups"
    (first, second) = (await history(await recording.journal())).attempts
    assert first.message == problem
    shown = problem.replace("default/a:", "default/prefill:").replace("root", "inference")
    assert is_shown("how-to/gang.md", shown)
    assert second.message.startswith(shortage)
    recording.turn(20)
    recording.see(*members("b", 1))
    recording.decide()
    journal = await recording.journal()
    for name in ("a", "b"):
        one = await explain_pod_group(journal, REGISTRY.load, f"default/{name}", GroupQuestion())
        assert one.reproduced
        pod = await explain(journal, PodName("default", f"{name}0"), REGISTRY.load)
        assert (pod.decision.kind, pod.reproduced) == ("assigned", True)


@pytest.mark.parametrize(
    ("whole", "last"),
    [
        (True, "needs 9 cpu; nodes that accept its pods have 8 free"),
        # Two members still held nodes when the last one was tried.
        (False, "needs 3 more cpu; nodes that accept its pods have 2 free"),
    ],
)
async def test_pod_of_a_group_has_the_reason_of_the_group(whole: bool, last: str) -> None:
    recording = GroupRecording(whole=whole)
    recording.see(*racks(2), group("a", 3), *members("a", 3, "3"))
    recording.decide()
    journal = await recording.journal()
    sentences = []
    for one in members("a", 3):
        found = await explain(journal, PodName.parse(one.key), REGISTRY.load)
        assert found.group is not None
        assert found.group.changes is None
        sentences.append(found.group.sentence)
    assert "needs 9 cpu; nodes that accept its pods have 8 free" in sentences
    assert any(sentence.startswith(last) for sentence in sentences)


async def test_pod_without_group_has_none() -> None:
    recording = GroupRecording()
    recording.see(used("x", "", "3"))
    recording.decide()
    assert (
        await explain(await recording.journal(), PodName.parse("x"), REGISTRY.load)
    ).group is None


@pytest.mark.parametrize(
    ("key", "attempt", "message"),
    [
        ("default/b", None, "no PodGroup default/b exists at record 13; did you mean default/a?"),
        ("default/gone", None, "PodGroup default/gone was deleted at record 13"),
        ("default/a", 3, "no attempt 3 of PodGroup default/a as a whole: attempts 1 to 1 exist"),
    ],
)
async def test_unknown_group_or_attempt(key: str, attempt: int | None, message: str) -> None:
    recording = GroupRecording()
    recording.see(group("gone", 2), group("a", 1), *members("a", 1))
    recording.decide()
    recording.add(ObjectDeleted("PodGroup", "default/gone", "group-gone"))
    message = message.replace("13", str(len(recording.records)))
    with pytest.raises(AuditError, match=f"^{message.replace('?', '.')}$"):
        await recording.explained(key, attempt=attempt)


@pytest.mark.parametrize("text", ["a", "/a", "default/", "a/b/c", ""])
def test_name_of_a_group_needs_a_namespace(text: str) -> None:
    with pytest.raises(AuditError, match="expected NAMESPACE/NAME of its PodGroup"):
        parse_group(text)


async def test_group_of_10000_members_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time in tried members, and output in rows and changes."""
    tried = 0
    attempt = GroupTrial.attempt

    def counted(self: GroupTrial, *arguments: object) -> object:
        nonlocal tried
        found = attempt(self, *arguments)  # type: ignore[arg-type]
        tried += sum(len(one.result.members) for one in found.tried)
        return found

    monkeypatch.setattr(GroupTrial, "attempt", counted)
    recording = GroupRecording()
    recording.see(*(rack_node(f"n{n}", f"r{n % 40}") for n in range(80)))
    recording.see(group("a", 10_000, rack=True), *members("a", 10_000))
    found = await recording.explained()
    assert found.sentence == "needs 10000 cpu in one rack; the largest free domain has 8 (r0)"
    (row,) = found.domains
    assert (row.domains, len(row.names), row.fits, row.lacks) == (40, 5, 8, "9992 cpu short")
    assert {change.kind for change in found.changes or ()} == {GroupChangeKind.LOWER_MINIMUM}
    assert tried < MAX_TRIED + 10_000
