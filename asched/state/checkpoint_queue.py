"""The queue's part of a checkpoint. A friend of the queue: it reads and sets what is its own.

Orders matter as much as contents: of pods with equal sort keys the first to arrive is tried first,
and an event wakes pods in the order in which they began to wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple, cast

import msgspec

from asched.framework.events import ActionType, ClusterEvent, EventResource
from asched.framework.pod_info import PodInfo, QueuedPod
from asched.model.meta import Object
from asched.model.pod import Pod
from asched.model.resources import AnyObject
from asched.state.checkpoint_form import HappenedForm, QueuedForm, QueueForm
from asched.state.pod_heap import FIRST_OF_ALL, from_stored, sort_key, stored
from asched.state.queue import SchedulingQueue
from asched.state.queue_events import QueuedClusterEvent
from asched.state.steps import Steps, all_of

PodNumber = Callable[[Pod], int]
"""The number under which a checkpoint holds a pod."""


class QueueImage(NamedTuple):
    """A queue as it is at one moment; it does not change with the queue."""

    pods: list[PodInfo]
    queued: list[QueuedForm]
    """Of :attr:`pods`, but for their numbers."""
    form: QueueForm
    """But for ``pods`` and ``events``."""
    events: list[QueuedClusterEvent]


def image_of(queue: SchedulingQueue) -> QueueImage:
    """A picture of the queue, quickly: what costs more is left to :func:`encoded`."""
    everyone = [*queue, *(pod for pod, _ in queue._under_way.values())]
    unique = {id(pod): pod for pod in everyone}
    places = {ident: place for place, ident in enumerate(unique)}

    def at(pods: Iterable[QueuedPod]) -> tuple[int, ...]:
        return tuple(places[id(pod)] for pod in pods)

    form = QueueForm(
        pods=(),
        active=at(queue.active.values()),
        active_order=tuple(
            (places[id(pod)], stored(key)) for key, pod in queue._active.keys_in_order()
        ),
        backoff=at(queue.backoff.values()),
        backoff_order=at(queue._backoff.in_order()),
        unschedulable=at(queue.unschedulable.values()),
        gated=at(queue.gated.values()),
        waiting_for=tuple((name, at(pods.values())) for name, pods in queue._waiting_for.items()),
        in_flight=tuple((places[id(pod)], since) for pod, since in queue._under_way.values()),
        events=(),
        events_start=queue._events_start,
        drifted=queue.drifted,
    )
    pods = [pod.info for pod in unique.values()]
    return QueueImage(pods, [*map(_queued_form, unique.values())], form, [*queue._events])


def _queued_form(pod: QueuedPod) -> QueuedForm:
    return QueuedForm(
        -1,
        pod.added_at_ns,
        pod.entered_at_ns,
        pod.timestamp_ns,
        pod.rejected_at_ns,
        pod.attempts,
        pod.unschedulable_count,
        pod.consecutive_errors,
        tuple(sorted(pod.unschedulable_plugins)),
        tuple(sorted(pod.pending_plugins)),
        pod.gating_plugin,
    )


def encoded(image: QueueImage, number: PodNumber) -> Steps[QueueForm]:
    """The stored form."""

    def reference(thing: Object | None) -> AnyObject | int | None:
        return number(thing) if isinstance(thing, Pod) else cast("AnyObject | None", thing)

    form, replace = image.form, msgspec.structs.replace
    pods = yield from all_of(
        replace(queued, pod=number(info.pod))
        for info, queued in zip(image.pods, image.queued, strict=True)
    )
    return QueueForm(
        pods,
        form.active,
        form.active_order,
        form.backoff,
        form.backoff_order,
        form.unschedulable,
        form.gated,
        form.waiting_for,
        form.in_flight,
        tuple(
            HappenedForm(
                e.event.resource.value,
                int(e.event.action),
                reference(e.old),
                reference(e.new),
                e.held_since_ns,
                e.nomination,
            )
            for e in image.events
        ),
        form.events_start,
        form.drifted,
    )


def refill(queue: SchedulingQueue, form: QueueForm, info: Callable[[int], PodInfo]) -> None:
    """Put into an empty, configured queue what another one held."""
    pods = [_queued_pod(queued, info(queued.pod)) for queued in form.pods]

    def by_key(places: Iterable[int]) -> dict[str, QueuedPod]:
        return {pods[place].info.key: pods[place] for place in places}

    # Twice: the first time makes the order of arrival, the second that of the heap.
    for place in form.active:
        queue._active.push(pods[place], FIRST_OF_ALL)
    for place, kept in form.active_order:
        pod = pods[place]
        profile = queue._profiles[pod.info.pod.spec.scheduler_name]
        queue._active.push(pod, from_stored(kept) or sort_key(profile, pod))
    for place in (*form.backoff, *form.backoff_order):
        queue._backoff.push(pods[place], queue.backoff_ends_ns(pods[place]))
    queue._unschedulable = by_key(form.unschedulable)
    queue._gated = by_key(form.gated)
    queue._waiting_for = {plugin: by_key(places) for plugin, places in form.waiting_for}
    queue._under_way = {
        pods[place].info.key: (pods[place], since) for place, since in form.in_flight
    }
    queue._events.extend(_happened(event, info) for event in form.events)
    queue._events_start = form.events_start
    queue.drifted = form.drifted


def _queued_pod(form: QueuedForm, info: PodInfo) -> QueuedPod:
    pod = QueuedPod(info, form.added_at_ns)
    pod.entered_at_ns = form.entered_at_ns
    pod.timestamp_ns = form.timestamp_ns
    pod.rejected_at_ns = form.rejected_at_ns
    pod.attempts = form.attempts
    pod.unschedulable_count = form.unschedulable_count
    pod.consecutive_errors = form.consecutive_errors
    pod.unschedulable_plugins = frozenset(form.unschedulable_plugins)
    pod.pending_plugins = frozenset(form.pending_plugins)
    pod.gating_plugin = form.gating_plugin
    return pod


def _happened(form: HappenedForm, info: Callable[[int], PodInfo]) -> QueuedClusterEvent:
    def thing(reference: AnyObject | int | None) -> Object | None:
        return info(reference).pod if isinstance(reference, int) else reference

    event = ClusterEvent(EventResource(form.resource), ActionType(form.action))
    return QueuedClusterEvent(
        event, thing(form.old), thing(form.new), form.held_since_ns, form.nomination
    )
