"""Gangs for tests: their PodGroups, their pods, and what became of them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from asched.audit.replay import ReplayVerifier
from asched.framework.interface import Plugin
from asched.model.groups import (
    BasicPolicy,
    CustomPodGroupSpec,
    GangPolicy,
    IncubatorPodGroup,
    PodGroup,
    PodGroupSpec,
    SchedulingPolicy,
)
from asched.model.meta import Annotations, ObjectMeta
from asched.model.pod import Pod, PodSchedulingGroup
from asched.plugins.gang_scheduling import GangScheduling, GangSort
from asched.plugins.node_resources.fit import NodeResourcesFit
from asched.plugins.queue_and_bind import SchedulingGates
from asched.state import records as r
from asched.state.checkpoint import checkpoint_of, restore
from asched.state.cluster import ClusterState, PodPhase
from asched.state.fold import Fold
from asched.state.session_records import PodGroupStatusDecided, SessionExecuted
from tests.cycle.scheduling import Scheduling
from tests.state.objects import a_node, a_pod
from tests.state.profiles import loader

GANGS: tuple[type[Plugin], ...] = (SchedulingGates, GangSort, NodeResourcesFit, GangScheduling)
"""A profile for gangs, as short as can be."""
INTERLEAVED: tuple[type[Plugin], ...] = (SchedulingGates, NodeResourcesFit, GangScheduling)
"""The same with PrioritySort: gangs whose pods came in turns are tried in turns."""


def _meta(name: str, created_s: int) -> ObjectMeta:
    created = datetime.fromtimestamp(created_s, UTC)
    return ObjectMeta(
        name=name, namespace="default", uid=f"group-{name}", creation_timestamp=created
    )


def a_gang(name: str, min_count: int, created_s: int = 0) -> PodGroup:
    """Kubernetes' own PodGroup; with ``min_count`` 0 one whose pods are scheduled one by one."""
    gang = GangPolicy(min_count=min_count) if min_count else None
    policy = SchedulingPolicy(gang=gang, basic=None if min_count else BasicPolicy())
    return PodGroup(metadata=_meta(name, created_s), spec=PodGroupSpec(scheduling_policy=policy))


def a_custom_gang(name: str, min_member: int) -> IncubatorPodGroup:
    return IncubatorPodGroup(
        metadata=_meta(name, 0), spec=CustomPodGroupSpec(min_member=min_member)
    )


def member(group: str, name: str, cpu: str = "1", **pod: Any) -> Pod:
    """A pod that names Kubernetes' own PodGroup."""
    made = a_pod(name, {"cpu": cpu}, **pod)
    named = PodSchedulingGroup(pod_group_name=group)
    return msgspec.structs.replace(
        made, spec=msgspec.structs.replace(made.spec, scheduling_group=named)
    )


def custom_member(group: str, name: str) -> Pod:
    """A pod that names a custom PodGroup, as kube-batch's pods do."""
    made = a_pod(name, {"cpu": "1"})
    named = Annotations(group_name=group)
    return msgspec.structs.replace(
        made, metadata=msgspec.structs.replace(made.metadata, annotations=named)
    )


def gang_pods(group: str, count: int, cpu: str = "1", **pod: Any) -> list[Pod]:
    return [member(group, f"{group}{number}", cpu, **pod) for number in range(count)]


def bind(scheduling: Scheduling) -> None:
    """Every binding that is due succeeds."""
    for key, entry in [*scheduling.state.pods.items()]:
        if entry.phase is PodPhase.ASSUMED and key not in scheduling.state.waiting:
            scheduling.apply(r.Bound(key, entry.info.uid, entry.node))


def placed(scheduling: Scheduling) -> list[str]:
    """Names of the pods that have a node and are held by nobody."""
    state = scheduling.state
    return sorted(
        entry.info.name
        for key, entry in state.pods.items()
        if entry.node and key not in state.waiting
    )


def waiting(scheduling: Scheduling) -> list[str]:
    return sorted(held.info.name for held in scheduling.state.waiting.values())


def settle(scheduling: Scheduling, rounds: int = 12) -> None:
    """Decide and bind, and let backoffs pass; far less time than after which a rejected pod is tried
    without any reason."""
    for _ in range(rounds):
        scheduling.decide()
        bind(scheduling)
        scheduling.pass_time(11)
    scheduling.decide()
    bind(scheduling)


def check_replay(
    scheduling: Scheduling, *plugins: type[Plugin], checkpoint_at: int | None = None
) -> None:
    """Decide everything once more, also from a checkpoint at some turn: the same, to the byte."""
    records: Sequence[r.AnyRecord] = scheduling.records
    fold = Fold(ClusterState(), loader(*plugins))
    judge = ReplayVerifier(fold, complete=True)
    turns = [n for n, record in enumerate(records) if isinstance(record, r.TurnStarted)]
    cut = turns[checkpoint_at % len(turns)] if checkpoint_at is not None and turns else None
    restored: ReplayVerifier | None = None
    for number, record in enumerate(records):
        if number == cut:
            blob = checkpoint_of(fold.state)
            restored = ReplayVerifier(restore(blob, loader(*plugins)), complete=True)
        assert judge.verify(number, record) is None
        if restored is not None:
            assert restored.verify(number, record) is None
    assert judge.end(len(records)) is None


def nodes(scheduling: Scheduling, count: int, cpu: str = "1", first: int = 0) -> None:
    for number in range(first, first + count):
        scheduling.see(a_node(f"n{number}", {"cpu": cpu, "memory": "8Gi", "pods": "110"}))


def kinds(decisions: Sequence[r.Decision]) -> list[tuple[str, str]]:
    """What was decided of which pod."""
    return [
        (type(decision).__name__, decision.key.removeprefix("default/"))
        for decision in decisions
        if not isinstance(decision, PodGroupStatusDecided | SessionExecuted)
    ]
