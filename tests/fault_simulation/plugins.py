"""A plugin that violates the plugin contract for labelled pods."""

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


class InjectedError(Exception):
    """Raised by the plugin."""


class Shaky(FilterPlugin, ScorePlugin, ReservePlugin, PermitPlugin, PreBindPlugin):
    """Registers no events, so every event requeues the pods it rejects.

    Results that affect decisions are drawn from pod and node, so a replay repeats them. PreBind
    draws new results each time.
    """

    name: ClassVar[str] = "Shaky"
    api_version: ClassVar[int] = 1
    chance: ClassVar[Random]
    faults: ClassVar[Callable[[], PluginFaults]]
    """Set per seed; a process runs one seed at a time."""

    @classmethod
    def begin(cls, chance: Random, faults: Callable[[], PluginFaults]) -> None:
        """Start a new seed."""
        cls.chance, cls.faults = chance, staticmethod(faults)

    def _fails(self, pod: PodInfo, what: str, one_in: int) -> bool:
        if pod.labels.get("shaky") != "yes":
            return False
        return self.handle.stable_random(f"{what}/{pod.uid}", one_in) == 0

    def filter(self, state: CycleState, pod: PodInfo, node: NodeInfo) -> Status:
        if self._fails(pod, f"filter/{node.name}", 8):
            raise InjectedError("filter")
        return SUCCESS

    def score(self, state: CycleState, pod: PodInfo, node: NodeInfo) -> int:
        if self._fails(pod, f"score/{node.name}", 16):
            raise InjectedError("score")
        return 5000 if self._fails(pod, f"too much/{node.name}", 32) else 0

    def reserve(self, state: CycleState, pod: PodInfo, node_name: str) -> ReserveResult:
        if self._fails(pod, f"reserve/{node_name}", 8):
            return ReserveResult(Status(Code.UNSCHEDULABLE, ("not this node",)))
        return ReserveResult(
            reservation={"node": node_name} if self._fails(pod, "reservation", 2) else None
        )

    def on_reserved(self, pod: PodInfo, node_name: str, reservation: dict[str, Any] | None) -> None:
        if self._fails(pod, "reserved", 8):
            raise InjectedError("reserved")

    def unreserve(self, pod: PodInfo, node_name: str, reservation: dict[str, Any] | None) -> None:
        if self._fails(pod, "unreserve", 8):
            raise InjectedError("unreserve")

    def permit(self, state: CycleState, pod: PodInfo, node_name: str) -> PermitResult:
        if self._fails(pod, "permit", 4):
            return PermitResult(Status(Code.WAIT, ("never allowed",)), timeout_s=3.0)
        return PermitResult()

    @property
    def time_limit_s(self) -> float:
        return _TIME_LIMIT_S

    def pre_bind_pre_flight(self, pod: PodInfo, node_name: str) -> bool:
        if self._fails(pod, "pre flight", 16):
            raise InjectedError("pre flight")
        return True

    async def pre_bind(self, client: BindingClient, pod: PodInfo, node_name: str) -> Status:
        faults, drawn = type(self).faults(), self.chance.random()
        if drawn < faults.raising:
            raise InjectedError("pre bind")
        drawn -= faults.raising
        if drawn < faults.hanging:
            await anyio.sleep_forever()
        drawn -= faults.hanging
        if drawn < faults.invalid:
            if self.chance.random() < 0.5:
                raise asyncio.CancelledError
            return None  # type: ignore[return-value]  # deliberately invalid
        if self.chance.random() < faults.slow:
            await anyio.sleep(self.chance.uniform(0.1, 15.0))
        return SUCCESS
