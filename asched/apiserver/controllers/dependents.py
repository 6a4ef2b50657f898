"""What belongs to an object by its owner references, and the pods that a template describes."""

from __future__ import annotations

import hashlib
from typing import Any, Final, NamedTuple

from asched.apiserver.api import DeleteOptions
from asched.apiserver.cluster import EmbeddedCluster
from asched.apiserver.errors import Object, StatusError
from asched.apiserver.reconciler import ObjectKey
from asched.apiserver.storage import DELETED, StoreChange, deep_copy, encode

_HASH_ALPHABET: Final = "bcdfghjklmnpqrstvwxz2456789"
_HASH_LENGTH: Final = 10


class ControllerOwner(NamedTuple):
    """The object that controls another one."""

    kind: str
    name: str
    uid: str


def controller_of(obj: Object) -> ControllerOwner | None:
    """The owner reference with ``controller: true``."""
    for owner in obj["metadata"].get("ownerReferences") or ():
        if owner.get("controller"):
            return ControllerOwner(owner["kind"], owner["name"], owner["uid"])
    return None


class Dependents:
    """The objects of a cluster by their owners, and changes to them."""

    def __init__(self, cluster: EmbeddedCluster) -> None:
        self._cluster = cluster
        self._api = cluster.api
        self._owned: dict[str, dict[ObjectKey, None]] = {}
        """By the UID of each owner, in the order of creation."""

    def note(self, resource: str, change: StoreChange) -> None:
        """Called for each write."""
        item = ObjectKey(resource, change.new.key)
        before = () if change.old is None else _owners(change.old.obj)
        after = () if change.type == DELETED else _owners(change.new.obj)
        for uid in before:
            if uid not in after:
                owned = self._owned[uid]
                owned.pop(item, None)
                if not owned:
                    del self._owned[uid]
        for uid in after:
            self._owned.setdefault(uid, {})[item] = None

    def keys(self, uid: str) -> tuple[ObjectKey, ...]:
        """Everything with this owner."""
        return tuple(self._owned.get(uid, ()))

    def controlled(self, resource: str, owner: Object) -> list[Object]:
        """The objects that ``owner`` controls, the oldest first."""
        uid = owner["metadata"]["uid"]
        found = []
        for item in self._owned.get(uid, ()):
            obj = self.find(item) if item.resource == resource else None
            controller = None if obj is None else controller_of(obj)
            if obj is not None and controller is not None and controller.uid == uid:
                found.append(obj)
        return found

    def find(self, item: ObjectKey) -> Object | None:
        resource = self._cluster.resource(item.resource)
        stored = self._api.find(resource.storage_key, item.namespace, item.name)
        return None if stored is None else stored.obj

    def make(self, resource: str, owner: Object, body: Object) -> Object:
        """Create an object that ``owner`` controls. Raises StatusError."""
        metadata = owner["metadata"]
        reference = {
            "apiVersion": owner["apiVersion"],
            "kind": owner["kind"],
            "name": metadata["name"],
            "uid": metadata["uid"],
            "controller": True,
            "blockOwnerDeletion": True,
        }
        body["metadata"]["ownerReferences"] = [reference]
        return self.add(resource, metadata["namespace"], body)

    def add(self, resource: str, namespace: str, body: Object) -> Object:
        """Create an object without an owner. Raises StatusError."""
        return self._cluster.create(resource, body, namespace=namespace)

    def remove(self, resource: str, obj: Object) -> None:
        """Delete an object, unless it was replaced since."""
        self._delete(resource, obj, None)

    def remove_now(self, pod: Object) -> None:
        """Delete a pod without a grace period: no kubelet would end it."""
        self._delete("pods", pod, 0)

    def _delete(self, resource: str, obj: Object, grace_period_s: int | None) -> None:
        metadata = obj["metadata"]
        options = DeleteOptions(
            grace_period_s=grace_period_s, uid=metadata["uid"], propagation="Background"
        )
        try:
            found = self._cluster.resource(resource)
            self._api.delete(found, metadata.get("namespace") or "", metadata["name"], options)
        except StatusError as error:
            if error.code not in (404, 409):
                raise

    def scale(self, resource: str, obj: Object, replicas: int) -> Object:
        return self._write(resource, obj, {"spec": {**obj["spec"], "replicas": replicas}})

    def annotate(self, resource: str, obj: Object, annotations: dict[str, str]) -> Object:
        metadata = obj["metadata"]
        merged = {**(metadata.get("annotations") or {}), **annotations}
        return self._write(resource, obj, {"metadata": {**metadata, "annotations": merged}})

    def set_status(self, resource: str, obj: Object, status: Object) -> None:
        """Replace the status of an object; equal ones are not written."""
        self._write(resource, obj, {"status": status}, "status")

    def _write(self, resource: str, obj: Object, changed: Object, subresource: str = "") -> Object:
        metadata = obj["metadata"]
        return self._api.update(
            self._cluster.resource(resource),
            metadata["namespace"],
            metadata["name"],
            lambda current: {**current, **changed},
            subresource=subresource,
        ).obj

    @property
    def now(self) -> str:
        return self._api.now_text()


def _owners(obj: Object) -> tuple[str, ...]:
    return tuple(o["uid"] for o in obj["metadata"].get("ownerReferences") or () if o.get("uid"))


# -- pods -----------------------------------------------------------------------------------------


def pod_of(template: Object, *, name: str = "", prefix: str = "") -> Object:
    """A new pod of this template, with a name or with a prefix of one."""
    made = deep_copy(template)
    given = made.get("metadata") or {}
    metadata = {k: given[k] for k in ("labels", "annotations", "finalizers") if given.get(k)}
    metadata |= {"name": name} if name else {"generateName": prefix}
    return {"metadata": metadata, "spec": made["spec"]}


def template_hash(template: Object) -> str:
    """A name for the contents of a pod template, in the alphabet of Kubernetes' hashes."""
    digest = int.from_bytes(hashlib.sha256(encode(template)).digest(), "big")
    letters = []
    for _ in range(_HASH_LENGTH):
        digest, at = divmod(digest, len(_HASH_ALPHABET))
        letters.append(_HASH_ALPHABET[at])
    return "".join(letters)


def is_active(pod: Object) -> bool:
    """Neither finished nor being deleted."""
    return not is_finished(pod) and not pod["metadata"].get("deletionTimestamp")


def is_finished(pod: Object) -> bool:
    return pod["status"].get("phase") in ("Succeeded", "Failed")


def is_ready(pod: Object) -> bool:
    conditions = pod["status"].get("conditions") or ()
    return any(c.get("type") == "Ready" and c.get("status") == "True" for c in conditions)


def removal_order(pods: list[Object]) -> list[Object]:
    """Those that a scale-down removes first in front (``ActivePods`` of Kubernetes): without a
    node, then pending, not ready, and the youngest."""

    def rank(pod: Object) -> tuple[bool, bool, bool]:
        running = pod["status"].get("phase") == "Running"
        return bool(pod["spec"].get("nodeName")), running, is_ready(pod)

    youngest = sorted(pods, key=lambda pod: pod["metadata"]["creationTimestamp"], reverse=True)
    return sorted(youngest, key=rank)


def conditions_with(status: Object, new: Object, now: str) -> list[Object]:
    """The conditions with ``new``. Its transition time is kept unless its status changes."""
    old: list[Object] = list(status.get("conditions") or ())
    previous = next((c for c in old if c["type"] == new["type"]), None)
    since = now
    if previous is not None and previous["status"] == new["status"]:
        since = previous.get("lastTransitionTime", now)
        if previous.get("reason") == new.get("reason"):
            return old
    made = {**new, "lastUpdateTime": now, "lastTransitionTime": since}
    return [*(c for c in old if c["type"] != new["type"]), made]


def without_condition(status: Object, kind: str) -> list[Object]:
    return [c for c in status.get("conditions") or () if c["type"] != kind]


def counted(value: Any, total: int, *, up: bool) -> int:
    """An ``IntOrString``: a number, or a percentage of ``total``."""
    if isinstance(value, str) and value.endswith("%"):
        percent = int(value[:-1])
        return -(-total * percent // 100) if up else total * percent // 100
    return int(value)
