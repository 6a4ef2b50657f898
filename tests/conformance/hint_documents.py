"""Recorded queueing hints: an event, a waiting pod, and whether the event requeues it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from asched.config.kube_scheduler import KubeSchedulerConfiguration
from asched.config.registry import PluginRegistry
from asched.config.resolve import resolve
from asched.framework.events import ActionType, ClusterEvent, EventResource, QueueingHint
from asched.framework.runtime.profile import RegisteredEvent
from asched.model.meta import Object
from asched.model.pod import DEFAULT_SCHEDULER_NAME, Pod
from asched.model.resources import Resource
from asched.state.cluster import ClusterState
from asched.state.fold import Fold
from asched.state.records import ObjectObserved, ProfilesLoaded
from tests.conformance.differences import plain_differences
from tests.conformance.documents import DocumentError, decode_object, decode_objects, read_document

_RESOURCES = {
    "Node": Resource.NODES,
    "Pod": Resource.PODS,
    "resource.k8s.io/ResourceClaim": Resource.RESOURCE_CLAIMS,
    "resource.k8s.io/ResourceSlice": Resource.RESOURCE_SLICES,
    "resource.k8s.io/DeviceClass": Resource.DEVICE_CLASSES,
}
_EVENTS = {
    "Node": EventResource.NODE,
    # Hints are called for the waiting pod's own updates only.
    "Pod": EventResource.TARGET_POD,
    "resource.k8s.io/ResourceClaim": EventResource.RESOURCE_CLAIM,
    "resource.k8s.io/ResourceSlice": EventResource.RESOURCE_SLICE,
    "resource.k8s.io/DeviceClass": EventResource.DEVICE_CLASS,
}


class _HintCase(NamedTuple):
    objects: dict[str, Any]
    pod: Pod
    plugin: str
    event: ClusterEvent
    old: Object | None
    new: Object | None
    expect: dict[str, Any]


def is_hint_document(path: Path) -> bool:
    """Whether the file has hints. Raises :class:`DocumentError`."""
    cases = read_document(path).get("cases")
    return isinstance(cases, list) and bool(cases) and "event" in cases[0]


def hint_differences(path: Path, registry: PluginRegistry) -> Iterator[list[str]]:
    """The differences of each case. Raises :class:`DocumentError`."""
    for raw in read_document(path).get("cases", ()):
        case = _decoded(path, raw)
        yield plain_differences(case.expect, _answer(case, registry))


def _decoded(path: Path, raw: dict[str, Any]) -> _HintCase:
    try:
        event = raw["event"]
        kind, resource = event["resource"], _RESOURCES[event["resource"]]
        old, new = event.get("old"), event.get("new")
        pod = decode_object(Resource.PODS, raw["pod"])
        assert isinstance(pod, Pod)
        return _HintCase(
            objects=raw["objects"],
            pod=pod,
            plugin=raw["plugin"],
            event=ClusterEvent(_EVENTS[kind], _action(event["action"])),
            old=None if old is None else decode_object(resource, old),
            new=None if new is None else decode_object(resource, new),
            expect=raw["expect"],
        )
    except (KeyError, TypeError) as error:
        raise DocumentError(f"{path.name} has an unusable case: {error!r}") from None


def _action(name: str) -> ActionType:
    if name == "Update":
        return ActionType.UPDATE_OTHER
    return next(action for action in ActionType if _title(action) == name)


def _title(action: ActionType) -> str:
    return (action.name or "").title().replace("_", "")


def _answer(case: _HintCase, registry: PluginRegistry) -> dict[str, Any]:
    state = ClusterState()
    fold = Fold(state, registry.load)
    fold.apply(ProfilesLoaded(resolve(KubeSchedulerConfiguration(), registry)))
    for item in decode_objects(case.objects):
        fold.apply(ObjectObserved(item))
    registered = _registered(state.profiles[DEFAULT_SCHEDULER_NAME].events, case)
    if registered is None:
        return {"registered": False}
    if registered.hint is None:
        return {"registered": True, "always": True, "hint": QueueingHint.QUEUE.value}
    hint = registered.hint(case.pod, case.old, case.new)
    return {"registered": True, "hint": hint.value}


def _registered(events: tuple[RegisteredEvent, ...], case: _HintCase) -> RegisteredEvent | None:
    for event in events:
        if event.plugin == case.plugin and event.event.covers(case.event):
            return event
    return None
