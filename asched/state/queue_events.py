"""Which events are news to which waiting pods. A part of :mod:`asched.state.queue`.

Which event brought pods into which queue, counted for those who watch the queue.

It is no part of the state: no decision reads it, and a checkpoint does not keep it.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from asched.framework.events import ClusterEvent, EventResource, QueueingHint
from asched.framework.pod_groups import PodGroupKey, group_of, key_of
from asched.framework.pod_info import QueuedPod
from asched.framework.runtime.observation import (
    CURRENT_CALL,
    FAILURES,
    OBSERVATION,
    FailureReason,
    failure_reason,
)
from asched.framework.runtime.profile import RegisteredEvent
from asched.model.groups import CustomPodGroup, PodGroup
from asched.model.meta import Object
from asched.model.pod import Pod


class QueuedClusterEvent(NamedTuple):
    """An event with the objects it is about."""

    event: ClusterEvent
    old: Object | None
    new: Object | None
    held_since_ns: int | None = None
    """Of room that a pod of a group gives back which Permit had held: since when it was held."""
    nomination: bool = False
    """The room is what was kept for a nominated pod, which is shown as if it had been on that node."""


_POD_EVENTS = frozenset({EventResource.ASSIGNED_POD, EventResource.UNSCHEDULED_POD})


def concerns(pod: QueuedPod, happened: QueuedClusterEvent) -> bool:
    """A pod hears of itself only by ``TARGET_POD``, and of nobody else by that: the room that it
    gives back when its own binding fails, for one, is no news to it. That its nomination was taken back
    is: it is to find another node."""
    resource = happened.event.resource
    if happened.nomination:
        return _concerns_kept_room(pod, happened)
    if resource not in _POD_EVENTS and resource is not EventResource.TARGET_POD:
        return True
    about = happened.new or happened.old
    own = about is not None and about.uid == pod.info.uid
    if own is not (resource is EventResource.TARGET_POD):
        return False
    return happened.held_since_ns is None or _concerns_room_of_held(pod, happened)


def _concerns_kept_room(pod: QueuedPod, happened: QueuedClusterEvent) -> bool:
    """Whom a nominated pod keeps out: pods of no higher priority (``getLEPriorityPreCheck``)."""
    nominated = happened.old
    return isinstance(nominated, Pod) and pod.info.priority <= nominated.spec.priority


_ROUNDS_OF_ITS_OWN = 2


def _concerns_room_of_held(pod: QueuedPod, happened: QueuedClusterEvent) -> bool:
    """Whether room given back by a held pod of a group is news to a pod that waits.

    It is none to a pod rejected before that room was taken: things are as they were. Nor to one of the
    same group, whose members gave way because it was rejected; but it may help to try that one
    first, so its first rejections are an exception. Without this, two gangs for which there is no room
    would wake each other for ever.
    """
    if group_about(happened) == group_of(pod.info.pod):
        return pod.unschedulable_count <= _ROUNDS_OF_ITS_OWN
    since_ns = happened.held_since_ns
    return bool(pod.gating_plugin) or since_ns is None or since_ns <= pod.rejected_at_ns


def group_about(happened: QueuedClusterEvent) -> PodGroupKey | None:
    """The group that an event is about, or that its pod is of."""
    about = happened.new or happened.old
    if isinstance(about, Pod):
        return group_of(about)
    return key_of(about) if isinstance(about, PodGroup | CustomPodGroup) else None


def hint_of(registered: RegisteredEvent, pod: Pod, happened: QueuedClusterEvent) -> QueueingHint:
    """What a plugin says to an event that it registered for."""
    if registered.own_group and group_of(pod) != group_about(happened):
        return QueueingHint.SKIP
    if registered.hint is None:
        return QueueingHint.QUEUE
    hint = registered.hint
    if OBSERVATION.hints is not None:
        hint = OBSERVATION.hints.wrap_hint(registered.plugin, happened.event, hint)
    outer, CURRENT_CALL.call = CURRENT_CALL.call, (registered.plugin, "QueueingHint")
    try:
        answer: object = hint(pod, happened.old, happened.new)
    except BaseException as error:  # noqa: BLE001  a plugin's code: its bug must not strand a pod
        FAILURES.note(registered.plugin, "QueueingHint", failure_reason(error))
        return QueueingHint.QUEUE
    finally:
        CURRENT_CALL.call = outer
    if not isinstance(answer, QueueingHint):
        FAILURES.note(registered.plugin, "QueueingHint", FailureReason.NONSENSE)
        return QueueingHint.QUEUE
    return answer


ACTIVE = "active"
BACKOFF = "backoff"
UNSCHEDULABLE = "unschedulable"
GATED = "gated"

# The events that are none of the cluster's have kube-scheduler's names.
POD_ADD = "UnscheduledPodAdd"
ATTEMPT_FAILURE = "ScheduleAttemptFailure"
BACKOFF_COMPLETE = "BackoffComplete"
FORCE_ACTIVATE = "ForceActivate"
TIMEOUT = "UnschedulableTimeout"
RECONFIGURED = "ProfilesLoaded"
"""Ours: new profiles have every waiting pod sorted in afresh."""

Arrivals = Counter[tuple[str, str]]
"""How many pods came, by queue and event."""
