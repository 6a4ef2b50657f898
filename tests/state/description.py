"""Describes a state in plain values: equal states have equal descriptions."""

from __future__ import annotations

from typing import Any

import numpy as np

from asched.framework.pod_info import QueuedPod
from asched.state.cluster import ClusterState
from asched.state.queue import SchedulingQueue
from asched.state.stored_form import run


def active_in_order(queue: SchedulingQueue) -> list[QueuedPod]:
    """The active pods in scheduling order."""
    return [*run(queue._active.copy().take_in_order(lambda _, pod: pod))]


def describe(state: ClusterState) -> dict[str, Any]:
    """Everything that a later decision may depend on."""
    return {
        "now_ns": state.now_ns,
        "seed": state.engine.seed,
        "epoch": state.engine.epoch,
        "next_start_row": state.engine.next_start_row,
        "profiles": {name: profile.spec for name, profile in state.profiles.items()},
        "pods": {
            key: (
                entry.info.pod,
                entry.placement_state,
                entry.node,
                entry.assignment,
                entry.rejection,
            )
            for key, entry in state.pods.items()
        },
        "queue": _describe_queue(state.queue),
        "nominated": {
            node: {key: info.pod for key, info in pods.items()}
            for node, pods in state.nominator.by_node.items()
        },
        "waiting": {
            key: (
                waiting.info.pod,
                waiting.node_name,
                waiting.since_ns,
                dict(waiting.pending_until_ns),
            )
            for key, waiting in state.waiting.items()
        },
        "evictions": dict(state.evictions),
        "room made": [*state.evictions.completed_preemptors.items()],
        "useless": {*state.evictions.unneeded_preemptors},
        "preempting": sorted(
            key for key, e in state.pods.items() if state.evictions.is_preempting(e.info.uid)
        ),
        "nodes": _describe_nodes(state),
        "objects": {
            kind.__name__: dict(kept) for kind, kept in state.object_store.by_kind.items() if kept
        },
    }


def _describe_queue(queue: SchedulingQueue) -> dict[str, Any]:
    return {
        "active": [_describe_queued(pod) for pod in active_in_order(queue)],
        "backoff": {
            key: (queue.backoff_ends_ns(pod), _describe_queued(pod))
            for key, pod in sorted(queue.backoff.items())
        },
        "unschedulable": [_describe_queued(pod) for pod in queue.unschedulable.values()],
        "gated": [_describe_queued(pod) for pod in queue.gated.values()],
        "flying": [_describe_queued(pod) for pod in queue.in_flight_pods],
        "timer": queue.next_timer_ns(),
    }


def _describe_queued(pod: QueuedPod) -> tuple[Any, ...]:
    return (
        pod.info.pod,
        pod.added_at_ns,
        pod.entered_at_ns,
        pod.timestamp_ns,
        pod.rejected_at_ns,
        pod.attempts,
        pod.unschedulable_count,
        pod.consecutive_errors,
        sorted(pod.unschedulable_plugins),
        sorted(pod.pending_plugins),
        pod.gating_plugin,
    )


def _describe_nodes(state: ClusterState) -> list[tuple[Any, ...]]:
    table = state.nodes
    return [
        (
            row,
            table.names[row],
            table.node(row),
            [info.pod for info in table.pods(row)],
            {name: int(table.requested(name)[row]) for name in table.resources},
            int(table.pod_count[row]),
        )
        for row in np.flatnonzero(table.alive).tolist()
    ]
