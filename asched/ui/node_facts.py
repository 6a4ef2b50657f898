"""What nodes say of themselves after any record: labels, taints, readiness and what they offer."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import OrderedDict
from collections.abc import Iterator
from typing import Final, NamedTuple

import msgspec

from asched.model.node import HOSTNAME_LABEL, Node
from asched.model.requests import amounts
from asched.state.cluster import ClusterState

MAX_GROUPS: Final = 64
"""Values of a label that can group nodes."""
_KEPT_TABLES: Final = 2


class GroupLabel(msgspec.Struct, frozen=True, rename="camel"):
    """A label with few values."""

    key: str
    values: tuple[str, ...]


class NodeFacts(msgspec.Struct, frozen=True, gc=False):
    """What does not change when pods come and go."""

    ready: bool
    unschedulable: bool
    taints: tuple[str, ...]
    labels: dict[str, str]
    offered: dict[str, int]
    """Allocatable amounts, as scheduling counts them."""

    @classmethod
    def of(cls, node: Node) -> NodeFacts:
        return cls(
            ready=node.ready,
            unschedulable=node.spec.unschedulable,
            taints=tuple(f"{taint.key}={taint.value}:{taint.effect}" for taint in node.spec.taints),
            labels=dict(node.metadata.labels),
            offered=amounts(node.status.allocatable),
        )


class NodeRow(NamedTuple):
    """A node of a table."""

    name: str
    facts: NodeFacts
    labels: dict[str, str]
    """Those that can group nodes."""


class FactsTable(NamedTuple):
    """All nodes between two changes of facts."""

    rows: tuple[NodeRow, ...]
    """By name."""
    facts: dict[str, NodeFacts]
    """The same, by name."""
    group_labels: tuple[GroupLabel, ...]


class StoredFacts(NamedTuple):
    """A change of a node."""

    seq: int
    name: str
    facts: NodeFacts | None
    """None: it was deleted."""


class FactsHistory:
    """The facts of all nodes by record."""

    def __init__(self) -> None:
        self.unsaved: list[StoredFacts] = []
        """Changes that were not saved yet. The owner of the file clears it."""
        self._seqs: dict[str, list[int]] = {}
        self._facts: dict[str, list[NodeFacts | None]] = {}
        self._changes: list[int] = []
        """The records that changed something."""
        self._tables: OrderedDict[int, FactsTable] = OrderedDict()

    def begin(self, seq: int, state: ClusterState) -> None:
        """Start with the nodes of a state."""
        for node in state.objects(Node).values():
            self.observe(seq, node)

    def observe(self, seq: int, node: Node) -> None:
        facts = NodeFacts.of(node)
        known = self._facts.get(node.name)
        if known is None or known[-1] != facts:
            self.unsaved.append(StoredFacts(seq, node.name, facts))
            self.add(self.unsaved[-1])

    def delete(self, seq: int, name: str) -> None:
        if name in self._facts:
            self.unsaved.append(StoredFacts(seq, name, None))
            self.add(self.unsaved[-1])

    def add(self, change: StoredFacts) -> None:
        """Add a change that is stored; changes of a node come in order."""
        self._seqs.setdefault(change.name, []).append(change.seq)
        self._facts.setdefault(change.name, []).append(change.facts)
        if not self._changes or self._changes[-1] < change.seq:
            self._changes.append(change.seq)
        elif self._changes[-1] > change.seq:
            insort(self._changes, change.seq)
        self._tables.clear()

    def table(self, seq: int) -> FactsTable:
        """All nodes after a record."""
        epoch = bisect_right(self._changes, seq)
        found = self._tables.get(epoch)
        if found is None:
            facts = dict(sorted(self._at(seq)))
            groups = group_labels([one.labels for one in facts.values()])
            keys = [label.key for label in groups]
            rows = (
                NodeRow(name, one, {key: one.labels[key] for key in keys if key in one.labels})
                for name, one in facts.items()
            )
            found = self._tables[epoch] = FactsTable(tuple(rows), facts, groups)
            while len(self._tables) > _KEPT_TABLES:
                self._tables.popitem(last=False)
        return found

    def _at(self, seq: int) -> Iterator[tuple[str, NodeFacts]]:
        for name, seqs in self._seqs.items():
            place = bisect_right(seqs, seq) - 1
            facts = self._facts[name][place] if place >= 0 else None
            if facts is not None:
                yield name, facts


def group_labels(nodes: list[dict[str, str]]) -> tuple[GroupLabel, ...]:
    """The labels with few values, from those of all nodes."""
    values: dict[str, set[str] | None] = {HOSTNAME_LABEL: None}
    for labels in nodes:
        for key, value in labels.items():
            found = values.setdefault(key, set())
            if found is not None:
                found.add(value)
                if len(found) > MAX_GROUPS:
                    values[key] = None
    return tuple(
        GroupLabel(key, tuple(sorted(found)))
        for key, found in sorted(values.items())
        if found is not None
    )
