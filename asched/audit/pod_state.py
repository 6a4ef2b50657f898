"""Where a pod is at a moment, and since when it waits."""

from __future__ import annotations

from datetime import datetime
from typing import Final

import msgspec

from asched.audit.lookup import state_at
from asched.audit.timeline import queue_of, time_of
from asched.framework.pod_groups import AnyPodGroup, find_group, group_of
from asched.framework.runtime.profile import PluginLoader
from asched.journal.store import JournalStore
from asched.model.groups import CustomPodGroup
from asched.model.pod import Pod
from asched.model.quantity import NS_PER_S
from asched.state.cluster import ClusterState, PlacementState, PodEntry

AWAITS_SESSION: Final = "awaitsSession"
"""The state of a pod without a node that batch sessions serve."""


def pod_state(state: ClusterState, key: str) -> str:
    """``bound``, ``assumed``, ``deleted``, ``inFlight``, ``awaitsSession``, or the name of the
    pod's queue."""
    entry = state.pods.get(key)
    if entry is None:
        return "deleted"
    if entry.placement_state is PlacementState.PENDING:
        if state.sessions.is_pending(entry.info.pod):
            return AWAITS_SESSION
        return queue_of(state.queue, key) or "inFlight"
    placed: str = entry.placement_state.value
    return placed


def pending_since_ns(state: ClusterState, entry: PodEntry) -> int:
    """When a pod without a node was first observed pending, or was created; 0 if unknown."""
    queued = state.queue.find_queued_or_in_flight(entry.info.key)
    if queued is not None:
        return queued.added_at_ns + state.engine.clock_offset_ns
    created = entry.info.pod.metadata.creation_timestamp
    return 0 if created is None else int(created.timestamp() * 1_000_000) * 1000


def is_pending(state: ClusterState, entry: PodEntry) -> bool:
    """Whether the pod has no node and one of our profiles or sessions serves it."""
    if entry.placement_state is not PlacementState.PENDING:
        return False
    queued = state.queue.find_queued_or_in_flight(entry.info.key)
    return queued is not None or state.sessions.is_pending(entry.info.pod)


def queue_name(group: AnyPodGroup | None) -> str:
    """The queue that a PodGroup names; empty for none."""
    return group.spec.queue if isinstance(group, CustomPodGroup) else ""


def why_pending(state: ClusterState, entry: PodEntry) -> str:
    """Why the pod has no node, in one line; empty before its first attempt."""
    queued = state.queue.find_queued_or_in_flight(entry.info.key)
    if queued is not None and queued.gating_plugin:
        return f"gated by {queued.gating_plugin}"
    return " ".join(entry.rejection.split())


def rejecting_plugins(state: ClusterState, key: str) -> tuple[str, ...]:
    """The plugins that rejected the pod's last attempt."""
    queued = state.queue.find_queued_or_in_flight(key)
    if queued is None:
        return ()
    return tuple(sorted(queued.unschedulable_plugins | queued.pending_plugins))


def pod_owner(pod: Pod) -> str:
    """``Kind/name`` of the controller; empty without one."""
    owner = pod.metadata.controller
    return "" if owner is None else f"{owner.kind}/{owner.name}"


class PodIdentity(msgspec.Struct, frozen=True, rename="camel"):
    """A pod with what rules compare: its priority, gang and queue."""

    namespace: str
    name: str
    uid: str = ""
    priority: int | None = None
    """None if the pod is unknown."""
    owner: str = ""
    """``Kind/name`` of its controller."""
    gang: str = ""
    """``namespace/name`` of its PodGroup."""
    queue: str = ""
    """The queue of its PodGroup."""


def identity(state: ClusterState, key: str, uid: str) -> PodIdentity:
    """The pod of that key and uid, as far as the state knows it."""
    namespace, _, name = key.partition("/")
    entry = state.entry(key, uid)
    if entry is None:
        return PodIdentity(namespace, name, uid)
    pod = entry.info.pod
    group = group_of(pod)
    return PodIdentity(
        namespace=namespace,
        name=name,
        uid=uid,
        priority=entry.info.priority,
        owner=pod_owner(pod),
        gang="" if group is None else group.key,
        queue="" if group is None else queue_name(find_group(state, group)),
    )


class PendingPod(msgspec.Struct, frozen=True, rename="camel"):
    """A pod without a node."""

    namespace: str
    name: str
    state: str
    since: datetime | None
    """When it was first observed pending."""
    waited_s: float | None
    priority: int
    reason: str
    """Why it has no node; empty before its first attempt."""


class PendingPods(msgspec.Struct, frozen=True, rename="camel"):
    """The pods that have waited longest for a node, longest first."""

    seq: int
    at: datetime
    total: int
    """All pods without a node."""
    pods: tuple[PendingPod, ...]


def longest_pending(state: ClusterState, seq: int, limit: int) -> PendingPods:
    """The pods without a node after record ``seq``."""
    found = [
        (pending_since_ns(state, entry) or state.date_ns, key)
        for key, entry in state.pods.items()
        if is_pending(state, entry)
    ]
    found.sort()
    pods = tuple(_pending(state, state.pods[key]) for _, key in found[:limit])
    return PendingPods(seq, time_of(state.date_ns), len(found), pods)


def _pending(state: ClusterState, entry: PodEntry) -> PendingPod:
    since_ns = pending_since_ns(state, entry)
    return PendingPod(
        namespace=entry.info.namespace,
        name=entry.info.name,
        state=pod_state(state, entry.info.key),
        since=time_of(since_ns) if since_ns else None,
        waited_s=(state.date_ns - since_ns) / NS_PER_S if since_ns else None,
        priority=entry.info.priority,
        reason=why_pending(state, entry),
    )


async def pending_at(
    journal: JournalStore, load: PluginLoader, limit: int, at_ns: int | None = None
) -> PendingPods:
    """The pods without a node at a time; None for the journal's end.

    Raises :class:`AuditError` before the first record,
    :class:`~asched.journal.errors.JournalError`, ProfileError.
    """
    state, seq = await state_at(journal, load, at_ns)
    return longest_pending(state, seq, limit)
