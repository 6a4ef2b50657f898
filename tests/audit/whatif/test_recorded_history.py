"""Traces and recorded runs from journals."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asched.audit.lookup import AuditError
from asched.audit.whatif.comparison import NamedRun, compare
from asched.audit.whatif.recorded_history import recorded_history
from asched.framework.status import Code
from asched.journal.checkpoints import write_checkpoints
from asched.journal.memory import MemoryStore
from asched.model.pod import PodResourceClaimStatus
from asched.model.quantity import NS_PER_S
from asched.simulator.trace import (
    EndReason,
    ObjectRemoved,
    ObjectSet,
    PodCreated,
    PodDeleted,
    PodRun,
    TraceEvent,
    WorkloadRun,
)
from asched.state.records import (
    BindFailed,
    Bound,
    EngineStarted,
    EvictionFailed,
    EvictionSucceeded,
    ObjectDeleted,
    PodUpdated,
    ProfilesLoaded,
    Rejected,
    TurnStarted,
)
from tests.audit.recording import (
    BACKOFF_RESPECTED,
    BEGIN_NS,
    REGISTRY,
    Recording,
    node,
    pod,
)
from tests.audit.whatif.histories import (
    history_of,
    owned,
    period,
    placements,
    simulated,
    store_by_turns,
)
from tests.plugins.dynamic_resources.objects import a_claim, a_class, a_slice


def created(events: tuple[TraceEvent, ...]) -> dict[str, PodCreated]:
    return {e.pod.name: e for e in events if isinstance(e, PodCreated)}


def deleted(events: tuple[TraceEvent, ...]) -> dict[str, float]:
    return {e.key: (e.at_ns - BEGIN_NS) / NS_PER_S for e in events if isinstance(e, PodDeleted)}


def run_of(run: WorkloadRun, name: str) -> PodRun:
    [found] = [one for one in run.pods if one.pod.name == name]
    return found


def at(event: PodCreated) -> float:
    return (event.at_ns - BEGIN_NS) / NS_PER_S


def marked(name: str, node_name: str = "") -> PodUpdated:
    """The watch reports the pod's deletionTimestamp."""
    when = datetime(2026, 1, 1, tzinfo=UTC)
    return PodUpdated(
        f"default/{name}", f"uid-{name}", node_name=node_name, deletion_timestamp=when
    )


def work(recording: Recording) -> None:
    recording.bind(recording.decide())


# -- pods -----------------------------------------------------------------------------------------


async def test_pod_runs_as_long_as_recorded() -> None:
    recording = Recording()
    recording.turn(1)
    recording.see(node("n"), pod("p"))
    decisions = recording.decide()
    recording.turn(3)
    recording.bind(decisions)
    recording.turn(10)
    recording.lose(pod("p"))
    found = await history_of(recording)
    came = created(found.trace.events)["p"]
    assert (at(came), came.run_ns, came.pod.spec.node_name, came.recreated) == (
        1,
        7 * NS_PER_S,
        "",
        False,
    )
    # Simulations use the median binding time.
    assert found.scheduler.latencies.bind_ns == 2 * NS_PER_S
    assert placements(found.recorded) == {"p": [("n", 1, 10)]}
    ran = run_of(found.recorded, "p")
    assert (ran.bound_ns, ran.end, ran.attempts) == (BEGIN_NS + 3 * NS_PER_S, EndReason.FINISHED, 1)
    assert placements(simulated(found)) == placements(found.recorded)


async def test_claims_generated_for_pods_are_in_the_trace() -> None:
    template = {"name": "gpu", "resourceClaimTemplateName": "one-gpu"}
    users = [pod(name, namespace="d", resourceClaims=[template]) for name in ("p", "q")]
    recording = Recording()
    recording.turn(1)
    recording.see(node("n"), a_class(), a_slice("n", "gpu-0", "gpu-1"), *users)
    for user in users:
        owner = {"kind": "Pod", "name": user.name, "uid": user.uid, "controller": True}
        claim = a_claim(f"{user.name}-gpu", ownerReferences=[owner])
        recording.see(claim)
        status = PodResourceClaimStatus(name="gpu", resource_claim_name=claim.name)
        recording.add(PodUpdated(user.key, user.uid, phase="Pending", claims=(status,)))
    work(recording)
    recording.turn(10)
    for user in users:
        recording.lose(user)
    found = await history_of(recording)
    assert placements(found.recorded) == {name: [("n", 1, 10)] for name in ("p", "q")}
    assert placements(simulated(found)) == placements(found.recorded)


async def test_deletions_by_owners_are_in_the_trace() -> None:
    recording = Recording()
    recording.see(node("n", "2"), pod("stopped", "2"))
    work(recording)
    recording.turn(1)
    recording.see(pod("given-up", "2"), pod("withdrawn", "2"))
    recording.decide()
    recording.turn(4)
    recording.add(marked("stopped", "n"))
    recording.add(marked("withdrawn"))
    recording.turn(5)
    recording.lose(pod("given-up"))
    recording.turn(6)
    recording.lose(pod("stopped"))
    recording.lose(pod("withdrawn"))
    found = await history_of(recording)
    assert deleted(found.trace.events) == {
        "default/stopped": 6, "default/given-up": 5, "default/withdrawn": 4,
    }  # fmt: skip
    assert all(event.run_ns is None for event in created(found.trace.events).values())
    assert {one.pod.name: one.end for one in found.recorded.pods} == dict.fromkeys(
        ("stopped", "given-up", "withdrawn"), EndReason.DELETED
    )
    again = simulated(found)
    assert {one.pod.name: one.ended_ns for one in again.pods} == {
        one.pod.name: one.ended_ns for one in found.recorded.pods
    }


async def test_pods_of_other_schedulers_keep_their_nodes() -> None:
    recording = Recording()
    recording.see(node("n"), node("m"), pod("daemon", "1", nodeName="n"))
    recording.see(pod("foreign", schedulerName="other"), pod("never", schedulerName="other"))
    recording.see(pod("taken", "9"))
    recording.decide()
    recording.turn(2)
    recording.add(PodUpdated("default/foreign", "uid-foreign", node_name="m"))
    recording.add(PodUpdated("default/taken", "uid-taken", node_name="n"))
    recording.turn(7)
    recording.lose(pod("foreign"))
    found = await history_of(recording)
    came = created(found.trace.events)
    assert set(came) == {"daemon", "foreign", "taken"}
    assert [(at(came[n]), came[n].pod.spec.node_name) for n in ("daemon", "foreign", "taken")] == [
        (0, "n"), (2, "m"), (2, "n"),
    ]  # fmt: skip
    assert came["foreign"].run_ns == 5 * NS_PER_S
    assert placements(simulated(found)) == placements(found.recorded)


async def test_shadow_bindings_count_as_decisions() -> None:
    recording = Recording()
    recording.add(EngineStarted("test", 7, shadow=True))
    recording.records[0] = EngineStarted("test", 7, shadow=True)
    recording.see(node("n"), pod("p"))
    recording.turn(2)
    recording.add(PodUpdated("default/p", "uid-p", node_name="n"))
    found = await history_of(recording)
    came = created(found.trace.events)["p"]
    assert (at(came), came.pod.spec.node_name) == (0, "")
    assert run_of(found.recorded, "p").bound_ns == BEGIN_NS + 2 * NS_PER_S
    assert any("shadow mode" in note for note in found.notes)
    assert placements(simulated(found)) == {"p": [("n", 0, None)]}


async def test_changes_of_a_replacement_use_the_first_name() -> None:
    recording = Recording()
    gated = pod("p", schedulingGates=[{"name": "wait"}])
    recording.see(node("n"), gated)
    recording.decide()
    recording.turn(2)
    recording.see(msgspec.structs.replace(gated, spec=pod("p").spec))
    work(recording)
    recording.turn(3)
    recording.add(PodUpdated("default/p", "uid-p", labels={"a": "b"}, node_name="n"))
    found = await history_of(recording)
    changes = [e for e in found.trace.events if isinstance(e, ObjectSet) and e.object.name == "p"]
    assert [(e.at_ns - BEGIN_NS) // NS_PER_S for e in changes] == [2, 3]
    assert changes[1].object.labels == {"a": "b"}
    assert created(found.trace.events)["p"].pod.spec.scheduling_gates
    assert placements(simulated(found)) == placements(found.recorded) == {"p": [("n", 2, None)]}


async def test_labels_copied_from_the_node_are_left_out() -> None:
    recording = Recording()
    recording.see(node("n"), pod("p"))
    work(recording)
    recording.turn(1)
    zone = {"topology.kubernetes.io/zone": "a", "topology.kubernetes.io/region": "r"}
    recording.add(PodUpdated("default/p", "uid-p", labels=zone, node_name="n"))
    found = await history_of(recording)
    assert [
        e for e in found.trace.events if isinstance(e, ObjectSet) and e.object.name == "p"
    ] == []
    recording.turn(2)
    recording.add(PodUpdated("default/p", "uid-p", labels=zone | {"x": "y"}, node_name="n"))
    found = await history_of(recording)
    [change] = [e for e in found.trace.events if isinstance(e, ObjectSet) and e.object.name == "p"]
    assert change.object.labels == {"x": "y"}


async def test_failed_binding_is_left_out() -> None:
    recording = Recording()
    recording.see(node("n"), pod("p"))
    recording.decide()
    recording.turn(1)
    recording.add(BindFailed("default/p", "uid-p", "n", Code.ERROR, message="no"))
    recording.turn(9)
    work(recording)
    found = await history_of(recording)
    assert created(found.trace.events)["p"].run_ns is None
    assert placements(found.recorded) == {"p": [("n", 0, 1), ("n", 9, None)]}
    assert run_of(found.recorded, "p").placements[0].end is EndReason.BIND_FAILED
    assert placements(simulated(found)) == {"p": [("n", 0, None)]}


# -- evictions ------------------------------------------------------------------------------------


def preempted(low: str, *, controlled: bool) -> Recording:
    """``low`` runs for 10 s, then ``high`` preempts it and runs for 20 s."""
    recording = Recording()
    victim = pod(low, "2", priority=1)
    recording.see(node("n", "2"), owned(victim, "set") if controlled else victim)
    work(recording)
    recording.turn(10)
    recording.see(pod("high", "2", priority=9))
    [rejected] = recording.decide()
    assert isinstance(rejected, Rejected)
    assert rejected.victims
    recording.turn(11)
    recording.add(EvictionSucceeded(f"default/{low}", f"uid-{low}"))
    recording.add(marked(low, "n"))
    return recording


async def test_replacement_of_a_victim_is_not_a_new_pod() -> None:
    recording = preempted("low", controlled=True)
    recording.see(owned(pod("low-again", "2", priority=1), "set"))
    recording.turn(12)
    recording.lose(pod("low"))
    recording.turn(15)
    work(recording)
    recording.turn(35)
    recording.lose(pod("high"))
    recording.turn(36)
    work(recording)
    recording.turn(40)
    recording.lose(pod("low-again"))
    found = await history_of(recording)
    came = created(found.trace.events)
    assert set(came) == {"low", "high"}
    assert came["low"].recreated
    # It ran for 12 s, and its replacement for another 4 s.
    assert came["low"].run_ns == 16 * NS_PER_S
    assert deleted(found.trace.events) == {}
    low = run_of(found.recorded, "low")
    first, second = low.placements
    assert (first.end, first.by, first.evicted_ns) == (
        EndReason.PREEMPTED, "default/high", BEGIN_NS + 10 * NS_PER_S,
    )  # fmt: skip
    assert (second.node, second.end, low.end) == ("n", EndReason.FINISHED, EndReason.FINISHED)


async def test_eviction_in_progress_at_the_end() -> None:
    found = await history_of(preempted("low", controlled=False))
    [placement] = run_of(found.recorded, "low").placements
    assert (placement.ended_ns, placement.by, placement.evicted_ns) == (
        None, "default/high", BEGIN_NS + 10 * NS_PER_S,
    )  # fmt: skip
    again = simulated(found)
    [placement] = run_of(again, "low").placements
    assert (placement.ended_ns, placement.by) == (None, "default/high")
    compared = compare(NamedRun("recorded", found.recorded), NamedRun("again", again))
    for run in (compared.baseline, compared.candidate):
        assert run.figures.preemptions == 1


async def test_running_time_of_a_victim_is_unknown() -> None:
    recording = preempted("low", controlled=False)
    recording.turn(12)
    recording.lose(pod("low"))
    found = await history_of(recording)
    low = created(found.trace.events)["low"]
    assert (low.run_ns, low.recreated) == (None, False)
    assert run_of(found.recorded, "low").end is EndReason.PREEMPTED
    assert deleted(found.trace.events) == {}


async def test_failed_eviction_displaces_no_pod() -> None:
    recording = preempted("low", controlled=True)
    recording.records.pop()
    recording.records[-1] = EvictionFailed("default/low", "uid-low", "no")
    recording.turn(12)
    recording.see(owned(pod("sibling", "1"), "set"))
    recording.turn(20)
    recording.add(ObjectDeleted("Pod", "default/low", "uid-low"))
    found = await history_of(recording)
    assert set(created(found.trace.events)) == {"low", "high", "sibling"}
    assert created(found.trace.events)["low"].run_ns == 20 * NS_PER_S


async def test_replacements_after_a_node_removal() -> None:
    recording = Recording()
    daemon = owned(pod("daemon", "1", nodeName="n"), "every-node", "DaemonSet")
    recording.see(node("n"), owned(pod("p"), "set"), daemon)
    work(recording)
    recording.turn(5)
    recording.add(ObjectDeleted("Node", "n", "uid-n"))
    recording.see(node("m"))
    recording.turn(6)
    recording.lose(pod("p"))
    recording.lose(daemon)
    recording.see(owned(pod("p-again"), "set"))
    work(recording)
    found = await history_of(recording)
    came = created(found.trace.events)
    assert set(came) == {"p", "daemon"}
    assert (came["p"].recreated, came["daemon"].recreated) == (True, False)
    assert [e.key for e in found.trace.events if isinstance(e, ObjectRemoved)] == ["n"]
    assert placements(found.recorded)["p"] == [("n", 0, 6), ("m", 6, None)]
    # Pods of a simulated node end with its removal.
    assert placements(simulated(found))["p"] == [("n", 0, 5), ("m", 5, None)]
    assert [(s.node.name, s.to_ns is None) for s in found.recorded.nodes] == [
        ("n", False), ("m", True),
    ]  # fmt: skip


# -- periods --------------------------------------------------------------------------------------


def three_pods() -> Recording:
    """``a`` runs from 0 to 30 s, ``b`` waits from 10 s and runs from 30 s; ``c`` starts at 40 s."""
    recording = Recording()
    recording.see(node("n", "2"), pod("a", "2"))
    work(recording)
    recording.turn(10)
    recording.see(pod("b", "2"))
    recording.decide()
    recording.turn(30)
    recording.lose(pod("a"))
    work(recording)
    recording.turn(40)
    recording.see(pod("c", "1"))
    recording.decide()
    return recording


async def test_period_starts_with_the_state_at_that_time() -> None:
    found = await history_of(three_pods(), period(20))
    assert (found.trace.begin_ns, found.trace.end_ns) == (
        BEGIN_NS + 20 * NS_PER_S, BEGIN_NS + 40 * NS_PER_S,
    )  # fmt: skip
    came = created(found.trace.events)
    assert (at(came["a"]), came["a"].pod.spec.node_name, came["a"].run_ns) == (
        20,
        "n",
        10 * NS_PER_S,
    )
    assert (at(came["b"]), came["b"].pod.spec.node_name) == (20, "")
    assert not came["b"].pod.status.conditions
    assert placements(simulated(found)) == placements(found.recorded) == {
        "a": [("n", 20, 30)], "b": [("n", 30, None)], "c": [],
    }  # fmt: skip


async def test_checkpoint_before_the_period_makes_no_difference() -> None:
    plain, kept = MemoryStore(), MemoryStore()
    for store in (plain, kept):
        await store_by_turns(three_pods().records, store)
    await write_checkpoints(kept, REGISTRY.load, every=3)
    found = [await recorded_history(store, REGISTRY.load, period(20)) for store in (plain, kept)]
    assert found[0] == found[1]


async def test_period_end() -> None:
    found = await history_of(three_pods(), period(0, 25))
    assert found.trace.end_ns == BEGIN_NS + 25 * NS_PER_S
    assert set(created(found.trace.events)) == {"a", "b"}
    assert created(found.trace.events)["a"].run_ns is None
    assert placements(simulated(found)) == placements(found.recorded)
    message = run_of(found.recorded, "b").message
    assert message.startswith("0/1 nodes are available: 1 Insufficient cpu.")


async def test_pod_assumed_at_the_start_and_never_bound() -> None:
    recording = Recording()
    recording.see(node("n"), pod("bound"), pod("failed"))
    recording.decide()
    recording.turn(5)
    recording.add(Bound("default/bound", "uid-bound", "n"))
    recording.add(BindFailed("default/failed", "uid-failed", "n", Code.ERROR, message="no"))
    recording.turn(9)
    work(recording)
    found = await history_of(recording, period(2))
    came = created(found.trace.events)
    assert (at(came["bound"]), came["bound"].pod.spec.node_name) == (2, "n")
    assert (at(came["failed"]), came["failed"].pod.spec.node_name) == (5, "")


@pytest.mark.parametrize(("since_s", "until_s"), [(1000, None), (50, 60)])
async def test_period_without_records_is_an_error(since_s: float, until_s: float | None) -> None:
    with pytest.raises(AuditError, match="covers 2026-01-01T00:00:00Z to 2026-01-01T00:00:40"):
        await history_of(three_pods(), period(since_s, until_s))


async def test_empty_journal_is_an_error() -> None:
    with pytest.raises(AuditError, match="the journal is empty"):
        await recorded_history(MemoryStore(), REGISTRY.load)


async def test_simulation_has_the_recorded_feature_gates() -> None:
    history = await history_of(three_pods())
    assert history.scheduler.feature_gates == BACKOFF_RESPECTED


async def test_configuration_change_is_noted() -> None:
    recording = three_pods()
    loaded = recording.records[1]
    assert isinstance(loaded, ProfilesLoaded)
    assert (await history_of(recording)).notes == ()
    other = msgspec.structs.replace(loaded.profiles[0], percentage_of_nodes_to_score=50)
    recording.turn(50)
    recording.add(loaded)
    recording.add(ProfilesLoaded((other,)))
    found = await history_of(recording)
    assert found.notes[0].startswith("the configuration changed 1 time(s) in the period")
    assert found.scheduler.profiles == (other,)


# -- simulations of the recorded configuration ----------------------------------------------------

SHARES = st.sampled_from(["1", "2", "3"])


@st.composite
def recordings(draw: st.DrawFn) -> Recording:
    """Independent pods on an often full cluster, bound immediately."""
    recording = Recording()
    recording.see(*(node(f"n{n}", draw(SHARES) + "000m") for n in range(draw(st.integers(1, 4)))))
    running: list[str] = []
    clock_s = 0.0
    for number in range(draw(st.integers(1, 12))):
        clock_s = _work_until(recording, clock_s + draw(st.integers(1, 40)) * 1.3)
        for name in draw(st.lists(st.sampled_from(running or ["none"]), unique=True, max_size=2)):
            if name in running and recording.state.pods[f"default/{name}"].node:
                recording.lose(pod(name))
                running.remove(name)
        for copy in range(draw(st.integers(0, 2))):
            name = f"p{number}-{copy}"
            recording.see(pod(name, draw(SHARES)))
            running.append(name)
        work(recording)
    _work_until(recording, clock_s + 700)
    return recording


def _work_until(recording: Recording, until_s: float) -> float:
    """Adds a turn for every queue timer, and one at the end."""
    until_ns = BEGIN_NS + round(until_s * NS_PER_S)
    while (due_ns := recording.state.queue.next_timer_ns()) is not None and due_ns < until_ns:
        recording.add(TurnStarted(max(due_ns, recording.state.now_ns)))
        work(recording)
    recording.turn(until_s)
    return until_s


@given(recordings())
async def test_same_configuration_gives_the_same_run(recording: Recording) -> None:
    found = await history_of(recording)
    again = simulated(found)
    assert placements(again) == placements(found.recorded)
    compared = compare(NamedRun("recorded", found.recorded), NamedRun("again", again))
    assert compared.equal
    assert compared.baseline.figures.time_to_bind == compared.candidate.figures.time_to_bind
    assert compared.baseline.figures.resources == compared.candidate.figures.resources
