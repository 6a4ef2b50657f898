"""How the state differs from an object that the API server has. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from asched.model.custom import CustomObject
from asched.model.meta import Object
from asched.model.pod import Pod
from asched.model.resources import AnyObject, Resource, WatchedResource
from asched.state.cluster import ClusterState
from asched.state.observe import observe_object
from asched.state.records import Bound, ObjectDeleted, ObjectObserved, PodObserved, PodUpdated

MISSING: Final = "missing in the state"
GONE: Final = "missing in the cluster"
_UID: Final = "metadata.uid"


def differing_field(state: ClusterState, observed: AnyObject) -> str:
    """The first field in which the state differs from ``observed``, as a path such as
    ``spec.nodeName``; :data:`MISSING` if the state lacks the object; empty if nothing that
    scheduling reads differs."""
    record = observe_object(state, observed)
    match record:
        case None:
            return ""
        case PodObserved():
            return _UID if observed.key in state.pods else MISSING
        case Bound():
            return "spec.nodeName"
        case ObjectDeleted():
            return "status.phase"
        case PodUpdated():
            return _updated_field(state.pods[record.key].info.pod, record)
        case ObjectObserved():
            known = known_object(state, type(record.object), observed.key)
            if known is None:
                return MISSING
            if known.uid != observed.uid:
                return _UID
            return first_difference(known, record.object)


def known_object(state: ClusterState, kind: type[Object], key: str) -> Object | None:
    """The object of the state, including finished pods that batch sessions count."""
    if kind is not Pod:
        return state.object_store.of_kind(kind).get(key)
    entry = state.pods.get(key)
    if entry is not None:
        return entry.info.pod
    finished = state.sessions.finished.get(key)
    return None if finished is None else finished.pod


def known_keys(state: ClusterState, resource: WatchedResource) -> list[str]:
    """The keys of all objects of a resource in the state."""
    if resource is Resource.PODS:
        return [*state.pods, *state.sessions.finished]
    stored = state.object_store.of_kind(resource.type)
    if resource.type is not CustomObject:
        return [*stored]
    # All custom resources have one type.
    return [key for key in stored if key.startswith(f"{resource.label}/")]


_OF_METADATA: Final = {
    "deletion_timestamp": "metadata.deletionTimestamp",
    "annotations": "metadata.annotations",
}
_OF_STATUS: Final = {
    "phase": "status.phase",
    "conditions": "status.conditions",
    "nominated_node_name": "status.nominatedNodeName",
    "start_time": "status.startTime",
}


def _updated_field(known: Pod, record: PodUpdated) -> str:
    if record.node_name != known.spec.node_name:
        return "spec.nodeName"
    if record.deletion_timestamp != known.metadata.deletion_timestamp:
        return _OF_METADATA["deletion_timestamp"]
    for name, path in _OF_STATUS.items():
        if getattr(record, name) != getattr(known.status, name):
            return path
    if record.labels_after(known.metadata.labels) != known.metadata.labels:
        return "metadata.labels"
    return "status.resourceClaimStatuses" if record.claims is not None else "metadata.annotations"


def first_difference(known: object, other: object) -> str:
    """The path of the first field in which two values differ, empty if they are equal.

    Names are those of the API, and parts of lists and mappings are not distinguished.
    """
    if known == other:
        return ""
    if isinstance(known, msgspec.Struct) and type(known) is type(other):
        pairs = zip(known.__struct_fields__, known.__struct_encode_fields__, strict=True)
        for name, encoded in pairs:
            if (of_known := getattr(known, name)) != (of_other := getattr(other, name)):
                return f"{encoded}.{first_difference(of_known, of_other)}".rstrip(".")
    if isinstance(known, Mapping) and isinstance(other, Mapping):
        keys = sorted({str(key) for key in {*known, *other} if known.get(key) != other.get(key)})
        return keys[0]
    return ""
