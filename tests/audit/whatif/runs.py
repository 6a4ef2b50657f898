"""Runs made by hand."""

from __future__ import annotations

from typing import Any

from asched.model.node import Node
from asched.simulator.history import End, NodeSpan, NodeStay, PodRun, Run
from tests.audit.recording import node, pod

S = 1_000_000_000


def stint(
    name: str, from_s: float, to_s: float | None = None, end: End | None = None, **more: Any
) -> NodeStay:
    """On a node from then on: bound as it was assigned."""
    ended_ns = None if to_s is None else round(to_s * S)
    if ended_ns is not None and end is None:
        end = End.FINISHED
    return NodeStay(name, round(from_s * S), round(from_s * S), ended_ns, end, **more)


def pod_run(
    name: str,
    *stints: NodeStay,
    cpu: str = "1",
    created_s: float = 0,
    ends: bool = True,
    **spec: Any,
) -> PodRun:
    """A pod that is gone with its last stint, unless ``ends`` is False."""
    last = stints[-1] if stints else None
    over = ends and last is not None and last.ended_ns is not None
    return PodRun(
        pod(name, cpu, **spec),
        round(created_s * S),
        attempts=len(stints),
        stints=stints,
        ended_ns=last.ended_ns if over and last is not None else None,
        end=last.end if over and last is not None else None,
    )


def span(made: Node | str, from_s: float = 0, to_s: float | None = None) -> NodeSpan:
    found = node(made) if isinstance(made, str) else made
    return NodeSpan(found, round(from_s * S), None if to_s is None else round(to_s * S))


def run_of(*pods: PodRun, nodes: tuple[NodeSpan, ...], end_s: float = 100) -> Run:
    return Run(0, round(end_s * S), pods, nodes)
