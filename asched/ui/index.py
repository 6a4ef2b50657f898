"""An index for search and time next to the journal, which stays untouched.

The fold that follows the journal extends it. :mod:`asched.ui.index_file` keeps it between starts.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from sys import intern
from typing import Final, NamedTuple

import msgspec

from asched.audit.pod_state import pod_state
from asched.audit.unblock import amount_text
from asched.audit.visibility import Visible
from asched.framework.pod_groups import group_of
from asched.model.meta import Object, OwnerReference
from asched.model.node import Node
from asched.model.pod import Pod
from asched.model.quantity import NS_PER_S
from asched.state import records as r
from asched.state.cluster import ClusterState, PlacementState
from asched.state.session_records import EvictionDecided
from asched.state.stored_form import PodRecord
from asched.ui.series import Series, WaitHistogram

MAX_RESULTS: Final = 200
_MAX_OWNERS: Final = 4
"""Owners above a pod that are followed: a Deployment is two above."""


class FoundKind(Enum):
    """What a search finds."""

    POD = "pod"
    OWNER = "owner"
    GANG = "gang"
    NODE = "node"


class FoundName(msgspec.Struct, frozen=True, rename="camel"):
    kind: FoundKind
    name: str
    """``Kind/name`` for an owner."""
    namespace: str
    """Empty for a node."""
    state: str
    """For an owner or a gang: how many of its pods have which state."""
    last_seq: int
    """The last record about it."""


class SearchResults(msgspec.Struct, frozen=True, rename="camel"):
    results: tuple[FoundName, ...]
    total: int
    """How many there are without the limit."""
    indexed_seq: int
    """The last record that is searched."""


class NamespaceUse(msgspec.Struct, frozen=True, rename="camel"):
    namespace: str
    pods: dict[str, int]
    """By state."""


class NamespaceList(msgspec.Struct, frozen=True, rename="camel"):
    """The namespaces that a reader may see."""

    seq: int
    namespaces: tuple[NamespaceUse, ...]


class SearchQuery(NamedTuple):
    """What to search."""

    text: str
    limit: int
    visible: Visible
    """Of the reader: others are neither found nor counted."""


class LikePods(msgspec.Struct, frozen=True, rename="camel"):
    """How long pods like one waited, from their first observation to the binding."""

    like: str
    """What they have in common."""
    pods: int
    bound: int
    wait_p50_s: float | None
    """Within 9 %."""
    wait_p90_s: float | None


class IndexedPod(msgspec.Struct, gc=False):
    """The newest pod of a name. There may be millions."""

    key: str
    namespace: str
    uid: str
    like: str = ""
    owners: tuple[str, ...] = ()
    """``namespace/Kind/name`` of each, the direct owner first."""
    gang: str = ""
    last_seq: int = 0
    pending_since_ns: int = 0
    """0 for a pod that had a node at first."""
    first_seq: int = 0
    """The first record about a pod of this name, or the checkpoint where the index begins."""

    @property
    def name(self) -> str:
        return self.key[len(self.namespace) + 1 :]


@dataclass(slots=True)
class IndexedGroup:
    """Pods with a common owner, gang or form."""

    namespace: str
    name: str
    pods: dict[str, None] = field(default_factory=dict)
    last_seq: int = 0
    waits: WaitHistogram = field(default_factory=WaitHistogram)
    size: int = 0
    """The number of pods of a form, which are not listed."""


class JournalIndex:
    """Names and times of everything that the journal holds, up to one record."""

    def __init__(self) -> None:
        self.pods: dict[str, IndexedPod] = {}
        self.owners: dict[str, IndexedGroup] = {}
        self.gangs: dict[str, IndexedGroup] = {}
        self.likes: dict[str, IndexedGroup] = {}
        self.nodes: dict[str, int] = {}
        """The last record about each node."""
        self.namespaces: frozenset[str] = frozenset()
        """Of all objects in the journal. Replaced by a larger set, never changed."""
        self.plugin_failures: dict[str, int] = {}
        self.totals: Counter[str] = Counter()
        """What happened since the start of the index."""
        self.series = Series()
        self._owners: dict[tuple[str, ...], tuple[str, ...]] = {}

    def begin(self, seq: int, state: ClusterState) -> None:
        """Start with the state of a checkpoint: earlier records are archived."""
        for entry in state.pods.values():
            self._add_pod(seq, entry.info.pod, state)
            if entry.rejection:
                self.series.block(entry.info.key, _rejecting_plugins(state, entry.info.key))
        self.nodes.update(dict.fromkeys(state.objects(Node), seq))
        for objects in state.object_store.by_kind.values():
            self._add_namespaces(item.metadata.namespace for item in objects.values())
        self._add_namespaces(entry.info.namespace for entry in state.pods.values())

    def _add_namespaces(self, names: Iterable[str]) -> None:
        new = {name for name in names if name} - self.namespaces
        if new:
            self.namespaces |= new

    def apply(self, seq: int, record: r.AnyRecord, state: ClusterState) -> None:
        """Add a record; ``state`` is the one after it."""
        if isinstance(record, r.ObjectObserved):
            self._add_namespaces((record.object.metadata.namespace,))
        match record:
            case r.TurnStarted():
                self.series.move_to(state)
            case r.ObjectObserved(object=Pod() as pod):
                self._observe(seq, pod, state)
            case r.PodObserved():
                entry = state.entry(record.key, record.uid)
                if entry is not None:
                    self._observe(seq, entry.info.pod, state)
            case r.ObjectObserved(object=Node() as node):
                self.nodes[node.name] = seq
            case r.ObjectDeleted(kind="Pod"):
                self._mention(seq, record.key)
                self._add("deleted")
                self.series.unblock(record.key)
            case r.ObjectDeleted(kind="Node"):
                self.nodes[record.key] = seq
            case _ if isinstance(record, PodRecord):
                self._mention(seq, record.key)
                self._count(record, state)

    def _add(self, what: str, number: int = 1) -> None:
        self.totals[what] += number
        self.series.current.counts[what] += number

    def _count(self, record: PodRecord, state: ClusterState) -> None:
        match record:
            case r.Assigned():
                self._add("assigned")
                self.series.unblock(record.key)
            case r.Rejected():
                self._add("rejected")
                self._add("preempted", len(record.victims))
                self.series.current.rejected_by.update(record.unschedulable_plugins)
                self.series.block(record.key, record.unschedulable_plugins)
            case r.AttemptFailed():
                self._add("failed")
                if record.plugin:
                    failures = self.plugin_failures
                    failures[record.plugin] = failures.get(record.plugin, 0) + 1
            case EvictionDecided():
                self._add("preempted")
            case r.Bound() | r.PodUpdated():
                entry = state.entry(record.key, record.uid)
                if entry is not None and entry.placement_state is PlacementState.BOUND:
                    self._bound(record.key, state)

    def _bound(self, key: str, state: ClusterState) -> None:
        """The pod is bound; may be reported repeatedly."""
        pod = self.pods[key]
        since_ns, pod.pending_since_ns = pod.pending_since_ns, 0
        self.series.unblock(key)
        if not since_ns:
            return
        wait_s = (state.date_ns - since_ns) / NS_PER_S
        self._add("bound")
        self.series.current.waits.add(wait_s)
        self.likes[pod.like].waits.add(wait_s)

    def _observe(self, seq: int, pod: Pod, state: ClusterState) -> None:
        known = self.pods.get(pod.key)
        if known is not None and known.uid == pod.metadata.uid:
            self._mention(seq, pod.key)
            if pod.node_name:
                self._bound(pod.key, state)
            return
        added = self._add_pod(seq, pod, state)
        if not pod.node_name:
            added.pending_since_ns = max(1, state.date_ns)
            self._add("observed")

    def _add_pod(self, seq: int, pod: Pod, state: ClusterState) -> IndexedPod:
        gang, names = group_of(pod), [*_owner_names(pod, state)]
        self._add_namespaces((pod.namespace,))
        namespace, key = pod.namespace, pod.key
        owners = {f"{namespace}/{name}": name for name in names}
        added = IndexedPod(
            key, intern(namespace), pod.metadata.uid, owners=self._shared(tuple(owners))
        )
        added.gang = intern("" if gang is None else gang.key)
        added.like = intern(added.owners[-1] if owners else _form(pod, state))
        before = self.pods.get(key)
        if before is not None:
            self._leave(before)
        added.first_seq = seq if before is None else before.first_seq
        self.pods[key] = added
        like = self.likes.get(added.like)
        if like is None:
            like = self.likes[added.like] = IndexedGroup(namespace, added.like)
        like.size += 1
        for key, name in owners.items():
            _join(self.owners, key, (namespace, name), pod.key)
        if added.gang:
            name = added.gang.removeprefix(f"{namespace}/")
            _join(self.gangs, added.gang, (namespace, name), pod.key)
        self._mention(seq, pod.key)
        return added

    def _leave(self, pod: IndexedPod) -> None:
        """Another pod has its name."""
        self.likes[pod.like].size -= 1
        for owner in pod.owners:
            self.owners[owner].pods.pop(pod.key, None)
        if pod.gang:
            self.gangs[pod.gang].pods.pop(pod.key, None)

    def _shared(self, owners: tuple[str, ...]) -> tuple[str, ...]:
        """The same tuple for all pods of an owner."""
        return self._owners.setdefault(owners, owners)

    def restore_pod(self, pod: IndexedPod) -> None:
        """Add a stored pod to its groups, which are restored before."""
        pod.owners, pod.like, pod.gang = (
            self._shared(tuple(map(intern, pod.owners))),
            intern(pod.like),
            intern(pod.gang),
        )
        self.pods[pod.key] = pod
        self.likes[pod.like].size += 1
        for owner in pod.owners:
            self.owners[owner].pods[pod.key] = None
        if pod.gang:
            self.gangs[pod.gang].pods[pod.key] = None

    def _mention(self, seq: int, key: str) -> None:
        pod = self.pods.get(key)
        if pod is None:
            return
        pod.last_seq = seq
        for owner in pod.owners:
            self.owners[owner].last_seq = seq
        if pod.gang:
            self.gangs[pod.gang].last_seq = seq

    # -- questions --------------------------------------------------------------------------------

    def search(self, wanted: SearchQuery, seq: int, state: ClusterState) -> SearchResults:
        """Everything with a text in its name: equal names first, then beginnings, then the most
        recent. ``state`` is the one after record ``seq``."""
        text, limit, visible = wanted
        folded = text.casefold().strip()
        found = [*self._matches(folded, visible)]
        best = heapq.nsmallest(limit, found, lambda m: (_distance(m[1], folded), -m[2], m[1]))
        results = tuple(self._result(*match, state) for match in best)
        return SearchResults(results, len(found), seq)

    def _matches(self, wanted: str, visible: Visible) -> Iterator[tuple[FoundKind, str, int]]:
        for key, pod in self.pods.items():
            if wanted in key.casefold() and visible.sees(pod.namespace):
                yield FoundKind.POD, key, pod.last_seq
        for kind, groups in ((FoundKind.OWNER, self.owners), (FoundKind.GANG, self.gangs)):
            for key, group in groups.items():
                if wanted in key.casefold() and visible.sees(group.namespace):
                    yield kind, key, group.last_seq
        for name, seq in self.nodes.items() if visible.nodes else ():
            if wanted in name.casefold():
                yield FoundKind.NODE, name, seq

    def namespace_uses(self, visible: Visible, state: ClusterState) -> tuple[NamespaceUse, ...]:
        """The pods of each visible namespace by state."""
        found: dict[str, Counter[str]] = {
            name: Counter() for name in sorted(self.namespaces) if visible.sees(name)
        }
        for key, entry in state.pods.items():
            if entry.info.namespace in found:
                found[entry.info.namespace][pod_state(state, key)] += 1
        return tuple(NamespaceUse(name, dict(counts)) for name, counts in found.items())

    def _result(self, kind: FoundKind, key: str, seq: int, state: ClusterState) -> FoundName:
        if kind is FoundKind.NODE:
            here = "present" if key in state.objects(Node) else "deleted"
            return FoundName(kind, key, "", here, seq)
        if kind is FoundKind.POD:
            pod = self.pods[key]
            return FoundName(kind, pod.name, pod.namespace, pod_state(state, key), seq)
        group = (self.owners if kind is FoundKind.OWNER else self.gangs)[key]
        return FoundName(kind, group.name, group.namespace, _states(state, group.pods), seq)

    def like_pods(self, key: str) -> LikePods | None:
        """The pods like the newest one of that key; None if it is the only one."""
        pod = self.pods.get(key)
        like = self.likes.get(pod.like) if pod is not None else None
        if pod is None or like is None or like.size < 2:
            return None
        bound, waits = like.waits.classes.total(), like.waits
        halves = waits.percentile_s(0.5), waits.percentile_s(0.9)
        return LikePods(pod.like, like.size, bound, *halves)


def _join(groups: dict[str, IndexedGroup], key: str, name: tuple[str, str], pod_key: str) -> None:
    group = groups.get(key)
    if group is None:
        group = groups[key] = IndexedGroup(*name)
    group.pods[pod_key] = None


def _states(state: ClusterState, keys: Iterable[str]) -> str:
    counts: dict[str, int] = {}
    for key in keys:
        name = pod_state(state, key)
        counts[name] = counts.get(name, 0) + 1
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))


def _distance(key: str, wanted: str) -> int:
    if not wanted:
        return 0
    name, folded = key.rpartition("/")[2].casefold(), key.casefold()
    if wanted in (name, folded):
        return 0
    return 1 if name.startswith(wanted) or folded.startswith(wanted) else 2


def _rejecting_plugins(state: ClusterState, key: str) -> tuple[str, ...]:
    queued = state.queue.find_queued_or_in_flight(key)
    return () if queued is None else tuple(sorted(queued.unschedulable_plugins))


def _owner_names(pod: Pod, state: ClusterState) -> Iterator[str]:
    """``Kind/name`` of the pod's controller, of its controller, and so on, if they are watched."""
    item: Object | None = pod
    for _ in range(_MAX_OWNERS):
        owner = None if item is None else item.metadata.controller
        if owner is None:
            return
        yield f"{owner.kind}/{owner.name}"
        item = _find_owner(state, f"{pod.namespace}/{owner.name}", owner)


def _find_owner(state: ClusterState, key: str, owner: OwnerReference) -> Object | None:
    for kind, objects in state.object_store.by_kind.items():
        if kind.__name__ == owner.kind:
            found = objects.get(key)
            if found is not None and found.uid == owner.uid:
                return found
    return None


def _form(pod: Pod, state: ClusterState) -> str:
    """What a pod without owner has in common with others."""
    entry = state.pods.get(pod.key)
    requests = entry.info.shape.requests if entry is not None else {}
    amounts = ", ".join(
        f"{name} {amount_text(name, amount)}" for name, amount in sorted(requests.items()) if amount
    )
    return f"{pod.namespace}: {amounts or 'no requests'}, priority {pod.spec.priority}"
