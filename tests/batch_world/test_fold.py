"""The fold stays consistent under random events, and decisions repeat."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asched.batch.registry import SessionRegistry
from asched.config.batch import DEFAULT_CONF, parse_conf
from asched.core.scheduler import SchedulerCore
from asched.framework.sessions import SessionSpec
from asched.framework.status import Code
from asched.journal.codec import CODEC
from asched.model.groups import (
    CustomPodGroupSpec,
    CustomQueueSpec,
    IncubatorPodGroup,
    IncubatorQueue,
)
from asched.model.meta import Annotations, ObjectMeta
from asched.model.pod import Pod
from asched.model.quantity import NS_PER_S
from asched.model.resources import AnyObject
from asched.model.workloads import PriorityClass
from asched.state.checkpoint import checkpoint_of, restore
from asched.state.cluster import ClusterState, PlacementState
from asched.state.fold import Fold
from asched.state.observe import observe_deletion, observe_object
from asched.state.records import (
    DECISIONS,
    AnyRecord,
    BindFailed,
    Bound,
    EngineStarted,
    EvictionFailed,
    EvictionSucceeded,
    ObjectDeleted,
    ProfilesLoaded,
    TurnStarted,
)
from asched.state.session_records import (
    PodGroupStatusDecided,
    PodGroupStatusWriteFailed,
    PodGroupStatusWritten,
    SessionsLoaded,
)
from asched.testing.invariants import check
from tests.run_size import examples
from tests.state.objects import a_node, a_pod, bound, deleted, in_phase
from tests.state.profiles import loader

REGISTRY = SessionRegistry.discover()
CONF = DEFAULT_CONF.replace("allocate, backfill", "reclaim, allocate, backfill, preempt")
HIGH = "high"
GROUPS, MEMBERS = ("a", "b", "c"), 3
WHEN = datetime(2026, 1, 31, tzinfo=UTC)


def spec(period_s: float = 1.0) -> SessionSpec:
    conf = parse_conf(CONF, REGISTRY.action_names)
    return SessionSpec("kube-batch", conf.actions, conf.tiers, period_s=period_s)


def member(group: str, number: int) -> Pod:
    pod = a_pod(f"{group}{number}", {"cpu": "2"}, scheduler="kube-batch")
    metadata = msgspec.structs.replace(pod.metadata, annotations=Annotations(group_name=group))
    return msgspec.structs.replace(pod, metadata=metadata)


def pod_group(name: str, size: int) -> IncubatorPodGroup:
    """A pod of a group with higher priority, or of another group."""
    metadata = ObjectMeta(name=name, namespace="default", uid=f"group-{name}")
    priority = HIGH if name == GROUPS[-1] else ""
    spec = CustomPodGroupSpec(min_member=size, priority_class_name=priority)
    return IncubatorPodGroup(metadata=metadata, spec=spec)


class History:
    """A fold and its records."""

    def __init__(self) -> None:
        self.fold = Fold(ClusterState(), loader())
        self.state = self.fold.state
        self.records: list[AnyRecord] = []
        self._decider = SchedulerCore(self, sessions=REGISTRY)
        self.apply(TurnStarted(1))
        self.apply(EngineStarted("test", 1))
        self.apply(ProfilesLoaded(()))
        self.apply(SessionsLoaded((spec(),)))
        self.see(PriorityClass(metadata=ObjectMeta(name=HIGH), value=100))
        self.see(
            IncubatorQueue(metadata=ObjectMeta(name="default"), spec=CustomQueueSpec(weight=1))
        )

        for number, name in enumerate(GROUPS):
            self.happen("node", name, number)
            self.happen("group", name, 0)

    def apply(self, record: AnyRecord) -> None:
        self.fold.apply(record)
        self.records.append(record)
        check(self.state)

    def see(self, thing: AnyObject) -> None:
        news = observe_object(self.state, thing)
        if news is not None:
            self.apply(news)

    def lose(self, thing: AnyObject) -> None:
        news = observe_deletion(self.state, thing)
        if news is not None:
            self.apply(news)

    def pass_time(self) -> None:
        """A period passes, and due decisions are made."""
        self.apply(TurnStarted(self.state.now_ns + NS_PER_S))
        while decisions := self._decider.propose():
            for decision in decisions:
                self.apply(decision)

    # -- random events -------------------------------------------------------------------------

    def happen(self, what: str, group: str, number: int) -> None:
        pod = member(group, number)
        entry = self.state.pods.get(pod.key)
        if what == "node":
            self.see(a_node(f"n{number}", {"cpu": "3", "memory": "8Gi", "pods": "10"}))
        elif what == "no node":
            self.apply(ObjectDeleted("Node", f"n{number}"))
        elif what == "group":
            self.see(pod_group(group, number + 1))
        elif what == "no group":
            self.lose(pod_group(group, 0))
        elif what == "pod" and entry is None:
            self.see(pod)
        elif what == "running":
            self._run_all()
        elif what == "crowd":
            self._crowd()
        elif what == "no pod":
            self.lose(pod)
        elif what == "writes end":
            self._end_writes(failing=number == 0)
        elif what == "evictions end":
            self._end_evictions(failing=number == 0)
        elif entry is not None:
            self._happen_to(what, pod, entry.placement_state, entry.node)

    def _happen_to(self, what: str, pod: Pod, placement_state: PlacementState, node: str) -> None:
        if what == "finished" and node:
            self.see(in_phase(bound(pod, node), "Succeeded"))
        elif what == "deleted":
            self.see(deleted(bound(pod, node) if node else pod, WHEN))
        elif what == "bound" and placement_state is PlacementState.ASSUMED:
            self.apply(Bound(pod.key, pod.uid, node))
        elif what == "bind failed" and placement_state is PlacementState.ASSUMED:
            self.apply(BindFailed(pod.key, pod.uid, node, Code.ERROR, "", "refused"))

    def _crowd(self) -> None:
        """The cluster is full of pods that can be evicted, and a more important pod arrives."""
        for group, number in zip("aabb", (0, 1, 0, 1), strict=True):
            self.happen("pod", group, number)
        self.pass_time()
        self._run_all()
        self.happen("pod", GROUPS[-1], 0)
        self.pass_time()

    def _run_all(self) -> None:
        for entry in [*self.state.pods.values()]:
            pod = entry.info.pod
            if entry.node and not pod.terminating:
                self.see(in_phase(bound(pod, entry.node), "Running"))

    def _end_writes(self, *, failing: bool) -> None:
        for (kind, group), write in [*self.state.sessions.writes.items()]:
            if write.in_flight:
                end = PodGroupStatusWriteFailed if failing else PodGroupStatusWritten
                self.apply(end(kind, group, write.decision.uid))

    def _end_evictions(self, *, failing: bool) -> None:
        for uid, eviction in [*self.state.evictions.items()]:
            end = EvictionFailed if failing else EvictionSucceeded
            self.apply(end(eviction.victim.key, uid))


EVENTS = st.tuples(
    st.sampled_from(
        ["node", "node", "no node", "group", "group", "no group", "pod", "pod", "pod", "no pod",
         "writes end", "evictions end", "running", "finished", "deleted", "bound", "bind failed",
         "time", "time", "time", "crowd"]
    ),
    st.sampled_from(GROUPS),
    st.integers(0, MEMBERS - 1),
)  # fmt: skip


def run(events: list[tuple[str, str, int]]) -> History:
    history = History()
    for what, group, number in events:
        if what == "time":
            history.pass_time()
        else:
            history.happen(what, group, number)
    return history


@given(st.lists(EVENTS, max_size=60))
def test_fold_is_consistent_and_decisions_repeat(
    events: list[tuple[str, str, int]],
) -> None:
    history = run(events)
    stored = [CODEC.encode(record) for record in history.records]
    again = Fold(ClusterState(), loader())
    decider, expected = SchedulerCore(again, sessions=REGISTRY), list[AnyRecord]()
    for number, row in enumerate(stored):
        record = CODEC.decode(number + 1, row.kind, row.version, row.subject, row.payload)
        if isinstance(record, DECISIONS):
            if not expected:
                expected += decider.propose()
            assert CODEC.encode(expected.pop(0)) == row
        assert not expected or isinstance(record, DECISIONS)
        again.apply(record)


@settings(max_examples=examples(40))
@given(st.lists(EVENTS, max_size=50), st.lists(EVENTS, max_size=15))
def test_checkpoint_continues_like_the_state(
    before: list[tuple[str, str, int]], after: list[tuple[str, str, int]]
) -> None:
    history = run(before)
    kept = restore(checkpoint_of(history.state), loader())
    count = len(history.records)
    for what, group, number in after:
        if what == "time":
            history.pass_time()
        else:
            history.happen(what, group, number)
    for record in history.records[count:]:
        kept.apply(record)
    check(kept.state)
    sessions, restored = history.state.sessions, kept.state.sessions
    assert [p.due_ns() for p in restored] == [p.due_ns() for p in sessions]
    assert [[*p.pending] for p in restored] == [[*p.pending] for p in sessions]
    assert [p.failed_bindings for p in restored] == [p.failed_bindings for p in sessions]
    assert restored.finished.keys() == sessions.finished.keys()
    assert restored.writes == sessions.writes


@given(st.lists(EVENTS, max_size=60))
def test_unchanged_messages_are_not_repeated(events: list[tuple[str, str, int]]) -> None:
    history = run(events)
    history.happen("writes end", "a", 1)
    for _ in range(3):
        history.pass_time()
        history.happen("writes end", "a", 1)
    count = len(history.records)
    history.pass_time()
    news = [r for r in history.records[count:] if isinstance(r, PodGroupStatusDecided)]
    assert news == []


@pytest.mark.parametrize("bound_before", [True, False])
def test_checkpoint_keeps_finished_pods(bound_before: bool) -> None:
    """This includes a pod without other references in the state."""
    history = History()
    if bound_before:
        history.happen("pod", "a", 0)
        history.pass_time()
        history.happen("bound", "a", 0)
        history.happen("finished", "a", 0)
    else:
        history.see(in_phase(bound(member("a", 0), "n0"), "Succeeded"))
    assert history.state.sessions.finished
    again = restore(checkpoint_of(history.state), loader()).state
    assert again.sessions.finished.keys() == history.state.sessions.finished.keys()
