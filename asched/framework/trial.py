"""Nodes on which pods are tried on and off, and what the filters then say: the ground of preemption.

kube-scheduler dry-runs one node at a time, on copies. Where no filter looks beyond the node's own
row, the rows of one hypothesis cannot influence each other, and all of them are tried at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np

from asched.framework.cluster import Cluster
from asched.framework.cycle_state import CycleState
from asched.framework.interface import FilterAllPlugin, FilterPlugin, PreFilterExtensions, Scope
from asched.framework.nodes import Int64Column, RowArray, SupposedNodes
from asched.framework.pod_info import PodInfo
from asched.framework.runtime.findings import Findings, StatusNumbers
from asched.framework.runtime.plugin_calls import (
    PluginFailure,
    answered_error,
    ask,
    filter_node,
    filter_nodes,
    filters_one,
    minds_suppositions,
)
from asched.framework.runtime.profile import Profile
from asched.framework.status import Status

Placed = tuple[int, PodInfo]
"""A row of a trial and a pod on it."""

RankedFilter = tuple[int, FilterPlugin | FilterAllPlugin]


class Nominations(Protocol):
    """Which pods are nominated where."""

    @property
    def by_node(self) -> Mapping[str, Mapping[str, PodInfo]]: ...


class Fit:
    """One pod against the filters of a profile, to be tried on nodes.

    ``state`` is the one of the pod's attempt, after PreFilter. It is not changed.
    """

    def __init__(
        self,
        profile: Profile,
        cluster: Cluster,
        nominations: Nominations,
        state: CycleState,
        pod: PodInfo,
    ) -> None:
        self.pod = pod
        self.state = state
        self._cluster = cluster
        self._nominations = nominations
        skipped = state.skip_filter
        self.fixed: list[RankedFilter] = []
        """Filters that pods coming and going do not concern."""
        self.moving: list[RankedFilter] = []
        """The others."""
        self.told = [
            plugin
            for plugin in profile.pre_filter
            if plugin.name not in skipped and minds_suppositions(plugin)
        ]
        """Plugins that want to hear of pods tried on and off."""
        self.local = not self.told
        """Whether no filter looks beyond a node's own row."""
        for rank, plugin in enumerate(profile.filter):
            if plugin.name in skipped:
                continue
            scope = plugin.scope
            (self.fixed if scope is Scope.NODE_OBJECT else self.moving).append((rank, plugin))
            if scope is Scope.CLUSTER:
                self.local = False

    def trials(self, rows: RowArray) -> Iterator[Trial]:
        """Trials that cover ``rows`` of the cluster's nodes, in order: one for all of them where
        that cannot make a difference, else one for each, with a state of its own."""
        if self.local:
            yield Trial(self, rows)
        else:
            for row in rows:
                yield Trial(self, np.array([row], np.intp))

    def crowded(self, rows: RowArray) -> Iterator[tuple[RowArray, Findings]]:
        """Those of ``rows`` of the cluster's nodes with pods nominated to them that count, in parts,
        and what the filters say of them with those pods there. Raises PluginFailure."""
        names = self._cluster.nodes.names
        hosted: dict[int, list[PodInfo]] = {}
        for place, guest in self.guests(names[row] for row in rows.tolist()):
            hosted.setdefault(place, []).append(guest)
        if not hosted:
            return
        if self.local:
            hosts = rows[[*hosted]]
            placed = [(at, guest) for at, there in enumerate(hosted.values()) for guest in there]
            try:
                found = self.supposed(hosts, placed).refusals()
            except PluginFailure:
                # Together, filters are asked about nodes that others refused before them. What
                # comes of a failure must not depend on how many nodes are asked about.
                if len(hosts) == 1:
                    raise
            else:
                yield hosts, found
                return
        for place, there in hosted.items():
            alone = rows[[place]]
            yield alone, self.supposed(alone, [(0, guest) for guest in there]).refusals()

    def supposed(self, rows: RowArray, placed: Sequence[Placed]) -> _Hypothesis:
        """These rows of the cluster's nodes, with pods added."""
        hypothesis = _Hypothesis(self, self.suppose(rows))
        hypothesis.add(placed)
        return hypothesis

    def suppose(self, rows: RowArray) -> SupposedNodes:
        return self._cluster.suppose(rows)

    @property
    def row_stamps(self) -> Int64Column:
        """By row of the cluster's nodes: a number that changes with anything about the row."""
        return self._cluster.row_stamps

    @property
    def shareable(self) -> bool:
        """Whether pods of the same shape and priority find the same by the same filters, on nodes to
        which none of them is nominated, for as long as the nodes' stamps stay (``Cluster.row_stamps``)."""
        return self.local and not self.pod.pod.spec.node_name

    def guests(self, names: Iterable[str]) -> list[Placed]:
        """The other pods nominated to these nodes that are at least as important."""
        by_node = self._nominations.by_node
        if not by_node:
            return []
        uid, priority = self.pod.uid, self.pod.priority
        return [
            (row, guest)
            for row, name in enumerate(names)
            if name in by_node
            for guest in by_node[name].values()
            if guest.uid != uid and guest.priority >= priority
        ]


class Trial:
    """Some nodes as they would be, without and with the pods nominated to them."""

    def __init__(self, fit: Fit, rows: RowArray) -> None:
        if not fit.local and len(rows) != 1:
            raise ValueError("filters that look beyond a node's row need a trial for each node")
        self.rows = rows
        """The rows of the cluster's nodes that these are."""
        self.nodes = fit.suppose(rows)
        self._bare = _Hypothesis(fit, self.nodes)
        guests = fit.guests(self.nodes.names)
        self.hosts = np.array(sorted({row for row, _ in guests}), np.intp)
        """Which rows of the trial have pods nominated to them that count."""
        self._as_host = {row: index for index, row in enumerate(self.hosts.tolist())}
        self._with_guests: _Hypothesis | None = None
        if guests:
            placed = [(self._as_host[row], guest) for row, guest in guests]
            self._with_guests = fit.supposed(rows[self.hosts], placed)

    def add(self, placed: Sequence[Placed]) -> None:
        """As if these pods were there as well. Raises ValueError for one that is."""
        self._bare.add(placed)
        if self._with_guests is not None:
            self._with_guests.add(self._on_hosts(placed))

    def remove(self, placed: Sequence[Placed]) -> None:
        """As if these pods were not there. Raises KeyError for one that is not."""
        self._bare.remove(placed)
        if self._with_guests is not None:
            self._with_guests.remove(self._on_hosts(placed))

    def _on_hosts(self, placed: Sequence[Placed]) -> list[Placed]:
        places = self._as_host
        return [(places[row], pod) for row, pod in placed if row in places]

    def refusals(self) -> Findings:
        """What the filters say of each row as it now is supposed to be.

        The pods nominated to a node count first as there, then as not there: it must have room
        either way (``RunFilterPluginsWithNominatedPods`` of kube-scheduler). Raises
        :class:`~asched.framework.runtime.plugin_calls.PluginFailure`.
        """
        found = self._bare.refusals()
        if self._with_guests is not None:
            crowded = self.crowded()
            refused = np.flatnonzero(~crowded.passing)
            found.copy_rows(self.hosts[refused], crowded, refused)
        return found

    def crowded(self) -> Findings:
        """What the filters say of each of :attr:`hosts` with the nominated pods there. Raises
        PluginFailure."""
        return Findings(0) if self._with_guests is None else self._with_guests.refusals()


class _Hypothesis:
    """Supposed nodes with the cycle state that goes with them."""

    def __init__(self, fit: Fit, nodes: SupposedNodes) -> None:
        self._fit = fit
        self._nodes = nodes
        self._state = fit.state.clone() if fit.told else fit.state
        self._numbers = StatusNumbers()
        self._fixed: Findings | None = None

    def add(self, placed: Sequence[Placed]) -> None:
        self._nodes.suppose_pods(placed)
        for plugin in self._fit.told:
            self._tell(plugin, placed, added=True)

    def remove(self, placed: Sequence[Placed]) -> None:
        self._nodes.suppose_without_pods(placed)
        for plugin in self._fit.told:
            self._tell(plugin, placed, added=False)

    def _tell(self, plugin: PreFilterExtensions, placed: Sequence[Placed], *, added: bool) -> None:
        point, method = ("AddPod", plugin.add_pod) if added else ("RemovePod", plugin.remove_pod)
        for row, other in placed:
            node = self._nodes.info(row)
            status = ask(Status, plugin, point, method, self._state, self._fit.pod, other, node)
            if not status.is_success:
                raise answered_error(plugin.name, point, status.message or status.code.title)

    def refusals(self) -> Findings:
        nodes, fit = self._nodes, self._fit
        if self._fixed is None:
            self._fixed = Findings(nodes.size, self._numbers)
            self._run(fit.fixed, self._fixed)
        found = Findings(nodes.size, self._numbers)
        found.take_over(self._fixed, slice(None))
        self._run(fit.moving, found)
        return found

    def _run(self, filters: Sequence[RankedFilter], found: Findings) -> None:
        state, pod, nodes = self._state, self._fit.pod, self._nodes
        if nodes.size == 1:
            for rank, plugin in filters:
                if rank > found.rank[0]:
                    return
                if filters_one(plugin):
                    status = filter_node(plugin, state, pod, nodes, 0)
                else:
                    status = filter_nodes(plugin, state, pod, nodes).status(0)
                if status is not None:
                    found.set(0, rank, status.by(plugin.name))
            return
        for rank, plugin in filters:
            found.add(rank, plugin.name, filter_nodes(plugin, state, pod, nodes))
