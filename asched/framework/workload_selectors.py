"""Which pods belong together, judged by what looks after them: services and controllers."""

from __future__ import annotations

from collections.abc import Mapping

from asched.framework.cluster import Cluster
from asched.framework.memo import Memo
from asched.framework.pod_info import LabelSet
from asched.framework.pod_queries import Selector
from asched.model.meta import OwnerReference
from asched.model.selectors import LabelSelector
from asched.model.workloads import (
    ReplicaSet,
    ReplicationController,
    Service,
    StatefulSet,
)

_KINDS = (Service, ReplicationController, ReplicaSet, StatefulSet)
_MOST_PODS = 4096


class WorkloadSelectors:
    """The selectors that a pod's services and its controller have, together.

    As ``helper.DefaultSelector`` of kube-scheduler: the selectors of all services that select the
    pod, and that of the replication controller, replica set or stateful set that controls it.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._version = -1
        self._services: dict[str, list[Service]] = {}
        self._known: Memo[tuple[int, OwnerReference | None], tuple[Selector, ...]] = Memo(
            _MOST_PODS
        )

    def of(self, labels: LabelSet, owner: OwnerReference | None) -> tuple[Selector, ...]:
        """Selectors all of which a fellow of a pod satisfies that has these labels and this
        controller; none where nothing looks after it."""
        cluster = self._cluster
        version = cluster.objects_version(*_KINDS)
        if version != self._version:
            self._version = version
            self._known.clear()
            self._services = {}
            for service in cluster.objects(Service).values():
                self._services.setdefault(service.namespace, []).append(service)
        if owner is None and labels.namespace not in self._services:
            return ()
        return self._known.get((labels.number, owner), lambda: self._work_out(labels, owner))

    def _work_out(self, labels: LabelSet, owner: OwnerReference | None) -> tuple[Selector, ...]:
        merged: dict[str, str] = {}
        for service in self._services.get(labels.namespace, ()):
            selector = service.spec.selector
            if _selects(selector, labels.labels):
                merged.update(selector)
        further: LabelSelector | None = None
        if owner is not None:
            key = f"{labels.namespace}/{owner.name}"
            match (owner.api_version, owner.kind):
                case ("v1", "ReplicationController"):
                    controller = self._cluster.objects(ReplicationController).get(key)
                    merged.update({} if controller is None else controller.spec.selector)
                case ("apps/v1", "ReplicaSet"):
                    replica_set = self._cluster.objects(ReplicaSet).get(key)
                    further = None if replica_set is None else replica_set.spec.selector
                case ("apps/v1", "StatefulSet"):
                    stateful_set = self._cluster.objects(StatefulSet).get(key)
                    further = None if stateful_set is None else stateful_set.spec.selector
        parts = (LabelSelector(match_labels=merged), further)
        return tuple(Selector(part) for part in parts if part is not None and _asks(part))


def _selects(selector: Mapping[str, str], labels: Mapping[str, str]) -> bool:
    return all(labels.get(key) == text for key, text in selector.items())


def _asks(selector: LabelSelector) -> bool:
    return bool(selector.match_labels or selector.match_expressions)
