"""Journals with pod groups, whole or pod by pod, and changes applied to them."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import replace

from asched.audit.pod_group.explain import GroupQuestion, explain_pod_group
from asched.audit.pod_group.forms import GroupChange, GroupChangeKind, PodGroupExplanation
from asched.config.file import parse
from asched.cycle.decide import Decider
from asched.group_cycle.decide import GroupDecider
from asched.model.groups import IncubatorPodGroup, PodGroup
from asched.model.meta import Annotations
from asched.model.node import UNSCHEDULABLE_TAINT, Node
from asched.model.pod import Affinity, Pod, PodSchedulingGroup
from asched.model.resource_claims import ResourceSlice
from asched.model.resources import AnyObject
from asched.state.cluster import ClusterState
from asched.state.fold import Fold
from asched.state.group_records import GroupOutcome, PodGroupAttempted
from asched.state.records import (
    AnyRecord,
    Decision,
    ObjectDeleted,
    ObjectObserved,
    ProfilesLoaded,
    TurnStarted,
)
from tests.audit.recording import REGISTRY, Recording, node, pod

RACK = "topology.kubernetes.io/rack"
HOST = "kubernetes.io/hostname"
_CONFIG = """\
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
  - schedulerName: default-scheduler
    plugins:
      multiPoint:
        enabled:
          - {{name: GangScheduling}}
          - {{name: TopologyPlacementGenerator}}
          - {{name: PodGroupPodsCount}}
    pluginConfig:
      - {{name: GangScheduling, args: {{groupCycle: {whole}, groupPreemption: {preempts}}}}}
"""


class GroupRecording(Recording):
    """Records of a scheduler with GangScheduling."""

    def __init__(self, *, whole: bool = True, preempts: bool = False) -> None:
        super().__init__()
        text = _CONFIG.format(whole=str(whole).lower(), preempts=str(whole and preempts).lower())
        profiles = parse(text, "config.yaml", REGISTRY).profiles
        self.add(ProfilesLoaded(profiles))
        self._decider.groups = GroupDecider(self.state, self._decider.cache)

    def decide_once(self) -> tuple[Decision, ...]:
        decisions = self._decider.next()
        for decision in decisions:
            self.add(decision)
        return decisions

    async def explained(self, key: str = "default/a", **options: Any) -> PodGroupExplanation:
        return await explain_pod_group(
            await self.journal(), REGISTRY.load, key, GroupQuestion(**options)
        )


def group(name: str, minimum: int, *, rack: bool = False, priority: int = 0) -> PodGroup:
    """A PodGroup; with ``minimum`` 0 its pods are scheduled one by one."""
    spec: dict[str, Any] = {"priority": priority}
    spec["schedulingPolicy"] = {"gang": {"minCount": minimum}} if minimum else {"basic": {}}
    if rack:
        spec["schedulingConstraints"] = {"topology": [{"key": RACK}]}
    metadata = {"name": name, "namespace": "default", "uid": f"group-{name}"}
    return msgspec.convert({"kind": "PodGroup", "metadata": metadata, "spec": spec}, PodGroup)


def custom_group(name: str, minimum: int) -> IncubatorPodGroup:
    metadata = {"name": name, "namespace": "default", "uid": f"group-{name}"}
    raw = {"kind": "IncubatorPodGroup", "metadata": metadata, "spec": {"minMember": minimum}}
    return msgspec.convert(raw, IncubatorPodGroup)


def member(of: str, name: str, cpu: str = "1", **spec: Any) -> Pod:
    made = pod(name, cpu, **spec)
    named = PodSchedulingGroup(pod_group_name=of)
    labels = {**made.metadata.labels, "group": of}
    return replace(
        made,
        metadata=replace(made.metadata, labels=labels),
        spec=replace(made.spec, scheduling_group=named),
    )


def members(of: str, count: int, cpu: str = "1", **spec: Any) -> list[Pod]:
    return [member(of, f"{of}{number}", cpu, **spec) for number in range(count)]


def custom_members(of: str, count: int) -> list[Pod]:
    """Pods of a group of kube-batch."""
    made = [pod(f"{of}{number}") for number in range(count)]
    named = Annotations(group_name=of)
    return [replace(one, metadata=replace(one.metadata, annotations=named)) for one in made]


def racks(*sizes: int, cpu: str = "4", taint: str = "") -> list[Node]:
    """Nodes ``r<rack>n<number>``."""
    return [
        rack_node(f"r{rack}n{number}", f"r{rack}", cpu, taint)
        for rack, size in enumerate(sizes)
        for number in range(size)
    ]


def rack_node(name: str, rack: str, cpu: str = "4", taint: str = "") -> Node:
    return node(name, cpu, taint=taint, **{RACK: rack, HOST: name})


def used(name: str, on: str, cpu: str, priority: int = 0, of: str = "") -> Pod:
    """A pod that runs."""
    made = member(of, name, cpu, nodeName=on, priority=priority) if of else None
    return made or pod(name, cpu, nodeName=on, priority=priority)


# -- changes --------------------------------------------------------------------------------------


def outcome_after(recording: GroupRecording, change: GroupChange, key: str) -> GroupOutcome | None:
    """What the scheduler decides about the whole group after the change; None if it does not."""
    fold = Fold(ClusterState(), REGISTRY.load)
    fold.apply_all(recording.records)
    fold.apply_all([*_records(fold.state, change, key)])
    fold.apply(TurnStarted(fold.state.now_ns + 3600 * 10**9))
    decider = Decider(fold.state)
    decider.groups = GroupDecider(fold.state, decider.cache)
    while decisions := decider.next():
        fold.apply_all(decisions)
        for decision in decisions:
            if isinstance(decision, PodGroupAttempted) and decision.group == key:
                return decision.outcome
    return None


def _records(state: ClusterState, change: GroupChange, key: str) -> list[AnyRecord]:
    match change.kind:
        case GroupChangeKind.EVICT_GROUP | GroupChangeKind.EVICT_PODS:
            return [ObjectDeleted("Pod", gone, state.pods[gone].info.uid) for gone in change.pods]
        case _:
            return [ObjectObserved(item) for item in _objects(state, change, key)]


def _objects(state: ClusterState, change: GroupChange, key: str) -> list[AnyObject]:
    """The changed objects, written independently of the code that searched the change."""
    nodes = state.objects(Node)
    named = [nodes[name] for name in change.nodes]
    pods = [e.info.pod for e in state.pods.values() if e.info.pod.labels.get("group") == key[-1]]
    match change.kind:
        case GroupChangeKind.UNCORDON:
            return [_uncordoned(one) for one in named]
        case GroupChangeKind.REMOVE_TAINT:
            return [_untainted(one, change.key) for one in named]
        case GroupChangeKind.LABEL_NODES:
            labels = {change.key: change.value or ""}
            return [_labelled(one, labels) for one in named]
        case GroupChangeKind.ADD_NODES:
            labels = {RACK: change.domain} if change.domain else {}
            names = [f"new-{number}" for number in range(change.count)]
            return [
                *(_copy(named[0], name, labels) for name in names),
                *(_slice_copy(s, name) for s in _slices(state, named[0]) for name in names),
            ]
        case GroupChangeKind.ADD_PODS:
            model = state.pods[change.pods[0]].info.pod
            return [_pod_copy(model, f"new-{number}") for number in range(change.count)]
        case GroupChangeKind.UNGATE:
            gated = [state.pods[each].info.pod for each in change.pods]
            return [replace(one, spec=replace(one.spec, scheduling_gates=())) for one in gated]
        case GroupChangeKind.POD_CONSTRAINT:
            free = {"affinity": Affinity(), "topology_spread_constraints": ()}
            return [replace(one, spec=replace(one.spec, **free)) for one in pods]
        case GroupChangeKind.LOWER_MINIMUM:
            return [_with_minimum(state, key, change.minimum or 0)]
    assert change.kind is GroupChangeKind.RAISE_PRIORITY
    declared = state.objects(PodGroup)[key]
    raised = replace(declared, spec=replace(declared.spec, priority=change.priority))
    return [raised, *(replace(p, spec=replace(p.spec, priority=change.priority)) for p in pods)]


def _with_minimum(state: ClusterState, key: str, minimum: int) -> AnyObject:
    custom = state.objects(IncubatorPodGroup).get(key)
    if custom is not None:
        return replace(custom, spec=replace(custom.spec, min_member=minimum))
    raw = msgspec.to_builtins(state.objects(PodGroup)[key])
    raw["spec"]["schedulingPolicy"] = {"gang": {"minCount": minimum}}
    return msgspec.convert(raw, PodGroup)


def _uncordoned(one: Node) -> Node:
    taints = tuple(taint for taint in one.spec.taints if taint.key != UNSCHEDULABLE_TAINT)
    return replace(one, spec=replace(one.spec, unschedulable=False, taints=taints))


def _untainted(one: Node, key: str) -> Node:
    taints = tuple(taint for taint in one.spec.taints if taint.key != key)
    return replace(one, spec=replace(one.spec, taints=taints))


def _labelled(one: Node, labels: dict[str, str]) -> Node:
    labels = {**one.metadata.labels, **labels}
    return replace(one, metadata=replace(one.metadata, labels=labels))


def _copy(one: Node, name: str, labels: dict[str, str]) -> Node:
    metadata = replace(
        one.metadata,
        name=name,
        uid=f"uid-{name}",
        labels={**one.metadata.labels, HOST: name, **labels},
    )
    return replace(one, metadata=metadata)


def _pod_copy(one: Pod, name: str) -> Pod:
    spec = replace(one.spec, node_name="", scheduling_gates=())
    return replace(one, metadata=replace(one.metadata, name=name, uid=f"uid-{name}"), spec=spec)


def _slices(state: ClusterState, one: Node) -> list[ResourceSlice]:
    return [s for s in state.objects(ResourceSlice).values() if s.spec.node_name == one.name]


def _slice_copy(one: ResourceSlice, node_name: str) -> ResourceSlice:
    metadata = replace(one.metadata, name=f"{node_name}-gpus", uid=f"uid-{node_name}-gpus")
    pool = replace(one.spec.pool, name=node_name)
    return replace(one, metadata=metadata, spec=replace(one.spec, node_name=node_name, pool=pool))
