"""Answers shared by like pods.

Most pods are copies of one another. What *node-scope* plugins say of a pod depends on its shape and
on each node's own row, so it is computed once per shape for all rows and afterwards only for rows
that changed (usually one: the node of the placement before). What is cached here is memory, not
state: dropping all of it changes no decision.
"""

from __future__ import annotations

from collections import OrderedDict

import numpy as np

from asched.cycle.findings import Findings
from asched.cycle.plugin_calls import call, check_range, filter_nodes, score_nodes
from asched.framework.cycle_state import CycleState
from asched.framework.interface import (
    FilterAllPlugin,
    FilterPlugin,
    NormalizeScore,
    PreFilterResult,
    Scope,
    ScoreAllPlugin,
    ScorePlugin,
)
from asched.framework.nodes import BoolColumn, Int64Column, RowArray
from asched.framework.pod_info import PodInfo, PodShape
from asched.framework.profile import Profile, Weighted
from asched.framework.status import Code, Status
from asched.state.node_table import NodeTable

_MOST_SHAPES = 128
_PATCH_SHARE = 4
"""Patch row by row while less than one row in this many changed; beyond, computing all is cheaper."""


class ShapeAnswers:
    """What the node-scope plugins of one profile say of one shape."""

    def __init__(self, profile: Profile, pod: PodInfo, table: NodeTable) -> None:
        self._profile = profile
        self._table = table
        self.state = CycleState()
        """What node-scope PreFilters and PreScores wrote; the start of every attempt's state."""
        self.pre_filter: dict[str, PreFilterResult] = {}
        self.pre_score: dict[str, Status] = {}
        self.findings = Findings(0)
        self.raw: dict[str, Int64Column] = {}
        """Raw scores by plugin, for all rows."""
        self.version = 0
        """Changes when feasibility or a score that is normalised changed anywhere."""
        self._layout = -1
        self._cursor = -1
        self._filters: list[tuple[int, FilterPlugin | FilterAllPlugin]] = []
        self._scores: list[Weighted] = []
        self._scored = False
        self._run_pre_filters(pod)

    def _run_pre_filters(self, pod: PodInfo) -> None:
        for plugin in self._profile.pre_filter:
            if plugin.scope is not Scope.NODE:
                continue
            result = call(plugin, "PreFilter", plugin.pre_filter, self.state, pod, self._table)
            self.pre_filter[plugin.name] = result
            if result.status.is_skip:
                self.state.skip_filter.add(plugin.name)
        self._filters = [
            (rank, plugin)
            for rank, plugin in enumerate(self._profile.filter)
            if plugin.scope is Scope.NODE and plugin.name not in self.state.skip_filter
        ]

    def refresh(self, pod: PodInfo) -> None:
        """Bring the filters' findings (and scores, once asked for) up to the table's last change."""
        table = self._table
        rows: list[int] | None = None
        if self._layout == table.layout:
            rows = table.changed_since(self._cursor)
        if rows is None or len(rows) * _PATCH_SHARE > max(table.size, 64):
            self._compute_all(pod)
        elif rows:
            self._patch(pod, np.array(rows, np.intp))
        self._layout, self._cursor = table.layout, table.cursor

    def ensure_scores(self, pod: PodInfo) -> None:
        """Compute raw scores of all rows; from then on :meth:`refresh` keeps them up to date."""
        if self._scored:
            return
        for plugin in self._profile.pre_score:
            if plugin.scope is not Scope.NODE:
                continue
            status = call(plugin, "PreScore", plugin.pre_score, self.state, pod, self._table)
            self.pre_score[plugin.name] = status
            if status.code is Code.SKIP:
                self.state.skip_score.add(plugin.name)
        self._scores = [
            weighted
            for weighted in self._profile.score
            if weighted.plugin.scope is Scope.NODE
            and weighted.plugin.name not in self.state.skip_score
        ]
        self._scored = True
        self._score_all(pod)

    def _compute_all(self, pod: PodInfo) -> None:
        table = self._table
        self.findings = Findings(table.size)
        for rank, plugin in self._filters:
            self.findings.add(rank, plugin.name, filter_nodes(plugin, self.state, pod, table))
        self.version += 1
        if self._scored:
            self._score_all(pod)

    def _score_all(self, pod: PodInfo) -> None:
        for plugin, _ in self._scores:
            scores = score_nodes(plugin, self.state, pod, self._table)
            self._check(plugin, scores, self.findings.passing)
            # A copy: rows are patched in place, and what a plugin returned may be its own.
            self.raw[plugin.name] = scores.astype(np.int64)
        self.version += 1

    def _patch(self, pod: PodInfo, rows: RowArray) -> None:
        nodes = self._table.take(rows)
        findings = self.findings
        before = findings.passing[rows]
        findings.clear(rows)
        for rank, plugin in self._filters:
            findings.add(rank, plugin.name, filter_nodes(plugin, self.state, pod, nodes), rows)
        passing = findings.passing[rows]
        changed = bool((passing != before).any())
        for scorer, _ in self._scores:
            scores = score_nodes(scorer, self.state, pod, nodes)
            self._check(scorer, scores, passing)
            raw = self.raw[scorer.name]
            if isinstance(scorer, NormalizeScore) and bool((raw[rows] != scores).any()):
                changed = True
            raw[rows] = scores
        if changed:
            self.version += 1

    @staticmethod
    def _check(
        plugin: ScorePlugin | ScoreAllPlugin, scores: Int64Column, passing: BoolColumn
    ) -> None:
        """Scores that nobody normalises must be in range already, where the pod could go."""
        if not isinstance(plugin, NormalizeScore):
            check_range(plugin, scores[passing])


class ShapeCache:
    """The answers for the shapes seen most recently, per profile."""

    def __init__(self, table: NodeTable) -> None:
        self._table = table
        self._answers: OrderedDict[tuple[int, PodShape], ShapeAnswers] = OrderedDict()
        self._profiles: dict[int, Profile] = {}

    def answers(self, profile: Profile, pod: PodInfo) -> ShapeAnswers:
        """Up-to-date answers for the pod's shape. Raises :class:`PluginFailure`."""
        if pod.pod.spec.node_name:
            # A demand for one node is not part of the shape, so it is not shared.
            answers = ShapeAnswers(profile, pod, self._table)
            answers.refresh(pod)
            return answers
        key = (id(profile), pod.shape)
        known = self._answers.get(key)
        if known is None:
            known = ShapeAnswers(profile, pod, self._table)
            known.refresh(pod)
            # Kept only once complete: a plugin that failed is asked again next time. The profile
            # is held so that its id stays its own.
            self._profiles[id(profile)] = profile
            self._answers[key] = known
            if len(self._answers) > _MOST_SHAPES:
                self._answers.popitem(last=False)
            return known
        self._answers.move_to_end(key)
        try:
            known.refresh(pod)
        except Exception:
            del self._answers[key]
            raise
        return known

    def clear(self) -> None:
        self._answers.clear()
        self._profiles.clear()
