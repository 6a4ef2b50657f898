"""Contents of the scheduling queue and their stored forms. A part of :mod:`asched.state.queue`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, cast

import msgspec

from asched.framework.events import ActionType, ClusterEvent, EventResource
from asched.framework.pod_info import PodInfo, QueuedPod
from asched.model.meta import Object
from asched.model.pod import Pod
from asched.model.resources import AnyObject
from asched.state.cluster_events import QueuedClusterEvent
from asched.state.stored_form import PodNumber, StoredForm

ACTIVE = "active"
BACKOFF = "backoff"
UNSCHEDULABLE = "unschedulable"
GATED = "gated"

# Queue events that are not cluster events, with kube-scheduler's names.
POD_ADD = "UnscheduledPodAdd"
ATTEMPT_FAILURE = "ScheduleAttemptFailure"
BACKOFF_COMPLETE = "BackoffComplete"
POP_FROM_BACKOFF = "PopFromBackoffQ"
FORCE_ACTIVATE = "ForceActivate"
TIMEOUT = "UnschedulableTimeout"
RECONFIGURED = "ProfilesLoaded"
"""New profiles sort all waiting pods again. kube-scheduler has no such event."""


class QueuedPodSnapshot(StoredForm):
    info: PodInfo
    added_at_ns: int
    entered_at_ns: int | None
    timestamp_ns: int
    rejected_at_ns: int
    attempts: int
    unschedulable_count: int
    consecutive_errors: int
    unschedulable_plugins: tuple[str, ...]
    pending_plugins: tuple[str, ...]
    gating_plugin: str
    turn_ns: int
    charged_steps: int
    yields: bool = False


class QueueSnapshot(StoredForm):
    """Orders matter as well as contents: of pods with equal sort keys the first to arrive is tried
    first, and an event requeues pods in the order in which they began to wait."""

    pods: tuple[QueuedPodSnapshot, ...]
    """All pods, waiting and in flight; the other fields refer to them by position."""
    active: tuple[int, ...]
    """In order of arrival."""
    active_order: tuple[tuple[int, tuple[Any, ...]], ...]
    """In scheduling order, with the stored sort key; empty if it is to be computed again."""
    backoff: tuple[int, ...]
    backoff_order: tuple[int, ...]
    early_order: tuple[tuple[int, tuple[Any, ...]], ...]
    """Pods of the backoff queue that may be scheduled early, as in ``active_order``."""
    unschedulable: tuple[int, ...]
    gated: tuple[int, ...]
    waiting_for: tuple[tuple[str, tuple[int, ...]], ...]
    attempts: tuple[tuple[int, int], ...]
    events: tuple[QueuedClusterEvent, ...]
    events_start: int
    replay_mismatches: int


class QueuedClusterEventForm(StoredForm):
    """Stored form of a :class:`QueuedClusterEvent`."""

    resource: str
    action: int
    old: AnyObject | int | None
    """The number of a pod, or another object."""
    new: AnyObject | int | None
    held_since_ns: int | None
    nomination: bool


def event_to_form(queued_event: QueuedClusterEvent, number_of: PodNumber) -> QueuedClusterEventForm:
    def stored(value: Object | None) -> AnyObject | int | None:
        return number_of(value) if isinstance(value, Pod) else cast("AnyObject | None", value)

    return QueuedClusterEventForm(
        resource=queued_event.event.resource.value,
        action=int(queued_event.event.action),
        old=stored(queued_event.old),
        new=stored(queued_event.new),
        held_since_ns=queued_event.held_since_ns,
        nomination=queued_event.nomination,
    )


def event_from_form(raw: object, pod_of: Callable[[int], PodInfo]) -> QueuedClusterEvent:
    """``raw`` is the decoded form in builtin types."""
    form = msgspec.convert(raw, QueuedClusterEventForm)

    def decoded(value: AnyObject | int | None) -> Object | None:
        return pod_of(value).pod if isinstance(value, int) else value

    return QueuedClusterEvent(
        ClusterEvent(EventResource(form.resource), ActionType(form.action)),
        decoded(form.old),
        decoded(form.new),
        form.held_since_ns,
        nomination=form.nomination,
    )


stored_fields = attrgetter(*QueuedPodSnapshot.__struct_fields__)
"""The current values, for :func:`pod_form`: four times faster than the form itself."""


def pod_form(fields: Sequence[Any]) -> QueuedPodSnapshot:
    """The stored form of a pod with these :data:`stored_fields`."""
    values: list[Any] = [tuple(sorted(f)) if isinstance(f, frozenset) else f for f in fields]
    return QueuedPodSnapshot(*values)


def restored(snapshot: QueuedPodSnapshot) -> QueuedPod:
    pod = QueuedPod(snapshot.info, snapshot.added_at_ns)
    for name in snapshot.__struct_fields__:
        value = getattr(snapshot, name)
        setattr(pod, name, frozenset(value) if isinstance(value, tuple) else value)
    return pod
