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
    """The pods of each node, the most important first. A cache for preemptors of all shapes."""

    def __init__(self) -> None:
        self._stamps: Int64Column = np.zeros(0, np.int64)
        self._first: RowArray = np.zeros(0, np.intp)
        self._lengths: RowArray = np.zeros(0, np.intp)
        self._clear()

    def _clear(self) -> None:
        self._stamps[:] = -1
        self._lengths[:] = 0
        self._pods: list[PodInfo] = []
        self._shapes: dict[PodShape, int] = {}
        self._namespaces: dict[str, int] = {}
        self._columns: Int64Column = np.zeros((4, 0), np.int64)
        """Priority, start, shape and namespace of each pod."""

    def below(self, nodes: Nodes, rows: RowArray, stamps: Int64Column, priority: int) -> LowerPods:
        """The pods of these rows of ``nodes`` with a lower priority. ``stamps`` are those of all
        rows (``Cluster.row_stamps``)."""
        self._update(nodes, rows, stamps)
        lengths = self._lengths[rows]
        entries = numbers_of(self._first[rows], lengths)
        lower = self._columns[0, entries] < priority
        before = np.concatenate([np.zeros(1, np.intp), np.cumsum(lower)])
        ends = np.cumsum(lengths)
        entries = entries[lower]
        priorities, starts_us, shapes, namespaces = self._columns[:, entries]
        return LowerPods(
            RemovablePods(
                self._pods,
                entries,
                before[ends] - before[ends - lengths],
                ([*self._shapes], shapes),
            ),
            priorities,
            starts_us,
            namespaces,
            self._namespaces,
        )

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
        self._lengths[changed] = 0
        used = int(self._lengths.sum())
        if len(self._pods) - used > max(_MIN_UNUSED, used):
            self._clear()
            changed = rows
        on_rows = [[*nodes.pods(row)] for row in changed.tolist()]
        lengths = np.array([*map(len, on_rows)], np.intp)
        self._first[changed] = len(self._pods) + np.cumsum(lengths) - lengths
        self._lengths[changed] = lengths
        self._stamps[changed] = stamps[changed]
        self._append([pod for pods in on_rows for pod in pods], lengths)

    def _append(self, pods: Sequence[PodInfo], lengths: RowArray) -> None:
        shapes, namespaces = self._shapes, self._namespaces
        columns = np.array(
            [
                [pod.priority for pod in pods],
                [started_us(pod) for pod in pods],
                [shapes.setdefault(pod.shape, len(shapes)) for pod in pods],
                [namespaces.setdefault(pod.namespace, len(namespaces)) for pod in pods],
            ],
            np.int64,
        )
        of_row = np.repeat(np.arange(len(lengths)), lengths)
        order = np.lexsort((columns[1], -columns[0], of_row))
        self._pods += [pods[number] for number in order.tolist()]
        self._columns = np.concatenate([self._columns, columns[:, order]], axis=1)


def started_us(pod: PodInfo) -> int:
    """:func:`start_time` in microseconds since 1970."""
    return (start_time(pod) - EPOCH) // _MICROSECOND


def importance(pod: PodInfo) -> tuple[int, datetime]:
    """Sorts the most important pod first."""
    return -pod.priority, start_time(pod)
