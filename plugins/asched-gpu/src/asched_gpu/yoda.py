"""Yoda: places pods by what nodes report of their cards, as Yoda-Scheduler does.

A pod says by label what it wants: ``scv/number`` cards, ``scv/memory`` free on each, a ``scv/clock``.
Nodes that report enough are scored by the cards that would do (bandwidth, clock, core, power, memory,
and free memory twice), by the memory that pods asked for on them, and by the memory really in use.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from asched.framework import (
    MAX_NODE_SCORE,
    SUCCESS,
    ActionType,
    Arguments,
    ClusterEvent,
    ClusterEventWithHint,
    CycleState,
    EnqueueExtensions,
    EventResource,
    FilterAllPlugin,
    Handle,
    Int64Column,
    Nodes,
    NormalizeScore,
    PodInfo,
    PreScorePlugin,
    QueuedPod,
    QueueSortPlugin,
    Scope,
    ScoreAllPlugin,
    StateKey,
    Status,
    Verdicts,
    custom_event,
)
from asched_gpu.scv import Scv
from asched_gpu.scv_columns import MEMORY_LABEL, Cards, Reports, ScvColumns, whole

NUMBER_LABEL: Final = "scv/number"
CLOCK_LABEL: Final = "scv/clock"
PRIORITY_LABEL: Final = "scv/priority"

BANDWIDTH_WEIGHT: Final = 1
CLOCK_WEIGHT: Final = 1
CORE_WEIGHT: Final = 1
POWER_WEIGHT: Final = 1
FREE_MEMORY_WEIGHT: Final = 2
TOTAL_MEMORY_WEIGHT: Final = 1
ACTUAL_WEIGHT: Final = 2
ALLOCATE_WEIGHT: Final = 3


class YodaArgs(Arguments, frozen=True):
    """``args`` of Yoda."""

    exact: bool = True
    """Yoda to the letter: only cards of just the clock that is asked for will do, and a card's clock is
    measured by the highest bandwidth. False: the clock is a least one, measured by the highest clock."""


class Wish(NamedTuple):
    """What a pod's labels ask for."""

    number: int
    memory: int | None
    clock: int | None


def wish_of(pod: PodInfo) -> Wish:
    labels = pod.labels
    return Wish(
        whole(labels[NUMBER_LABEL]) if NUMBER_LABEL in labels else 1,
        whole(labels[MEMORY_LABEL]) if MEMORY_LABEL in labels else None,
        whole(labels[CLOCK_LABEL]) if CLOCK_LABEL in labels else None,
    )


class Highest(NamedTuple):
    """The highest numbers of all cards that would do, at least 1."""

    bandwidth: int
    clock: int
    core: int
    power: int
    free_memory: int
    total_memory: int


HIGHEST: StateKey[Highest] = StateKey("Yoda/highest")

_NO_REPORT = Status.unschedulable("no Scv of the node")
_NO_CARDS = Status.unschedulable("too few cards with the memory and clock asked for")


class Yoda(
    QueueSortPlugin,
    FilterAllPlugin,
    PreScorePlugin,
    ScoreAllPlugin,
    NormalizeScore,
    EnqueueExtensions,
):
    """Yoda-Scheduler's plugin, for all nodes at once."""

    name: ClassVar[str] = "Yoda"
    api_version: ClassVar[int] = 1
    arguments = YodaArgs
    scope: ClassVar[Scope] = Scope.CLUSTER
    custom_resources = (Scv,)

    def __init__(self, args: YodaArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        self._exact = args.exact
        self._columns = ScvColumns(handle.cluster)

    # -- the queue ----------------------------------------------------------------------------

    def less(self, first: QueuedPod, second: QueuedPod) -> bool:
        return self.sort_key(first) < self.sort_key(second)

    def sort_key(self, pod: QueuedPod) -> tuple[int, int]:
        """Higher ``scv/priority`` first, then who came first, which Yoda leaves open."""
        return -_priority(pod.info), pod.timestamp_ns

    # -- the decision -------------------------------------------------------------------------

    def filter_all(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> Verdicts:
        reports = self._columns.of(nodes)
        codes = np.where(self._enough(reports, wish_of(pod)), 0, np.where(reports.known, 2, 1))
        return Verdicts(codes.astype(np.int16), (_NO_REPORT, _NO_CARDS))

    def pre_score(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> Status:
        """The highest numbers are those of all nodes that report enough, feasible or not."""
        wish, reports = wish_of(pod), self._columns.all()
        counted = self._enough(reports, wish)[:, None] & _would_do(reports, wish)

        def highest(cards: Cards) -> int:
            return int(np.where(counted, cards, 0).max(initial=1))

        found = Highest(
            highest(reports.bandwidth),
            highest(reports.clock),
            highest(reports.core),
            highest(reports.power),
            highest(reports.card_free_memory),
            highest(reports.card_total_memory),
        )
        state.write(HIGHEST, found)
        return SUCCESS

    def score_all(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> Int64Column:
        reports, wish, highest = self._columns.of(nodes), wish_of(pod), state.read(HIGHEST)
        by_card = np.where(_would_do(reports, wish), self._card_scores(reports, highest), 0)
        of_cards = np.where(self._enough(reports, wish), by_card.sum(axis=1), 0)
        total = np.maximum(reports.total_memory, 1)
        actual = reports.free_memory * 100 // total * ACTUAL_WEIGHT
        unasked = np.maximum(reports.total_memory - reports.allocated, 0)
        scores: Int64Column = of_cards + actual + unasked * 100 // total * ALLOCATE_WEIGHT
        return np.where(reports.known, scores, 0).astype(np.int64)

    def normalize(self, state: CycleState, pod: PodInfo, scores: Int64Column) -> Int64Column:
        """Lowest to highest as 0 to 100; where all are alike all have 100."""
        lowest, highest = int(scores.min(initial=1 << 62)), int(scores.max(initial=0))
        if highest == lowest:
            lowest -= 1
        return (scores - lowest) * MAX_NODE_SCORE // (highest - lowest)

    def _enough(self, reports: Reports, wish: Wish) -> NDArray[np.bool_]:
        """Where there are cards enough; where memory or a clock is asked for, healthy ones with it."""
        enough: NDArray[np.bool_] = reports.card_number >= max(wish.number, 1)
        if wish.number == 0:
            enough = reports.known.copy()
        if wish.memory is not None:
            fit = reports.healthy & (reports.card_free_memory >= wish.memory)
            enough = enough & (fit.sum(axis=1) >= wish.number)
        if wish.clock is not None:
            right = reports.clock == wish.clock if self._exact else reports.clock >= wish.clock
            enough = enough & ((reports.healthy & right).sum(axis=1) >= wish.number)
        return enough

    def _card_scores(self, reports: Reports, highest: Highest) -> Cards:
        by_clock = highest.bandwidth if self._exact else highest.clock
        weighed: Cards = (
            reports.bandwidth * 100 // highest.bandwidth * BANDWIDTH_WEIGHT
            + reports.clock * 100 // by_clock * CLOCK_WEIGHT
            + reports.core * 100 // highest.core * CORE_WEIGHT
            + reports.power * 100 // highest.power * POWER_WEIGHT
            + reports.card_free_memory * 100 // highest.free_memory * FREE_MEMORY_WEIGHT
            + reports.card_total_memory * 100 // highest.total_memory * TOTAL_MEMORY_WEIGHT
        )
        return weighed

    # -- what may help ------------------------------------------------------------------------

    def events_to_register(self) -> Sequence[ClusterEventWithHint]:
        return (
            custom_event(Scv, ActionType.ADD | ActionType.UPDATE_OTHER),
            ClusterEventWithHint(ClusterEvent(EventResource.NODE, ActionType.ADD)),
        )


def _priority(pod: PodInfo) -> int:
    text = pod.labels.get(PRIORITY_LABEL, "")
    digits = text[1:] if text[:1] in ("+", "-") else text
    if not (digits.isascii() and digits.isdecimal()):
        return 0
    return -int(digits) if text.startswith("-") else int(digits)


def _would_do(reports: Reports, wish: Wish) -> NDArray[np.bool_]:
    """The cards that count for the score: healthy or not, and of at least the clock, as Yoda has it."""
    free_enough = reports.card_free_memory >= (wish.memory or 0)
    return reports.there & free_enough & (reports.clock >= (wish.clock or 0))
