"""Dry runs: what the filters return for nodes with pods hypothetically added or removed.

kube-scheduler dry-runs preemption one node at a time, on copies. If no filter reads more than the
node's own row, rows cannot affect each other, and all nodes share one dry run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from functools import partial
from typing import NamedTuple, Protocol

import numpy as np

from asched.framework.cluster import Cluster
from asched.framework.cycle_state import CycleState, StateKey
from asched.framework.interface import (
    FilterAllPlugin,
    FilterPlugin,
    PreFilterExtensions,
    Scope,
    UnavoidableRejections,
)
from asched.framework.nodes import (
    BoolColumn,
    FilterResult,
    HypotheticalNodes,
    Int64Column,
    Nodes,
    ReducedNodes,
    RowArray,
)
from asched.framework.pod_info import PodInfo
from asched.framework.runtime.diagnosis import FilterDiagnosis, StatusTable
from asched.framework.runtime.plugin_calls import (
    ADD_POD,
    FILTER_ALL,
    REMOVE_POD,
    PluginFailure,
    checked_call,
    derives,
    error_answer,
    filter_node,
    filter_nodes,
)
from asched.framework.runtime.profile import Profile

Placed = tuple[int, PodInfo]
"""A row of a dry run, and a pod that is added there or removed."""

SEARCH_STEPS: StateKey[int] = StateKey("DefaultPreemption/steps")
"""The counted steps of the search for victims of an attempt."""

_BATCH_ROWS = 64
"""Rows to try at a time: usually the first few are sufficient."""


class Removal(NamedTuple):
    """Pods that are hypothetically removed from a row of the cluster's nodes."""

    row: int
    pods: Sequence[PodInfo]


RankedFilter = tuple[int, FilterPlugin | FilterAllPlugin]


class Nominations(Protocol):
    """The nominated pods, by node and pod UID."""

    @property
    def by_node(self) -> Mapping[str, Mapping[str, PodInfo]]: ...


class FilterDryRunner:
    """Dry-runs the filters of a profile for one pod."""

    def __init__(
        self,
        profile: Profile,
        cluster: Cluster,
        nominations: Nominations,
        state: CycleState,
        pod: PodInfo,
    ) -> None:
        """``state`` is the state of the pod's attempt after PreFilter. It is not changed."""
        self.pod = pod
        self.state = state
        self._cluster = cluster
        self._nominations = nominations
        skipped = state.skip_filter
        self.node_filters: list[RankedFilter] = []
        """Filters that do not read the pods of a node."""
        self.pod_filters: list[RankedFilter] = []
        """All other filters."""
        self.extensions = [
            plugin
            for plugin in profile.pre_filter
            if plugin.name not in skipped and derives(plugin, PreFilterExtensions)
        ]
        """Plugins that update their state for added and removed pods."""
        self.reads_only_own_row = not self.extensions
        """Whether no filter reads more than a node's own row."""
        for rank, plugin in enumerate(profile.filter):
            if plugin.name in skipped:
                continue
            scope = plugin.scope
            (self.node_filters if scope is Scope.NODE_OBJECT else self.pod_filters).append(
                (rank, plugin)
            )
            if scope is Scope.CLUSTER:
                self.reads_only_own_row = False

    def dry_runs(self, rows: RowArray) -> Iterator[FilterDryRun]:
        """Dry runs that cover ``rows`` of the cluster's nodes, in order: one for all rows if
        :attr:`reads_only_own_row`, else one for each row."""
        if self.reads_only_own_row:
            yield FilterDryRun(self, rows)
        else:
            for row in rows:
                yield FilterDryRun(self, np.array([row], np.intp))

    def first_fit(self, removals: Sequence[Removal], most: int) -> int | None:
        """The index of the first removal after which the pod would fit on that row.

        Rows are tried together, by the filters that read only a node's own row. If there
        are others, at most ``most`` of the remaining rows are tried one at a time. Raises
        PluginFailure.
        """
        own_row = self if self.reads_only_own_row else self._own_row_part()
        for begin in range(0, len(removals), _BATCH_ROWS):
            batch = removals[begin : begin + _BATCH_ROWS]
            for index in own_row.fitting(batch):
                if own_row is self or self.fitting(batch[index : index + 1]):
                    return begin + index
                most -= 1
                if not most:
                    return None
        return None

    def fitting(self, removals: Sequence[Removal]) -> list[int]:
        """The indexes of the removals after which the pod would fit."""
        run = FilterDryRun(self, np.array([removal.row for removal in removals], np.intp))
        run.remove([(at, pod) for at, (_, pods) in enumerate(removals) for pod in pods])
        return run.diagnose().passing.nonzero()[0].tolist()

    def unavoidable_rows(self, rows: RowArray) -> RowArray:
        """The rows of ``rows`` that no removal of pods from them makes fit, for
        :meth:`diagnose_unavoidable`; may omit some."""
        found = self._unavoidable()
        if found is None:
            return rows[:0]
        by_node, names = self._nominations.by_node, self._cluster.nodes.names
        rows = rows[found[1].codes[rows] > 0]
        if by_node:
            # Nominated pods can be the reason of another rejection.
            free = [row for row in rows.tolist() if names[row] not in by_node]
            rows = np.array(free, np.intp)
        return rows

    def diagnose_unavoidable(self, removals: Sequence[Removal]) -> FilterDiagnosis:
        """The filters' result for each of these rows without those pods. The rows must be from
        :meth:`unavoidable_rows`. Raises PluginFailure."""
        found = self._unavoidable()
        if found is None:
            raise ValueError("no rejection is known to be unavoidable")
        (rank, plugin), result = found
        rows = np.array([removal.row for removal in removals], np.intp)
        run = FilterDryRun(self._own_row_part(), rows)
        run.remove([(at, pod) for at, (_, pods) in enumerate(removals) for pod in pods])
        diagnosis = run.diagnose()
        diagnosis.add(rank, plugin.name, FilterResult(result.codes[rows], result.statuses))
        return diagnosis

    def _unavoidable(self) -> tuple[RankedFilter, FilterResult] | None:
        """The answer of the only filter that reads more than a node's row; None if it has none."""
        extensions = {id(plugin) for plugin in self.extensions}
        beyond = [
            ranked
            for ranked in (*self.node_filters, *self.pod_filters)
            if ranked[1].scope is Scope.CLUSTER or id(ranked[1]) in extensions
        ]
        if len(beyond) != 1:
            return None
        plugin = beyond[0][1]
        if not derives(plugin, UnavoidableRejections):
            return None
        call = partial(plugin.unavoidable, self.state, self.pod, self._cluster.nodes)
        return beyond[0], checked_call(FILTER_ALL, plugin, call)

    def _own_row_part(self) -> FilterDryRunner:
        """Runs the filters that read only a node's own row."""
        part, extensions = copy(self), {id(plugin) for plugin in self.extensions}
        part.node_filters, part.pod_filters = (
            [
                (rank, plugin)
                for rank, plugin in filters
                if plugin.scope is not Scope.CLUSTER and id(plugin) not in extensions
            ]
            for filters in (self.node_filters, self.pod_filters)
        )
        part.extensions, part.reads_only_own_row = [], True
        return part

    def with_nominated(self, rows: RowArray) -> Iterator[tuple[RowArray, FilterDiagnosis]]:
        """The rows of ``rows`` with nominated pods that count, in parts, each with the diagnosis
        with those pods added. Raises PluginFailure."""
        names = self._cluster.nodes.names
        nominated: dict[int, list[PodInfo]] = {}
        for index, pod in self.nominated_pods(names[row] for row in rows.tolist()):
            nominated.setdefault(index, []).append(pod)
        if not nominated:
            return
        if self.reads_only_own_row:
            part = rows[[*nominated]]
            placed = [(at, pod) for at, pods in enumerate(nominated.values()) for pod in pods]
            try:
                found = self.hypothetical(part, placed).diagnose()
            except PluginFailure:
                # Filters run on all rows at once, also on rows that other filters rejected. Repeat
                # one by one, so that a failure does not depend on the number of rows.
                if len(part) == 1:
                    raise
            else:
                yield part, found
                return
        for index, pods in nominated.items():
            part = rows[[index]]
            yield part, self.hypothetical(part, [(0, pod) for pod in pods]).diagnose()

    def hypothetical(self, rows: RowArray, placed: Sequence[Placed]) -> _HypotheticalCluster:
        """These rows of the cluster's nodes, with pods added."""
        hypothesis = _HypotheticalCluster(self, self.nodes(rows))
        hypothesis.add(placed)
        return hypothesis

    def nodes(self, rows: RowArray) -> HypotheticalNodes:
        return self._cluster.hypothetical_nodes(rows)

    @property
    def reads_only_amounts(self) -> bool:
        """Whether the pods on a node matter only by the amounts that they request."""
        if not self.reads_only_own_row:
            return False
        return all(plugin.scope is Scope.RESOURCES for _, plugin in self.pod_filters)

    def reduced(self, rows: RowArray, pods: Sequence[Sequence[PodInfo]]) -> ReducedDryRun:
        """A dry run for rows to which no pods are nominated, without these of their pods. Only if
        :attr:`reads_only_amounts`."""
        return ReducedDryRun(self, self._cluster.reduced_nodes(rows, pods))

    def has_nominated_pods(self, rows: RowArray) -> BoolColumn:
        """For each of these rows of the cluster's nodes, whether pods are nominated to it."""
        by_node, names = self._nominations.by_node, self._cluster.nodes.names
        if not by_node:
            return np.zeros(len(rows), np.bool_)
        return np.array([names[row] in by_node for row in rows.tolist()], np.bool_)

    @property
    def cluster_nodes(self) -> Nodes:
        """The cluster's nodes."""
        return self._cluster.nodes

    @property
    def row_stamps(self) -> Int64Column:
        return self._cluster.row_stamps

    @property
    def shareable(self) -> bool:
        """Whether the result applies to all pods of equal shape and priority, as long as the row
        stamps are unchanged. Pods that are nominated to one of the rows are excluded."""
        return self.reads_only_own_row and not self.pod.pod.spec.node_name

    def nominated_pods(self, names: Iterable[str]) -> list[Placed]:
        """The other pods nominated to these nodes with at least the pod's priority."""
        by_node = self._nominations.by_node
        if not by_node:
            return []
        uid, priority = self.pod.uid, self.pod.priority
        return [
            (row, pod)
            for row, name in enumerate(names)
            if name in by_node
            for pod in by_node[name].values()
            if pod.uid != uid and pod.priority >= priority
        ]


class FilterDryRun:
    """Hypothetical nodes, evaluated without and with the pods that are nominated to them."""

    def __init__(self, runner: FilterDryRunner, rows: RowArray) -> None:
        if not runner.reads_only_own_row and len(rows) != 1:
            raise ValueError("filters that read more than a node's row need one dry run per node")
        self.rows = rows
        """The rows among the cluster's nodes."""
        self.nodes = runner.nodes(rows)
        self._plain = _HypotheticalCluster(runner, self.nodes)
        nominated = runner.nominated_pods(self.nodes.names)
        self._nominated_rows = np.array(sorted({row for row, _ in nominated}), np.intp)
        self._index = {row: index for index, row in enumerate(self._nominated_rows.tolist())}
        self._with_nominated: _HypotheticalCluster | None = None
        if nominated:
            placed = [(self._index[row], pod) for row, pod in nominated]
            self._with_nominated = runner.hypothetical(rows[self._nominated_rows], placed)

    def add(self, placed: Sequence[Placed]) -> None:
        """Add pods to nodes. Raises ValueError for a pod that is there."""
        self._plain.add(placed)
        if self._with_nominated is not None:
            self._with_nominated.add(self._on_nominated_rows(placed))

    def remove(self, placed: Sequence[Placed]) -> None:
        """Remove pods from nodes. Raises KeyError for a pod that is not there."""
        self._plain.remove(placed)
        if self._with_nominated is not None:
            self._with_nominated.remove(self._on_nominated_rows(placed))

    def _on_nominated_rows(self, placed: Sequence[Placed]) -> list[Placed]:
        index = self._index
        return [(index[row], pod) for row, pod in placed if row in index]

    def diagnose(self) -> FilterDiagnosis:
        """The filters' result for each row.

        A node passes only if the pod fits both with and without the pods nominated to it
        (``RunFilterPluginsWithNominatedPods`` of kube-scheduler). Raises
        :class:`~asched.framework.runtime.plugin_calls.PluginFailure`.
        """
        found = self._plain.diagnose()
        if self._with_nominated is not None:
            with_nominated = self._with_nominated.diagnose()
            rejected = np.flatnonzero(~with_nominated.passing)
            found.copy_rows(self._nominated_rows[rejected], with_nominated, rejected)
        return found


class _FilterRun:
    """Runs the filters on nodes that may change between two runs."""

    def __init__(self, runner: FilterDryRunner, nodes: Nodes, state: CycleState) -> None:
        self._runner = runner
        self._nodes = nodes
        self._state = state
        self._table = StatusTable()
        self._node_findings: FilterDiagnosis | None = None

    def diagnose(self) -> FilterDiagnosis:
        """The filters' result for each row. Raises PluginFailure."""
        nodes, runner = self._nodes, self._runner
        if self._node_findings is None:
            self._node_findings = FilterDiagnosis(nodes.size, self._table)
            self._run(runner.node_filters, self._node_findings)
        found = FilterDiagnosis(nodes.size, self._table)
        found.copy_from(self._node_findings, slice(None))
        self._run(runner.pod_filters, found)
        return found

    def _run(self, filters: Sequence[RankedFilter], found: FilterDiagnosis) -> None:
        state, pod, nodes = self._state, self._runner.pod, self._nodes
        if nodes.size == 1:
            for rank, plugin in filters:
                if rank > found.rank[0]:
                    return
                if derives(plugin, FilterPlugin):
                    status = filter_node(plugin, state, pod, nodes, 0)
                else:
                    status = filter_nodes(plugin, state, pod, nodes).status(0)
                if status is not None:
                    found.set(0, rank, status.by(plugin.name))
            return
        for rank, plugin in filters:
            found.add(rank, plugin.name, filter_nodes(plugin, state, pod, nodes))


class _HypotheticalCluster(_FilterRun):
    """Hypothetical nodes with the cycle state that belongs to them."""

    def __init__(self, runner: FilterDryRunner, nodes: HypotheticalNodes) -> None:
        super().__init__(runner, nodes, runner.state.clone() if runner.extensions else runner.state)
        self._hypothetical = nodes

    def add(self, placed: Sequence[Placed]) -> None:
        self._hypothetical.add_pods(placed)
        for plugin in self._runner.extensions:
            self._update_state(plugin, placed, added=True)

    def remove(self, placed: Sequence[Placed]) -> None:
        self._hypothetical.remove_pods(placed)
        for plugin in self._runner.extensions:
            self._update_state(plugin, placed, added=False)

    def _update_state(
        self, plugin: PreFilterExtensions, placed: Sequence[Placed], *, added: bool
    ) -> None:
        site, method = (ADD_POD, plugin.add_pod) if added else (REMOVE_POD, plugin.remove_pod)
        update = partial(method, self._state, self._runner.pod)
        for row, other in placed:
            status = checked_call(site, plugin, update, other, self._nodes.info(row))
            if not status.is_success:
                message = status.message or status.code.title
                raise error_answer(plugin.name, site.point, message)


class ReducedDryRun:
    """Nodes without some of their pods, for filters that read amounts only."""

    def __init__(self, runner: FilterDryRunner, nodes: ReducedNodes) -> None:
        self.nodes = nodes
        self._run = _FilterRun(runner, nodes, runner.state)

    def diagnose(self) -> FilterDiagnosis:
        """The filters' result for each row. Raises
        :class:`~asched.framework.runtime.plugin_calls.PluginFailure`."""
        return self._run.diagnose()
