"""Labels and taints of nodes, as numbers by row."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from asched.framework.nodes import Int32Column, Vocabulary
from asched.model.node import Taint


class LabelIndex:
    """For each label that a node ever had, its value on every row."""

    __slots__ = ("columns", "vocabulary")

    def __init__(self) -> None:
        self.columns: dict[str, Int32Column] = {}
        """By label: numbers of the vocabulary, -1 where the label is absent."""
        self.vocabulary = Vocabulary()

    def set_row(
        self, row: int, labels: Mapping[str, str], old: Mapping[str, str], capacity: int
    ) -> None:
        """The labels of a row are now these. ``capacity``: how many rows a new column is for."""
        for key in old:
            if key not in labels:
                self.columns[key][row] = -1
        for key, text in labels.items():
            ids = self.columns.get(key)
            if ids is None:
                ids = self.columns[key] = np.full(capacity, -1, np.int32)
            ids[row] = self.vocabulary.intern(text)

    def grow(self, extra: int) -> None:
        """Each column gets so many more rows."""
        for key, ids in self.columns.items():
            self.columns[key] = np.concatenate([ids, np.full(extra, -1, np.int32)])


class TaintNumbers:
    """A number for each distinct list of taints, for good; 0 for none."""

    __slots__ = ("_numbers", "sets")

    def __init__(self) -> None:
        self.sets: list[tuple[Taint, ...]] = [()]
        """By number."""
        self._numbers: dict[tuple[Taint, ...], int] = {(): 0}

    def of(self, taints: tuple[Taint, ...]) -> int:
        number = self._numbers.get(taints)
        if number is None:
            number = self._numbers[taints] = len(self.sets)
            self.sets.append(taints)
        return number
