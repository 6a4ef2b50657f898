"""Calls into plugins: what they raise or get wrong becomes a failure with their name on it."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

import numpy as np

from asched.framework.cycle_state import CycleState
from asched.framework.interface import (
    FilterAllPlugin,
    FilterPlugin,
    NormalizeScore,
    Plugin,
    ScoreAllPlugin,
    ScorePlugin,
)
from asched.framework.nodes import MAX_NODE_SCORE, Int64Column, Nodes, Verdicts
from asched.framework.pod_info import PodInfo
from asched.framework.status import Status

Args = ParamSpec("Args")
R = TypeVar("R")


class PluginFailure(Exception):  # noqa: N818  it is caught by name, never shown as an error class
    """A plugin raised or answered nonsense. It fails the attempt of its pod, nothing more."""

    def __init__(self, plugin: str, point: str, what: str) -> None:
        super().__init__(f"plugin {plugin} at {point}: {what}")
        self.plugin = plugin


def call(
    plugin: Plugin, point: str, method: Callable[Args, R], *args: Args.args, **kwargs: Args.kwargs
) -> R:
    """Call a plugin's method. Raises :class:`PluginFailure` for whatever it raises."""
    try:
        return method(*args, **kwargs)
    except Exception as error:
        raise PluginFailure(plugin.name, point, f"{type(error).__name__}: {error}") from error


def filter_nodes(
    plugin: FilterPlugin | FilterAllPlugin, state: CycleState, pod: PodInfo, nodes: Nodes
) -> Verdicts:
    """One filter's verdict on every row, whichever form the plugin is written in."""
    if isinstance(plugin, FilterAllPlugin):
        verdicts = call(plugin, "Filter", plugin.filter_all, state, pod, nodes)
        if len(verdicts.codes) != nodes.size:
            what = f"{len(verdicts.codes)} verdicts for {nodes.size} nodes"
            raise PluginFailure(plugin.name, "Filter", what)
        return verdicts
    codes = np.zeros(nodes.size, np.int16)
    statuses: list[Status] = []
    numbers: dict[Status, int] = {}
    for row in np.flatnonzero(nodes.alive).tolist():
        status = call(plugin, "Filter", plugin.filter, state, pod, nodes.info(row))
        if not isinstance(status, Status):
            raise PluginFailure(plugin.name, "Filter", f"answered {status!r}, not a Status")
        if not status.is_success:
            number = numbers.get(status)
            if number is None:
                statuses.append(status)
                number = numbers[status] = len(statuses)
            codes[row] = number
    return Verdicts(codes, statuses)


def filter_node(
    plugin: FilterPlugin | FilterAllPlugin, state: CycleState, pod: PodInfo, nodes: Nodes, row: int
) -> Status | None:
    """One filter's verdict on one row, None for a pass; by its form for one node if it has that."""
    if isinstance(plugin, FilterPlugin):
        status = call(plugin, "Filter", plugin.filter, state, pod, nodes.info(row))
        if not isinstance(status, Status):
            raise PluginFailure(plugin.name, "Filter", f"answered {status!r}, not a Status")
        return None if status.is_success else status
    return filter_nodes(plugin, state, pod, nodes.take(np.array([row], np.intp))).status(0)


def score_node(
    plugin: ScorePlugin | ScoreAllPlugin, state: CycleState, pod: PodInfo, nodes: Nodes, row: int
) -> int:
    """One plugin's raw score of one row; by its form for one node if it has that."""
    if isinstance(plugin, ScorePlugin):
        score = call(plugin, "Score", plugin.score, state, pod, nodes.info(row))
        if not isinstance(score, int):
            raise PluginFailure(plugin.name, "Score", f"answered {score!r}, not an integer")
        return score
    return int(score_nodes(plugin, state, pod, nodes.take(np.array([row], np.intp)))[0])


def score_nodes(
    plugin: ScorePlugin | ScoreAllPlugin, state: CycleState, pod: PodInfo, nodes: Nodes
) -> Int64Column:
    """One plugin's raw score of every row, whichever form it is written in."""
    if isinstance(plugin, ScoreAllPlugin):
        scores = call(plugin, "Score", plugin.score_all, state, pod, nodes)
        if len(scores) != nodes.size:
            what = f"{len(scores)} scores for {nodes.size} nodes"
            raise PluginFailure(plugin.name, "Score", what)
        if not np.issubdtype(scores.dtype, np.integer):
            raise PluginFailure(
                plugin.name, "Score", f"scores of type {scores.dtype}, not integers"
            )
        return scores
    scores = np.zeros(nodes.size, np.int64)
    for row in np.flatnonzero(nodes.alive).tolist():
        score = call(plugin, "Score", plugin.score, state, pod, nodes.info(row))
        if not isinstance(score, int):
            raise PluginFailure(plugin.name, "Score", f"answered {score!r}, not an integer")
        scores[row] = score
    return scores


def normalized(plugin: Plugin, state: CycleState, pod: PodInfo, scores: Int64Column) -> Int64Column:
    """Scores brought into 0 to 100 by the plugin itself, and checked to be there."""
    if isinstance(plugin, NormalizeScore):
        raw = scores
        scores = call(plugin, "NormalizeScore", plugin.normalize, state, pod, raw)
        if len(scores) != len(raw):
            what = f"{len(scores)} scores for {len(raw)} nodes"
            raise PluginFailure(plugin.name, "NormalizeScore", what)
    check_range(plugin, scores)
    return scores


def check_range(plugin: Plugin, scores: Int64Column) -> None:
    if len(scores) and not (scores.min() >= 0 and scores.max() <= MAX_NODE_SCORE):
        what = f"a score of {scores.min()} or {scores.max()} is outside 0..{MAX_NODE_SCORE}"
        raise PluginFailure(plugin.name, "Score", what)
