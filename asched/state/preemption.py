"""Preemption in the state: decided evictions with victims that still run, and nominated pods."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from asched.framework.cluster import Eviction
from asched.framework.nodes import RowArray
from asched.framework.pod_info import PodInfo
from asched.model.pod import Pod
from asched.state.node_table_view import NodeTableView
from asched.state.stored_form import StoredForm


class EvictionsSnapshot(StoredForm):
    evictions: tuple[Eviction, ...]
    completed_preemptors: tuple[tuple[str, str], ...]
    """Uids and keys, in order."""
    unneeded_preemptors: tuple[str, ...]


class Evictions(Mapping[str, Eviction]):
    """Pending evictions by the victim's uid."""

    def __init__(self) -> None:
        self.by_victim: dict[str, Eviction] = {}
        """Read-only; a plain dict, because the core tests it for each record."""
        self._pending_by_preemptor: Counter[str] = Counter()
        """The number of evictions by the preemptor's uid."""
        self.unneeded_preemptors: set[str] = set()
        """Uids of preemptors that no longer need their pending evictions."""
        self.completed_preemptors: dict[str, str] = {}
        """Keys by uid of the preemptors with evictions that have all ended; without the pods
        passed to :meth:`mark_unneeded` since."""

    def __getitem__(self, victim_uid: str) -> Eviction:
        return self.by_victim[victim_uid]

    def __iter__(self) -> Iterator[str]:
        return iter(self.by_victim)

    def __len__(self) -> int:
        return len(self.by_victim)

    def is_preempting(self, preemptor_uid: str) -> bool:
        """Whether any eviction is pending for this preemptor."""
        return preemptor_uid in self._pending_by_preemptor

    def begin(self, eviction: Eviction) -> None:
        self.end(eviction.victim.uid)
        self.by_victim[eviction.victim.uid] = eviction
        self._pending_by_preemptor[eviction.preemptor.uid] += 1
        self.completed_preemptors.pop(eviction.preemptor.uid, None)

    def end(self, victim_uid: str) -> Eviction | None:
        """The eviction succeeded, failed or is no longer needed. None if there was none."""
        eviction = self.by_victim.pop(victim_uid, None)
        if eviction is not None:
            preemptor = eviction.preemptor
            self._pending_by_preemptor[preemptor.uid] -= 1
            if not self._pending_by_preemptor[preemptor.uid]:
                del self._pending_by_preemptor[preemptor.uid]
                if preemptor.uid in self.unneeded_preemptors:
                    self.unneeded_preemptors.remove(preemptor.uid)
                else:
                    self.completed_preemptors[preemptor.uid] = preemptor.key
        return eviction

    def mark_unneeded(self, uid: str) -> None:
        """The preemptor needs no evictions any longer: it is bound or deleted."""
        self.completed_preemptors.pop(uid, None)
        if uid in self._pending_by_preemptor:
            self.unneeded_preemptors.add(uid)

    def mark_needed(self, uid: str) -> None:
        """Undo :meth:`mark_unneeded`: the pod is pending again."""
        self.unneeded_preemptors.discard(uid)

    def snapshot(self) -> EvictionsSnapshot:
        return EvictionsSnapshot(
            tuple(self.by_victim.values()),
            tuple(self.completed_preemptors.items()),
            tuple(sorted(self.unneeded_preemptors)),
        )

    def restore(self, snapshot: EvictionsSnapshot) -> None:
        for eviction in snapshot.evictions:
            self.begin(eviction)
        self.completed_preemptors.update(snapshot.completed_preemptors)
        self.unneeded_preemptors.update(snapshot.unneeded_preemptors)


def was_preempted(pod: Pod) -> bool:
    """Whether a scheduler evicted the pod for another one."""
    return any(
        condition.type == "DisruptionTarget" and condition.reason == "PreemptionByScheduler"
        for condition in pod.status.conditions
    )


def awaits_victims(nodes: NodeTableView, preemptor: PodInfo, node_name: str) -> bool:
    """Whether a victim of lower priority is still on the node."""
    row = nodes.row_of(node_name)
    return row is not None and any(
        other.priority < preemptor.priority and was_preempted(other.pod)
        for other in nodes.pods(row)
    )


class NominatedSnapshot(StoredForm):
    node: str
    pods: tuple[PodInfo, ...]


class Nominator:
    """Nominated pods by node. A nominated pod counts on its node for pods of no higher priority."""

    def __init__(self, nodes: NodeTableView) -> None:
        self._nodes = nodes
        self.by_node: dict[str, dict[str, PodInfo]] = {}
        """Node name to the pods nominated there, by key."""
        self._node_of: dict[str, str] = {}
        self._mask = np.zeros(0, np.bool_)
        """By row, whether any pod is nominated there; valid for :attr:`_mask_version`."""
        self._mask_version = -1
        self._rows: RowArray | None = None
        """The rows of :attr:`_mask`; None if it changed."""

    def __bool__(self) -> bool:
        return bool(self.by_node)

    def rows(self) -> RowArray:
        """The rows of nodes with nominations, ascending; the same object while they are the
        same."""
        if self._mask_version != self._nodes.version:
            self._mask_version = self._nodes.version
            self._mask = np.zeros(self._nodes.size, np.bool_)
            self._rows = None
            for name in self.by_node:
                self._mark(name)
        if self._rows is None:
            self._rows = self._mask.nonzero()[0]
        return self._rows

    def _mark(self, name: str) -> None:
        row = self._nodes.row_of(name)
        if row is not None:
            self._mask[row] = name in self.by_node
            self._rows = None

    def _changed(self, name: str) -> None:
        self._nodes.touch(name)
        if self._mask_version == self._nodes.version:
            self._mark(name)

    def node_of(self, key: str) -> str:
        """The node a pod is nominated to, or empty."""
        return self._node_of.get(key, "")

    def nominate(self, pod: PodInfo, node_name: str) -> str:
        """Nominate a pod to a node, or to none if the name is empty. Returns the other node that it
        was nominated to before, or empty."""
        before = self.withdraw(pod.key)
        if node_name:
            self._node_of[pod.key] = node_name
            self.by_node.setdefault(node_name, {})[pod.key] = pod
            self._changed(node_name)
        return before if before != node_name else ""

    def refresh(self, pod: PodInfo) -> None:
        """The pod changed; its nomination stays."""
        node_name = self._node_of.get(pod.key)
        if node_name:
            self.by_node[node_name][pod.key] = pod
            self._changed(node_name)

    def withdraw(self, key: str) -> str:
        """Clear the pod's nomination. Returns the node that it was nominated to, or empty."""
        node_name = self._node_of.pop(key, "")
        if node_name:
            pods = self.by_node[node_name]
            del pods[key]
            if not pods:
                del self.by_node[node_name]
            self._changed(node_name)
        return node_name

    def copy_contents(self) -> dict[str, dict[str, PodInfo]]:
        """The nominations, in order, for :meth:`reset`."""
        return {node: {**pods} for node, pods in self.by_node.items()}

    def reset(self, contents: dict[str, dict[str, PodInfo]]) -> None:
        """Return to earlier nominations."""
        before, self.by_node = self.by_node, contents
        self._node_of = {key: node for node, pods in contents.items() for key in pods}
        for node in {**before, **contents}:
            if before.get(node) != contents.get(node):
                self._changed(node)

    def snapshot(self) -> tuple[NominatedSnapshot, ...]:
        return tuple(
            NominatedSnapshot(node, tuple(pods.values())) for node, pods in self.by_node.items()
        )

    def restore(self, snapshots: Iterable[NominatedSnapshot]) -> None:
        for snapshot in snapshots:
            for pod in snapshot.pods:
                self.nominate(pod, snapshot.node)
