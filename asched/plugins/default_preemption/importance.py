"""The pods of nodes by importance (``MoreImportantPod`` of kube-scheduler), as columns."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

import numpy as np

from asched.framework.nodes import Int64Column, Nodes, RowArray
from asched.framework.pod_info import PodInfo, PodShape, start_time
from asched.framework.removable_pods import RemovablePods, numbers_of

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_MIN_UNUSED = 4096
"""Pods that are no longer on their nodes are kept up to this number, or that of the others."""


class LowerPods(NamedTuple):
    """The pods of some rows that a preemptor may evict, the most important of each row first."""

    removable: RemovablePods
    priorities: Int64Column
    starts_us: Int64Column
    namespaces: RowArray
    """The number of the namespace of each pod, in :attr:`namespace_numbers`."""
    namespace_numbers: dict[str, int]

    def take(self, rows: RowArray) -> LowerPods:
        """The pods of these rows."""
        removable, numbers = self.removable.take(rows)
        return LowerPods(
            removable,
            self.priorities[numbers],
            self.starts_us[numbers],
            self.namespaces[numbers],
            self.namespace_numbers,
        )


class PodsByImportance:
    """The pods of each node, the most important first. A cache for preemptors of all shapes.

    What it reads of a pod is kept, so that a changed row costs little.
    """

    def __init__(self) -> None:
        self._stamps: Int64Column = np.zeros(0, np.int64)
        self._first: RowArray = np.zeros(0, np.intp)
        self._lengths: RowArray = np.zeros(0, np.intp)
        self._clear()

    def _clear(self) -> None:
        self._stamps[:] = -1
        self._lengths[:] = 0
        self._order: RowArray = np.zeros(0, np.intp)
        """The places of the pods of each row, from :attr:`_first` on."""
        self._pods: list[PodInfo] = []
        self._places: dict[PodInfo, int] = {}
        self._shapes: dict[PodShape, int] = {}
        self._namespaces: dict[str, int] = {}
        self._columns: Int64Column = np.zeros((4, 0), np.int64)
        """Priority, start, shape and namespace of each pod."""

    def below(self, nodes: Nodes, rows: RowArray, stamps: Int64Column, priority: int) -> LowerPods:
        """The pods of these rows of ``nodes`` with a lower priority. ``stamps`` are those of all
        rows (``Cluster.row_stamps``)."""
        self._update(nodes, rows, stamps)
        lengths = self._lengths[rows]
        places = self._order[numbers_of(self._first[rows], lengths)]
        lower = self._columns[0, places] < priority
        before = np.concatenate([np.zeros(1, np.intp), np.cumsum(lower)])
        ends = np.cumsum(lengths)
        places = places[lower]
        priorities, starts_us, shapes, namespaces = self._columns[:, places]
        lengths = before[ends] - before[ends - lengths]
        removable = RemovablePods(self._pods, places, lengths, ([*self._shapes], shapes))
        return LowerPods(removable, priorities, starts_us, namespaces, self._namespaces)

    def below_on(self, nodes: Nodes, row: int, stamps: Int64Column, priority: int) -> list[PodInfo]:
        """:meth:`below` for one row."""
        if row >= len(self._stamps) or self._stamps.item(row) != stamps.item(row):
            self._update(nodes, np.array([row], np.intp), stamps)
        first = self._first.item(row)
        pods = self._pods
        on_row = [pods[at] for at in self._order[first : first + self._lengths.item(row)].tolist()]
        return [pod for pod in on_row if pod.priority < priority]

    def _update(self, nodes: Nodes, rows: RowArray, stamps: Int64Column) -> None:
        missing = len(stamps) - len(self._stamps)
        if missing > 0:
            self._stamps = np.concatenate([self._stamps, np.full(missing, -1, np.int64)])
            zeros = np.zeros(missing, np.intp)
            self._first = np.concatenate([self._first, zeros])
            self._lengths = np.concatenate([self._lengths, zeros])
        changed = rows[self._stamps[rows] != stamps[rows]]
        if not len(changed):
            return
        used = int(self._lengths.sum())
        if len(self._pods) - used > max(_MIN_UNUSED, used):
            self._clear()
            changed = rows
        on_rows = [[*nodes.pods(row)] for row in changed.tolist()]
        places = self._places_of([pod for pods in on_rows for pod in pods])
        self._stamps[changed] = stamps[changed]
        self._set_order(changed, places, np.array([*map(len, on_rows)], np.intp))

    def _set_order(self, rows: RowArray, places: RowArray, lengths: RowArray) -> None:
        """These are the pods of rows, in order of arrival."""
        priorities, starts_us = self._columns[:2, places]
        of_row = np.repeat(np.arange(len(lengths)), lengths)
        places = places[np.lexsort((starts_us, -priorities, of_row))]
        self._lengths[rows] = 0
        used = int(self._lengths.sum())
        if len(self._order) - used > max(_MIN_UNUSED, used):
            kept = self._lengths.nonzero()[0]
            self._order = self._order[numbers_of(self._first[kept], self._lengths[kept])]
            self._first[kept] = np.cumsum(self._lengths[kept]) - self._lengths[kept]
        self._first[rows] = len(self._order) + np.cumsum(lengths) - lengths
        self._lengths[rows] = lengths
        self._order = np.concatenate([self._order, places])

    def _places_of(self, pods: Sequence[PodInfo]) -> RowArray:
        known, shapes, namespaces = self._places, self._shapes, self._namespaces
        new = [pod for pod in pods if pod not in known]
        if new:
            columns = np.array(
                [
                    [pod.priority for pod in new],
                    [started_us(pod) for pod in new],
                    [shapes.setdefault(pod.shape, len(shapes)) for pod in new],
                    [namespaces.setdefault(pod.namespace, len(namespaces)) for pod in new],
                ],
                np.int64,
            )
            self._columns = np.concatenate([self._columns, columns], axis=1)
            known.update(zip(new, range(len(self._pods), len(self._pods) + len(new)), strict=True))
            self._pods += new
        return np.array([known[pod] for pod in pods], np.intp)


def started_us(pod: PodInfo) -> int:
    """:func:`start_time` in microseconds since 1970."""
    return (start_time(pod) - EPOCH) // _MICROSECOND


def importance(pod: PodInfo) -> tuple[int, datetime]:
    """Sorts the most important pod first."""
    return -pod.priority, start_time(pod)
