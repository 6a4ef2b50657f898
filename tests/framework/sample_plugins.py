"""Small plugins for tests of the registry and of profiles."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import ClassVar

import msgspec
import numpy as np

from asched.framework.binding import BindingClient
from asched.framework.cycle_state import CycleState
from asched.framework.interface import (
    Arguments,
    BindPlugin,
    FilterPlugin,
    Plugin,
    PreScorePlugin,
    QueueSortPlugin,
    ScoreAllPlugin,
)
from asched.framework.nodes import Int64Column, NodeInfo, Nodes
from asched.framework.pod_info import PodInfo, QueuedPod
from asched.framework.status import SUCCESS, Status


class Sort(QueueSortPlugin):
    name: ClassVar[str] = "PrioritySort"
    api_version: ClassVar[int] = 1

    def less(self, first: QueuedPod, second: QueuedPod) -> bool:
        return first.info.key < second.info.key


class OtherSort(Sort):
    name: ClassVar[str] = "OtherSort"
    api_version: ClassVar[int] = 1


class Binder(BindPlugin):
    name: ClassVar[str] = "DefaultBinder"
    api_version: ClassVar[int] = 1

    async def bind(self, client: BindingClient, pod: PodInfo, node_name: str) -> Status:
        return await client.bind(pod, node_name)


class NodeName(FilterPlugin):
    name: ClassVar[str] = "NodeName"
    api_version: ClassVar[int] = 1

    def filter(self, state: CycleState, pod: PodInfo, node: NodeInfo) -> Status:
        return SUCCESS


class _Scoring(ScoreAllPlugin):
    def score_all(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> Int64Column:
        return np.zeros(nodes.size, dtype=np.int64)


class ImageLocality(_Scoring):
    name: ClassVar[str] = "ImageLocality"
    api_version: ClassVar[int] = 1


class TaintToleration(FilterPlugin, PreScorePlugin, _Scoring):
    name: ClassVar[str] = "TaintToleration"
    api_version: ClassVar[int] = 1

    def filter(self, state: CycleState, pod: PodInfo, node: NodeInfo) -> Status:
        return SUCCESS

    def pre_score(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> Status:
        return SUCCESS


class Strategy(Enum):
    LEAST = "LeastAllocated"
    MOST = "MostAllocated"


class ResourceWeight(msgspec.Struct, frozen=True, rename="camel"):
    name: str
    weight: int = 1


class FitArguments(Arguments, frozen=True):
    type: Strategy = Strategy.LEAST
    resources: tuple[ResourceWeight, ...] = (ResourceWeight("cpu"), ResourceWeight("memory"))
    min_free: int = 0

    def __post_init__(self) -> None:
        if self.min_free > 100:
            raise ValueError(f"minFree must be at most 100, got {self.min_free}")


class Fit(TaintToleration):
    name: ClassVar[str] = "NodeResourcesFit"
    api_version: ClassVar[int] = 1
    arguments: ClassVar[type[msgspec.Struct] | None] = FitArguments


class Third(TaintToleration):
    """A plugin that kube-scheduler does not have."""

    name: ClassVar[str] = "Third"
    api_version: ClassVar[int] = 1


SAMPLES: Sequence[type[Plugin]] = (
    Sort, Binder, NodeName, ImageLocality, TaintToleration, Fit, Third, OtherSort,
)  # fmt: skip
