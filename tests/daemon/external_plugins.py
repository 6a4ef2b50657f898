"""External plugins for tests. Workers import this module, so it is small."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import ClassVar

import msgspec
import numpy as np

from asched.framework.binding import ExecutionMode
from asched.framework.cycle_state import CycleState, StateKey
from asched.framework.interface import (
    Arguments,
    FilterPlugin,
    PreFilterPlugin,
    PreFilterResult,
    PreScorePlugin,
    ReservePlugin,
    ReserveResult,
    ScoreAllPlugin,
    ScorePlugin,
)
from asched.framework.nodes import Int64Column, NodeInfo, Nodes
from asched.framework.pod_info import PodInfo
from asched.framework.status import SUCCESS, Status

WANTED: StateKey[str] = StateKey("NodeChooser/wanted")


class NodeChooser(PreFilterPlugin, FilterPlugin, ScorePlugin):
    """Allows the node that the pod's label ``target`` names, and prefers the emptiest node. Some
    values of the label make it fail."""

    name: ClassVar[str] = "NodeChooser"
    api_version: ClassVar[int] = 1
    execution_mode: ClassVar[ExecutionMode] = ExecutionMode.WORKER

    def pre_filter(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> PreFilterResult:
        print("this is not the protocol")
        target = pod.labels.get("target", "")
        if target == "nothing":
            return PreFilterResult(Status.unschedulable("target is nothing"))
        if target == "environment":
            return PreFilterResult(Status.unschedulable(f"variables {' '.join(os.environ)} only"))
        state.write(WANTED, target)
        return PreFilterResult()

    def filter(self, state: CycleState, pod: PodInfo, node: NodeInfo) -> Status:
        match state.read(WANTED):
            case "raises":
                raise RuntimeError("boom")
            case "exits":
                os._exit(7)
            case "leaves":
                raise SystemExit(3)
            case "hangs":
                time.sleep(3600)
            case "":
                return SUCCESS
            case wanted if wanted != node.name:
                return Status.unschedulable("not the wanted node")
        return SUCCESS

    def score(self, state: CycleState, pod: PodInfo, node: NodeInfo) -> int:
        assert state.read(WANTED) is not None
        return max(0, 100 - 10 * sum(1 for _ in node.pods))


class FileArgs(Arguments, frozen=True):
    """The file that names the allowed node."""

    path: str


class Reader(FilterPlugin):
    """Allows the node that a file names: impure."""

    name: ClassVar[str] = "Reader"
    api_version: ClassVar[int] = 1
    arguments: ClassVar[type[msgspec.Struct] | None] = FileArgs
    pure: ClassVar[bool] = False
    calls: ClassVar[list[str]] = []

    def __init__(self, args: FileArgs, handle: object) -> None:
        self._path = Path(args.path)

    def filter(self, state: CycleState, pod: PodInfo, node: NodeInfo) -> Status:
        self.calls.append(pod.name)
        if self._path.read_text().strip() == node.name:
            return SUCCESS
        return Status.unschedulable("closed, says the file")


class ImpureReserve(FilterPlugin, ReservePlugin):
    """Is rejected: a replay would have to call its Reserve."""

    name: ClassVar[str] = "ImpureReserve"
    api_version: ClassVar[int] = 1
    pure: ClassVar[bool] = False

    def filter(self, state: CycleState, pod: PodInfo, node: NodeInfo) -> Status:
        return SUCCESS

    def reserve(self, state: CycleState, pod: PodInfo, node_name: str) -> ReserveResult:
        return ReserveResult()


class InvalidPreScore(PreScorePlugin):
    """Returns a status that cannot be recorded."""

    name: ClassVar[str] = "InvalidPreScore"
    api_version: ClassVar[int] = 1

    def pre_score(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> Status:
        return Status.error("\ud800")


class UnreadableScores(ScoreAllPlugin):
    """Returns scores that raise when they are read."""

    name: ClassVar[str] = "UnreadableScores"
    api_version: ClassVar[int] = 1

    def score_all(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> Int64Column:
        return np.zeros(nodes.size, np.int64).view(_Unreadable)


class _Unreadable(np.ndarray):
    def tolist(self) -> list[int]:  # type: ignore[override]
        raise ValueError("unreadable")
