"""Scripted runs."""

from __future__ import annotations

from typing import Any

from asched.model.node import Node
from asched.model.quantity import NS_PER_S
from asched.simulator.trace import EndReason, NodeSpan, PodPlacement, PodRun, WorkloadRun
from tests.audit.recording import node, pod


def placement(
    name: str, from_s: float, to_s: float | None = None, end: EndReason | None = None, **more: Any
) -> PodPlacement:
    """A placement that is bound at the time of its assignment."""
    ended_ns = None if to_s is None else round(to_s * NS_PER_S)
    if ended_ns is not None and end is None:
        end = EndReason.FINISHED
    return PodPlacement(
        name, round(from_s * NS_PER_S), round(from_s * NS_PER_S), ended_ns, end, **more
    )


def pod_run(
    name: str,
    *placements: PodPlacement,
    cpu: str = "1",
    created_s: float = 0,
    ends: bool = True,
    **spec: Any,
) -> PodRun:
    """A pod that ends with its last placement, unless ``ends`` is False."""
    last = placements[-1] if placements else None
    over = ends and last is not None and last.ended_ns is not None
    return PodRun(
        pod(name, cpu, **spec),
        round(created_s * NS_PER_S),
        attempts=len(placements),
        placements=placements,
        ended_ns=last.ended_ns if over and last is not None else None,
        end=last.end if over and last is not None else None,
    )


def span(made: Node | str, from_s: float = 0, to_s: float | None = None) -> NodeSpan:
    found = node(made) if isinstance(made, str) else made
    return NodeSpan(
        found, round(from_s * NS_PER_S), None if to_s is None else round(to_s * NS_PER_S)
    )


def run_of(*pods: PodRun, nodes: tuple[NodeSpan, ...], end_s: float = 100) -> WorkloadRun:
    return WorkloadRun(0, round(end_s * NS_PER_S), pods, nodes)
