"""What row-scope plugins say of nodes by how full they are, as most nodes fill up alike.

What the filters say of nodes with the pods nominated to them there, from attempt to attempt.

Preemptors come in series of like pods, and each leaves one more nomination behind: only the nodes
about which something changed are asked about again.

The nodes as plugins of a shared scope see them where only the pod's shape is to be looked at.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from asched.framework.memo import RowMemo
from asched.framework.nodes import Int64Column, Nodes, RowArray
from asched.framework.runtime.findings import Findings, StatusNumbers
from asched.framework.status import Status
from asched.framework.trial import Fit
from asched.state.node_table import NodeTable

_MOST_JUDGEMENTS = 4096

Refusal = tuple[int, Status]
"""The first row filter that refuses, by its rank, and its status."""


class UtilizationEntry:
    """What is said of nodes that are equally full. Filled in as it is asked for."""

    __slots__ = ("filtered", "refusal", "scored", "scores", "total")

    def __init__(self) -> None:
        self.filtered = False
        """Whether the row filters were asked; only then :attr:`refusal` says anything."""
        self.refusal: Refusal | None = None
        self.scored = False
        """Whether the row scorers were asked."""
        self.scores: tuple[int, ...] = ()
        """What each of them says."""
        self.total: int | None = None
        """The weighted sum of :attr:`scores`, where nobody normalises them and all are in range."""


class UtilizationCache:
    """By the table's number for how full a node is. Memory, not state."""

    __slots__ = ("_known", "_table")

    def __init__(self, table: NodeTable) -> None:
        self._table = table
        self._known: dict[int, UtilizationEntry] = {}

    def of(self, row: int) -> UtilizationEntry:
        """The judgement on nodes as full as that of the row is now."""
        fullness = self._table.fullness_on(row)
        known = self._known.get(fullness)
        if known is None:
            if len(self._known) == _MOST_JUDGEMENTS:
                self._known.clear()
            known = self._known[fullness] = UtilizationEntry()
        return known

    def forget(self) -> None:
        """Other scorers are asked from here on."""
        self._known.clear()


_MOST_STATUSES = 4096


class NominatedFilterCache:
    """For pods of one shape and priority. Memory, not state."""

    __slots__ = ("_known", "found")

    def __init__(self) -> None:
        self._forget()

    def _forget(self) -> None:
        self._known: RowMemo[None] = RowMemo()
        self.found = Findings(0, StatusNumbers())
        """By row of the cluster's nodes."""

    def refused(self, fit: Fit, rows: RowArray, stamps: Int64Column) -> RowArray:
        """Those of ``rows`` that a filter refuses if the pods nominated there were there; why, is
        in :attr:`found`. Raises :class:`~asched.framework.runtime.plugin_calls.PluginFailure`."""
        if len(self.found.statuses) > _MOST_STATUSES:
            self._forget()
        stale = self._known.stale(rows, stamps)
        if len(stale):
            self.found.extend(len(stamps))
            self.found.clear(stale)
            for hosts, crowded in fit.crowded(stale):
                self.found.copy_rows(hosts, crowded, np.arange(len(hosts)))
            for row in stale.tolist():
                self._known.put(row, int(stamps[row]), None)
        return rows[~self.found.passing[rows]] if len(rows) else rows


class WatchedNodes:
    """Stands for the nodes in PreFilter and PreScore of plugins whose answers like pods share, and
    notes whether any of them looked: what it said is then good only while no row changes.

    No subclass of :class:`Nodes`, whose methods would be found before ``__getattr__``.
    """

    __slots__ = ("_nodes", "looked_at")

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self.looked_at = False

    def __getattr__(self, name: str) -> Any:
        self.looked_at = True
        return getattr(self._nodes, name)
