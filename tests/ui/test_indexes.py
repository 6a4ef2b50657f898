"""Nodes with their pods, and plugins, from the index equal those of a fold."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

import msgspec
import pytest

from asched.audit.lookup import AuditError
from asched.model.node import Node
from asched.state.cluster import ClusterState
from asched.state.fold import Fold
from asched.state.records import AnyRecord
from asched.ui.cluster import NodeDetail, node_detail, node_of
from asched.ui.indexes import Indexes
from asched.ui.placements import PlacementHistory, StoredPlacement
from asched.ui.plugin_history import PluginFacts, PluginHistory, StoredPluginFacts
from tests.audit.recording import REGISTRY, Recording, woken_pod
from tests.audit.test_explain import busy_history
from tests.audit.test_timeline_log import preemption


class _Stored:
    """What an index file would hold."""

    def __init__(self) -> None:
        self.placed: dict[tuple[str, int, str], StoredPlacement] = {}
        self.facts: list[StoredPluginFacts] = []

    def placements(self, node: str, seq: int) -> Iterable[StoredPlacement]:
        rows = self.placed.values()
        return [row for row in rows if row.node == node and row.begin_seq <= seq < row.end_seq]

    def plugin_facts(self, kind: str, seq: int) -> bytes | None:
        found = [one.form for one in self.facts if one.kind == kind and one.seq <= seq]
        return found[-1] if found else None

    def take(self, indexes: Indexes) -> None:
        self.placed.update((one[:3], one) for one in indexes.placements.unsaved())
        indexes.placements.saved()
        self.facts += indexes.plugins.unsaved
        indexes.plugins.unsaved.clear()


def _sorted(detail: NodeDetail) -> NodeDetail:
    """Resources of a node may be listed in another order."""
    return msgspec.json.decode(msgspec.json.encode(detail, order="sorted"), type=NodeDetail)


def _follow(
    records: Iterable[AnyRecord], save_every: int
) -> tuple[Indexes, dict[int, list[NodeDetail]], dict[int, PluginFacts]]:
    stored = _Stored()
    indexes = Indexes(
        placements=PlacementHistory(stored.placements),
        plugins=PluginHistory(stored.plugin_facts),
    )
    fold = Fold(ClusterState(), REGISTRY.load)
    indexes.begin(0, fold)
    details, plugins = dict[int, list[NodeDetail]](), dict[int, PluginFacts]()
    for seq, record in enumerate(records, 1):
        indexes.before(seq, record)
        fold.apply(record)
        indexes.after(seq, record, fold.state)
        state = fold.state
        details[seq] = [node_detail(state, seq, name) for name in state.objects(Node)]
        plugins[seq] = PluginFacts.of(state)
        if seq % save_every == 0:
            stored.take(indexes)
    return indexes, details, plugins


@pytest.mark.parametrize("save_every", [1, 7, 10_000])
@pytest.mark.parametrize(
    "recording", [preemption(), woken_pod(), *(busy_history(Random(seed)) for seed in range(3))]
)
def test_index_answers_as_a_fold(recording: Recording, save_every: int) -> None:
    indexes, details, plugins = _follow(recording.records, save_every)
    for seq, nodes in details.items():
        columns, table = indexes.cluster.at(seq), indexes.facts.table(seq)
        devices = indexes.devices
        assert {node.node.name for node in nodes} == {row.name for row in table.rows}
        for expected in nodes:
            name = expected.node.name
            pods = indexes.placements.at(name, seq)
            found = node_of(columns, table, devices.of_node(name, seq), pods, seq, name)
            assert _sorted(found) == _sorted(expected)
        assert indexes.plugins.at(seq) == plugins[seq]
        assert indexes.cluster.date_ns(seq) == columns.date_ns
        with pytest.raises(AuditError, match="no node 'absent'"):
            node_of(columns, table, {}, (), seq, "absent")
