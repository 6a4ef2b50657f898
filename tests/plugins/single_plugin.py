"""Runs the filter or score of a single plugin as the framework does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from asched.framework.cycle_state import CycleState
from asched.framework.interface import (
    FilterAllPlugin,
    FilterPlugin,
    NormalizeScore,
    Plugin,
    PreFilterPlugin,
    PreFilterResult,
    PreScorePlugin,
    ScoreAllPlugin,
    ScorePlugin,
)
from asched.framework.nodes import Nodes
from asched.framework.pod_info import PodInfo
from asched.framework.runtime.profile import parse_arguments
from asched.framework.status import SUCCESS, Status
from asched.model.node import Node
from asched.model.pod import Pod
from asched.state.cluster import ClusterState, ProfileHandle
from asched.state.node_table import NodeTable

P = TypeVar("P", bound=Plugin)


def build(plugin: type[P], arguments: Mapping[str, Any] | None = None) -> P:
    """The plugin with these arguments. Raises ValueError for invalid ones."""
    return plugin(
        parse_arguments(plugin, dict(arguments or {})),
        ProfileHandle(ClusterState(), "default-scheduler"),
    )


def table_of(nodes: Sequence[Node], pods: Sequence[Pod] = ()) -> NodeTable:
    """The node table of a cluster, without unassigned and finished pods."""
    table = NodeTable()
    for node in nodes:
        table.set_node(node)
    for pod in pods:
        if pod.node_name and not pod.terminal:
            table.add_pod(pod.node_name, PodInfo(pod))
    return table


def rows_of(table: NodeTable, names: Sequence[str]) -> Nodes:
    """Some nodes by name, in this order."""
    return table.take(np.array([table.row_of(name) for name in names], np.intp))


def pre_filter(plugin: Plugin, state: CycleState, pod: PodInfo, nodes: Nodes) -> PreFilterResult:
    """The PreFilter result; success for a plugin without PreFilter."""
    if isinstance(plugin, PreFilterPlugin):
        return plugin.pre_filter(state, pod, nodes)
    return PreFilterResult()


def rejections(plugin: FilterAllPlugin, pod: PodInfo, nodes: Nodes) -> dict[str, Status]:
    """The status of every node that the plugin rejects, after PreFilter."""
    state = CycleState()
    if not pre_filter(plugin, state, pod, nodes).status.is_success:
        return {}
    result = plugin.filter_all(state, pod, nodes)
    assert len(result.codes) == nodes.size
    assert result.codes.dtype == np.int16
    found = {name: result.status(row) for row, name in enumerate(nodes.names) if name}
    if isinstance(plugin, FilterPlugin):
        for row, name in enumerate(nodes.names):
            if name:
                one = plugin.filter(state, pod, nodes.info(row))
                assert (None if one.is_success else one) == found[name], "the forms must agree"
    return {name: status for name, status in found.items() if status is not None}


class Scores(NamedTuple):
    """Scores by row, before and after normalization."""

    raw: list[int]
    normalized: list[int]


def scores(plugin: ScoreAllPlugin, pod: PodInfo, nodes: Nodes) -> Scores | None:
    """The scores of ``nodes``; None if PreScore returns Skip."""
    state = CycleState()
    status = plugin.pre_score(state, pod, nodes) if isinstance(plugin, PreScorePlugin) else SUCCESS
    if status.is_skip:
        return None
    assert status.is_success, status
    raw = plugin.score_all(state, pod, nodes)
    assert raw.dtype == np.int64
    assert len(raw) == nodes.size
    before = raw.tolist()
    if isinstance(plugin, ScorePlugin):
        alive = [row for row, name in enumerate(nodes.names) if name]
        one_by_one = [plugin.score(state, pod, nodes.info(row)) for row in alive]
        assert one_by_one == [before[row] for row in alive], "the forms must agree"
    if not isinstance(plugin, NormalizeScore):
        return Scores(before, before)
    normalized = plugin.normalize(state, pod, raw)
    assert raw.tolist() == before, "normalizing must not change its input"
    return Scores(before, normalized.tolist())
