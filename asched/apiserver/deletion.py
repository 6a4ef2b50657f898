"""Deletion: graceful (bound pods), after finalizers, or immediate.

The rules are those of k8s.io/apiserver/pkg/registry/rest (``BeforeDelete``) and of the pod
strategy's ``CheckGracefulDelete``.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from asched.apiserver.errors import Object
from asched.apiserver.resources import ServedResource, remove_definition
from asched.apiserver.storage import StoredObject

if TYPE_CHECKING:
    from asched.apiserver.api import ObjectApi


DEFAULT_GRACE_S = 30


def is_finished(resource: ServedResource, obj: Object) -> bool:
    """Whether a terminating object can be removed: no finalizers and no grace period left."""
    metadata = obj["metadata"]
    if metadata.get("finalizers"):
        return False
    if resource.storage_key == "namespaces" and (obj.get("spec") or {}).get("finalizers"):
        return False
    return not metadata.get("deletionGracePeriodSeconds")


def delete(
    api: ObjectApi,
    resource: ServedResource,
    old: StoredObject,
    grace_period_s: int | None,
    propagation: str = "",
) -> tuple[StoredObject, bool]:
    """Delete ``old``. Returns its last state and whether it was removed."""
    if resource.storage_key == "namespaces":
        return _delete_namespace(api, resource, old), True
    if resource.plural == "customresourcedefinitions":
        remove_definition(api, old.obj)
    storage = api.storage(resource)
    if propagation == "Orphan":
        _orphan_dependents(api, old.obj["metadata"]["uid"])
    if resource.storage_key == "pods":
        return _delete_pod(api, resource, old, grace_period_s)
    finalizers = list(old.obj["metadata"].get("finalizers") or ())
    if propagation == "Orphan" and "orphan" in finalizers:
        finalizers.remove("orphan")
    if finalizers:
        if old.obj["metadata"].get("deletionTimestamp"):
            return old, False
        return storage.write(old.key, _terminating(old.obj, api.now_text(), 0)), False
    return storage.remove(old.key), True


def _terminating(obj: Object, deletion_time: str, grace_period_s: int) -> Object:
    """``obj`` with its deletion time, which is the end of the grace period."""
    metadata = dict(obj["metadata"])
    metadata["deletionTimestamp"] = deletion_time
    metadata["deletionGracePeriodSeconds"] = grace_period_s
    if metadata.get("generation"):
        metadata["generation"] += 1
    return {**obj, "metadata": metadata}


def _grace_period_s(pod: Object, requested_s: int | None) -> int:
    spec, phase = pod.get("spec") or {}, (pod.get("status") or {}).get("phase")
    period = requested_s
    if period is None:
        period = spec.get("terminationGracePeriodSeconds", DEFAULT_GRACE_S)
    if not spec.get("nodeName") or phase in ("Succeeded", "Failed"):
        # No kubelet runs the pod.
        return 0
    return 1 if period < 0 else int(period)


def _delete_pod(
    api: ObjectApi, resource: ServedResource, old: StoredObject, requested_s: int | None
) -> tuple[StoredObject, bool]:
    metadata = old.obj["metadata"]
    storage = api.storage(resource)
    deletion_time = metadata.get("deletionTimestamp")
    if deletion_time:
        current_s = metadata.get("deletionGracePeriodSeconds") or 0
        if requested_s is None or requested_s >= current_s:
            if current_s == 0 and not metadata.get("finalizers"):
                return storage.remove(old.key), True
            return old, False
        # Later requests can only shorten the grace period.
        grace_s = requested_s
        due = datetime.fromisoformat(deletion_time).astimezone(UTC).timestamp()
        moved = datetime.fromtimestamp(due - current_s + grace_s, tz=UTC)
        deletion_time = moved.strftime("%Y-%m-%dT%H:%M:%SZ")
    else:
        grace_s = _grace_period_s(old.obj, requested_s)
        deletion_time = api.now_text(grace_s)
    marked = storage.write(old.key, _terminating(old.obj, deletion_time, grace_s))
    if is_finished(resource, marked.obj):
        return storage.remove(old.key), True
    return marked, False


def _orphan_dependents(api: ObjectApi, uid: str) -> None:
    """Remove the references to this owner at once, instead of by the garbage collector."""
    for storage in tuple(api.storages.values()):
        for stored in storage.ordered():
            metadata = stored.obj["metadata"]
            owners = metadata.get("ownerReferences") or ()
            others = [owner for owner in owners if owner.get("uid") != uid]
            if len(others) < len(owners):
                changed = {k: v for k, v in metadata.items() if k != "ownerReferences"}
                if others:
                    changed["ownerReferences"] = others
                storage.write(stored.key, {**stored.obj, "metadata": changed})


def _delete_namespace(api: ObjectApi, resource: ServedResource, old: StoredObject) -> StoredObject:
    """Delete a namespace and its contents in one step, instead of by a controller in seconds."""
    storage = api.storage(resource)
    name = old.obj["metadata"]["name"]
    marked = storage.write(old.key, _terminating(old.obj, api.now_text(), 0))
    for contents in tuple(api.storages.values()):
        if contents.resource.namespaced:
            for stored in contents.ordered(name):
                contents.remove(stored.key)
    metadata = dict(marked.obj["metadata"])
    metadata.pop("deletionGracePeriodSeconds", None)
    status = {**(marked.obj.get("status") or {}), "phase": "Terminating"}
    storage.write(old.key, {**marked.obj, "metadata": metadata, "spec": {}, "status": status})
    return storage.remove(old.key)
