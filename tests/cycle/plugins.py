"""Plugins for tests of the cycle. Labels of pods and nodes select their answers."""

from __future__ import annotations

from typing import ClassVar, cast

import numpy as np

from asched.framework.cycle_state import CycleState, StateKey
from asched.framework.interface import (
    FilterAllPlugin,
    FilterPlugin,
    NodeToStatus,
    NormalizeScore,
    PermitPlugin,
    PermitResult,
    PostFilterPlugin,
    PostFilterResult,
    PreFilterPlugin,
    PreFilterResult,
    PreScorePlugin,
    ReservePlugin,
    ReserveResult,
    Scope,
    ScoreAllPlugin,
    ScorePlugin,
)
from asched.framework.nodes import FilterResult, Int64Column, NodeInfo, Nodes
from asched.framework.pod_info import PodInfo
from asched.framework.scoring import normalize_to_highest
from asched.framework.status import SUCCESS, Code, Status

NO_CPU = Status.unschedulable("Insufficient cpu")


class RoomForOne(FilterPlugin):
    """Filters by free cpu; written for one node."""

    name: ClassVar[str] = "Room"
    api_version: ClassVar[int] = 1
    scope: ClassVar[Scope] = Scope.NODE

    def filter(self, state: CycleState, pod: PodInfo, node: NodeInfo) -> Status:
        return SUCCESS if node.free("cpu") >= pod.shape.requests.get("cpu", 0) else NO_CPU


class RoomForAll(FilterAllPlugin):
    """The same, written for all nodes."""

    name: ClassVar[str] = "Room"
    api_version: ClassVar[int] = 1
    scope: ClassVar[Scope] = Scope.NODE

    def filter_all(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> FilterResult:
        free = nodes.allocatable("cpu") - nodes.requested("cpu")
        return FilterResult.reject(free < pod.shape.requests.get("cpu", 0), NO_CPU)


class RoomForOneUnshared(RoomForOne):
    """The same, not shared between pods."""

    api_version: ClassVar[int] = 1
    scope: ClassVar[Scope] = Scope.CLUSTER


class EmptiestForOne(ScorePlugin, NormalizeScore):
    """Scores by free cpu; written for one node."""

    name: ClassVar[str] = "Emptiest"
    api_version: ClassVar[int] = 1
    scope: ClassVar[Scope] = Scope.NODE

    def score(self, state: CycleState, pod: PodInfo, node: NodeInfo) -> int:
        return node.free("cpu")

    def normalize(self, state: CycleState, pod: PodInfo, scores: Int64Column) -> Int64Column:
        return normalize_to_highest(scores)


class EmptiestForAll(ScoreAllPlugin, NormalizeScore):
    """The same, written for all nodes."""

    name: ClassVar[str] = "Emptiest"
    api_version: ClassVar[int] = 1
    scope: ClassVar[Scope] = Scope.NODE

    def score_all(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> Int64Column:
        return nodes.allocatable("cpu") - nodes.requested("cpu")

    def normalize(self, state: CycleState, pod: PodInfo, scores: Int64Column) -> Int64Column:
        return normalize_to_highest(scores)


class FewPods(ScorePlugin):
    """100 minus 10 for each pod; without NormalizeScore."""

    name: ClassVar[str] = "FewPods"
    api_version: ClassVar[int] = 1
    scope: ClassVar[Scope] = Scope.NODE

    def score(self, state: CycleState, pod: PodInfo, node: NodeInfo) -> int:
        return max(0, 100 - 10 * node.pod_count)


class ByLabel(ScorePlugin):
    """The number in the node's label ``score``."""

    name: ClassVar[str] = "ByLabel"
    api_version: ClassVar[int] = 1
    scope: ClassVar[Scope] = Scope.NODE

    def score(self, state: CycleState, pod: PodInfo, node: NodeInfo) -> int:
        return int(node.labels.get("score", "0"))


class Crowd(FilterPlugin, ScorePlugin):
    """Reads the whole cluster: no node may have two pods more than the node with the fewest."""

    name: ClassVar[str] = "Crowd"
    api_version: ClassVar[int] = 1

    def filter(self, state: CycleState, pod: PodInfo, node: NodeInfo) -> Status:
        nodes = self.handle.cluster.nodes
        fewest = int(nodes.pod_count[nodes.alive].min())
        too_many = node.pod_count > fewest + 1
        return Status.unschedulable(f"{node.pod_count} pods already") if too_many else SUCCESS

    def score(self, state: CycleState, pod: PodInfo, node: NodeInfo) -> int:
        return node.pod_count % 7


class Moody(ScorePlugin):
    """Raises for any node with the label ``mood``."""

    name: ClassVar[str] = "Moody"
    api_version: ClassVar[int] = 1
    scope: ClassVar[Scope] = Scope.NODE

    def score(self, state: CycleState, pod: PodInfo, node: NodeInfo) -> int:
        if "mood" in node.labels:
            raise RuntimeError(f"not in the mood on {node.name}")
        return 1


class Labelled(PreFilterPlugin, FilterPlugin, PreScorePlugin, ScorePlugin):
    """Scores nodes without the label ``score`` lowest, and skips while no node has it. Rejects pods
    that request a whole cpu until then."""

    name: ClassVar[str] = "Labelled"
    api_version: ClassVar[int] = 1
    scope: ClassVar[Scope] = Scope.NODE

    def pre_filter(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> PreFilterResult:
        if pod.shape.requests.get("cpu", 0) < 1000:
            return PreFilterResult(Status.skip())
        found = nodes.label("score").present.any()
        return PreFilterResult(SUCCESS if found else Status.unresolvable("no node has the label"))

    def filter(self, state: CycleState, pod: PodInfo, node: NodeInfo) -> Status:
        return SUCCESS if "score" in node.labels else Status.unschedulable("not labelled")

    def pre_score(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> Status:
        return SUCCESS if nodes.label("score").present.any() else Status.skip()

    def score(self, state: CycleState, pod: PodInfo, node: NodeInfo) -> int:
        return 100 if "score" in node.labels else 0


PREPARED: StateKey[str] = StateKey("Gatekeeper/prepared")


class Gatekeeper(PreFilterPlugin, FilterPlugin):
    """Answers by the pod's labels: ``skip``, ``reject``, ``refuse`` (unresolvable), ``error`` or
    ``only`` (nodes, separated by dots). Its filter requires the data of its PreFilter."""

    name: ClassVar[str] = "Gatekeeper"
    api_version: ClassVar[int] = 1

    def pre_filter(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> PreFilterResult:
        labels = pod.labels
        if "skip" in labels:
            return PreFilterResult(Status.skip())
        if "reject" in labels:
            return PreFilterResult(Status.unschedulable("not this pod"))
        if "refuse" in labels:
            return PreFilterResult(Status.unresolvable("never this pod"))
        if "error" in labels:
            return PreFilterResult(Status.error("broken"))
        state.write(PREPARED, pod.name)
        only = labels.get("only")
        return PreFilterResult(node_names=None if only is None else frozenset(only.split(".")))

    def filter(self, state: CycleState, pod: PodInfo, node: NodeInfo) -> Status:
        assert state.read(PREPARED) == pod.name
        return SUCCESS


class SecondGatekeeper(PreFilterPlugin):
    """Restricts to the nodes in the label ``also``."""

    name: ClassVar[str] = "Also"
    api_version: ClassVar[int] = 1

    def pre_filter(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> PreFilterResult:
        also = pod.labels.get("also")
        return PreFilterResult(node_names=None if also is None else frozenset(also.split(".")))


class NoScoring(PreScorePlugin, ScorePlugin):
    """Skips scoring; its score would be out of range."""

    name: ClassVar[str] = "NoScoring"
    api_version: ClassVar[int] = 1

    def pre_score(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> Status:
        return Status.skip()

    def score(self, state: CycleState, pod: PodInfo, node: NodeInfo) -> int:
        raise AssertionError("scored although it answered Skip")


class Answering(FilterAllPlugin, ScoreAllPlugin, NormalizeScore, ReservePlugin, PermitPlugin):
    """Returns the answer in the pod's label ``answer``; most are invalid."""

    name: ClassVar[str] = "Answering"
    api_version: ClassVar[int] = 1

    def filter_all(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> FilterResult:
        match pod.labels.get("answer"):
            case "filter raises":
                raise LookupError("nothing there")
            case "filter short":
                return FilterResult.passing(nodes.size - 1)
            case "filter none":
                return cast(FilterResult, None)
            case "filter beyond":
                return FilterResult(np.full(nodes.size, 3, np.int16), (NO_CPU,))
            case "filter success":
                return FilterResult(np.ones(nodes.size, np.int16), (SUCCESS,))
            case "filter error":
                return FilterResult(np.ones(nodes.size, np.int16), (Status.error("broken"),))
            case "filter wait":
                return FilterResult(np.ones(nodes.size, np.int16), (Status(Code.WAIT),))
        return FilterResult.passing(nodes.size)

    def score_all(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> Int64Column:
        match pod.labels.get("answer"):
            case "score raises":
                raise ZeroDivisionError("by zero")
            case "score long":
                return np.zeros(nodes.size + 1, np.int64)
            case "score square":
                return np.zeros((nodes.size, nodes.size), np.int64)
            case "score list":
                return cast(Int64Column, [0] * nodes.size)
            case "score float":
                return cast(Int64Column, np.zeros(nodes.size, np.float64))
        return np.full(nodes.size, 50, np.int64)

    def normalize(self, state: CycleState, pod: PodInfo, scores: Int64Column) -> Int64Column:
        match pod.labels.get("answer"):
            case "normalize high":
                return scores + 51
            case "normalize low":
                return scores - 51
            case "normalize short":
                return scores[1:]
            case "normalize none":
                return cast(Int64Column, None)
        return scores

    def reserve(self, state: CycleState, pod: PodInfo, node_name: str) -> ReserveResult:
        match pod.labels.get("answer"):
            case "reserve raises":
                raise OSError("no disk")
            case "reserve error":
                return ReserveResult(Status.error("broken"))
            case "reserve object":
                return ReserveResult(reservation={"what": object()})
            case "reserve tuple":
                return ReserveResult(reservation={"what": (1, 2)})
            case "reserve none":
                return cast(ReserveResult, None)
        return ReserveResult()

    def permit(self, state: CycleState, pod: PodInfo, node_name: str) -> PermitResult:
        match pod.labels.get("answer"):
            case "permit raises":
                raise OSError("no net")
            case "permit nan":
                return PermitResult(Status(Code.WAIT), float("nan"))
            case "permit early":
                return PermitResult(Status(Code.WAIT), -1.0)
            case "permit none":
                return cast(PermitResult, None)
        return PermitResult()


class Doorman(PermitPlugin):
    """Makes pods with the label ``hold`` wait for so many seconds. Allows the pod in another pod's
    label ``open``, and rejects the pod in its label ``shut``."""

    name: ClassVar[str] = "Doorman"
    api_version: ClassVar[int] = 1

    def permit(self, state: CycleState, pod: PodInfo, node_name: str) -> PermitResult:
        for waiting in self.handle.waiting_pods():
            if waiting.info.name == pod.labels.get("open"):
                waiting.allow(self.name)
            if waiting.info.name == pod.labels.get("shut"):
                waiting.reject(self.name, f"{pod.name} says no")
        if "deny" in pod.labels:
            return PermitResult(Status.unschedulable("not today"))
        if "hold" in pod.labels:
            return PermitResult(Status(Code.WAIT), float(pod.labels["hold"]))
        return PermitResult()


class _Rescue(PostFilterPlugin):
    api_version: ClassVar[int] = 1
    label: ClassVar[str]

    def post_filter(
        self, state: CycleState, pod: PodInfo, statuses: NodeToStatus
    ) -> PostFilterResult:
        match pod.labels.get(self.label):
            case "room":
                return PostFilterResult(SUCCESS, statuses.names(unresolvable=False)[0])
            case "sure":
                return PostFilterResult(Status.unresolvable(f"{self.name}: nothing will help"))
            case "raises":
                raise RuntimeError("no idea")
        return PostFilterResult(Status.unschedulable(f"{self.name}: no victims."))


class FirstRescue(_Rescue):
    name: ClassVar[str] = "First"
    api_version: ClassVar[int] = 1
    label: ClassVar[str] = "first"


class SecondRescue(_Rescue):
    name: ClassVar[str] = "Second"
    api_version: ClassVar[int] = 1
    label: ClassVar[str] = "second"
