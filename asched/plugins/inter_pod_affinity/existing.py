"""Affinity terms of existing pods that select an incoming pod, added up by topology key.

The sums take one column for each topology key of the nodes, however many terms the pods have.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from asched.framework.caching import RowCounts
from asched.framework.nodes import BoolColumn, Nodes
from asched.framework.pod_info import LabelSet
from asched.framework.term_table import TermTable
from asched.framework.topology import DomainCounts, DomainIndex


class ExistingTerms:
    """The pods with any of some terms of one kind. Pods that the same terms select share it."""

    __slots__ = (
        "_by_row",
        "_cursor",
        "_nodes_version",
        "_omitted",
        "_selected",
        "counts",
        "version",
    )

    def __init__(self, selected: BoolColumn) -> None:
        """``selected``: the terms, by slot; later slots are not selected."""
        self.counts: dict[str, DomainCounts] = {}
        """By topology key: the pods with these terms, each with the weight of its term."""
        self.version = 0
        """Changes with the keys of :attr:`counts`."""
        self._selected = selected
        self._by_row: dict[str, RowCounts] = {}
        self._cursor = -1
        self._nodes_version = -1
        self._omitted = False
        """Whether there is a term with a topology key that no node has."""

    def update(self, table: TermTable, nodes: Nodes, domains: DomainIndex) -> None:
        if self._cursor != table.moves.cursor or self._nodes_version != nodes.version:
            self._follow(table, nodes)
            self._cursor, self._nodes_version = table.moves.cursor, nodes.version
            for key, by_row in self._by_row.items():
                counts = self.counts.get(key)
                if counts is None:
                    self.counts[key] = DomainCounts(domains.of(nodes, key), by_row)
                    self.version += 1
                else:
                    counts.follow(domains.of(nodes, key), by_row)

    def _follow(self, table: TermTable, nodes: Nodes) -> None:
        moves = table.moves.since(self._cursor)
        if moves is None or (self._omitted and self._nodes_version != nodes.version):
            sums = table.sums(self._selected, nodes.size)
            self._by_row = {
                key: RowCounts(column) for key, column in sums.items() if _is_on_nodes(key, nodes)
            }
            self._omitted = len(self._by_row) < len(sums)
            self.counts = {}
            self.version += 1
            return
        if self._nodes_version != nodes.version:
            for by_row in self._by_row.values():
                by_row.resize(nodes.size)
        selected = self._selected
        for slot, row, difference in moves:
            if slot < len(selected) and selected.item(slot):
                term, weight = table.term(slot)
                self._move(term.topology_key, row, difference * weight, nodes)

    def _move(self, key: str, row: int, difference: int, nodes: Nodes) -> None:
        by_row = self._by_row.get(key)
        if by_row is None:
            if not _is_on_nodes(key, nodes):
                self._omitted = True
                return
            by_row = self._by_row[key] = RowCounts(np.zeros(nodes.size, np.int64))
        by_row.move(row, difference)


class SelectedTerms:
    """Which terms of one kind select pods with some labels."""

    __slots__ = ("_generation", "_selected", "sums")

    def __init__(self) -> None:
        self._generation = -1
        self._selected: BoolColumn = np.zeros(0, np.bool_)
        self.sums: ExistingTerms | None = None
        """The sums of these terms; None until set."""

    def update(
        self, table: TermTable, labels: LabelSet, namespace_labels: Mapping[str, str]
    ) -> BoolColumn | None:
        """The selected terms by slot if there may be others than before, or else None."""
        if self._generation != table.generation:
            self._generation = table.generation
            self._selected = table.selecting(labels, namespace_labels)
        elif len(self._selected) != table.size:
            more = [
                table.term(slot).term.matches(labels, namespace_labels)
                for slot in range(len(self._selected), table.size)
            ]
            self._selected = np.concatenate([self._selected, np.array(more, np.bool_)])
        else:
            return None
        return self._selected


def _is_on_nodes(key: str, nodes: Nodes) -> bool:
    return bool(nodes.label(key).present.any())
