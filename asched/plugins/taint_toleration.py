"""TaintToleration: filters and scores by the taints that the pod does not tolerate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, Generic, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from asched.framework.caching import LruCache
from asched.framework.cluster import Handle
from asched.framework.cycle_state import CycleState
from asched.framework.events import ActionType, ClusterEventWithHint, EventResource, QueueingHint
from asched.framework.interface import (
    EnqueueExtensions,
    FilterAllPlugin,
    NormalizeScore,
    PreScorePlugin,
    Scope,
    ScoreAllPlugin,
)
from asched.framework.nodes import FilterResult, Int64Column, Nodes, TaintColumn
from asched.framework.pod_info import PodInfo
from asched.framework.scoring import normalize_to_highest
from asched.framework.status import SUCCESS, Status
from asched.model.meta import Object
from asched.model.node import PREFER_NO_SCHEDULE, Node, Taint
from asched.model.pod import Pod, Toleration
from asched.plugins.shared import is_tolerated, own_pod_updated, queue_if, repels

UNTOLERATED = Status.unresolvable("node(s) had untolerated taint(s)")

Tolerations: TypeAlias = tuple[Toleration, ...]

S = TypeVar("S", bound=np.generic)


class TaintSetTable(Generic[S]):
    """A value for each distinct list of taints, for pods with the same tolerations. It grows with
    the lists, until these are numbered again."""

    __slots__ = ("_any", "_compute", "_dtype", "_sets", "_values")

    def __init__(self, dtype: type[S], compute: Callable[[tuple[Taint, ...]], int]) -> None:
        self._dtype = dtype
        self._compute = compute
        self._values: NDArray[S] = np.zeros(0, dtype)
        self._any = False
        self._sets: Sequence[tuple[Taint, ...]] = ()

    def column(self, taints: TaintColumn) -> NDArray[S] | None:
        """By row; None if all are 0."""
        if taints.sets is not self._sets:  # the lists are numbered again
            self._sets, self._values = taints.sets, self._values[:0]
        known = len(self._values)
        if known < len(taints.sets):
            fresh = [self._compute(taint_set) for taint_set in taints.sets[known:]]
            self._values = np.concatenate([self._values, np.array(fresh, self._dtype)])
            self._any = bool(self._values.any())
        return self._values[taints.ids] if self._any else None


_MAX_TOLERATIONS = 64


class TaintToleration(
    FilterAllPlugin, PreScorePlugin, ScoreAllPlugin, NormalizeScore, EnqueueExtensions
):
    """Rejects nodes with an untolerated ``NoSchedule`` or ``NoExecute`` taint; prefers nodes with
    few untolerated ``PreferNoSchedule`` taints."""

    name: ClassVar[str] = "TaintToleration"
    api_version: ClassVar[int] = 1
    scope: ClassVar[Scope] = Scope.NODE_OBJECT
    by_extremes: ClassVar[bool] = True

    def __init__(self, args: None, handle: Handle) -> None:
        super().__init__(args, handle)
        # By tolerations, which pods with different requests have in common.
        self._repelled: LruCache[Tolerations, TaintSetTable[np.int16]] = LruCache(_MAX_TOLERATIONS)
        self._counts: LruCache[Tolerations, TaintSetTable[np.int64]] = LruCache(_MAX_TOLERATIONS)

    def filter_all(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> FilterResult:
        tolerations = pod.shape.tolerations
        codes = self._repelled.get(
            tolerations,
            lambda: TaintSetTable(np.int16, lambda taints: repels(taints, tolerations)),
        ).column(nodes.taints)
        if codes is None:
            return FilterResult.passing(nodes.size)
        return FilterResult(codes, (UNTOLERATED,))

    def pre_score(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> Status:
        return SUCCESS

    def score_all(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> Int64Column:
        tolerations = pod.shape.tolerations
        counts = self._counts.get(tolerations, lambda: _counts(tolerations)).column(nodes.taints)
        return np.zeros(nodes.size, np.int64) if counts is None else counts

    def normalize(self, state: CycleState, pod: PodInfo, scores: Int64Column) -> Int64Column:
        return normalize_to_highest(scores, reverse=True)

    def events_to_register(self) -> Sequence[ClusterEventWithHint]:
        on = ClusterEventWithHint.on
        changed = ActionType.ADD | ActionType.UPDATE_NODE_TAINT
        return (
            on(EventResource.NODE, changed, taints_now_tolerated),
            # Tolerations can only be added.
            on(EventResource.TARGET_POD, ActionType.UPDATE_POD_TOLERATION, own_pod_updated),
        )


def _counts(tolerations: Tolerations) -> TaintSetTable[np.int64]:
    # The tolerations that apply to PreferNoSchedule.
    soft = tuple(t for t in tolerations if t.effect in ("", PREFER_NO_SCHEDULE))
    return TaintSetTable(np.int64, lambda taints: _count_untolerated(taints, soft))


def _count_untolerated(taints: Sequence[Taint], tolerations: Sequence[Toleration]) -> int:
    return sum(
        taint.effect == PREFER_NO_SCHEDULE and not is_tolerated(taint, tolerations)
        for taint in taints
    )


def taints_now_tolerated(pod: Pod, old: Object | None, new: Object | None) -> QueueingHint:
    """Queue if the node has no untolerated taint now and was new or had one before."""
    tolerations = pod.spec.tolerations
    passed_before = isinstance(old, Node) and not repels(old.spec.taints, tolerations)
    passes_now = isinstance(new, Node) and not repels(new.spec.taints, tolerations)
    return queue_if(passes_now and not passed_before)
