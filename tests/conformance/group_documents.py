"""Recorded pod groups: a cluster, a group, and one group cycle of kube-scheduler."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from asched.config.kube_scheduler import KubeSchedulerConfiguration
from asched.config.registry import PluginRegistry
from asched.config.resolve import resolve
from asched.cycle.node_selection import BestNodes
from asched.cycle.shape_cache import ShapeCache
from asched.framework.pod_info import PodInfo, QueuedPod
from asched.framework.runtime.profile import Profile
from asched.group_cycle.conclusions import MemberDecision, group_condition, member_decisions
from asched.group_cycle.cycle import GroupCycle, GroupResult, TieBreakers
from asched.group_cycle.members import CycleMembers, collect_members
from asched.model.groups import PodGroup
from asched.model.pod import DEFAULT_SCHEDULER_NAME
from asched.model.quantity import NS_PER_S
from asched.model.resources import GroupResource, Resource, decode
from asched.state.cluster import ClusterState
from asched.state.fold import Fold
from asched.state.group_records import GroupOutcome
from asched.state.records import (
    Assigned,
    ObjectDeleted,
    ObjectObserved,
    ProfilesLoaded,
    Rejected,
    TurnStarted,
)
from tests.conformance.documents import DocumentError, decode_object, decode_objects, read_document
from tests.framework.decoding import decode_configuration

_START_NS = 1_767_225_600 * NS_PER_S
_WITH_GROUPS = ("GangScheduling",)
_WITH_TOPOLOGY = ("TopologyPlacementGenerator", "PodGroupPodsCount")


class GroupCase(NamedTuple):
    """One recorded group."""

    name: str
    kind: str
    objects: dict[str, Any]
    pod_group: dict[str, Any] | None
    bound: Sequence[dict[str, Any]]
    pods: Sequence[dict[str, Any]]
    expect: dict[str, Any]
    gates: dict[str, bool]

    @property
    def canonical(self) -> dict[str, Any] | None:
        """The answer with ties broken by name; None if there is no unique one."""
        found: dict[str, Any] | None = self.expect.get("canonical")
        return found

    @property
    def cycle(self) -> dict[str, Any]:
        """The first recorded cycle; empty if there was none."""
        cycles = (self.canonical or {}).get("run", {}).get("cycles") or [{}]
        found: dict[str, Any] = cycles[0]
        return found


def is_group_document(path: Path) -> bool:
    """Whether the file has groups. Raises :class:`DocumentError`."""
    cases = read_document(path).get("cases")
    return isinstance(cases, list) and bool(cases) and "podGroup" in cases[0]


def group_cases(path: Path) -> list[GroupCase]:
    """The cases of a file. Raises :class:`DocumentError`."""
    document = read_document(path)
    try:
        return [
            GroupCase(
                name=case["name"],
                kind=case.get("kind") or "",
                objects=document["objects"],
                pod_group=case["podGroup"],
                bound=case.get("bound") or (),
                pods=case["pods"],
                expect=case["expect"],
                gates=document["featureGates"],
            )
            for case in document["cases"]
        ]
    except (KeyError, TypeError) as error:
        raise DocumentError(f"{path.name} is no recorded document: {error!r}") from None


class CycleAnswer(NamedTuple):
    """asched's answer about one group."""

    active: tuple[str, ...]
    gated: dict[str, str]
    members: CycleMembers | None = None
    result: GroupResult | None = None
    decisions: Sequence[MemberDecision] = ()

    @property
    def outcome(self) -> str:
        return "gated" if self.result is None else self.result.outcome.value

    @property
    def condition(self) -> list[str] | None:
        if self.result is None:
            return None
        found = group_condition(self.result)
        return [found.status, found.reason, found.message]

    def nodes(self) -> dict[str, str]:
        """Where members are placed, by name."""
        return {
            name_of(decision.key): decision.node
            for decision in self.decisions
            if isinstance(decision, Assigned)
        }

    def messages(self) -> dict[str, str]:
        """By name, of the members that are not placed."""
        return {
            name_of(decision.key): decision.message
            for decision in self.decisions
            if not isinstance(decision, Assigned)
        }

    def victims(self) -> list[str]:
        """The keys of the pods that are evicted, sorted."""
        return sorted(
            {
                victim.key
                for decision in self.decisions
                if isinstance(decision, Rejected)
                for victim in decision.victims
            }
        )


def name_of(key: str) -> str:
    return key.partition("/")[2]


class GroupLaboratory:
    """The cluster of a case after all members arrived."""

    def __init__(self, case: GroupCase, registry: PluginRegistry) -> None:
        self.case = case
        self._registry = registry
        self.state = ClusterState()
        self._fold = Fold(self.state, registry.load)
        self._now_ns = _START_NS
        config = decode_configuration(_configuration(case.gates))
        assert isinstance(config, KubeSchedulerConfiguration)
        self._fold.apply(TurnStarted(self._now_ns))
        self._fold.apply(ProfilesLoaded(resolve(config, registry)))
        groups = (*case.objects.get("podGroups", ()), case.pod_group)
        for group in groups:
            if group is not None:
                self._fold.apply(ObjectObserved(_pod_group(group)))
        for observed in decode_objects(case.objects):
            self._fold.apply(ObjectObserved(observed))
        for pod in (*case.bound, *case.pods):
            # The order of members depends on the time of their arrival.
            self._now_ns += NS_PER_S // 1000
            self._fold.apply(TurnStarted(self._now_ns))
            self._fold.apply(ObjectObserved(decode_object(Resource.PODS, pod)))

    @property
    def profile(self) -> Profile:
        return self.state.profiles[DEFAULT_SCHEDULER_NAME]

    def answer(self) -> CycleAnswer:
        """One group cycle, with ties broken by the smallest name."""
        queue = self.state.queue
        active = tuple(sorted(map(name_of, queue.active)))
        gated = {name_of(key): pod.gating_plugin for key, pod in queue.gated.items()}
        head = queue.head()
        members = None if head is None else collect_members(self.state, self.profile, head)
        if members is None:
            return CycleAnswer(active, gated)
        result = self.run(members)
        decisions = member_decisions(self.state, members, result)
        return CycleAnswer(active, gated, members, result, decisions)

    def run(self, members: CycleMembers) -> GroupResult:
        cache = ShapeCache(self.state.nodes)
        ties = TieBreakers(self._smallest_name, _first_name)
        return GroupCycle(self.state, self.profile, cache, ties).run(members)

    def _smallest_name(self, best: BestNodes, queued: QueuedPod) -> int:
        names = self.state.nodes.names
        rows: list[int] = np.flatnonzero(best.mask).tolist()
        return min(rows, key=lambda row: names[row])

    def pod(self, name: str) -> PodInfo:
        """A pod of the default namespace."""
        return self._info(f"default/{name}")

    def answer_again(self, answer: CycleAnswer) -> CycleAnswer:
        """The next cycle, 12 s after the first one was carried out, with its victims gone."""
        for decision in answer.decisions:
            self._fold.apply(decision)
        for key in answer.victims():
            self.delete(key)
        self._now_ns += 12 * NS_PER_S
        self._fold.apply(TurnStarted(self._now_ns))
        for decision in answer.decisions:
            # kube-scheduler retries members by time; asched waits for events.
            self.state.queue.activate(decision.key, self._now_ns)
        return self.answer()

    def fits_without(self, victims: Sequence[str], answer: CycleAnswer) -> bool:
        """Whether the group is scheduled once the victims are gone."""
        nominated = {
            decision.key: decision.nominated_node
            for decision in answer.decisions
            if isinstance(decision, Rejected) and decision.nominated_node
        }
        return self._fits_later(victims, nominated)

    def recorded_victims_suffice(self) -> bool:
        """Whether asched schedules the group once the recorded victims are gone."""
        pods = self.case.cycle["pods"].items()
        nominated = {f"default/{n}": p["nominated"] for n, p in pods if p.get("nominated")}
        return self._fits_later(self.case.cycle.get("victims") or (), nominated)

    def _fits_later(self, victims: Sequence[str], nominated: Mapping[str, str]) -> bool:
        later = GroupLaboratory(self.case, self._registry)
        running = (*self.case.objects.get("pods", ()), *self.case.bound)
        gone = {*victims} | {_key(p) for p in running if "deletionTimestamp" in p["metadata"]}
        for key in sorted(gone):
            later.delete(key)
        for key, node in nominated.items():
            later.state.nominator.nominate(self._info(key), node)
        return later.answer().outcome == GroupOutcome.SCHEDULED.value

    def delete(self, key: str) -> None:
        """A pod is gone."""
        self._fold.apply(ObjectDeleted("Pod", key, self._info(key).uid))

    def _info(self, key: str) -> PodInfo:
        return self.state.pods[key].info


def _key(pod: Mapping[str, Any]) -> str:
    return f"{pod['metadata'].get('namespace', 'default')}/{pod['metadata']['name']}"


def _pod_group(raw: dict[str, Any]) -> PodGroup:
    decoded = decode(GroupResource.POD_GROUPS, json.dumps(raw).encode())
    assert isinstance(decoded, PodGroup)
    return decoded


def _first_name(names: Sequence[str]) -> int:
    return min(range(len(names)), key=lambda at: names[at])


def _configuration(gates: dict[str, bool]) -> dict[str, Any]:
    """The profile that does what kube-scheduler does under these gates."""
    topology = gates["TopologyAwareWorkloadScheduling"]
    names = (*_WITH_GROUPS, *(_WITH_TOPOLOGY if topology else ()))
    # kube-scheduler 1.36 has no preemption for groups with scheduling constraints.
    args = {
        "groupCycle": True,
        "groupPreemption": gates["WorkloadAwarePreemption"],
        "topologyPreemption": False,
    }
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "profiles": [
            {
                "schedulerName": DEFAULT_SCHEDULER_NAME,
                "plugins": {"multiPoint": {"enabled": [{"name": name} for name in names]}},
                "pluginConfig": [{"name": "GangScheduling", "args": args}],
            }
        ],
    }
