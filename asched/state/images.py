"""Which container images are on which nodes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from asched.framework.nodes import Int64Column
from asched.model.node import ContainerImage


class ImageIndex:
    """For each image name, its size on every row that has it.

    Nodes may report different sizes of one image. As in kube-scheduler's cache one report stands
    for all of them: here that of the lowest row.
    """

    __slots__ = ("_columns", "_names", "sizes")

    def __init__(self) -> None:
        self.sizes: dict[str, dict[int, int]] = {}
        """By image, by row: as how many bytes it is reported."""
        self._names: dict[int, tuple[str, ...]] = {}
        self._columns: dict[str, Int64Column] = {}

    def __bool__(self) -> bool:
        """Whether any node has an image."""
        return bool(self.sizes)

    def set_row(self, row: int, images: Sequence[ContainerImage]) -> bool:
        """The images of a row are now these. Returns whether anything changed."""
        sizes: dict[str, int] = {}
        for image in images:
            for name in image.names:
                sizes.setdefault(name, image.size_bytes)
        before = self._names.get(row, ())
        if tuple(sizes) == before and all(self.sizes[n][row] == s for n, s in sizes.items()):
            return False
        for name in before:
            holders = self.sizes[name]
            del holders[row]
            if not holders:
                del self.sizes[name]
        for name, size_bytes in sizes.items():
            self.sizes.setdefault(name, {})[row] = size_bytes
        if sizes:
            self._names[row] = tuple(sizes)
        else:
            self._names.pop(row, None)
        self._columns.clear()
        return True

    def column(self, image: str, size: int) -> tuple[Int64Column, int]:
        """(bytes by row, 0 where absent; number of rows that have it)."""
        holders = self.sizes.get(image)
        if not holders:
            return np.zeros(size, np.int64), 0
        column = self._columns.get(image)
        if column is None or len(column) != size:
            column = np.zeros(size, np.int64)
            column[list(holders)] = holders[min(holders)]
            self._columns[image] = column
        return column, len(holders)
