"""Pods that may be removed from nodes, as columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import overload

import numpy as np

from asched.framework.nodes import Int64Column, RowArray
from asched.framework.pod_info import PodInfo, PodShape


class RemovablePods(Sequence[Sequence[PodInfo]]):
    """Some pods of each row. They are numbered row by row."""

    def __init__(
        self,
        pods: Sequence[PodInfo],
        entries: RowArray,
        lengths: RowArray,
        shapes: tuple[Sequence[PodShape], RowArray],
    ) -> None:
        """``entries``: the places of the pods in ``pods``. ``lengths``: how many of them belong to
        each row. ``shapes``: some shapes, and for each pod the number of its shape."""
        self.entries = entries
        self.lengths = lengths
        self.first: RowArray = np.cumsum(lengths) - lengths
        """By row, the number of its first pod."""
        self._shapes, self._shape_of = shapes
        self._pods = pods

    @classmethod
    def of(cls, pods: Sequence[Sequence[PodInfo]]) -> RemovablePods:
        """These pods of each row."""
        if isinstance(pods, RemovablePods):
            return pods
        every = [*chain.from_iterable(pods)]
        numbers: dict[PodShape, int] = {}
        shape_of = [numbers.setdefault(pod.shape, len(numbers)) for pod in every]
        return cls(
            every,
            np.arange(len(every), dtype=np.intp),
            np.array([len(of_row) for of_row in pods], np.intp),
            ([*numbers], np.array(shape_of, np.intp)),
        )

    def __len__(self) -> int:
        return len(self.lengths)

    @overload
    def __getitem__(self, row: int) -> Sequence[PodInfo]: ...

    @overload
    def __getitem__(self, row: slice) -> Sequence[Sequence[PodInfo]]: ...

    def __getitem__(self, row: int | slice) -> Sequence[PodInfo] | Sequence[Sequence[PodInfo]]:
        if isinstance(row, slice):
            return [self[number] for number in range(*row.indices(len(self)))]
        first = self.first.item(row)
        pods = self._pods
        return [pods[at] for at in self.entries[first : first + self.lengths.item(row)].tolist()]

    def pod(self, number: int) -> PodInfo:
        """The pod of that number."""
        return self._pods[self.entries.item(number)]

    def amounts(self, amount: Callable[[PodShape], int]) -> Int64Column:
        """An amount of each pod, which depends on its shape."""
        shapes, numbers = self._shapes, self._shape_of
        if len(shapes) > len(numbers):
            used, numbers = np.unique(numbers, return_inverse=True)
            shapes = [shapes[number] for number in used.tolist()]
        return np.array([amount(shape) for shape in shapes], np.int64)[numbers]

    def reordered(self, order: RowArray) -> RemovablePods:
        """The same pods of each row in another order: ``order`` has the present numbers."""
        return RemovablePods(
            self._pods, self.entries[order], self.lengths, (self._shapes, self._shape_of[order])
        )

    def take(self, rows: RowArray) -> tuple[RemovablePods, RowArray]:
        """These rows, and the present numbers of their pods."""
        numbers = numbers_of(self.first[rows], self.lengths[rows])
        taken = RemovablePods(
            self._pods,
            self.entries[numbers],
            self.lengths[rows],
            (self._shapes, self._shape_of[numbers]),
        )
        return taken, numbers


def numbers_of(first: RowArray, lengths: RowArray) -> RowArray:
    """The numbers from ``first`` on, as many as ``lengths``, of each row after the other."""
    before = np.cumsum(lengths) - lengths
    numbers: RowArray = np.arange(int(lengths.sum()), dtype=np.intp)
    numbers += np.repeat(first - before, lengths)
    return numbers
