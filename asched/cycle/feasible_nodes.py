"""What PreFilter and Filter found for one pod, and the text that reports it if no node is
feasible."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from asched.cycle.nominated_filters import NominatedFilterCache
from asched.cycle.shape_filters import ShapeFilters
from asched.framework.cycle_state import CycleState
from asched.framework.devices import LONG_SEARCH
from asched.framework.nodes import BoolColumn, FilterResult, RowArray
from asched.framework.runtime.diagnosis import (
    FILTER_CODES,
    CountedStatus,
    FilterDiagnosis,
    histogram,
)
from asched.framework.runtime.dry_run import SEARCH_STEPS
from asched.framework.scoring import CommonAnswer
from asched.framework.status import Status
from asched.state.attempt_budget import FREE_STEPS
from asched.state.cluster import ClusterState
from asched.state.node_table import NodeTable

NO_NODES = "no nodes available to schedule pods"


class PodFilterResult(NamedTuple):
    """One filter's result for this pod, for every row."""

    rank: int
    plugin: str
    result: FilterResult


class FeasibleNodes:
    """The feasible nodes and the reasons of the others. Valid until the state changes."""

    common: CommonAnswer | None = None
    """Of the plugin :attr:`common_by`, which is the only one that is not shared. Its rejections are
    in ``shared`` or :attr:`own`."""
    common_by = ""

    def __init__(
        self, shared: ShapeFilters, skipped: frozenset[str], within: BoolColumn | None = None
    ) -> None:
        """``within``: by row, the nodes of a placement; None for all nodes."""
        self.within = within
        self.shared = shared
        """The part that pods of the same shape share."""
        self.skipped = skipped
        """Plugins that need not run for this pod."""
        self.own: list[PodFilterResult] = []
        """Results of the filters that are not shared."""
        self._rejected: list[tuple[RowArray, FilterDiagnosis]] = []
        self._state: CycleState | None = None
        self._counted: Sequence[CountedStatus] | None = None
        self._findings: FilterDiagnosis | None = None
        self._feasible = shared.feasible
        self._rows: RowArray | None = None
        self._nominated: NominatedFilterCache | None = None
        self.count = 0
        """Number of feasible nodes."""
        self.rejected: Status | None = None
        """The PreFilter status that rejected the pod; filters did not run."""
        self.node_names: frozenset[str] | None = None
        """``PreFilterResult.NodeNames``: the only nodes to consider; None for all."""
        self.restricted_by: tuple[str, ...] = ()
        """The plugins that set :attr:`node_names`."""
        self.evaluated = 0
        """Rows evaluated until enough feasible nodes were found; 0 for all."""
        self.nominated_used = False
        """The nominated node passed, so it is the only feasible node."""

    @property
    def state(self) -> CycleState:
        """What plugins wrote. Created on first access: if all answers are shared, it is rarely
        needed."""
        if self._state is None:
            state = self._state = self.shared.pre_filter.state.shallow_copy()
            state.inapplicable |= self.skipped
            state.skip_filter |= self.skipped
            if self.common_by:
                state.skip_filter.add(self.common_by)
        return self._state

    @property
    def long_search(self) -> int:
        """The steps of a long search for devices; 0 if there was none."""
        return 0 if self._state is None else self._state.get(LONG_SEARCH) or 0

    @property
    def search_steps(self) -> int:
        """The steps of the search for victims, if it took long; 0 if not."""
        steps = 0 if self._state is None else self._state.get(SEARCH_STEPS) or 0
        return steps if steps > FREE_STEPS else 0

    @property
    def rows(self) -> RowArray:
        """The feasible rows, ascending."""
        if self._rows is None:
            self._rows = self._feasible.nonzero()[0]
        return self._rows

    @property
    def feasible(self) -> BoolColumn:
        """By row: whether the node is feasible."""
        return self._feasible

    @feasible.setter
    def feasible(self, feasible: BoolColumn) -> None:
        self._feasible, self._rows = feasible, None

    @property
    def shares_feasible(self) -> bool:
        """Whether the feasible rows are those of every pod of the shape, so shared scores are
        valid."""
        return self._feasible is self.shared.feasible

    @property
    def nominated(self) -> NominatedFilterCache | None:
        """What has the feasible rows of every pod of the shape and priority, because nominated pods
        alone reject others; None if the rows may differ."""
        cache = self._nominated
        return cache if cache is not None and self._feasible is cache.feasible else None

    @property
    def findings(self) -> FilterDiagnosis:
        """Which filter rejected each row, and why. Built on first access: an assigned pod needs
        none."""
        if self._findings is None:
            if not self.own and not self._rejected:
                return self.shared.findings
            self._findings = self.shared.findings.copy()
            for rank, plugin, result in self.own:
                self._findings.add(rank, plugin, result)
            for rows, reasons in self._rejected:
                self._findings.copy_rows(rows, reasons, rows)
        return self._findings

    @findings.setter
    def findings(self, findings: FilterDiagnosis) -> None:
        self._findings, self._counted = findings, None

    def reject(self, rows: RowArray, reasons: FilterDiagnosis) -> None:
        """Reject rows for the reasons that ``reasons`` has for them, whatever was found before.
        ``reasons`` must not change while this object is in use."""
        if not len(rows):
            return
        if self._feasible[rows].any():
            feasible = self._feasible.copy()
            feasible[rows] = False
            self.feasible = feasible
        self._rejected.append((rows, reasons))
        self._findings = self._counted = None

    def reject_nominated(self, rows: RowArray, cache: NominatedFilterCache) -> None:
        """:meth:`reject` rows that ``cache`` found just now for every pod of the shape and
        priority."""
        if not self.shares_feasible:
            self.reject(rows, cache.found)
        elif len(rows):
            self._nominated = cache
            self.feasible = cache.without_rejected(self._feasible, self.shared.feasible_version)
            self._rejected.append((rows, cache.found))
            self._findings = self._counted = None

    def counted(self, table: NodeTable) -> Sequence[CountedStatus]:
        """The distinct filter statuses, and how many nodes have each."""
        if (
            self.findings is self.shared.findings
            and self.node_names is None
            and self.within is None
        ):
            return self.shared.counted()
        if self._counted is None:
            self._counted = [*self.findings.counted(self.considered(table))]
        return self._counted

    def considered(self, table: NodeTable) -> BoolColumn:
        """By row: whether the placement and PreFilter left the node to the filters."""
        if self.node_names is None:
            return table.alive if self.within is None else self.within
        named = np.zeros(table.size, np.bool_)
        rows = [table.row_of(name) for name in self.node_names]
        named[[row for row in rows if row is not None]] = True
        return named if self.within is None else named & self.within

    def node_count(self, table: NodeTable) -> int:
        """How many nodes the attempt is about."""
        return table.cluster_size if self.within is None else int(np.count_nonzero(self.within))

    @property
    def has_errors(self) -> bool:
        """Whether a filter returned an error for any row."""
        if self._findings is not None:
            return self._findings.has_errors
        if self.shared.findings.has_errors:
            return True
        if any(reasons.has_errors for _, reasons in self._rejected):
            return True
        for own in self.own:
            for status in own.result.statuses:
                if status.code not in FILTER_CODES:
                    return True
        return False

    def restrict(self, plugin: str, node_names: frozenset[str]) -> None:
        """Consider only nodes that all plugins name (``PreFilterResult.Merge``)."""
        names = self.node_names
        self.node_names = node_names if names is None else names & node_names
        by = self.restricted_by = tuple(sorted({*self.restricted_by, plugin}))
        if self.node_names:
            return
        reason = f"node(s) didn't satisfy plugin(s) [{' '.join(by)}] simultaneously"
        if len(by) == 1:
            reason = f"node(s) didn't satisfy plugin {plugin}"
        self.rejected = Status.unresolvable(reason).by(plugin)

    @property
    def restricted_status(self) -> Status:
        """The status of nodes that PreFilter excluded."""
        by = " ".join(self.restricted_by)
        return Status.unresolvable(f"node(s) didn't satisfy plugin(s) [{by}]")


def fit_message(cluster: ClusterState, result: FeasibleNodes, post_filter: str) -> str:
    """The pod condition's message if no node is feasible (``FitError.Error`` of kube-scheduler)."""
    text = f"0/{result.node_count(cluster.nodes)} nodes are available:"
    if result.rejected is not None:
        text += f" {result.rejected.message}."
    else:
        reasons = _reasons(cluster.nodes, result)
        if reasons:
            text += f" {reasons}."
    return f"{text} {post_filter}" if post_filter else text


def _reasons(table: NodeTable, result: FeasibleNodes) -> str:
    counted = [(status.reasons, number) for status, number in result.counted(table)]
    if result.node_names is not None:
        excluded = result.node_count(table) - int(np.count_nonzero(result.considered(table)))
        if excluded:
            counted.append((result.restricted_status.reasons, excluded))
    return histogram(counted)
