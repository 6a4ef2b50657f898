"""An API server's state and rules as a Python object.

>>> cluster = EmbeddedCluster()
>>> pod = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "x"}]}}
>>> created = cluster.create("pods", pod, namespace="default")
>>> cluster.bind("default", "p", "node-1")
>>> cluster.get("pods", "p", namespace="default")["spec"]["nodeName"]
'node-1'

Returned objects are shared with the storage and must not be changed.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from asched.apiserver import subresources
from asched.apiserver.api import DeleteOptions, ObjectApi
from asched.apiserver.errors import Object
from asched.apiserver.group_forms import KubernetesVersion
from asched.apiserver.listing import ListOptions
from asched.apiserver.patches import merge_patch
from asched.apiserver.resources import ServedResource
from asched.apiserver.selectors import both, field_selector, label_selector
from asched.apiserver.storage import StoreChange, StoredObject, Watcher, deep_copy

Objects = list[Object]
StoredObjects = list[StoredObject]

SYSTEM_NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")
SYSTEM_PRIORITY_CLASSES = {
    "system-cluster-critical": 2_000_000_000,
    "system-node-critical": 2_000_001_000,
}


class EmbeddedCluster:
    """The API of a Kubernetes cluster, in memory.

    Resources are named by their plural, with the group if ambiguous: ``pods``, ``leases``,
    ``events.events.k8s.io``.

    :param clock: seconds since the epoch.
    :param seed: seed of uids and generated names.
    :param version: the Kubernetes version with the served Workloads and PodGroups.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.time,
        seed: int | None = None,
        version: KubernetesVersion = KubernetesVersion.V1_36,
    ) -> None:
        self.api = ObjectApi(clock=clock, seed=seed)
        self.api.registry.serve_version(version)
        for name in SYSTEM_NAMESPACES:
            self.create("namespaces", {"metadata": {"name": name}})
        for name, value in SYSTEM_PRIORITY_CLASSES.items():
            self.create("priorityclasses", {"metadata": {"name": name}, "value": value})

    @property
    def revision(self) -> int:
        """The resourceVersion of the latest write anywhere."""
        return self.api.revisions.current

    def resource(self, name: str) -> ServedResource:
        """Raises KeyError for an unknown resource."""
        return self.api.registry.named(name)

    def create(self, resource: str, obj: Object, *, namespace: str = "") -> Object:
        """``namespace`` defaults to that of the object. Raises as :meth:`ObjectApi.create`."""
        found = self.resource(resource)
        if found.namespaced and not namespace:
            namespace = (obj.get("metadata") or {}).get("namespace") or "default"
        return _shown(found, self.api.create(found, namespace, deep_copy(obj)))

    def get(self, resource: str, name: str, *, namespace: str = "") -> Object:
        """Raises StatusError 404."""
        found = self.resource(resource)
        return _shown(found, self.api.get(found, namespace, name))

    def list(
        self, resource: str, *, namespace: str = "", labels: str = "", fields: str = ""
    ) -> Objects:
        """The objects that match the selectors, in key order."""
        found = self.resource(resource)
        predicate = both(label_selector(labels), field_selector(found, fields))
        page = self.api.list(found, ListOptions(namespace=namespace, predicate=predicate))
        return [_shown(found, stored) for stored in page.items]

    def count(self, resource: str) -> int:
        """The number of objects of the resource."""
        return len(self.api.storage(self.resource(resource)))

    def patch(
        self,
        resource: str,
        name: str,
        patch: Object,
        *,
        namespace: str = "",
        subresource: str = "",
    ) -> Object:
        """Apply a JSON merge patch. Raises StatusError 404, 409 or 422."""
        own, found = deep_copy(patch), self.resource(resource)
        patched = self.api.update(
            found,
            namespace,
            name,
            lambda current: merge_patch(current, own),
            subresource=subresource,
        )
        return _shown(found, patched)

    def delete(
        self, resource: str, name: str, *, namespace: str = "", grace_period_s: int | None = None
    ) -> Object:
        """Returns the last state; a bound pod ends gracefully. Raises StatusError 404 or 409."""
        options = DeleteOptions(grace_period_s=grace_period_s)
        return self.api.delete(self.resource(resource), namespace, name, options)[0].obj

    def bind(self, namespace: str, name: str, node_name: str, *, uid: str = "") -> None:
        """Bind a pod like the binding subresource. Raises StatusError 404 or 409."""
        target = {"metadata": {"uid": uid}, "target": {"kind": "Node", "name": node_name}}
        subresources.bind(self.api, self.resource("pods"), namespace, name, target)

    def watch(
        self,
        resource: str,
        *,
        namespace: str = "",
        labels: str = "",
        fields: str = "",
        from_revision: int | None = None,
    ) -> Watcher:
        """The changes after ``from_revision``, or all objects and later changes. Raises 410."""
        found = self.resource(resource)
        predicate = both(label_selector(labels), field_selector(found, fields))
        watcher = self.api.watcher(found, namespace, predicate)
        if from_revision is None:
            watcher.begin_with_state()
        else:
            watcher.begin_from(from_revision)
        return watcher

    def listen(self, resource: str, listener: Callable[[StoreChange], None]) -> Callable[[], None]:
        """Call ``listener`` within every later write. Returns a function that unsubscribes."""
        return self.api.storage(self.resource(resource)).listen(listener)

    def stored(self, resource: str) -> StoredObjects:
        """All objects of a resource with their encoded bytes, in key order."""
        return self.api.storage(self.resource(resource)).ordered()

    def expire_history(self) -> None:
        """Drop all watch history: older watches and pages get 410."""
        self.api.expire_history()


def _shown(resource: ServedResource, stored: StoredObject) -> Object:
    """The object in the version of the resource."""
    return stored.obj if resource.view is None else resource.view(stored.obj)
