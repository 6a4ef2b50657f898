"""Converts watch events to records, without changes that no decision depends on.

These functions compare an object with the state and return the smallest record of what changed.
They change nothing, except that :func:`observe_list` notes the versions of objects.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from typing import NamedTuple

import msgspec

from asched.framework.feature_gates import without_gated_fields
from asched.model.claim_limits import used_device_statuses
from asched.model.custom import CustomObject
from asched.model.meta import Object
from asched.model.node import Node
from asched.model.pod import POD_SCHEDULED, Pod, reduced_pod
from asched.model.resource_claims import ResourceClaim
from asched.model.resources import AnyObject, Resource, WatchedResource
from asched.state.cluster import ClusterState, PodEntry
from asched.state.records import (
    ApiVersionServed,
    Bound,
    ObjectDeleted,
    ObjectObserved,
    PodObserved,
    PodUpdated,
)

_COPIED_LABELS = ("topology.kubernetes.io/zone", "topology.kubernetes.io/region")
_USED_NODE_CONDITIONS = frozenset({"Ready"})

ObservedChange = ObjectObserved | ObjectDeleted | PodObserved | PodUpdated | Bound
ListedChange = ApiVersionServed | ObservedChange


class RefusedPod(NamedTuple):
    """A pod that is not recorded, because another pod has its uid."""

    key: str
    uid: str
    other_key: str
    """The pod of that uid in the state."""


Refuse = Callable[[RefusedPod], None]


def _ignore(refused: RefusedPod) -> None:
    """The default of callers that do not count."""


def observe_object(
    state: ClusterState, observed: AnyObject, refuse: Refuse = _ignore
) -> ObservedChange | None:
    """The record of an object that a watch or list returned; None if nothing relevant changed.

    ``refuse`` is called for a pod that contradicts the state.
    """
    if isinstance(observed, Pod):
        return _observe_pod(
            state, without_gated_fields(observed, state.plugin_context.feature_gates), refuse
        )
    if isinstance(observed, Node):
        observed = _reduced_node(observed)
    elif isinstance(observed, ResourceClaim):
        observed = _reduced_claim(observed)
    if state.object_store.of_kind(type(observed)).get(observed.key) == observed:
        return None
    return ObjectObserved(observed)


def observe_deletion(state: ClusterState, deleted: Object) -> ObjectDeleted | None:
    """The record of an object that a watch reported deleted; None if it was unknown."""
    kind, key, uid = type(deleted), deleted.key, deleted.uid
    if kind is Pod:
        known = state.entry(key, uid) is not None or state.sessions.has_finished(key, uid)
        return ObjectDeleted("Pod", key, uid) if known else None
    stored = state.object_store.of_kind(kind).get(key)
    if stored is None or stored.uid != uid:
        return None
    return ObjectDeleted(kind.__name__, key, uid)


class UnlistedObjects:
    """The known objects of a resource that no part of a list has shown yet."""

    def __init__(self, state: ClusterState, resource: WatchedResource) -> None:
        """At the beginning of the list."""
        uids: list[dict[str, str]]
        if resource is Resource.PODS:
            finished = {key: info.uid for key, info in state.sessions.finished.items()}
            uids = [{key: entry.info.uid for key, entry in state.pods.items()}, finished]
        else:
            uids = [{item.key: item.uid for item in _stored(state, resource)}]
        self._uids = [by_key for by_key in uids if by_key]
        """Of the objects, and of finished pods, which may have the key of another one."""

    def deleted(
        self,
        objects: Sequence[AnyObject],
        unreadable: Collection[str],
        unchanged: Iterable[tuple[str, str]] = (),
        *,
        ends: bool,
    ) -> list[tuple[str, str]]:
        """Key and uid of the objects that a part of the list shows to be deleted: replaced ones,
        and at the end of the list those that no part has."""
        found: list[tuple[str, str]] = []
        listed = [*unchanged, *((item.key, item.uid) for item in objects)] if self._uids else []
        for uids in self._uids:
            for key, uid in listed:
                known = uids.pop(key, uid)
                if known != uid:
                    found.append((key, known))
            for key in unreadable:
                uids.pop(key, None)
        if ends:
            found += [item for uids in self._uids for item in uids.items()]
        return found


def observe_list(
    state: ClusterState,
    resource: WatchedResource,
    objects: Sequence[AnyObject],
    unreadable: Collection[str] = (),
    refuse: Refuse = _ignore,
    *,
    api_version: str = "",
    unlisted: UnlistedObjects | None = None,
    ends: bool = True,
    versions: Sequence[int] = (),
    unchanged: Iterable[tuple[str, str]] = (),
) -> Iterator[ListedChange]:
    """Records of a list or of a part of it: its version if that is new, deletions, additions and
    updates.

    An object with the name of another one and another uid replaced it, so the other one was
    deleted. ``unreadable`` are keys of objects that exist but could not be decoded. ``unlisted`` is
    the same for all parts of a list. The last part ``ends`` it. ``versions`` are those of the
    objects, and ``unchanged`` key and uid of further listed objects, see
    :class:`~asched.core.inputs.Listed`. The caller folds each record before it takes the next one.
    """
    kind = resource.type.__name__
    if api_version and state.object_store.api_versions.get(kind) != api_version:
        yield ApiVersionServed(kind, api_version)
    unlisted = unlisted or UnlistedObjects(state, resource)
    for key, uid in unlisted.deleted(objects, unreadable, unchanged, ends=ends):
        yield ObjectDeleted(kind, key, uid)
    for item, version in zip(objects, versions or repeat(0), strict=False):
        change = observe_object(state, item, refuse)
        if change is not None:
            yield change
        state.seen.note(item, version)


def _stored(state: ClusterState, resource: WatchedResource) -> Iterator[Object]:
    """The stored objects of a resource other than pods. All custom resources have one type."""
    for item in state.object_store.of_kind(resource.type).values():
        if not isinstance(item, CustomObject) or item.resource == resource.label:
            yield item


def _observe_pod(state: ClusterState, pod: Pod, refuse: Refuse) -> ObservedChange | None:
    key, uid, terminal = pod.key, pod.metadata.uid, pod.terminal
    entry = state.entry(key, uid)
    finished_of_job = terminal and state.sessions.is_in_job(pod)
    if entry is None:
        if terminal and key not in state.pods and not finished_of_job:
            return None
        if state.sessions.has_finished(key, uid):
            return None
        other_key = state.pods_by_uid.key_of(uid)
        if other_key is not None:
            # Nodes, evictions and decisions identify a pod by its uid.
            refuse(RefusedPod(key, uid, other_key))
            return None
        pod = reduced_pod(pod)
        template = state.templates.find(pod)
        if template:
            return state.templates.record_of(template, pod)
        return ObjectObserved(pod, state.templates.new_number(pod))
    if terminal and not finished_of_job:
        return ObjectDeleted("Pod", key, uid)
    old, pod = entry.info.pod, reduced_pod(pod)
    bound = _observe_binding(state, entry, pod)
    if bound is not None:
        return bound
    if pod == old:
        return None
    if not _same_template(old, pod):
        return ObjectObserved(pod, state.templates.new_number(pod))
    annotations = pod.metadata.declared_annotations
    claims = pod.status.resource_claim_statuses
    labels, label_changes = _recorded_labels(old.metadata.labels, pod.metadata.labels)
    return PodUpdated(
        key=pod.key,
        uid=pod.metadata.uid,
        node_name=pod.spec.node_name,
        phase=pod.status.phase,
        conditions=pod.status.conditions,
        nominated_node_name=pod.status.nominated_node_name,
        deletion_timestamp=pod.metadata.deletion_timestamp,
        start_time=pod.status.start_time,
        labels=labels,
        annotations=None if annotations == old.metadata.declared_annotations else annotations,
        claims=None if claims == old.status.resource_claim_statuses else claims,
        label_changes=label_changes,
    )


def _recorded_labels(
    old: dict[str, str], new: dict[str, str]
) -> tuple[dict[str, str] | None, dict[str, str | None] | None]:
    """All labels, or only what changed if that is smaller; (None, None) if nothing did."""
    if new == old:
        return None, None
    changes: dict[str, str | None] = {k: v for k, v in new.items() if old.get(k) != v}
    changes |= {name: None for name in old if name not in new}
    if _size(changes) < _size(new):
        return None, changes
    return new, None


def _size(labels: Mapping[str, str | None]) -> int:
    return sum(len(name) + len(value or "") + 6 for name, value in labels.items())


def _observe_binding(state: ClusterState, entry: PodEntry, pod: Pod) -> Bound | None:
    """The record of a pod on its assigned node; None if it has other changes. It takes a few bytes,
    and the fold applies :func:`bound_pod`."""
    node_name, old = entry.node, entry.info.pod
    if not node_name or pod.spec.node_name != node_name or old.spec.node_name:
        return None
    topology_labels = pod.metadata.labels != old.metadata.labels
    if pod != bound_pod(state, old, node_name, topology_labels=topology_labels):
        return None
    return Bound(
        entry.info.key,
        entry.info.uid,
        node_name,
        observed=True,
        topology_labels=topology_labels,
    )


def bound_pod(state: ClusterState, pod: Pod, node_name: str, *, topology_labels: bool) -> Pod:
    """The pod as the API server shows it once it is bound.

    It has its node and no longer the condition that it is unschedulable. It may have the node's
    topology labels (admission plugin PodTopologyLabels, Kubernetes 1.33 and later).
    """
    replace = msgspec.structs.replace
    metadata, status = pod.metadata, pod.status
    if topology_labels:
        node = state.objects(Node).get(node_name)
        node_labels = node.labels if node is not None else {}
        copied = {name: node_labels[name] for name in _COPIED_LABELS if name in node_labels}
        metadata = replace(metadata, labels={**metadata.labels, **copied})
    if status.conditions:
        conditions = tuple(c for c in status.conditions if c.type != POD_SCHEDULED)
        status = replace(status, conditions=conditions)
    return replace(
        pod, metadata=metadata, spec=replace(pod.spec, node_name=node_name), status=status
    )


def _same_template(old: Pod, new: Pod) -> bool:
    """Whether everything that :class:`PodUpdated` does not hold is unchanged."""
    replace = msgspec.structs.replace
    before = old.metadata
    metadata = replace(
        new.metadata,
        labels=before.labels,
        deletion_timestamp=before.deletion_timestamp,
        declared_annotations=before.declared_annotations,
    )
    return (
        metadata == before
        and replace(new.spec, node_name=old.spec.node_name) == old.spec
        and new.status.container_statuses == old.status.container_statuses
        and new.status.init_container_statuses == old.status.init_container_statuses
        and new.status.resources == old.status.resources
        and new.status.allocated_resources == old.status.allocated_resources
    )


def _reduced_node(node: Node) -> Node:
    """The node without unused conditions, such as heartbeats."""
    conditions = tuple(c for c in node.status.conditions if c.type in _USED_NODE_CONDITIONS)
    if len(conditions) == len(node.status.conditions):
        return node
    return msgspec.structs.replace(
        node, status=msgspec.structs.replace(node.status, conditions=conditions)
    )


def _reduced_claim(claim: ResourceClaim) -> ResourceClaim:
    """The claim without device conditions that no binding waits for, such as heartbeats."""
    status = claim.status
    if not status.devices:
        return claim
    devices = used_device_statuses(status)
    if devices == status.devices:
        return claim
    return msgspec.structs.replace(claim, status=msgspec.structs.replace(status, devices=devices))
