"""The expected workload, and the fragmentation of nodes for it.

Fragmentation is defined by Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing Workloads
with Fragmentation Gradient Descent" (USENIX ATC'23). It is the part of the free shares of a node
that a task cannot use, as the mean over the expected workload. If the task does not fit on the node
(cpu, card model, number of cards), it can use nothing. Otherwise it cannot use cards with less free
than it requests of each. Tasks without cards can use nothing.

So the fragmentation of a node is the free amount minus the part that fitting tasks can use. A task
that requests ``d`` of a card can use all cards with at least ``d`` free. This is a sum over the
distinct pairs (share, number of cards). The number of fitting tasks per pair depends only on cpu
and model, and comes from a table. All numbers are integers, so that sums do not depend on the order
of addition.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from asched.framework import Int64Column

CardMatrix = NDArray[np.int64]
"""Free thousandths of each card, one row per node; 0 for missing cards."""


class TaskClass(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Equal tasks of the expected workload."""

    count: int
    """Number of tasks: the weight of the class."""
    cpu_milli: int = 0
    gpus: int = 0
    """Number of cards."""
    gpu_milli: int = 0
    """Thousandths of each of them."""
    models: tuple[str, ...] = ()
    """The accepted card models; empty for any."""

    def __post_init__(self) -> None:
        if self.count <= 0 or self.cpu_milli < 0 or self.gpus < 0:
            raise ValueError("expected a count above 0, cpuMilli and gpus of 0 or more")
        if not (0 < self.gpu_milli <= 1000 if self.gpus else self.gpu_milli == 0):
            raise ValueError("expected a gpuMilli of 1 to 1000 with gpus, and none without")


class Workload:
    """Task classes as tables."""

    def __init__(self, classes: Sequence[TaskClass]) -> None:
        """Raises ValueError if there are no classes."""
        if not classes:
            raise ValueError("workload: expected at least one task")
        self.size = sum(c.count for c in classes)
        """Number of tasks. The unit of fragmentation is a thousandth of a card divided by this."""
        asking = [c for c in classes if c.gpus]
        pairs = sorted({(c.gpu_milli, c.gpus) for c in asking})
        self._shares = np.array(sorted({milli for milli, _ in pairs}), np.int64)
        self._share_of = np.searchsorted(self._shares, [milli for milli, _ in pairs])
        self._cards_of = np.array([cards for _, cards in pairs], np.int64)
        self._cpus = np.array(sorted({c.cpu_milli for c in asking}), np.int64)
        models = sorted({model for c in asking for model in c.models})
        self._models = {model: number for number, model in enumerate(models)}
        place = {pair: number for number, pair in enumerate(pairs)}
        tasks = np.zeros((len(models) + 1, len(self._cpus) + 1, len(pairs)), np.int64)
        for c in asking:
            least = int(np.searchsorted(self._cpus, c.cpu_milli)) + 1
            for model, number in [*self._models.items(), ("", len(models))]:
                if not c.models or model in c.models:
                    tasks[number, least:, place[c.gpu_milli, c.gpus]] += c.count
        self._tasks = tasks
        """Number of fitting tasks by card model, cpu, and pair of share and number of cards."""

    def model_number(self, model: str) -> int:
        """The number of a card model. Models that no task names share one number."""
        return self._models.get(model, len(self._models))

    def _fitting(self, cpu_milli: Int64Column, models: Int64Column) -> NDArray[np.int64]:
        return self._tasks[models, np.searchsorted(self._cpus, cpu_milli, side="right")]

    def _usable(self, free: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """By share: the number of cards with that share free, and the total free on those cards."""
        enough = free[..., None] >= self._shares
        return enough.sum(axis=-2), (enough * free[..., None]).sum(axis=-2)

    def fragmentation(
        self, free: CardMatrix, cpu_milli: Int64Column, models: Int64Column
    ) -> Int64Column:
        """Fragmentation of each node, in thousandths of a card times :attr:`size`."""
        counts, sums = self._usable(free)
        return self._weighed(free.sum(axis=-1), counts, sums, self._fitting(cpu_milli, models))

    def _weighed(
        self,
        total: NDArray[np.int64],
        counts: NDArray[Any],
        sums: NDArray[Any],
        fitting: NDArray[np.int64],
    ) -> NDArray[np.int64]:
        fits = counts[..., self._share_of] >= self._cards_of
        used: NDArray[np.int64] = (fits * fitting * sums[..., self._share_of]).sum(axis=-1)
        return total * self.size - used

    def with_share(
        self, free: CardMatrix, cpu_milli: Int64Column, models: Int64Column, milli: int
    ) -> NDArray[np.int64]:
        """:meth:`fragmentation` of each node if ``milli`` of one card were taken, a column per
        card.

        Columns of cards with less free are meaningless.
        """
        counts, sums = self._usable(free)
        left = free - milli
        before, after = (f[..., None] >= self._shares for f in (free, left))
        counts = counts[:, None, :] - before + after
        sums = sums[:, None, :] - before * free[..., None] + after * left[..., None]
        total = free.sum(axis=-1)[:, None] - milli
        return self._weighed(total, counts, sums, self._fitting(cpu_milli, models)[:, None, :])
