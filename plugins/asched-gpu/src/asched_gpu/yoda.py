"""Yoda: schedules pods by reported card metrics, as Yoda-Scheduler does.

A pod requests by label ``scv/number`` cards, ``scv/memory`` free on each, and a ``scv/clock``.
Nodes are scored by the matching cards (bandwidth, clock, core, power, memory, and free memory
twice), by the memory that their pods request, and by the memory in use.
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
    FilterResult,
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
    """True: as Yoda, cards must have exactly the requested clock, and clocks are scored relative to
    the highest bandwidth. False: a minimum clock, scored relative to the highest clock."""


class CardRequest(NamedTuple):
    """The request in a pod's labels."""

    number: int
    memory: int | None
    clock: int | None


def request_of(pod: PodInfo) -> CardRequest:
    labels = pod.labels
    return CardRequest(
        whole(labels[NUMBER_LABEL]) if NUMBER_LABEL in labels else 1,
        whole(labels[MEMORY_LABEL]) if MEMORY_LABEL in labels else None,
        whole(labels[CLOCK_LABEL]) if CLOCK_LABEL in labels else None,
    )


class Highest(NamedTuple):
    """The highest values of all matching cards, at least 1."""

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
    """The plugin of Yoda-Scheduler, on columns."""

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
        """Higher ``scv/priority`` first. Ties, which Yoda leaves open, in order of arrival."""
        return -_priority(pod.info), pod.timestamp_ns

    # -- the decision -------------------------------------------------------------------------

    def filter_all(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> FilterResult:
        reports = self._columns.of(nodes)
        codes = np.where(self._enough(reports, request_of(pod)), 0, np.where(reports.known, 2, 1))
        return FilterResult(codes.astype(np.int16), (_NO_REPORT, _NO_CARDS))

    def pre_score(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> Status:
        """The highest values are those of all nodes with enough cards, feasible or not."""
        request, reports = request_of(pod), self._columns.all()
        counted = self._enough(reports, request)[:, None] & _matching(reports, request)

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
        reports, request, highest = self._columns.of(nodes), request_of(pod), state.read(HIGHEST)
        by_card = np.where(_matching(reports, request), self._card_scores(reports, highest), 0)
        of_cards = np.where(self._enough(reports, request), by_card.sum(axis=1), 0)
        total = np.maximum(reports.total_memory, 1)
        actual = reports.free_memory * 100 // total * ACTUAL_WEIGHT
        unrequested = np.maximum(reports.total_memory - reports.allocated, 0)
        scores: Int64Column = of_cards + actual + unrequested * 100 // total * ALLOCATE_WEIGHT
        return np.where(reports.known, scores, 0).astype(np.int64)

    def normalize(self, state: CycleState, pod: PodInfo, scores: Int64Column) -> Int64Column:
        """Scale to 0 to 100; if all scores are equal, all become 100."""
        lowest, highest = int(scores.min(initial=1 << 62)), int(scores.max(initial=0))
        if highest == lowest:
            lowest -= 1
        return (scores - lowest) * MAX_NODE_SCORE // (highest - lowest)

    def _enough(self, reports: Reports, request: CardRequest) -> NDArray[np.bool_]:
        """Where enough cards exist, and enough healthy cards with memory and clock."""
        enough: NDArray[np.bool_] = reports.card_number >= max(request.number, 1)
        if request.number == 0:
            enough = reports.known.copy()
        if request.memory is not None:
            fit = reports.healthy & (reports.card_free_memory >= request.memory)
            enough = enough & (fit.sum(axis=1) >= request.number)
        if request.clock is not None:
            right = (
                reports.clock == request.clock if self._exact else reports.clock >= request.clock
            )
            enough = enough & ((reports.healthy & right).sum(axis=1) >= request.number)
        return enough

    def _card_scores(self, reports: Reports, highest: Highest) -> Cards:
        by_clock = highest.bandwidth if self._exact else highest.clock
        weighted: Cards = (
            reports.bandwidth * 100 // highest.bandwidth * BANDWIDTH_WEIGHT
            + reports.clock * 100 // by_clock * CLOCK_WEIGHT
            + reports.core * 100 // highest.core * CORE_WEIGHT
            + reports.power * 100 // highest.power * POWER_WEIGHT
            + reports.card_free_memory * 100 // highest.free_memory * FREE_MEMORY_WEIGHT
            + reports.card_total_memory * 100 // highest.total_memory * TOTAL_MEMORY_WEIGHT
        )
        return weighted

    # -- events -------------------------------------------------------------------------------

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


def _matching(reports: Reports, request: CardRequest) -> NDArray[np.bool_]:
    """The cards that count for the score: with at least the clock, healthy or not, as in Yoda."""
    free_enough = reports.card_free_memory >= (request.memory or 0)
    return reports.there & free_enough & (reports.clock >= (request.clock or 0))
