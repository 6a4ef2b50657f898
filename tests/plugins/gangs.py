"""Gangs for tests: PodGroups, pods, and the results."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from asched.audit.replay import ReplayVerifier
from asched.framework.interface import Plugin
from asched.model.groups import (
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
from asched.state.cluster import ClusterState, PlacementState
from asched.state.fold import Fold
from asched.state.group_records import PodGroupAttempted
from asched.state.session_records import PodGroupStatusDecided, SessionExecuted
from tests.cycle.scheduling import Scheduling
from tests.state.objects import a_node, a_pod
from tests.state.profiles import loader

GANGS: tuple[type[Plugin], ...] = (SchedulingGates, GangSort, NodeResourcesFit, GangScheduling)
"""A minimal profile for gangs."""
INTERLEAVED: tuple[type[Plugin], ...] = (SchedulingGates, NodeResourcesFit, GangScheduling)
"""The same with PrioritySort, which does not keep members of a gang together."""


def _meta(name: str, created_s: int) -> ObjectMeta:
    created = datetime.fromtimestamp(created_s, UTC)
    return ObjectMeta(
        name=name, namespace="default", uid=f"group-{name}", creation_timestamp=created
    )


def a_gang(name: str, min_count: int, created_s: int = 0) -> PodGroup:
    """A native PodGroup; with ``min_count`` 0, its pods are scheduled one by one."""
    gang = GangPolicy(min_count=min_count) if min_count else None
    policy = SchedulingPolicy(gang=gang)
    return PodGroup(metadata=_meta(name, created_s), spec=PodGroupSpec(scheduling_policy=policy))


def a_custom_gang(name: str, min_member: int) -> IncubatorPodGroup:
    return IncubatorPodGroup(
        metadata=_meta(name, 0), spec=CustomPodGroupSpec(min_member=min_member)
    )


def member(group: str, name: str, cpu: str = "1", **pod: Any) -> Pod:
    """A pod of a native PodGroup."""
    made = a_pod(name, {"cpu": cpu}, **pod)
    named = PodSchedulingGroup(pod_group_name=group)
    return msgspec.structs.replace(
        made, spec=msgspec.structs.replace(made.spec, scheduling_group=named)
    )


def custom_member(group: str, name: str) -> Pod:
    """A pod of a custom PodGroup, as for kube-batch."""
    made = a_pod(name, {"cpu": "1"})
    named = Annotations(group_name=group)
    return msgspec.structs.replace(
        made, metadata=msgspec.structs.replace(made.metadata, annotations=named)
    )


def gang_pods(group: str, count: int, cpu: str = "1", **pod: Any) -> list[Pod]:
    return [member(group, f"{group}{number}", cpu, **pod) for number in range(count)]


def bind(scheduling: Scheduling) -> None:
    """Let all pending bindings succeed."""
    for key, entry in [*scheduling.state.pods.items()]:
        if entry.placement_state is PlacementState.ASSUMED and key not in scheduling.state.waiting:
            scheduling.apply(r.Bound(key, entry.info.uid, entry.node))


def placed(scheduling: Scheduling) -> list[str]:
    """Names of the pods with a node that do not wait on Permit."""
    state = scheduling.state
    return sorted(
        entry.info.name
        for key, entry in state.pods.items()
        if entry.node and key not in state.waiting
    )


def waiting(scheduling: Scheduling) -> list[str]:
    return sorted(held.info.name for held in scheduling.state.waiting.values())


def settle(scheduling: Scheduling, rounds: int = 12) -> None:
    """Decide, bind and let backoffs expire; less time than the unschedulable timeout."""
    for _ in range(rounds):
        scheduling.decide()
        bind(scheduling)
        scheduling.pass_time(11)
    scheduling.decide()
    bind(scheduling)


def check_replay(
    scheduling: Scheduling, *plugins: type[Plugin], checkpoint_at: int | None = None
) -> None:
    """Check that a replay decides the same, also from a checkpoint."""
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
    """The decisions by pod."""
    return [
        (type(decision).__name__, decision.key.removeprefix("default/"))
        for decision in decisions
        if not isinstance(decision, PodGroupStatusDecided | SessionExecuted | PodGroupAttempted)
    ]
