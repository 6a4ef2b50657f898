"""A plugin that does what plugins must not, to pods that are labelled for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any, ClassVar

import anyio

from asched.framework.binding import BindingClient
from asched.framework.cycle_state import CycleState
from asched.framework.interface import (
    FilterPlugin,
    PermitPlugin,
    PermitResult,
    PreBindPlugin,
    ReservePlugin,
    ReserveResult,
    ScorePlugin,
)
from asched.framework.nodes import NodeInfo
from asched.framework.pod_info import PodInfo
from asched.framework.status import SUCCESS, Code, Status
from tests.fault_simulation.mixes import PluginFaults

_TIME_LIMIT_S = 20.0


class Misbehaviour(Exception):  # noqa: N818  it is what it says
    """What the plugin raises."""


class Shaky(FilterPlugin, ScorePlugin, ReservePlugin, PermitPlugin, PreBindPlugin):
    """It does not say what may lift its rejections, so that any event has to.

    What takes part in decisions is drawn from the pod and the node, so that it is the same in a
    replay; what PreBind does is drawn anew each time."""

    name: ClassVar[str] = "Shaky"
    api_version: ClassVar[int] = 1
    chance: ClassVar[Random]
    faults: ClassVar[Callable[[], PluginFaults]]
    """What a seed sets: a process runs one at a time."""

    @classmethod
    def begin(cls, chance: Random, faults: Callable[[], PluginFaults]) -> None:
        """A new seed begins."""
        cls.chance, cls.faults = chance, staticmethod(faults)

    def _trips(self, pod: PodInfo, what: str, one_in: int) -> bool:
        if pod.labels.get("shaky") != "yes":
            return False
        return self.handle.draw(f"{what}/{pod.uid}", one_in) == 0

    def filter(self, state: CycleState, pod: PodInfo, node: NodeInfo) -> Status:
        if self._trips(pod, f"filter/{node.name}", 8):
            raise Misbehaviour("filter")
        return SUCCESS

    def score(self, state: CycleState, pod: PodInfo, node: NodeInfo) -> int:
        if self._trips(pod, f"score/{node.name}", 16):
            raise Misbehaviour("score")
        return 5000 if self._trips(pod, f"too much/{node.name}", 32) else 0

    def reserve(self, state: CycleState, pod: PodInfo, node_name: str) -> ReserveResult:
        if self._trips(pod, f"reserve/{node_name}", 8):
            return ReserveResult(Status(Code.UNSCHEDULABLE, ("not this node",)))
        return ReserveResult(note={"node": node_name} if self._trips(pod, "note", 2) else None)

    def reserved(self, pod: PodInfo, node_name: str, note: dict[str, Any] | None) -> None:
        if self._trips(pod, "reserved", 8):
            raise Misbehaviour("reserved")

    def unreserve(self, pod: PodInfo, node_name: str, note: dict[str, Any] | None) -> None:
        if self._trips(pod, "unreserve", 8):
            raise Misbehaviour("unreserve")

    def permit(self, state: CycleState, pod: PodInfo, node_name: str) -> PermitResult:
        if self._trips(pod, "permit", 4):
            return PermitResult(Status(Code.WAIT, ("in vain",)), timeout_s=3.0)
        return PermitResult()

    @property
    def time_limit_s(self) -> float:
        return _TIME_LIMIT_S

    def pre_bind_pre_flight(self, pod: PodInfo, node_name: str) -> bool:
        if self._trips(pod, "pre flight", 16):
            raise Misbehaviour("pre flight")
        return True

    async def pre_bind(self, client: BindingClient, pod: PodInfo, node_name: str) -> Status:
        faults, drawn = type(self).faults(), self.chance.random()
        if drawn < faults.raising:
            raise Misbehaviour("pre bind")
        drawn -= faults.raising
        if drawn < faults.hanging:
            await anyio.sleep_forever()
        drawn -= faults.hanging
        if drawn < faults.nonsense:
            if self.chance.random() < 0.5:
                raise asyncio.CancelledError
            return None  # type: ignore[return-value]  # nonsense is what it is for
        if self.chance.random() < faults.slow:
            await anyio.sleep(self.chance.uniform(0.1, 15.0))
        return SUCCESS
