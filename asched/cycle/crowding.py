"""What the filters say of nodes with the pods nominated to them there, from attempt to attempt.

Preemptors come in series of like pods, and each leaves one more nomination behind: only the nodes
about which something changed are asked about again.
"""

from __future__ import annotations

import numpy as np

from asched.framework.findings import Findings, StatusNumbers
from asched.framework.nodes import Int64Column, RowArray
from asched.framework.row_memo import RowMemo
from asched.framework.trial import Fit

_MOST_STATUSES = 4096


class Crowding:
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
        in :attr:`found`. Raises :class:`~asched.framework.plugin_calls.PluginFailure`."""
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
