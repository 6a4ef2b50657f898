"""One scheduling cycle: filter, score and choose for one pod, against the state as it is.

Nothing is changed here. What the attempt finds is a :class:`Screening` and a :class:`Scoring`; turning
it into a decision, with what PostFilter, Reserve and Permit add, is :mod:`asched.cycle.decide`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from asched.cycle.tie_breaker import BestNodes
from asched.cycle.row_caches import NominatedFilterCache
from asched.cycle.shape_answers import ShapeAnswers
from asched.cycle.shape_cache import ShapeCache
from asched.cycle.shape_scores import INFEASIBLE, ShapeScores
from asched.cycle.top_scores import highest
from asched.framework.cycle_state import CycleState
from asched.framework.interface import PreFilterResult
from asched.framework.nodes import BoolColumn, Int64Column, Nodes, RowArray, Verdicts
from asched.framework.pod_info import PodInfo
from asched.framework.runtime.findings import FILTER_CODES, CountedStatus, Findings
from asched.framework.runtime.plugin_calls import (
    answered_error,
    ask,
    check_status,
    filter_nodes,
    normalized,
    score_nodes,
    unusable,
)
from asched.framework.runtime.profile import Profile, Weighted
from asched.framework.status import Code, Status
from asched.framework.trial import Fit
from asched.state.cluster import ClusterState
from asched.state.node_rows import NodeRows
from asched.state.node_table import NodeTable

MIN_FEASIBLE_NODES = 100
"""A share of the nodes is never less than this many (``minFeasibleNodesToFind``)."""


class PodVerdicts(NamedTuple):
    """What a filter said to this pod alone, of every row."""

    rank: int
    plugin: str
    verdicts: Verdicts


class Screening:
    """What PreFilter and Filter found. Good until the state changes."""

    __slots__ = (
        "_counted",
        "_feasible",
        "_findings",
        "_rows",
        "_state",
        "count",
        "examined",
        "narrowed_by",
        "node_names",
        "nominated_used",
        "own",
        "passed_over",
        "rejected",
        "shared",
    )

    def __init__(self, shared: ShapeAnswers, passed_over: frozenset[str]) -> None:
        self.passed_over = passed_over
        """Names of plugins that have nothing to do for the pod and need not be gone through."""
        self._state: CycleState | None = None
        self.shared = shared
        """What all like pods are told."""
        self._counted: Sequence[CountedStatus] | None = None
        self.own: list[PodVerdicts] = []
        """What the others say."""
        self._findings: Findings | None = None
        self._feasible = shared.feasible
        self._rows: RowArray | None = None
        self.count = 0
        """How many those are."""
        self.rejected: Status | None = None
        """PreFilter's rejection of the pod as a whole: then nothing was filtered."""
        self.node_names: frozenset[str] | None = None
        """The only nodes that PreFilter left to look at, None for all."""
        self.narrowed_by: tuple[str, ...] = ()
        """The plugins that narrowed it."""
        self.examined = 0
        """Rows looked at, where a share of the nodes sufficed; 0 for all."""
        self.nominated_used = False
        """The pod's nominated node passed, so no other was looked at."""

    @property
    def state(self) -> CycleState:
        """What plugins wrote. Made when first asked for: where all is shared, few ask."""
        if self._state is None:
            state = self._state = CycleState.following(self.shared.state)
            state.unconcerned |= self.passed_over
            state.skip_filter |= self.passed_over
        return self._state

    @property
    def rows(self) -> RowArray:
        """The feasible rows, ascending."""
        if self._rows is None:
            self._rows = self._feasible.nonzero()[0]
        return self._rows

    @property
    def feasible(self) -> BoolColumn:
        """Rows on which the pod can run."""
        return self._feasible

    @feasible.setter
    def feasible(self, feasible: BoolColumn) -> None:
        self._feasible, self._rows = feasible, None

    @property
    def shares_feasible(self) -> bool:
        """Whether like pods can run on the same rows, as nothing was found for this pod alone: then
        what is worked out for all of them is good for it."""
        return self._feasible is self.shared.feasible

    @property
    def findings(self) -> Findings:
        """Who refused which row, and why. Put together when first asked for: a pod that finds a node
        does not need it."""
        if self._findings is None:
            if not self.own:
                return self.shared.findings
            self._findings = self.shared.findings.copy()
            for rank, plugin, verdicts in self.own:
                self._findings.add(rank, plugin, verdicts)
        return self._findings

    @findings.setter
    def findings(self, findings: Findings) -> None:
        self._findings, self._counted = findings, None

    def counted(self, table: NodeTable) -> Sequence[CountedStatus]:
        """What filters said of the nodes they looked at, and of how many."""
        if self.findings is self.shared.findings and self.node_names is None:
            return self.shared.counted()
        if self._counted is None:
            self._counted = [*self.findings.counted(self.looked_at(table))]
        return self._counted

    def looked_at(self, table: NodeTable) -> BoolColumn:
        """The nodes that PreFilter left to the filters."""
        if self.node_names is None:
            return table.alive
        named = np.zeros(table.size, np.bool_)
        rows = [table.row_of(name) for name in self.node_names]
        named[[row for row in rows if row is not None]] = True
        return named

    @property
    def has_errors(self) -> bool:
        """Whether a filter answered an error, about whichever row."""
        if self._findings is not None:
            return self._findings.has_errors
        if self.shared.findings.has_errors:
            return True
        for own in self.own:
            for status in own.verdicts.statuses:
                if status.code not in FILTER_CODES:
                    return True
        return False


@dataclass(slots=True)
class PluginScores:
    """One plugin's scores of the feasible nodes, in the order of :attr:`Screening.rows`."""

    plugin: str
    weight: int
    raw: Int64Column
    normalized: Int64Column


@dataclass(slots=True)
class Scoring:
    """What Score found."""

    total: Int64Column
    plugins: list[PluginScores] = field(default_factory=list)
    skipped: tuple[str, ...] = ()


class Attempt:
    """The scheduling cycle of one pod under one profile."""

    def __init__(
        self, cluster: ClusterState, profile: Profile, pod: PodInfo, cache: ShapeCache
    ) -> None:
        self._cluster = cluster
        self._profile = profile
        self._pod = pod
        self._table = cluster.nodes
        self._answers: ShapeAnswers = cache.answers(profile, pod)
        self._own = cache.concerned(profile, pod)

    # -- filtering ----------------------------------------------------------------------------

    def screen(
        self, *, nominated: str = "", share_of_nodes: bool = True, every_reason: bool = False
    ) -> Screening:
        """Run PreFilter and Filter.

        ``nominated`` is tried first and alone. ``share_of_nodes=False`` looks at all nodes whatever
        the profile says. ``every_reason`` finds out why nodes are refused even where ``nominated``
        passes, which decides without. Raises :class:`PluginFailure` for a plugin that raises, answers
        nonsense or answers Error.
        """
        if self._own.nobody and self._answers.plain:
            screening = Screening(self._answers, self._own.unconcerned)
            every_node = not nominated and not self._profile.spec.percentage_of_nodes_to_score
            if every_node and not self._cluster.nominator and not screening.has_errors:
                screening.count = self._answers.count
                return screening
        else:
            screening = Screening(self._answers, frozenset())
            self._pre_filter(screening)
            if screening.rejected is not None:
                return screening
            screening.state.skip_filter |= self._own.unconcerned
            self._filter(screening)
        if every_reason or not nominated or not self._may_take(nominated, screening):
            self._mind_nominated_pods(screening)
        self._raise_errors(screening)
        self._select(screening, nominated, share_of_nodes)
        return screening

    def _pre_filter(self, screening: Screening) -> None:
        """``RunPreFilterPlugins`` of kube-scheduler: an unresolvable rejection ends it; after an
        Unschedulable the others still prepare what preemption will need."""
        shared, profile, unconcerned = self._answers, self._profile, self._own.unconcerned
        state = screening.state
        # Where no shared answer matters there is nothing to be gone through in order.
        plugins = profile.own_pre_filter if shared.plain else profile.pre_filter
        for plugin in plugins:
            if plugin.name in unconcerned:
                state.unconcerned.add(plugin.name)
                state.skip_filter.add(plugin.name)
                continue
            result = shared.pre_filter.get(plugin.name)
            if result is None:
                result = ask(
                    PreFilterResult, plugin, "PreFilter", plugin.pre_filter, state, self._pod,
                    self._table,
                )  # fmt: skip
            status = result.status
            if type(status) is not Status:
                check_status(plugin.name, "PreFilter", status)
            if status.is_skip:
                state.skip_filter.add(plugin.name)
            elif status.is_rejection:
                screening.rejected = status.by(plugin.name)
                if status.code is not Code.UNSCHEDULABLE:
                    return
            elif not status.is_success:
                check_status(plugin.name, "PreFilter", status)
                raise answered_error(plugin.name, "PreFilter", status.message or status.code.title)
            elif result.node_names is not None:
                try:
                    _narrow(screening, plugin.name, result.node_names)
                except TypeError as error:
                    raise unusable(plugin.name, "PreFilter", error) from error
                if not screening.node_names:
                    return

    def _filter(self, screening: Screening) -> None:
        """Add what cluster-scope filters say to the shared findings of node-scope ones."""
        state = screening.state
        for rank, plugin in self._own.filter:
            if plugin.name in state.skip_filter:
                continue
            verdicts = filter_nodes(plugin, state, self._pod, self._table)
            if verdicts.statuses:
                screening.own.append(PodVerdicts(rank, plugin.name, verdicts))
                screening.feasible = np.greater(screening.feasible, verdicts.codes)

    def _may_take(self, nominated: str, screening: Screening) -> bool:
        """Whether the node that was found for the pod before has room, beside others nominated to it:
        then nothing else needs to be looked at."""
        cluster, row = self._cluster, self._table.row_of(nominated)
        if row is None or not screening.feasible[row] or self._error(screening) is not None:
            return False
        if screening.node_names is not None and nominated not in screening.node_names:
            return False
        fit = Fit(self._profile, cluster, cluster.nominator, screening.state, self._pod)
        alone = np.array([row], np.intp)
        return all(crowded.passes(0) for _, crowded in fit.crowded(alone))

    def _mind_nominated_pods(self, screening: Screening) -> None:
        """A node must also have room with the pods nominated to it there.

        As in kube-scheduler: pods of equal or higher priority nominated to the node are supposed to
        be on it; where the filters fail then, the node fails.
        """
        cluster = self._cluster
        if not cluster.nominator:
            return
        fit = Fit(self._profile, cluster, cluster.nominator, screening.state, self._pod)
        rows = cluster.nominator.rows()
        own = self._table.row_of(cluster.nominator.node_of(self._pod.key))
        shared = (
            self._answers.crowding(self._pod.priority) if fit.shareable else NominatedFilterCache()
        )
        parts = [(shared, rows)]
        if own is not None:
            # Where the pod itself is nominated, a pod like it would find itself beside it.
            parts = [(shared, rows[rows != own]), (NominatedFilterCache(), rows[rows == own])]
        findings = screening.findings
        for crowding, hosts in parts:
            refused = crowding.refused(fit, hosts, cluster.row_stamps)
            if len(refused):
                if findings is screening.findings:
                    screening.findings = findings.copy()
                    screening.feasible = screening.feasible.copy()
                screening.findings.copy_rows(refused, crowding.found, refused)
                screening.feasible[refused] = False

    def _error(self, screening: Screening) -> Status | None:
        """What fails the attempt. There may have been errors before, of which none is left."""
        if not screening.has_errors:
            return None
        return screening.findings.first_error(screening.looked_at(self._table))

    def _raise_errors(self, screening: Screening) -> None:
        status = self._error(screening)
        if status is not None:
            check_status(status.plugin, "Filter", status)
            raise answered_error(status.plugin, "Filter", status.message or status.code.title)

    def _select(self, screening: Screening, nominated: str, share_of_nodes: bool) -> None:
        feasible = screening.feasible
        if screening.node_names is not None:
            feasible = feasible & screening.looked_at(self._table)
        row = self._table.row_of(nominated) if nominated else None
        if row is not None and feasible[row]:
            feasible = np.zeros(self._table.size, np.bool_)
            feasible[row] = True
            screening.nominated_used = True
        elif share_of_nodes and self._profile.spec.percentage_of_nodes_to_score:
            feasible = self._share(screening, feasible)
        screening.feasible = feasible
        screening.count = (
            self._answers.count if screening.shares_feasible else int(np.count_nonzero(feasible))
        )

    def _share(self, screening: Screening, feasible: BoolColumn) -> BoolColumn:
        """Stop once enough feasible nodes are found, beginning where the last search ended."""
        size = self._table.size
        enough = feasible_nodes_to_find(
            self._table.cluster_size, self._profile.spec.percentage_of_nodes_to_score
        )
        order = np.roll(np.arange(size), -self._cluster.next_start_row)
        found = np.flatnonzero(feasible[order])
        screening.examined = int(found[enough - 1]) + 1 if len(found) >= enough else size
        share = np.zeros(size, np.bool_)
        share[order[found[:enough]]] = True
        return share

    # -- scoring ------------------------------------------------------------------------------

    def best(self, screening: Screening, bonus: Int64Column | None = None) -> BestNodes:
        """The nodes with the highest total score. There must be a feasible row.

        ``bonus``, by row of the table, is added to the totals.

        Raises :class:`PluginFailure` for a plugin that raises or answers nonsense.
        """
        shared = self._answers.scores(self._pod)
        as_like_pods = bonus is None and screening.shares_feasible
        if as_like_pods and self._own.nobody:
            return shared.best(self._pod)
        nodes = self._prepare_scores(screening)
        skipped = screening.state.skip_score
        scorers = [w for w in self._own.score if w.plugin.name not in skipped]
        if as_like_pods and not scorers:
            return shared.best(self._pod)
        if as_like_pods and len(scorers) == 1:
            by_class = shared.best_with(scorers[0], screening.state, self._pod)
            if by_class is not None:
                return by_class
        if not screening.shares_feasible and not shared.is_steady(self._pod):
            return self._best_among(screening, shared, nodes, bonus)
        if not scorers and bonus is None:
            return self._best_of_some(screening, shared)
        total = shared.total(self._pod)
        total = total if bonus is None else total + bonus
        return self._best_with_own(screening, nodes, scorers, total)

    def _best_among(
        self, screening: Screening, shared: ShapeScores, nodes: Nodes, bonus: Int64Column | None
    ) -> BestNodes:
        """Where the shared scores have to be normalised among just these nodes."""
        totals = self._score_rows(screening, shared, nodes).total
        if bonus is not None:
            totals = totals + bonus[screening.rows]
        return self._highest_of(screening, totals)

    def _best_of_some(self, screening: Screening, shared: ShapeScores) -> BestNodes:
        """Where the shared totals are good among just these nodes too, and nothing is added."""
        # Mostly some of the best of all nodes are among these.
        leading = shared.best(self._pod)
        mask = leading.mask & screening.feasible
        count = int(np.count_nonzero(mask))
        if count:
            return BestNodes(leading.score, mask, count)
        return highest(np.where(screening.feasible, shared.total(self._pod), INFEASIBLE))

    def _best_with_own(
        self, screening: Screening, nodes: Nodes, scorers: Sequence[Weighted], total: Int64Column
    ) -> BestNodes:
        """Where something is added to the shared totals for this pod alone."""
        every = screening.count == self._table.size
        state, totals = screening.state, total if every else total[screening.rows]
        for plugin, weight in scorers:
            raw = score_nodes(plugin, state, self._pod, nodes)
            scores = normalized(plugin, state, self._pod, raw)
            totals = totals + (scores if weight == 1 else scores * weight)
        return highest(totals) if every else self._highest_of(screening, totals)

    def _highest_of(self, screening: Screening, totals: Int64Column) -> BestNodes:
        """The best by totals of the feasible rows alone."""
        rows, among = screening.rows, highest(totals)
        mask = np.zeros(self._table.size, np.bool_)
        mask[rows[among.mask]] = True
        return BestNodes(among.score, mask, among.count)

    def score(self, screening: Screening) -> Scoring:
        """Run PreScore, Score and NormalizeScore for the feasible nodes, and keep it all.

        Raises :class:`PluginFailure` for a plugin that raises or answers nonsense.
        """
        shared = self._answers.scores(self._pod)
        return self._score_rows(screening, shared, self._prepare_scores(screening))

    def _prepare_scores(self, screening: Screening) -> Nodes:
        # Shared PreScores may have run just now: carry over what they wrote.
        state = screening.state
        state.absorb(self._answers.state)
        every = screening.count == self._table.size
        # Most plugins look at the whole table all the same, so the rows are found when asked for.
        nodes = (
            self._table if every else NodeRows(self._table, lambda: screening.rows, screening.count)
        )
        self._pre_score(state, nodes)
        return nodes

    def _score_rows(self, screening: Screening, shared: ShapeScores, nodes: Nodes) -> Scoring:
        state, rows = screening.state, screening.rows
        scoring = Scoring(np.zeros(len(rows), np.int64))
        for plugin, weight in self._profile.score:
            if plugin.name in state.skip_score:
                continue
            known = shared.raw.get(plugin.name)
            raw = score_nodes(plugin, state, self._pod, nodes) if known is None else known[rows]
            scores = normalized(plugin, state, self._pod, raw)
            scoring.total += scores * weight
            scoring.plugins.append(PluginScores(plugin.name, weight, raw, scores))
        scoring.skipped = tuple(sorted(state.skip_score))
        return scoring

    def _pre_score(self, state: CycleState, nodes: Nodes) -> None:
        state.skip_score |= self._own.unscored
        for plugin in self._own.pre_score:
            status = ask(Status, plugin, "PreScore", plugin.pre_score, state, self._pod, nodes)
            if status.code is Code.SKIP:
                state.skip_score.add(plugin.name)
            elif not status.is_success:
                check_status(plugin.name, "PreScore", status)
                raise answered_error(plugin.name, "PreScore", status.message)


def _narrow(screening: Screening, plugin: str, node_names: frozenset[str]) -> None:
    """``PreFilterResult.Merge``: only what all plugins name is looked at."""
    held = screening.node_names
    screening.node_names = node_names if held is None else held & node_names
    by = screening.narrowed_by = tuple(sorted({*screening.narrowed_by, plugin}))
    if screening.node_names:
        return
    reason = f"node(s) didn't satisfy plugin(s) [{' '.join(by)}] simultaneously"
    if len(by) == 1:
        reason = f"node(s) didn't satisfy plugin {plugin}"
    screening.rejected = Status.unresolvable(reason).by(plugin)


def feasible_nodes_to_find(nodes: int, percentage: int) -> int:
    """How many feasible nodes suffice (``numFeasibleNodesToFind`` of kube-scheduler)."""
    if nodes < MIN_FEASIBLE_NODES:
        return nodes
    return max(MIN_FEASIBLE_NODES, nodes * percentage // 100)
