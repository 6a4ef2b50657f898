"""Asks one plugin, outside decisions, what it says of some nodes. Runs in the daemon and in workers."""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

import numpy as np

from asched.framework.cycle_state import CycleState
from asched.framework.interface import (
    FilterAllPlugin,
    FilterPlugin,
    Plugin,
    PreFilterPlugin,
    PreFilterResult,
    PreScorePlugin,
    ScoreAllPlugin,
    ScorePlugin,
)
from asched.framework.nodes import BoolColumn, Int64Column, Nodes
from asched.framework.pod_info import PodInfo
from asched.framework.runtime.findings import FILTER_CODES
from asched.framework.runtime.plugin_calls import (
    answered_error,
    ask,
    filter_nodes,
    normalized,
    score_nodes,
)
from asched.framework.status import Status

_MOST_ATTEMPTS = 64
"""What PreFilter prepared is kept for so many attempts; it is asked again for any before those."""


class AttemptKey(NamedTuple):
    """Which attempt a question belongs to."""

    uid: str
    attempt: int


class Rejection(NamedTuple):
    """Nodes that were refused with the same words."""

    message: str
    where: BoolColumn
    """By position in the question."""


class PluginEvaluator:
    """One plugin and what it prepared for the attempts under way."""

    def __init__(self, plugin: Plugin) -> None:
        self._plugin = plugin
        self._states: OrderedDict[AttemptKey, CycleState] = OrderedDict()

    def filter(self, attempt: AttemptKey, pod: PodInfo, nodes: Nodes) -> list[Rejection]:
        """The nodes that the plugin refuses. Raises :class:`PluginFailure`."""
        plugin, state = self._plugin, self._begin(attempt)
        result = self._pre_filter(state, pod, nodes)
        everywhere = np.ones(nodes.size, np.bool_)
        if result.status.is_rejection:
            return [Rejection(result.status.message, everywhere)]
        if plugin.name in state.skip_filter:
            return []
        refused = []
        if result.node_names is not None:
            left_out = np.array([name not in result.node_names for name in nodes.names], np.bool_)
            refused.append(Rejection(f"node(s) didn't satisfy plugin {plugin.name}", left_out))
        if isinstance(plugin, FilterPlugin | FilterAllPlugin):
            verdicts = filter_nodes(plugin, state, pod, nodes)
            for number, status in enumerate(verdicts.statuses, 1):
                where = verdicts.codes == number
                if where.any():
                    self._check(status)
                    refused.append(Rejection(status.message, where))
        return refused

    def _check(self, status: Status) -> None:
        if status.code not in FILTER_CODES:
            what = status.message or status.code.title
            raise answered_error(self._plugin.name, "Filter", what)

    def score(self, attempt: AttemptKey, pod: PodInfo, nodes: Nodes) -> Int64Column:
        """What the plugin scores the nodes with, 0 to 100. Raises :class:`PluginFailure`."""
        plugin = self._plugin
        state = self._states.get(attempt)
        if state is None:
            state = self._begin(attempt)
            self._pre_filter(state, pod, nodes)
        if isinstance(plugin, PreScorePlugin):
            status = ask(Status, plugin, "PreScore", plugin.pre_score, state, pod, nodes)
            if status.is_skip:
                return np.zeros(nodes.size, np.int64)
            if not status.is_success:
                raise answered_error(plugin.name, "PreScore", status.message)
        if not isinstance(plugin, ScorePlugin | ScoreAllPlugin):
            return np.zeros(nodes.size, np.int64)
        return normalized(plugin, state, pod, score_nodes(plugin, state, pod, nodes))

    def _begin(self, attempt: AttemptKey) -> CycleState:
        state = self._states[attempt] = CycleState()
        self._states.move_to_end(attempt)
        if len(self._states) > _MOST_ATTEMPTS:
            self._states.popitem(last=False)
        return state

    def _pre_filter(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> PreFilterResult:
        plugin = self._plugin
        if not isinstance(plugin, PreFilterPlugin):
            return PreFilterResult()
        result = ask(PreFilterResult, plugin, "PreFilter", plugin.pre_filter, state, pod, nodes)
        if result.status.is_skip:
            state.skip_filter.add(plugin.name)
        elif not result.status.is_success and not result.status.is_rejection:
            what = result.status.message or result.status.code.title
            raise answered_error(plugin.name, "PreFilter", what)
        return result
