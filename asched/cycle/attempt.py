"""One scheduling cycle for one pod: filter, score and find the best nodes, without effects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from asched.cycle.feasible_nodes import FeasibleNodes, PodFilterResult
from asched.cycle.node_selection import BestNodes, highest
from asched.cycle.nominated_filters import NominatedFilterCache
from asched.cycle.shape_cache import ShapeCache
from asched.cycle.shape_filters import ShapeFilters
from asched.cycle.shape_scores import INFEASIBLE, ShapeScores
from asched.framework.cycle_state import CycleState
from asched.framework.interface import FilterAllPlugin, FilterPlugin
from asched.framework.nodes import BoolColumn, FilterResult, Int64Column, Nodes
from asched.framework.pod_info import PodInfo
from asched.framework.runtime.dry_run import FilterDryRunner
from asched.framework.runtime.observation import OBSERVATION
from asched.framework.runtime.plugin_calls import (
    PRE_FILTER,
    PRE_SCORE,
    FilterError,
    call,
    check_status,
    checked_call,
    error_answer,
    filter_nodes,
    invalid_answer,
    normalized,
    score_nodes,
)
from asched.framework.runtime.profile import Profile, WeightedScorer
from asched.framework.status import Code, Status
from asched.state.cluster import ClusterState
from asched.state.node_rows import NodeRows

MIN_FEASIBLE_NODES = 100
"""``minFeasibleNodesToFind``: ``percentageOfNodesToScore`` never limits to fewer nodes."""


@dataclass(slots=True)
class PluginScores:
    """One plugin's scores of the feasible nodes, in the order of :attr:`FeasibleNodes.rows`."""

    plugin: str
    weight: int
    raw: Int64Column
    normalized: Int64Column


@dataclass(slots=True)
class NodeScores:
    """The scores of all feasible nodes."""

    total: Int64Column
    plugins: list[PluginScores] = field(default_factory=list)
    skipped: tuple[str, ...] = ()


class Attempt:
    """The scheduling cycle of one pod under one profile."""

    def __init__(
        self,
        cluster: ClusterState,
        profile: Profile,
        pod: PodInfo,
        cache: ShapeCache,
        within: BoolColumn | None = None,
    ) -> None:
        """``within``: by row, the only nodes to consider; None for all."""
        self._within = within
        self._cluster = cluster
        self._profile = profile
        self._pod = pod
        self._table = cluster.nodes
        self._cache = cache
        self._applicable = cache.plugins(profile, pod)

    # -- filtering ----------------------------------------------------------------------------

    def find_feasible_nodes(
        self, *, nominated: str = "", limit_nodes: bool = True, all_reasons: bool = False
    ) -> FeasibleNodes:
        """Run PreFilter and Filter.

        ``nominated`` is tried first; if it passes, it is the only feasible node.
        ``limit_nodes=False`` ignores ``percentageOfNodesToScore``. ``all_reasons`` determines why
        other nodes are rejected even if ``nominated`` passes. Raises :class:`PluginFailure` for a
        plugin that raises, returns an invalid answer or returns Error.
        """
        limited = limit_nodes and self._profile.spec.percentage_of_nodes_to_score
        every_node = not nominated and not limited and self._within is None
        unrestricted = every_node and not self._cluster.nominator
        if unrestricted and (common := self._feasible_by_common_answer()) is not None:
            return common
        shared = self._cache.filters(self._profile, self._pod)
        found = FeasibleNodes(shared, self._applicable.inapplicable, self._within)
        shared_only = self._applicable.none_applies and shared.pre_filter.passes
        if unrestricted and shared_only and not found.has_errors:
            found.count = shared.count
            return found
        if not shared_only:
            found = FeasibleNodes(shared, frozenset(), self._within)
            self._pre_filter(found)
            if found.rejected is not None:
                return found
            found.state.skip_filter |= self._applicable.inapplicable
            self._filter(found)
        if all_reasons or not nominated or not self._nominated_node_passes(nominated, found):
            self._filter_with_nominated_pods(found)
        error = self._error(found)
        if error is not None:
            check_status(error.plugin, "Filter", error)
            raise FilterError(error, found)
        self._select(found, nominated, limit_nodes)
        return found

    def _feasible_by_common_answer(self) -> FeasibleNodes | None:
        """The feasible nodes by the common answer of the only plugin that is not shared; None if
        it has none, no node is feasible, or its calls have to be made for another reason."""
        plugin, rank = self._applicable.only_scorer, self._applicable.only_filter_rank
        if plugin is None or OBSERVATION.calls is not None:
            return None  # observed calls are measured
        answer = call(plugin, "PreFilter", plugin.common_answer, self._pod)
        if answer is None:
            return None
        rejections, own = answer.rejections, None
        shared: ShapeFilters | None = None
        if rejections is not None and rank is not None:
            shared = self._cache.common_filters(
                self._profile, self._pod, rank, plugin.name, rejections
            )
        if shared is None and (rejections is None or answer.classes is None):
            shared = self._cache.filters(self._profile, self._pod)
            if rejections is not None:
                if rank is None or not shared.was_steady:
                    return None
                # The shared scores are valid for the nodes that are left.
                own = PodFilterResult(rank, plugin.name, rejections)
        if shared is None or not shared.count or not shared.pre_filter.passes:
            return None
        found = FeasibleNodes(shared, self._applicable.inapplicable)
        found.common, found.common_by, found.count = answer, plugin.name, shared.count
        if own is not None:
            found.own.append(own)
            found.feasible = shared.feasible & answer.passing
            found.count = int(np.count_nonzero(found.feasible))
        return None if found.has_errors or not found.count else found

    def _pre_filter(self, found: FeasibleNodes) -> None:
        """``RunPreFilterPlugins`` of kube-scheduler: an unresolvable rejection ends it; after an
        Unschedulable the others still prepare what preemption needs."""
        shared, profile, inapplicable = (
            found.shared.pre_filter,
            self._profile,
            self._applicable.inapplicable,
        )
        state = found.state
        if shared.passes and self._applicable_pre_filters_pass(found):
            state.inapplicable |= self._applicable.inapplicable_pre_filters
            state.skip_filter |= self._applicable.inapplicable_pre_filters
            return
        # If no shared answer matters, the order of the shared plugins does not either.
        plugins = profile.cluster_scope.pre_filter if shared.passes else profile.pre_filter
        for plugin in plugins:
            if plugin.name in inapplicable:
                state.inapplicable.add(plugin.name)
                state.skip_filter.add(plugin.name)
                continue
            result = shared.results.get(plugin.name)
            if result is None:
                result = checked_call(
                    PRE_FILTER, plugin, plugin.pre_filter, state, self._pod, self._table
                )
            status = result.status
            if type(status) is not Status:
                check_status(plugin.name, "PreFilter", status)
            if status.is_skip:
                state.skip_filter.add(plugin.name)
            elif status.is_rejection:
                found.rejected = status.by(plugin.name)
                if status.code is not Code.UNSCHEDULABLE:
                    return
            elif not status.is_success:
                check_status(plugin.name, "PreFilter", status)
                raise error_answer(plugin.name, "PreFilter", status.message or status.code.title)
            elif result.node_names is not None:
                try:
                    found.restrict(plugin.name, result.node_names)
                except TypeError as error:
                    raise invalid_answer(plugin.name, "PreFilter", error) from error
                if not found.node_names:
                    return

    def _applicable_pre_filters_pass(self, found: FeasibleNodes) -> bool:
        """Run PreFilter of the plugins that apply; False if all have to run in their order, because
        one of them rejects the pod or restricts its nodes."""
        state = found.state
        for plugin in self._applicable.pre_filter:
            result = checked_call(
                PRE_FILTER, plugin, plugin.pre_filter, state, self._pod, self._table
            )
            status = result.status
            if type(status) is not Status or result.node_names is not None:
                return False
            if status.code is Code.SKIP:
                state.skip_filter.add(plugin.name)
            elif status.code is not Code.SUCCESS:
                return False
        return True

    def _filter(self, found: FeasibleNodes) -> None:
        """Add the results of cluster-scope filters to the shared results of node-scope filters."""
        state = found.state
        for rank, plugin in self._applicable.filter:
            if plugin.name in state.skip_filter:
                continue
            if plugin.filters_passing_nodes:
                result = self._filter_passing(rank, plugin, found)
            else:
                result = filter_nodes(plugin, state, self._pod, self._table)
            if result.statuses:
                found.own.append(PodFilterResult(rank, plugin.name, result))
                found.feasible = np.greater(found.feasible, result.codes)

    def _filter_passing(
        self, rank: int, plugin: FilterPlugin | FilterAllPlugin, found: FeasibleNodes
    ) -> FilterResult:
        """The result of one filter for the nodes that no earlier filter rejects."""
        passing = found.considered(self._table) & (found.shared.findings.rank > rank)
        for own in found.own:
            passing &= own.result.codes == 0
        if passing.all():
            return filter_nodes(plugin, found.state, self._pod, self._table)
        rows = np.flatnonzero(passing)
        codes = np.zeros(self._table.size, np.int32)
        if not len(rows):
            return FilterResult(codes, ())
        result = filter_nodes(plugin, found.state, self._pod, self._table.take(rows))
        codes[rows] = result.codes
        return FilterResult(codes, result.statuses)

    def _dry_runner(self, found: FeasibleNodes) -> FilterDryRunner:
        cluster = self._cluster
        return FilterDryRunner(self._profile, cluster, cluster.nominator, found.state, self._pod)

    def _nominated_node_passes(self, nominated: str, found: FeasibleNodes) -> bool:
        """Whether the pod fits on its nominated node together with other pods nominated there."""
        row = self._table.row_of(nominated)
        if row is None or not found.feasible[row] or self._error(found) is not None:
            return False
        if found.node_names is not None and nominated not in found.node_names:
            return False
        if self._within is not None and not self._within[row]:
            return False
        rows = np.array([row], np.intp)
        return all(result.passes(0) for _, result in self._dry_runner(found).with_nominated(rows))

    def _filter_with_nominated_pods(self, found: FeasibleNodes) -> None:
        """Reject nodes that fail the filters once the pods nominated to them are added.

        As in kube-scheduler, only nominated pods of equal or higher priority count.
        """
        nominator = self._cluster.nominator
        if not nominator:
            return
        rows = nominator.rows()
        own = self._table.row_of(nominator.node_of(self._pod.key))
        priority = self._pod.priority
        shareable = self._shares_nominated(found)
        shared = found.shared.nominated(priority) if shareable else NominatedFilterCache()
        dry_runner, stamps = partial(self._dry_runner, found), self._cluster.row_stamps
        if own is None:
            found.reject_nominated(shared.rejected(dry_runner, rows, stamps), shared)
            return
        # On the pod's own nominated node, the result of another pod of the shape includes this pod.
        parts = [(shared, rows[rows != own]), (NominatedFilterCache(), rows[rows == own])]
        for cache, hosts in parts:
            found.reject(cache.rejected(dry_runner, hosts, stamps), cache.found)

    def _shares_nominated(self, found: FeasibleNodes) -> bool:
        """Whether pods of the same shape and priority share results with nominated pods."""
        if self._pod.pod.spec.node_name:
            return False
        shared = found.shared
        if not (self._applicable.none_applies and shared.pre_filter.passes):
            return self._dry_runner(found).reads_only_own_row
        if shared.reads_only_own_row is None:
            shared.reads_only_own_row = self._dry_runner(found).reads_only_own_row
        return shared.reads_only_own_row

    def _error(self, found: FeasibleNodes) -> Status | None:
        """The error that fails the attempt. ``has_errors`` may refer to an error that no row has
        now."""
        if not found.has_errors:
            return None
        return found.findings.first_error(found.considered(self._table))

    def _select(self, found: FeasibleNodes, nominated: str, limit_nodes: bool) -> None:
        feasible = found.feasible
        if found.node_names is not None or found.within is not None:
            feasible = feasible & found.considered(self._table)
        row = self._table.row_of(nominated) if nominated else None
        if row is not None and feasible[row]:
            feasible = np.zeros(self._table.size, np.bool_)
            feasible[row] = True
            found.nominated_used = True
        elif limit_nodes and self._profile.spec.percentage_of_nodes_to_score:
            feasible = self._first_feasible(found, feasible)
        found.feasible = feasible
        if found.shares_feasible:
            found.count = found.shared.count
        elif found.nominated is not None:
            found.count = found.nominated.count
        else:
            found.count = int(np.count_nonzero(feasible))

    def _first_feasible(self, found: FeasibleNodes, feasible: BoolColumn) -> BoolColumn:
        """Enough feasible nodes for ``percentageOfNodesToScore``, from where the last search
        ended."""
        size = self._table.size
        enough = feasible_nodes_to_find(
            self._table.cluster_size, self._profile.spec.percentage_of_nodes_to_score
        )
        order = np.roll(np.arange(size), -self._cluster.engine.next_start_row)
        hits = np.flatnonzero(feasible[order])
        found.evaluated = int(hits[enough - 1]) + 1 if len(hits) >= enough else size
        first = np.zeros(size, np.bool_)
        first[order[hits[:enough]]] = True
        return first

    # -- scoring ------------------------------------------------------------------------------

    def best(self, found: FeasibleNodes, extender_scores: Int64Column | None = None) -> BestNodes:
        """The nodes with the highest total score. There must be a feasible row.

        ``extender_scores``, by row of the table, is added to the totals. Raises
        :class:`PluginFailure` for a plugin that raises or returns an invalid answer.
        """
        shared = found.shared.scores(self._pod)
        all_shared = extender_scores is None and found.shares_feasible
        if self._applicable.none_applies and extender_scores is None:
            if all_shared:
                return shared.best(self._pod)
            if shared.is_steady(self._pod):
                return self._best_of_shared(found, shared)
        if found.common is not None and extender_scores is None:
            if all_shared:
                kept = shared.kept_best(self._pod, found.common)
                if kept is not None:
                    return kept
            elif found.common.classes is None and shared.is_steady(self._pod):
                return self._best_of_shared(found, shared)
        nodes = self._prepare_scores(found)
        skipped = found.state.skip_score
        scorers = [w for w in self._applicable.score if w.plugin.name not in skipped]
        if all_shared and not scorers:
            return shared.best(self._pod)
        if all_shared and len(scorers) == 1:
            by_class = shared.best_with(scorers[0], found.state, self._pod)
            if by_class is not None:
                return by_class
        if not found.shares_feasible and not shared.is_steady(self._pod):
            # The shared scores have to be normalized over just these nodes.
            totals = self._score_rows(found, shared, nodes).total
            return self._highest(
                found, totals if extender_scores is None else totals + extender_scores[found.rows]
            )
        if not scorers and extender_scores is None:
            return self._best_of_shared(found, shared)
        total = shared.total(self._pod)
        total = total if extender_scores is None else total + extender_scores
        return self._best_with_own(found, nodes, scorers, total)

    def _best_of_shared(self, found: FeasibleNodes, shared: ShapeScores) -> BestNodes:
        """The best by the shared totals, which are valid for any subset of the nodes."""
        if found.nominated is not None:
            return found.nominated.best(shared.top(self._pod))
        # Usually some of the best of all nodes are feasible.
        best = shared.best(self._pod)
        mask = best.mask & found.feasible
        count = int(np.count_nonzero(mask))
        if count:
            return BestNodes(best.score, mask, count)
        return highest(np.where(found.feasible, shared.total(self._pod), INFEASIBLE))

    def _best_with_own(
        self,
        found: FeasibleNodes,
        nodes: Nodes,
        scorers: Sequence[WeightedScorer],
        total: Int64Column,
    ) -> BestNodes:
        """The best by the shared totals and the scores of plugins that are not shared."""
        every = found.count == self._table.size
        state, totals = found.state, total if every else total[found.rows]
        for plugin, weight in scorers:
            raw = score_nodes(plugin, state, self._pod, nodes)
            scores = normalized(plugin, state, self._pod, raw)
            totals = totals + (scores if weight == 1 else scores * weight)
        return highest(totals) if every else self._highest(found, totals)

    def _highest(self, found: FeasibleNodes, totals: Int64Column) -> BestNodes:
        """The best by totals of the feasible rows alone."""
        rows, among = found.rows, highest(totals)
        mask = np.zeros(self._table.size, np.bool_)
        mask[rows[among.mask]] = True
        return BestNodes(among.score, mask, among.count)

    def score(self, found: FeasibleNodes) -> NodeScores:
        """Run PreScore, Score and NormalizeScore for the feasible nodes, and keep each plugin's
        scores.

        Raises :class:`PluginFailure` for a plugin that raises or returns an invalid answer.
        """
        shared = found.shared.scores(self._pod)
        return self._score_rows(found, shared, self._prepare_scores(found))

    def _prepare_scores(self, found: FeasibleNodes) -> Nodes:
        # Shared PreScores may have run just now: copy what they wrote.
        state = found.state
        state.add_missing(found.shared.pre_filter.state)
        every = found.count == self._table.size
        # Most plugins read the whole table anyway, so the rows are determined on first access.
        nodes = self._table if every else NodeRows(self._table, lambda: found.rows, found.count)
        self._pre_score(state, nodes)
        return nodes

    def _score_rows(self, found: FeasibleNodes, shared: ShapeScores, nodes: Nodes) -> NodeScores:
        state, rows = found.state, found.rows
        scores = NodeScores(np.zeros(len(rows), np.int64))
        for plugin, weight in self._profile.score:
            if plugin.name in state.skip_score:
                continue
            known = shared.raw.get(plugin.name)
            raw = score_nodes(plugin, state, self._pod, nodes) if known is None else known[rows]
            final = normalized(plugin, state, self._pod, raw)
            scores.total += final * weight
            scores.plugins.append(PluginScores(plugin.name, weight, raw, final))
        scores.skipped = tuple(sorted(state.skip_score))
        return scores

    def _pre_score(self, state: CycleState, nodes: Nodes) -> None:
        state.skip_score |= self._applicable.inapplicable_scores
        for plugin in self._applicable.pre_score:
            status = checked_call(PRE_SCORE, plugin, plugin.pre_score, state, self._pod, nodes)
            if status.code is Code.SKIP:
                state.skip_score.add(plugin.name)
            elif not status.is_success:
                check_status(plugin.name, "PreScore", status)
                raise error_answer(plugin.name, "PreScore", status.message)


def feasible_nodes_to_find(nodes: int, percentage: int) -> int:
    """How many feasible nodes suffice (``numFeasibleNodesToFind`` of kube-scheduler)."""
    if nodes < MIN_FEASIBLE_NODES:
        return nodes
    return max(MIN_FEASIBLE_NODES, nodes * percentage // 100)
