"""The task that runs the controllers of a cluster."""

from __future__ import annotations

from typing import Final

from asched.apiserver.cluster import EmbeddedCluster
from asched.apiserver.controllers.daemon_sets import DAEMON_SETS, sync_daemon_set
from asched.apiserver.controllers.dependents import Dependents, controller_of
from asched.apiserver.controllers.deployments import DEPLOYMENTS, sync_deployment
from asched.apiserver.controllers.jobs import JOBS, sync_job
from asched.apiserver.controllers.replica_sets import REPLICA_SETS, sync_replica_set
from asched.apiserver.controllers.stateful_sets import STATEFUL_SETS, sync_stateful_set
from asched.apiserver.errors import Object
from asched.apiserver.reconciler import ObjectKey, Reconciler
from asched.apiserver.storage import ADDED, DELETED, StoreChange

_SYNC: Final = {
    DEPLOYMENTS: sync_deployment,
    REPLICA_SETS: sync_replica_set,
    STATEFUL_SETS: sync_stateful_set,
    JOBS: sync_job,
}
_BY_KIND: Final = {
    "Deployment": DEPLOYMENTS,
    "ReplicaSet": REPLICA_SETS,
    "StatefulSet": STATEFUL_SETS,
    "DaemonSet": DAEMON_SETS,
    "Job": JOBS,
}
_PODS: Final = "pods"
_NODES: Final = "nodes"


class Controllers(Reconciler):
    """All controllers, with one queue.

    Also the garbage collector, which deletes what belongs to deleted objects only, and the one of
    pods, which deletes the pods of deleted nodes. Objects with owners that never existed stay.
    """

    resources = (_PODS, _NODES, *_BY_KIND.values(), "persistentvolumeclaims")

    def __init__(self, cluster: EmbeddedCluster) -> None:
        super().__init__(cluster)
        self._dependents = Dependents(cluster)
        self._gone: set[str] = set()
        """UIDs of deleted objects that still have dependents."""

    def attach(self) -> None:
        for resource in self.resources:
            for stored in self._cluster.stored(resource):
                self._dependents.note(resource, StoreChange(stored.rv, ADDED, stored, None))
        super().attach()

    def on_change(self, resource: str, change: StoreChange) -> None:
        self._dependents.note(resource, change)
        obj, deleted = change.new.obj, change.type == DELETED
        if deleted:
            self._collect(obj["metadata"]["uid"])
        elif resource in _BY_KIND.values():
            self.enqueue(resource, change.new.key)
        if resource == _NODES:
            self._on_node(change)
            return
        owner = controller_of(obj)
        if owner is None:
            return
        if owner.uid in self._gone:
            self.enqueue(resource, change.new.key)
        elif owner.kind in _BY_KIND:
            item = ObjectKey(_BY_KIND[owner.kind], f"{obj['metadata']['namespace']}/{owner.name}")
            self.enqueue(*item)
            if resource == _PODS and deleted:
                self._enqueue_deployment(item)

    def _enqueue_deployment(self, replica_set: ObjectKey) -> None:
        """A Deployment that recreates its pods waits for the end of the last old one."""
        obj = self._dependents.find(replica_set)
        owner = None if obj is None else controller_of(obj)
        if owner is not None and owner.kind in _BY_KIND:
            self.enqueue(_BY_KIND[owner.kind], f"{replica_set.namespace}/{owner.name}")

    def _collect(self, uid: str) -> None:
        """The object with this UID is deleted: what belongs to it is looked at."""
        dependents = self._dependents.keys(uid)
        if dependents:
            self._gone.add(uid)
        for item in dependents:
            self.enqueue(*item)

    def _on_node(self, change: StoreChange) -> None:
        old, new = change.old, change.new.obj
        if change.type == DELETED:
            for stored in self._cluster.stored(_PODS):
                if stored.obj["spec"].get("nodeName") == new["metadata"]["name"]:
                    self.enqueue(_PODS, stored.key)
        if old is None or change.type == DELETED or _placement(old.obj) != _placement(new):
            for stored in self._cluster.stored(DAEMON_SETS):
                self.enqueue(DAEMON_SETS, stored.key)

    def sync(self, item: ObjectKey) -> None:
        obj = self._dependents.find(item)
        if obj is None:
            return
        if self._is_garbage(item, obj):
            self._dependents.remove(item.resource, obj)
        elif item.resource == _PODS:
            node = obj["spec"].get("nodeName")
            if node and self._api.find(_NODES, "", node) is None:
                self._dependents.remove_now(obj)
        elif obj["metadata"].get("deletionTimestamp"):
            return
        elif item.resource == DAEMON_SETS:
            nodes = [stored.obj for stored in self._cluster.stored(_NODES)]
            sync_daemon_set(self._dependents, obj, nodes)
        elif item.resource in _SYNC:
            _SYNC[item.resource](self._dependents, obj)

    def _is_garbage(self, item: ObjectKey, obj: Object) -> bool:
        """Whether all of its owners are deleted."""
        owners = [owner["uid"] for owner in obj["metadata"].get("ownerReferences") or ()]
        garbage = bool(owners) and all(uid in self._gone for uid in owners)
        self._gone = {uid for uid in self._gone if self._dependents.keys(uid)}
        return garbage


def _placement(node: Object) -> tuple[object, ...]:
    """What decides whether a DaemonSet has a pod there."""
    return node["metadata"].get("labels"), node["spec"].get("taints")
