"""Holds back updates of namespaces that used up their budget of journal bytes.

One pod that changes its labels many times a second would fill the journal. A namespace gets a burst
of bytes and a rate for updates that its tenants can cause at will and that are no step of a pod's
or claim's life: labels, annotations, images and resources of pods, and objects such as Services.
Beyond that the newest form of each object is held back, and replaces an earlier one, until the
budget allows its record.
The pod that is decided next is recorded at once. To decisions this is the same as a slow watch, so
a replay repeats them: it reads records only.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import msgspec

from asched.core.inputs import Upserted
from asched.model.custom import CustomObject
from asched.model.groups import CUSTOM_POD_GROUPS, PodGroup
from asched.model.meta import Object
from asched.model.pod import Pod
from asched.model.quantity import NS_PER_S
from asched.model.resources import Resource, WatchedResource
from asched.model.storage import PersistentVolumeClaim
from asched.state import records as r
from asched.state.cluster import ClusterState

RATE_BYTES_PER_S: Final = 4 * 1024
"""What a namespace may write in the long run: 340 MiB a day."""
BURST_BYTES: Final = 1024 * 1024
"""What it may write at once, a few thousand ordinary updates."""
_REPORT_NS: Final = 3600 * NS_PER_S
_NS_PER_BYTE: Final = NS_PER_S // RATE_BYTES_PER_S
_BURST_NS: Final = BURST_BYTES * _NS_PER_BYTE

_HELD_TYPES: Final = frozenset(
    {
        Resource.SERVICES.type,
        Resource.REPLICATION_CONTROLLERS.type,
        Resource.REPLICA_SETS.type,
        Resource.STATEFUL_SETS.type,
        Resource.POD_DISRUPTION_BUDGETS.type,
        Resource.RESOURCE_CLAIMS.type,
        PersistentVolumeClaim,
        PodGroup,
        *CUSTOM_POD_GROUPS,
        CustomObject,
    }
)
"""Objects besides pods that tenants may change as often as they like."""

_encode = msgspec.json.Encoder().encode


class _ObjectRef(NamedTuple):
    resource: WatchedResource
    key: str


class HeldUpdates:
    """The newest forms of objects that are not recorded yet, and what each namespace used.

    No part of the state: after a restart the first list shows what was held back.
    """

    def __init__(self, state: ClusterState) -> None:
        self.deferred = 0
        """Number of updates that were held back, also of those that a newer one replaced."""
        self._state = state
        self.by_namespace: dict[str, dict[_ObjectRef, Upserted]] = {}
        """In order of arrival. Empty almost always, which the core tests for each change."""
        self._paid_at_ns: dict[str, int] = {}
        self._newly_limited: list[str] = []
        self._reported_at_ns: dict[str, int] = {}

    def __len__(self) -> int:
        return sum(map(len, self.by_namespace.values()))

    def __bool__(self) -> bool:
        return bool(self.by_namespace)

    @property
    def namespaces(self) -> int:
        """Number of namespaces that are above their budget."""
        return len(self.by_namespace)

    def defer(self, change: Upserted, record: r.AnyRecord, now_ns: int) -> bool:
        """Whether the update is held back. Otherwise it is charged.

        It takes the place of an earlier form, and waits behind those of other objects.
        """
        if not _is_deferrable(self._state, record):
            return False
        namespace = change.object.namespace
        if namespace not in self.by_namespace and self._due_ns(namespace) <= now_ns:
            self.charge(namespace, record, now_ns)
            return False
        self.by_namespace.setdefault(namespace, {})[_ref(change)] = change
        self.deferred += 1
        self._note_limited(namespace, now_ns)
        return True

    def charge(self, namespace: str, record: r.AnyRecord, now_ns: int) -> None:
        """An update of the namespace is recorded."""
        paid_at_ns = max(self._paid_at_ns.get(namespace, 0), now_ns)
        self._paid_at_ns[namespace] = paid_at_ns + len(_encode(record)) * _NS_PER_BYTE
        for paid in [name for name, at_ns in self._paid_at_ns.items() if at_ns <= now_ns]:
            del self._paid_at_ns[paid]

    def _note_limited(self, namespace: str, now_ns: int) -> None:
        last_ns = self._reported_at_ns.get(namespace)
        if last_ns is None or now_ns - last_ns >= _REPORT_NS:
            recent = self._reported_at_ns.items()
            self._reported_at_ns = {n: ns for n, ns in recent if now_ns - ns < _REPORT_NS}
            self._reported_at_ns[namespace] = now_ns
            self._newly_limited.append(namespace)

    def take_newly_limited(self) -> list[str]:
        """Remove and return the namespaces above their budget, each once an hour."""
        namespaces, self._newly_limited = self._newly_limited, []
        return namespaces

    def holds(self, resource: WatchedResource, key: str) -> bool:
        """Whether a form of the object is held back."""
        return _ObjectRef(resource, key) in self.by_namespace.get(_namespace(key), {})

    def discard(self, resource: WatchedResource, key: str) -> Upserted | None:
        """Remove and return the held form of an object, if there is one."""
        ref, namespace = _ObjectRef(resource, key), _namespace(key)
        held = self.by_namespace.get(namespace)
        if held is None or ref not in held:
            return None
        change = held.pop(ref)
        if not held:
            del self.by_namespace[namespace]
        return change

    def discard_all(self, resource: WatchedResource) -> None:
        """Remove all objects of a resource: a list follows."""
        for refs in [*self.by_namespace.values()]:
            for ref in [ref for ref in refs if ref.resource is resource]:
                self.discard(*ref)

    def take_due(self, now_ns: int) -> Iterator[Upserted]:
        """Remove and return one form after the other, as long as its namespace may write."""
        for namespace, refs in [*self.by_namespace.items()]:
            while refs and self._due_ns(namespace) <= now_ns:
                change = self.discard(*next(iter(refs)))
                assert change is not None
                yield change

    def next_due_ns(self) -> int | None:
        """When the next namespace may write."""
        return min(map(self._due_ns, self.by_namespace), default=None)

    def _due_ns(self, namespace: str) -> int:
        return self._paid_at_ns.get(namespace, 0) - _BURST_NS


UPDATES: Final = frozenset({r.PodUpdated, r.ObjectObserved})
"""The types of records that may be held back."""


def _namespace(key: str) -> str:
    """Of ``namespace/name``; the key of a custom resource begins with its definition."""
    return key.rpartition("/")[0].rpartition("/")[2]


def _ref(change: Upserted) -> _ObjectRef:
    return _ObjectRef(change.resource, change.object.key)


def _is_deferrable(state: ClusterState, record: r.AnyRecord) -> bool:
    """Whether the record is an update that its namespace's tenants can cause at will."""
    match record:
        case r.PodUpdated():
            return _keeps_status(state.pods[record.key].info.pod, record)
        case r.ObjectObserved(object=Pod() as pod):
            entry = state.entry(pod.key, pod.uid)
            return entry is not None and _is_at_same_step(entry.info.pod, pod)
        case r.ObjectObserved(object=observed) if type(observed) in _HELD_TYPES:
            stored = state.object_store.of_kind(type(observed)).get(observed.key)
            if stored is None or not observed.namespace or stored.uid != observed.uid:
                return False
            if stored.metadata.deletion_timestamp != observed.metadata.deletion_timestamp:
                return False
            if _differs_in_volume(stored, observed):
                return False
            # A status comes from a controller, which may wait until it is seen.
            return getattr(stored, "status", None) == getattr(observed, "status", None)
    return False


def _keeps_status(old: Pod, update: r.PodUpdated) -> bool:
    status = old.status
    return (
        update.node_name == old.spec.node_name
        and update.phase == status.phase
        and update.conditions == status.conditions
        and update.nominated_node_name == status.nominated_node_name
        and update.deletion_timestamp == old.metadata.deletion_timestamp
        and update.start_time == status.start_time
        and update.claims is None
    )


def _is_at_same_step(old: Pod, new: Pod) -> bool:
    """Whether the pod differs in nothing that a step of its life changes."""
    return (
        new.metadata.deletion_timestamp == old.metadata.deletion_timestamp
        and new.spec.node_name == old.spec.node_name
        and new.spec.scheduling_gates == old.spec.scheduling_gates
        and new.status == old.status
    )


def _differs_in_volume(old: Object, new: Object) -> bool:
    """Whether the volume controller bound a claim to a volume, or released it."""
    if not (isinstance(old, PersistentVolumeClaim) and isinstance(new, PersistentVolumeClaim)):
        return False
    return new.spec.volume_name != old.spec.volume_name or new.fully_bound != old.fully_bound
