"""Plugins that are asked outside decisions, for tests. Workers import this module, so it is small."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import ClassVar

import msgspec

from asched.framework.binding import ExecutionMode
from asched.framework.cycle_state import CycleState, StateKey
from asched.framework.interface import (
    Arguments,
    FilterPlugin,
    PreFilterPlugin,
    PreFilterResult,
    ReservePlugin,
    ReserveResult,
    ScorePlugin,
)
from asched.framework.nodes import NodeInfo, Nodes
from asched.framework.pod_info import PodInfo
from asched.framework.status import SUCCESS, Status

WANTED: StateKey[str] = StateKey("Wishes/wanted")


class Wishes(PreFilterPlugin, FilterPlugin, ScorePlugin):
    """Sends each pod to the node that its label ``wish`` names, if it is one of those whose label
    ``tier`` is right; prefers the emptiest. Says who it is where a pod wishes to know."""

    name: ClassVar[str] = "Wishes"
    api_version: ClassVar[int] = 1
    execution_mode: ClassVar[ExecutionMode] = ExecutionMode.WORKER

    def pre_filter(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> PreFilterResult:
        print("this is not the protocol")
        wish = pod.labels.get("wish", "")
        if wish == "nothing":
            return PreFilterResult(Status.unschedulable("wishes for nothing"))
        state.write(WANTED, wish)
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
    """The file that says which node is open."""

    path: str


class Reader(FilterPlugin):
    """Lets pods on the node that a file names: not pure."""

    name: ClassVar[str] = "Reader"
    api_version: ClassVar[int] = 1
    arguments: ClassVar[type[msgspec.Struct] | None] = FileArgs
    pure: ClassVar[bool] = False
    asked: ClassVar[list[str]] = []

    def __init__(self, args: FileArgs, handle: object) -> None:
        self._path = Path(args.path)

    def filter(self, state: CycleState, pod: PodInfo, node: NodeInfo) -> Status:
        self.asked.append(pod.name)
        if self._path.read_text().strip() == node.name:
            return SUCCESS
        return Status.unschedulable("closed, says the file")


class ImpureReserve(FilterPlugin, ReservePlugin):
    """Cannot be had: a replay would have to call its Reserve."""

    name: ClassVar[str] = "ImpureReserve"
    api_version: ClassVar[int] = 1
    pure: ClassVar[bool] = False

    def filter(self, state: CycleState, pod: PodInfo, node: NodeInfo) -> Status:
        return SUCCESS

    def reserve(self, state: CycleState, pod: PodInfo, node_name: str) -> ReserveResult:
        return ReserveResult()
