"""History by pod, owner, period and node."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from random import Random

import msgspec
import pytest
from typer.testing import CliRunner

from asched.audit.entries import DeletionEntry
from asched.audit.explain import explain
from asched.audit.history import (
    ALWAYS,
    Owner,
    Period,
    node_timeline,
    timelines,
    timelines_of_owner,
    timelines_of_preempted,
    timelines_of_unschedulable,
)
from asched.audit.lookup import AuditError, PodName
from asched.cli.main import app
from asched.journal.archive import archive, write_segment
from asched.journal.chain import GENESIS
from asched.journal.checkpoints import checkpoint_before, write_checkpoints
from asched.journal.memory import MemoryStore
from asched.journal.opening import open_journal
from asched.journal.sql import SqlStore
from asched.journal.store import JournalStore
from asched.model.meta import ObjectMeta, OwnerReference
from asched.model.pod import Pod
from asched.model.workloads import ReplicaSet
from asched.state.records import ObjectDeleted, PodUpdated
from tests.audit.recording import BEGIN_NS, REGISTRY, Recording, node, pod, woken_pod
from tests.audit.test_explain import busy_history


def owned(plain: Pod, *owners: OwnerReference) -> Pod:
    metadata = msgspec.structs.replace(plain.metadata, owner_references=owners)
    return msgspec.structs.replace(plain, metadata=metadata)


def names(found: Sequence[object]) -> list[str]:
    return [getattr(timeline, "name", "") for timeline in found]


def crowded() -> Recording:
    """``high`` preempts ``low``; ``huge`` fits on no node; ``easy`` runs."""
    recording = Recording()
    recording.see(node("n", "2"), pod("low", "2", priority=1))
    recording.bind(recording.decide())
    recording.turn(1.0)
    recording.see(pod("high", "2", priority=9))
    recording.decide()
    recording.turn(2.0)
    recording.see(pod("huge", "99"), node("m", "2"), pod("easy", "1", nodeSelector={"a": "b"}))
    recording.see(node("o", "1", a="b"))
    recording.bind(recording.decide())
    recording.turn(50.0)
    recording.lose(pod("low"))
    return recording


async def test_unschedulable_lists_rejected_pods() -> None:
    journal = await crowded().journal()
    found = await timelines_of_unschedulable(journal, REGISTRY.load)
    assert names(found) == ["high", "huge"]
    assert [entry.seq for entry in found[1].entries] == sorted(e.seq for e in found[1].entries)
    early = Period(until_ns=BEGIN_NS + 1_500_000_000)
    assert names(await timelines_of_unschedulable(journal, REGISTRY.load, early)) == ["high"]
    late = Period(since_ns=BEGIN_NS + 1_500_000_000)
    assert names(await timelines_of_unschedulable(journal, REGISTRY.load, late)) == ["huge"]


async def test_preempted_lists_deleted_victims() -> None:
    journal = await crowded().journal()
    [low] = await timelines_of_preempted(journal, REGISTRY.load)
    assert low.name == "low"
    kinds = [type(entry).__name__ for entry in low.entries]
    assert kinds == [
        "ObservedEntry",
        "QueueMoveEntry",
        "AssignmentEntry",
        "BindingEntry",
        "PreemptionEntry",
        "DeletionEntry",
    ]
    late = Period(since_ns=BEGIN_NS + 2_000_000_000)
    assert await timelines_of_preempted(journal, REGISTRY.load, late) == []


async def test_period_limits_a_timeline() -> None:
    journal = await woken_pod().journal()
    web = PodName.parse("web")
    [whole] = await timelines(journal, web, REGISTRY.load)
    times = sorted({entry.at for entry in whole.entries})
    assert len(times) == 4
    for at_s, until_s, count in ((0, 0.4, 1), (0.5, 0.5, 1), (0.6, 20, 2), (0, 20, 4)):
        period = Period(BEGIN_NS + round(at_s * 1e9), BEGIN_NS + round(until_s * 1e9))
        [part] = await timelines(journal, web, REGISTRY.load, period)
        assert len({entry.at for entry in part.entries}) == count
        assert set(map(str, part.entries)) <= set(map(str, whole.entries))
    assert await timelines(journal, web, REGISTRY.load, Period(BEGIN_NS + 10**12)) == []


async def test_owner_selects_pods_through_replica_sets() -> None:
    deployment = OwnerReference(kind="Deployment", name="web", uid="d", controller=True)
    metadata = ObjectMeta(
        name="web-1", namespace="default", uid="rs", owner_references=(deployment,)
    )
    of_set = OwnerReference(kind="ReplicaSet", name="web-1", uid="rs", controller=True)
    of_other = OwnerReference(kind="ReplicaSet", name="web-1", uid="older", controller=True)
    recording = Recording()
    recording.see(node("n", "9"), ReplicaSet(metadata=metadata))
    recording.see(owned(pod("a"), of_set), owned(pod("b"), of_set), pod("c"))
    recording.see(owned(pod("d"), of_other), owned(pod("e", namespace="x"), of_set))
    recording.lose(pod("a"))
    journal = await recording.journal()

    async def of(text: str) -> list[str]:
        return names(await timelines_of_owner(journal, Owner.parse(text), REGISTRY.load))

    assert await of("Deployment/web") == ["a", "b"]
    assert await of("replicaset/web-1") == ["a", "b", "d", "e"]
    assert await of("x/ReplicaSet/web-1") == ["e"]
    with pytest.raises(AuditError, match="no pod of Job/web is in the journal"):
        await of("Job/web")
    for nonsense in ("web", "a/b/c/d", "/web", "Job/"):
        with pytest.raises(AuditError, match="is not an owner"):
            Owner.parse(nonsense)


async def test_node_timeline() -> None:
    recording = Recording()
    recording.see(node("n", "2", zone="a"), pod("p", "1"), pod("q", "1"))
    recording.bind(recording.decide())
    recording.turn(1.0)
    recording.see(node("n", "4", zone="b", taint="x"))
    recording.lose(pod("p"))
    recording.add(PodUpdated("default/q", "uid-q", node_name="n"))
    recording.turn(2.0)
    recording.see(pod("r", nodeName="n"))
    recording.add(ObjectDeleted("Node", "n"))
    journal = await recording.journal()
    found = await node_timeline(journal, "n", REGISTRY.load)
    assert found is not None
    assert [(entry.event, entry.pod) for entry in found.entries] == [
        ("observed", ""),
        ("assigned", "default/p"), ("assigned", "default/q"),
        ("bound", "default/p"), ("bound", "default/q"),
        ("changed", ""), ("removed", "default/p"), ("bound", "default/r"), ("deleted", ""),
    ]  # fmt: skip
    assert found.entries[5].detail == (
        "label zone a -> b; allocatable cpu 2 -> 4; taints (none) -> x=:NoSchedule"
    )
    part = await node_timeline(
        journal, "n", REGISTRY.load, Period(BEGIN_NS + 10**9, BEGIN_NS + 10**9)
    )
    assert part is not None
    assert [entry.event for entry in part.entries] == ["changed", "removed"]
    assert await node_timeline(journal, "m", REGISTRY.load) is None


# -- the command ----------------------------------------------------------------------------------


@pytest.fixture
async def journal(tmp_path: Path) -> Path:
    path = tmp_path / "journal.db"
    async with open_journal(str(path)) as store:
        await crowded().store_in(store)
    return path


def run(journal: Path, *args: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(
        app, ["history", *args, "--journal", str(journal)], prog_name="asched"
    )
    return result.exit_code, result.stdout, result.stderr


def test_overview_has_one_line_per_pod(journal: Path) -> None:
    code, out, err = run(journal, "--unschedulable")
    assert (code, err) == (0, "")
    assert [line.split()[0] for line in out.splitlines() if line.startswith("default/")] == [
        "default/high", "default/huge",
    ]  # fmt: skip
    assert "2 pod(s)" in out
    code, out, _ = run(journal, "--preempted")
    assert "preempted by default/high on n" in " ".join(out.split())
    code, out, _ = run(journal, "--preempted", "-o", "json")
    assert [timeline["name"] for timeline in json.loads(out)["pods"]] == ["low"]


def test_node_name_selects_the_node(journal: Path) -> None:
    code, out, err = run(journal, "n")
    assert (code, err) == (0, "")
    assert "node n" in out
    assert "evicting default/low" in out
    _, out, _ = run(journal, "n", "-o", "json", "--until", "2026-01-01T00:00:00.5Z")
    events = [e["event"] for e in json.loads(out)["node"]["entries"]]
    assert events == ["observed", "assigned", "bound"]


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        ((), "name a pod or a node, or give one of"),
        (("low", "--preempted"), "name a pod or a node, or give one of"),
        (("missing",), "pod missing is not in the journal"),
        (("--owner", "Job/x"), "no pod of Job/x is in the journal"),
        (("--owner", "x"), "'x' is not an owner"),
        (("low", "--since", "soon"), '"soon" is not a time'),
    ],
)
def test_invalid_options_are_rejected(journal: Path, args: Sequence[str], complaint: str) -> None:
    code, out, err = run(journal, *args)
    assert (code, out) == (2, "")
    assert complaint in err


# -- checkpoints and archives ----------------------------------------------------------------------


async def test_history_from_checkpoints_equals_history_from_start() -> None:
    """For all queries and periods."""
    recording = busy_history(Random(8))
    begin_s = [0.0, 4.0, 9.5, 15.0, 24.0]
    periods = [ALWAYS] + [
        Period(
            BEGIN_NS + round(since * 1e9), None if until is None else BEGIN_NS + round(until * 1e9)
        )
        for since in begin_s
        for until in (None, since + 5.0)
    ]
    plain, kept = MemoryStore(), MemoryStore()
    for store in (plain, kept):
        await recording.store_in(store)
    await write_checkpoints(kept, REGISTRY.load, every=15)

    async def results(store: MemoryStore, period: Period) -> list[object]:
        found: list[object] = [
            await timelines(store, PodName.parse(name), REGISTRY.load, period)
            for name in ("p0-0", "p3-1", "p7-3")
        ]
        found.append(await timelines_of_unschedulable(store, REGISTRY.load, period))
        found.append(await timelines_of_preempted(store, REGISTRY.load, period))
        found += [await node_timeline(store, f"n{n}", REGISTRY.load, period) for n in range(6)]
        return found

    for period in periods:
        assert await results(kept, period) == await results(plain, period)


async def test_history_of_archived_journal_covers_remaining_records(tmp_path: Path) -> None:
    async with open_journal(str(tmp_path / "journal.db")) as store:
        await busy_history(Random(8)).store_in(store)
        late = Period(since_ns=BEGIN_NS + 13_000_000_000)
        whole = await timelines_of_unschedulable(store, REGISTRY.load, late)
        await checkpoint_before(store, REGISTRY.load, late.since_ns)
        assert await archive(store, tmp_path, before_ns=late.since_ns, archived_at_ns=1)
        assert whole
        assert await timelines_of_unschedulable(store, REGISTRY.load, late) == whole
        [timeline] = await timelines(store, PodName.parse("p7-0"), REGISTRY.load)
        assert timeline.entries
        assert await explain(store, PodName.parse("p7-0"), REGISTRY.load)
        node = await node_timeline(store, "n0", REGISTRY.load)
        assert node is not None
        archived = (await store.archived()).seq
        expected = f"never is not in the journal, but records 1 to {archived} are in the archive"
        with pytest.raises(AuditError, match=expected):
            await timelines(store, PodName.parse("never"), REGISTRY.load)


async def write_two_pods(store: JournalStore) -> None:
    """``old`` exists in the first batch; ``new`` is created next and deleted after a checkpoint."""
    recording = Recording()
    recording.see(pod("old"))
    recording.lose(pod("old"))
    first = len(recording.records)
    recording.turn(1.0)
    recording.see(pod("new"))
    second = len(recording.records)
    recording.turn(2.0)
    recording.lose(pod("new"))
    await store.claim("test", claimed_at_ns=0)
    await store.append(recording.records[:first], written_at_ns=1)
    await store.append(recording.records[first:second], written_at_ns=2)
    await write_checkpoints(store, REGISTRY.load)
    await store.append(recording.records[second:], written_at_ns=3)


@pytest.mark.parametrize("interrupted", [True, False])
async def test_archived_pod_is_unknown_before_records_are_deleted(
    database_url: str, tmp_path: Path, interrupted: bool
) -> None:
    """The archive run may be in progress, or killed, between archiving and deleting."""
    async with open_journal(database_url) as store:
        await write_two_pods(store)
        assert isinstance(store, SqlStore)
        batches = [sealed async for sealed in store.batches()][:1]
        await store.record_segment(write_segment(tmp_path, 1, GENESIS, batches, 9))
        if not interrupted:
            await store.delete_archived()
        assert await store.subjects("pod") == ["pod/default/new"]
        archived = (await store.archived()).seq
        for old in ("old", "default/old"):
            expected = f"{old} is not in the journal, but records 1 to {archived} are in the"
            for ask in (timelines, explain):
                with pytest.raises(AuditError, match=expected):
                    await ask(store, PodName.parse(old), REGISTRY.load)
        for new in ("new", "default/new"):
            [timeline] = await timelines(store, PodName.parse(new), REGISTRY.load)
            assert [type(entry) for entry in timeline.entries] == [DeletionEntry]


async def test_pod_archived_during_lookup_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_journal(str(tmp_path / "journal.db")) as store:
        await write_two_pods(store)
        subjects = store.subjects

        async def and_then_archived(kind: str) -> Sequence[str]:
            found = await subjects(kind)
            assert await archive(store, tmp_path, before_ns=2, archived_at_ns=9)
            return found

        monkeypatch.setattr(store, "subjects", and_then_archived)
        expected = "all records of pod default/old are in the archive: records 1 to"
        with pytest.raises(AuditError, match=expected):
            await timelines(store, PodName.parse("old"), REGISTRY.load)
