"""Hypothetical placements on the state itself, all of them undone before the cycle ends.

A fork of the state would need plugins of its own. Assumed members are added to the node table, so
that the columns, indexes and caches of all plugins follow them row by row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from asched.framework.pod_info import PodInfo
from asched.framework.runtime.profile import Profile
from asched.state.cluster import ClusterState
from asched.state.records import Assigned


class _Assumed(NamedTuple):
    pod: PodInfo
    node: str
    assignment: Assigned | None
    """None for a member that would preempt."""


class Trial:
    """Members assumed on nodes and pods removed from theirs."""

    def __init__(self, cluster: ClusterState, profile: Profile) -> None:
        self._cluster = cluster
        self._profile = profile
        self._assumed: list[_Assumed] = []
        self.removed: dict[str, PodInfo] = {}
        """The pods that are left out now, by uid."""

    def assume(self, pod: PodInfo, node: str, assignment: Assigned | None) -> None:
        """Count a member on a node, and reserve what its assignment reserves."""
        cluster = self._cluster
        cluster.nodes.add_pod(node, pod)
        cluster.nominator.withdraw(pod.key)
        if assignment is not None and assignment.reservations:
            cluster.reserve_calls.reserved(self._profile, pod, assignment)
        self._assumed.append(_Assumed(pod, node, assignment))

    @contextmanager
    def members(self) -> Iterator[None]:
        """Forgets the members that are assumed within the block."""
        cluster, begin = self._cluster, len(self._assumed)
        nominations = cluster.nominator.copy_contents()
        try:
            yield
        finally:
            for pod, node, assignment in reversed(self._assumed[begin:]):
                if assignment is not None and assignment.reservations:
                    cluster.reserve_calls.unreserved(self._profile, pod, assignment)
                cluster.nodes.remove_pod(node, pod)
            del self._assumed[begin:]
            if cluster.nominator.by_node != nominations:
                cluster.nominator.reset(nominations)

    @contextmanager
    def nominated(self, placed: Iterable[tuple[PodInfo, str]]) -> Iterator[None]:
        """Nominates pods to nodes within the block."""
        nominator = self._cluster.nominator
        before = nominator.copy_contents()
        for pod, node in placed:
            nominator.nominate(pod, node)
        try:
            yield
        finally:
            nominator.reset(before)

    @contextmanager
    def without(self, pods: Sequence[PodInfo]) -> Iterator[RemovedVictims]:
        """Removes pods from their nodes within the block."""
        removed = RemovedVictims(self._cluster, pods, self.removed)
        try:
            yield removed
        finally:
            removed.restore_all()


class RemovedVictims:
    """Pods that are left out of the state for a while."""

    def __init__(
        self, cluster: ClusterState, pods: Sequence[PodInfo], removed: dict[str, PodInfo]
    ) -> None:
        """``removed``: receives the pods that are removed."""
        self._nodes = cluster.nodes
        self._node_of = {pod.uid: cluster.pods[pod.key].node for pod in pods}
        self._order = cluster.nodes.pod_order(self._node_of.values())
        self._removed = removed
        self.remove(pods)

    def remove(self, pods: Iterable[PodInfo]) -> None:
        for pod in pods:
            self._nodes.remove_pod(self._node_of[pod.uid], pod)
            self._removed[pod.uid] = pod

    def restore(self, pods: Iterable[PodInfo]) -> None:
        """Put some of them back."""
        for pod in pods:
            del self._removed[pod.uid]
            self._nodes.add_pod(self._node_of[pod.uid], pod)

    def restore_all(self) -> None:
        self.restore([*self._removed.values()])
        self._nodes.restore_order(self._order)
