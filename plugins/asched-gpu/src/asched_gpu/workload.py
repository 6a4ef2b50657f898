"""The expected workload, and how fragmented a node is for it.

Fragmentation is that of Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with
Fragmentation Gradient Descent" (USENIX ATC'23): of what is free on a node's cards, the part that a
task of the expected workload cannot use, as the mean over the workload. All of it where the task does
not fit there at all (cpu, model of card, number of cards), and where it does, what is free on the cards
that have less left than it takes of each. Tasks without cards can use none of it.

So a node's fragmentation is what is free, less what the tasks that fit could use of it: a task that
takes ``d`` of a card can use all cards that have ``d`` or more left. That is a sum over the distinct
pairs (share, number of cards), since what is left to know of a node, its cpu and its model, only says
how many tasks of a pair fit: a table. Everything is counted in whole numbers (thousandths of a card,
times tasks), so that no sum depends on the order it was added up in.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from asched.framework.nodes import Int64Column

CardMatrix = NDArray[np.int64]
"""What is free on each card, a row per node; 0 where a node has fewer cards."""


class TaskClass(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Like tasks of the expected workload."""

    count: int
    """How many of them there are: the weight of the class."""
    cpu_milli: int = 0
    gpus: int = 0
    """Number of cards."""
    gpu_milli: int = 0
    """Thousandths of each of them."""
    models: tuple[str, ...] = ()
    """The models of card that will do; empty for any."""

    def __post_init__(self) -> None:
        if self.count <= 0 or self.cpu_milli < 0 or self.gpus < 0:
            raise ValueError("expected a count above 0, cpuMilli and gpus of 0 or more")
        if not (0 < self.gpu_milli <= 1000 if self.gpus else self.gpu_milli == 0):
            raise ValueError("expected a gpuMilli of 1 to 1000 with gpus, and none without")


class Workload:
    """Task classes as tables."""

    def __init__(self, classes: Sequence[TaskClass]) -> None:
        """Raises ValueError where there is none."""
        if not classes:
            raise ValueError("a workload of no tasks")
        self.size = sum(c.count for c in classes)
        """How many tasks it holds: fragmentation is counted in thousandths of a card, times this."""
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
        """How many tasks fit by model of card and cpu, for each pair of share and cards."""

    def model_number(self, model: str) -> int:
        """What stands for a model of card: one for all that no task names."""
        return self._models.get(model, len(self._models))

    def _fitting(self, cpu_milli: Int64Column, models: Int64Column) -> NDArray[np.int64]:
        return self._tasks[models, np.searchsorted(self._cpus, cpu_milli, side="right")]

    def _usable(self, free: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """By share of a card: on how many of the cards it is free, and how much those have free."""
        enough = free[..., None] >= self._shares
        return enough.sum(axis=-2), (enough * free[..., None]).sum(axis=-2)

    def fragmentation(
        self, free: CardMatrix, cpu_milli: Int64Column, models: Int64Column
    ) -> Int64Column:
        """Of each node, in thousandths of a card times :attr:`size`."""
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
        """:meth:`fragmentation` of each node, were ``milli`` of each of its cards in turn taken
        (a column per card; meaningless where a card has less left)."""
        counts, sums = self._usable(free)
        left = free - milli
        before, after = (f[..., None] >= self._shares for f in (free, left))
        counts = counts[:, None, :] - before + after
        sums = sums[:, None, :] - before * free[..., None] + after * left[..., None]
        total = free.sum(axis=-1)[:, None] - milli
        return self._weighed(total, counts, sums, self._fitting(cpu_milli, models)[:, None, :])
