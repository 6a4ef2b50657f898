"""How objects go: gracefully (bound pods), when their finalizers are done, or at once.

The rules are those of k8s.io/apiserver/pkg/registry/rest (``BeforeDelete``) and of the pod
strategy's ``CheckGracefulDelete``.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from asched.apiserver import resources as crds
from asched.apiserver.resources import ServedResource
from asched.apiserver.store import StoredObject

if TYPE_CHECKING:
    from asched.apiserver.api import ObjectApi

Object = dict[str, Any]

DEFAULT_GRACE_S = 30


def is_finished(resource: ServedResource, obj: Object) -> bool:
    """Whether nothing keeps an object any longer whose deletion was asked for."""
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
    """Delete ``old``; the answer is its last state and whether it is gone."""
    if resource.storage_key == "namespaces":
        return _delete_namespace(api, resource, old), True
    if resource.plural == "customresourcedefinitions":
        crds.withdraw(api, old.obj)
    storage = api.storage(resource)
    if resource.storage_key == "pods":
        return _delete_pod(api, resource, old, grace_period_s)
    finalizers = list(old.obj["metadata"].get("finalizers") or ())
    if propagation == "Orphan" and "orphan" in finalizers:
        finalizers.remove("orphan")
    if finalizers:
        if old.obj["metadata"].get("deletionTimestamp"):
            return old, False
        return _mark(api, resource, old, 0), False
    return storage.remove(old.key), True


def _mark(api: ObjectApi, resource: ServedResource, old: StoredObject, grace_period_s: int) -> StoredObject:
    """Set the time at which the object is to be gone."""
    metadata = dict(old.obj["metadata"])
    metadata["deletionTimestamp"] = api.now_text(grace_period_s)
    metadata["deletionGracePeriodSeconds"] = grace_period_s
    if metadata.get("generation"):
        metadata["generation"] += 1
    return api.storage(resource).write(old.key, {**old.obj, "metadata": metadata})


def _grace_period_s(pod: Object, asked_s: int | None) -> int:
    spec, phase = pod.get("spec") or {}, (pod.get("status") or {}).get("phase")
    period = asked_s
    if period is None:
        period = spec.get("terminationGracePeriodSeconds", DEFAULT_GRACE_S)
    if not spec.get("nodeName") or phase in ("Succeeded", "Failed"):
        # Nobody runs it: nothing to wait for.
        return 0
    return 1 if period < 0 else int(period)


def _delete_pod(
    api: ObjectApi, resource: ServedResource, old: StoredObject, asked_s: int | None
) -> tuple[StoredObject, bool]:
    metadata = old.obj["metadata"]
    storage = api.storage(resource)
    if metadata.get("deletionTimestamp"):
        current_s = metadata.get("deletionGracePeriodSeconds") or 0
        if asked_s is None or asked_s >= current_s:
            if current_s == 0 and not metadata.get("finalizers"):
                return storage.remove(old.key), True
            return old, False
        marked = _shorten(api, resource, old, asked_s)
    else:
        marked = _mark(api, resource, old, _grace_period_s(old.obj, asked_s))
    if is_finished(resource, marked.obj):
        return storage.remove(old.key), True
    return marked, False


def _shorten(api: ObjectApi, resource: ServedResource, old: StoredObject, grace_period_s: int) -> StoredObject:
    """Only a shorter grace period may follow the first one."""
    metadata = dict(old.obj["metadata"])
    before_s = metadata.get("deletionGracePeriodSeconds") or 0
    due = datetime.fromisoformat(metadata["deletionTimestamp"]).astimezone(UTC).timestamp()
    moved = datetime.fromtimestamp(due - before_s + grace_period_s, tz=UTC)
    metadata["deletionTimestamp"] = moved.strftime("%Y-%m-%dT%H:%M:%SZ")
    metadata["deletionGracePeriodSeconds"] = grace_period_s
    if metadata.get("generation"):
        metadata["generation"] += 1
    return api.storage(resource).write(old.key, {**old.obj, "metadata": metadata})


def _delete_namespace(api: ObjectApi, resource: ServedResource, old: StoredObject) -> StoredObject:
    """Terminate a namespace and all that is in it.

    The namespace controller does this over some seconds; here it is one step, so that nothing
    can be created meanwhile.
    """
    name = old.obj["metadata"]["name"]
    marked = _mark(api, resource, old, 0)
    metadata = dict(marked.obj["metadata"])
    metadata.pop("deletionGracePeriodSeconds", None)
    status = {**(marked.obj.get("status") or {}), "phase": "Terminating"}
    storage = api.storage(resource)
    for contents in api.storages():
        if contents.resource.namespaced:
            for stored in contents.ordered(name):
                contents.remove(stored.key)
    storage.write(old.key, {**marked.obj, "metadata": metadata, "spec": {}, "status": status})
    return storage.remove(old.key)
