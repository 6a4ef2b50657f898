"""Plugins that misbehave in every way. A test installs them as a distribution."""

from __future__ import annotations

import asyncio
import sys
import time
from typing import ClassVar, cast

import numpy as np

from asched.framework.binding import BindingClient, ClaimRef, ExecutionMode
from asched.framework.cycle_state import CycleState
from asched.framework.interface import (
    FilterAllPlugin,
    FilterPlugin,
    PermitPlugin,
    PermitResult,
    PreBindPlugin,
    PreFilterPlugin,
    PreFilterResult,
    ScoreAllPlugin,
    ScorePlugin,
)
from asched.framework.nodes import FilterResult, Int64Column, NodeInfo, Nodes
from asched.framework.pod_info import PodInfo
from asched.framework.status import SUCCESS, Status


class Raises(FilterPlugin):
    name: ClassVar[str] = "Raises"
    api_version: ClassVar[int] = 1

    def filter(self, state: CycleState, pod: PodInfo, node: NodeInfo) -> Status:
        raise RuntimeError("boom")


class Recurses(FilterPlugin):
    name: ClassVar[str] = "Recurses"
    api_version: ClassVar[int] = 1

    def filter(self, state: CycleState, pod: PodInfo, node: NodeInfo) -> Status:
        return self.filter(state, pod, node)


class Sleeps(FilterPlugin):
    name: ClassVar[str] = "Sleeps"
    api_version: ClassVar[int] = 1

    def filter(self, state: CycleState, pod: PodInfo, node: NodeInfo) -> Status:
        time.sleep(0.8)
        return SUCCESS


class NotANumber(ScoreAllPlugin):
    name: ClassVar[str] = "NotANumber"
    api_version: ClassVar[int] = 1

    def score_all(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> Int64Column:
        return cast(Int64Column, np.full(nodes.size, np.nan))


class OutOfRange(ScorePlugin):
    name: ClassVar[str] = "OutOfRange"
    api_version: ClassVar[int] = 1

    def score(self, state: CycleState, pod: PodInfo, node: NodeInfo) -> int:
        return 10**6


class Mutates(FilterAllPlugin):
    name: ClassVar[str] = "Mutates"
    api_version: ClassVar[int] = 1

    def filter_all(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> FilterResult:
        nodes.requested("cpu")[:] = 0
        return FilterResult.passing(nodes.size)


class Exits(PreFilterPlugin):
    name: ClassVar[str] = "Exits"
    api_version: ClassVar[int] = 1

    def pre_filter(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> PreFilterResult:
        sys.exit(3)


class Interrupts(PermitPlugin):
    name: ClassVar[str] = "Interrupts"
    api_version: ClassVar[int] = 1

    def permit(self, state: CycleState, pod: PodInfo, node_name: str) -> PermitResult:
        raise KeyboardInterrupt


class StopsTheLoop(FilterPlugin):
    name: ClassVar[str] = "StopsTheLoop"
    api_version: ClassVar[int] = 1

    def filter(self, state: CycleState, pod: PodInfo, node: NodeInfo) -> Status:
        asyncio.get_running_loop().stop()
        return SUCCESS


class ClosesTheLoop(PreBindPlugin):
    name: ClassVar[str] = "ClosesTheLoop"
    api_version: ClassVar[int] = 1

    async def pre_bind(self, client: BindingClient, pod: PodInfo, node_name: str) -> Status:
        asyncio.get_running_loop().close()
        return SUCCESS


class CancelsOthers(PreBindPlugin):
    name: ClassVar[str] = "CancelsOthers"
    api_version: ClassVar[int] = 1

    async def pre_bind(self, client: BindingClient, pod: PodInfo, node_name: str) -> Status:
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        return SUCCESS


class LeaksTasks(PreBindPlugin):
    name: ClassVar[str] = "LeaksTasks"
    api_version: ClassVar[int] = 1
    kept: ClassVar[list[asyncio.Task[None]]] = []

    async def pre_bind(self, client: BindingClient, pod: PodInfo, node_name: str) -> Status:
        self.kept.append(asyncio.create_task(asyncio.sleep(3600)))
        return SUCCESS


class BlocksTheLoop(PreBindPlugin):
    name: ClassVar[str] = "BlocksTheLoop"
    api_version: ClassVar[int] = 1

    async def pre_bind(self, client: BindingClient, pod: PodInfo, node_name: str) -> Status:
        time.sleep(0.8)  # noqa: ASYNC251  which is what is wrong with it
        return SUCCESS


class Trespasses(PreBindPlugin):
    name: ClassVar[str] = "Trespasses"
    api_version: ClassVar[int] = 1

    async def pre_bind(self, client: BindingClient, pod: PodInfo, node_name: str) -> Status:
        return await client.claim_volume("anybodys", ClaimRef("default", "mine", ""))


class NeverReturns(FilterPlugin):
    name: ClassVar[str] = "NeverReturns"
    api_version: ClassVar[int] = 1
    execution_mode: ClassVar[ExecutionMode] = ExecutionMode.WORKER

    def filter(self, state: CycleState, pod: PodInfo, node: NodeInfo) -> Status:
        while True:
            pass


HOSTILE = (
    Raises, Recurses, Sleeps, NotANumber, OutOfRange, Mutates, Exits, Interrupts, StopsTheLoop,
    ClosesTheLoop, CancelsOthers, LeaksTasks, BlocksTheLoop, Trespasses, NeverReturns,
)  # fmt: skip
