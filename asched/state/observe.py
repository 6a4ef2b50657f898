"""From what a watch says to records, leaving out what no decision depends on.

A cluster tells far more than scheduling reads: heartbeats, progress of containers, its own echo of
what we wrote. These functions compare with the state and give the records that are news, in the
smallest form. They change nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import msgspec

from asched.model.custom import CustomObject
from asched.model.meta import Object
from asched.model.node import Node
from asched.model.pod import POD_SCHEDULED, Pod, PodCondition
from asched.model.resources import AnyObject, Resource, WatchedResource
from asched.state.binding_echo import observe_echo
from asched.state.cluster import ClusterState
from asched.state.records import Bound, ObjectGone, ObjectSeen, PodChanged, PodSeen

_READ_POD_CONDITIONS = frozenset({"DisruptionTarget", "PodResizePending"})
_READ_NODE_CONDITIONS = frozenset({"Ready"})

News = ObjectSeen | ObjectGone | PodSeen | PodChanged | Bound


def observe_object(state: ClusterState, seen: AnyObject) -> News | None:
    """The record for an object that a watch showed, or None where it is no news."""
    if isinstance(seen, Pod):
        return _observe_pod(state, seen)
    if isinstance(seen, Node):
        seen = _without_noise(seen)
    if state.objects_of.get(type(seen), {}).get(seen.key) == seen:
        return None
    return ObjectSeen(seen)


def observe_deletion(state: ClusterState, gone: Object) -> ObjectGone | None:
    """The record for an object that a watch reported deleted, or None where it was not known."""
    kind, key = type(gone), gone.key
    if kind is Pod:
        known = state.entry(key, gone.uid) is not None or state.sessions.remembers(key, gone.uid)
        return ObjectGone("Pod", key, gone.uid) if known else None
    kept = state.objects_of.get(kind, {}).get(key)
    if kept is None or kept.uid != gone.uid:
        return None
    return ObjectGone(kind.__name__, key, gone.uid)


def observe_list(
    state: ClusterState,
    resource: WatchedResource,
    objects: Sequence[AnyObject],
    unreadable: Collection[str] = (),
) -> Iterator[News]:
    """Records for a complete list: what vanished meanwhile, and what is new or changed.

    An object that has another one's name and not its uid took its place after that one had vanished, as
    a watch would have told. ``unreadable`` are keys of objects that exist but could not be decoded: they
    did not vanish.
    Each record must be folded before the next one is asked for.
    """
    listed = {item.key: item.uid for item in objects}
    if resource is Resource.PODS:
        known = [(key, entry.info.uid) for key, entry in state.pods.items()]
        known += [(key, info.uid) for key, info in state.sessions.finished.items()]
    else:
        known = [(item.key, item.uid) for item in _kept(state, resource)]
    for key, uid in known:
        if listed.get(key) != uid and (key in listed or key not in unreadable):
            yield ObjectGone(resource.type.__name__, key, uid)
    for item in objects:
        news = observe_object(state, item)
        if news is not None:
            yield news


def _kept(state: ClusterState, resource: WatchedResource) -> Iterator[Object]:
    """What the state has of a resource other than pods. All custom resources are of one type."""
    for item in state.objects_of.get(resource.type, {}).values():
        if not isinstance(item, CustomObject) or item.resource == resource.label:
            yield item


def _observe_pod(state: ClusterState, pod: Pod) -> News | None:
    key, uid, terminal = pod.key, pod.metadata.uid, pod.terminal
    entry = state.entry(key, uid)
    finished_of_job = terminal and state.sessions.has_jobs_with(pod)
    if entry is None:
        if terminal and key not in state.pods and not finished_of_job:
            return None
        if state.sessions.remembers(key, uid):
            return None
        return _new_pod(state, _without_pod_noise(pod))
    if terminal and not finished_of_job:
        return ObjectGone("Pod", key, uid)
    old, pod = entry.info.pod, _without_pod_noise(pod)
    echo = observe_echo(state, entry, pod)
    if echo is not None:
        return echo
    if pod == old:
        return None
    if not _same_template(old, pod):
        return ObjectSeen(pod, state.templates.new_number(pod))
    return PodChanged(
        key=pod.key,
        uid=pod.metadata.uid,
        node_name=pod.spec.node_name,
        phase=pod.status.phase,
        conditions=pod.status.conditions,
        nominated_node_name=pod.status.nominated_node_name,
        deletion_timestamp=pod.metadata.deletion_timestamp,
        start_time=pod.status.start_time,
        labels=None if pod.metadata.labels == old.metadata.labels else pod.metadata.labels,
        annotations=_changed_annotations(old, pod),
    )


def _changed_annotations(old: Pod, new: Pod) -> dict[str, str] | None:
    annotations = new.metadata.declared_annotations
    return None if annotations == old.metadata.declared_annotations else annotations


def _new_pod(state: ClusterState, pod: Pod) -> ObjectSeen | PodSeen:
    templates = state.templates
    template = templates.find(pod)
    if not template:
        return ObjectSeen(pod, templates.new_number(pod))
    return templates.copy_of(template, pod)


def _same_template(old: Pod, new: Pod) -> bool:
    """Whether all that :class:`PodChanged` does not carry is as before."""
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
    )


def _without_pod_noise(pod: Pod) -> Pod:
    """The pod without conditions that nothing reads and without echoes of its own template."""
    status = pod.status
    reports = bool(status.container_statuses or status.init_container_statuses)
    if not status.conditions and not reports:
        return pod
    conditions: tuple[PodCondition, ...] = tuple(
        [_without_message(condition) for condition in status.conditions if _is_read(condition)]
    )
    in_step = reports and _in_step(pod)
    if in_step and any(c.type == "PodResizePending" for c in conditions):
        in_step = False
    if conditions == status.conditions and not (in_step and status.container_statuses):
        return pod
    quiet = msgspec.structs.replace(status, conditions=conditions)
    if in_step:
        quiet = msgspec.structs.replace(quiet, container_statuses=(), init_container_statuses=())
    return msgspec.structs.replace(pod, status=quiet)


def _without_message(condition: PodCondition) -> PodCondition:
    if not condition.message:
        return condition
    return PodCondition(type=condition.type, status=condition.status, reason=condition.reason)


def _is_read(condition: PodCondition) -> bool:
    """That a pod is scheduled is said by its node; only that it is not is worth keeping."""
    if condition.type == POD_SCHEDULED:
        return condition.status != "True"
    return condition.type in _READ_POD_CONDITIONS


def _in_step(pod: Pod) -> bool:
    """Whether every container has just what its template asks for: then the statuses add nothing
    to what the pod requests (only a pod resized in place differs)."""
    asked = {
        container.name: container.resources.requests
        for container in (*pod.spec.containers, *pod.spec.init_containers)
    }
    statuses = (*pod.status.container_statuses, *pod.status.init_container_statuses)
    return all(
        (status.resources is None or status.resources.requests == asked.get(status.name))
        and (
            status.allocated_resources is None
            or status.allocated_resources == asked.get(status.name)
        )
        for status in statuses
    )


def _without_noise(node: Node) -> Node:
    conditions = tuple(c for c in node.status.conditions if c.type in _READ_NODE_CONDITIONS)
    if len(conditions) == len(node.status.conditions):
        return node
    return msgspec.structs.replace(
        node, status=msgspec.structs.replace(node.status, conditions=conditions)
    )
