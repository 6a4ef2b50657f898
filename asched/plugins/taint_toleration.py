"""TaintToleration: taints keep pods off nodes; soft ones count against a node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from asched.framework.cycle_state import CycleState, StateKey
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
from asched.model.node import NO_EXECUTE, NO_SCHEDULE, PREFER_NO_SCHEDULE, Node, Taint
from asched.model.pod import Pod, Toleration

UNTOLERATED = Status.unresolvable("node(s) had untolerated taint(s)")

S = TypeVar("S", bound=np.generic)


class TaintSetTable(Generic[S]):
    """What one pod shape thinks of each distinct list of taints, worked out once per list.

    Entries never change; new lists are added at the end as nodes come with them.
    """

    __slots__ = ("_dtype", "_judge", "_verdicts")

    def __init__(self, dtype: type[S], judge: Callable[[tuple[Taint, ...]], int]) -> None:
        self._dtype = dtype
        self._judge = judge
        self._verdicts: NDArray[S] = np.zeros(0, dtype)

    def column(self, taints: TaintColumn) -> NDArray[S] | None:
        """By row of the taints; None where it is 0 for all there is."""
        known = len(self._verdicts)
        if known < len(taints.sets):
            fresh = [self._judge(taint_set) for taint_set in taints.sets[known:]]
            self._verdicts = np.concatenate([self._verdicts, np.array(fresh, self._dtype)])
        return self._verdicts[taints.ids] if self._verdicts.any() else None


_HARD: StateKey[TaintSetTable[np.int16]] = StateKey("TaintToleration/filter")
_SOFT: StateKey[TaintSetTable[np.int64]] = StateKey("TaintToleration/score")


class TaintToleration(
    FilterAllPlugin, PreScorePlugin, ScoreAllPlugin, NormalizeScore, EnqueueExtensions
):
    """Rejects nodes with a ``NoSchedule`` or ``NoExecute`` taint that the pod does not tolerate;
    scores by the number of untolerated ``PreferNoSchedule`` taints, fewest best."""

    name: ClassVar[str] = "TaintToleration"
    api_version: ClassVar[int] = 1
    scope: ClassVar[Scope] = Scope.NODE_OBJECT
    by_extremes: ClassVar[bool] = True

    def filter_all(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> FilterResult:
        table = state.get(_HARD)
        if table is None:
            tolerations = pod.shape.tolerations
            table = TaintSetTable(np.int16, lambda taints: _repels(taints, tolerations))
            state.write(_HARD, table)
        codes = table.column(nodes.taints)
        return (
            FilterResult.passing(nodes.size)
            if codes is None
            else FilterResult(codes, (UNTOLERATED,))
        )

    def pre_score(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> Status:
        # Only these tolerations can speak to soft taints.
        tolerations = tuple(
            toleration
            for toleration in pod.shape.tolerations
            if toleration.effect in ("", PREFER_NO_SCHEDULE)
        )
        state.write(
            _SOFT, TaintSetTable(np.int64, lambda taints: _discouragements(taints, tolerations))
        )
        return SUCCESS

    def score_all(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> Int64Column:
        counts = state.read(_SOFT).column(nodes.taints)
        return np.zeros(nodes.size, np.int64) if counts is None else counts

    def normalize(self, state: CycleState, pod: PodInfo, scores: Int64Column) -> Int64Column:
        return normalize_to_highest(scores, reverse=True)

    def events_to_register(self) -> Sequence[ClusterEventWithHint]:
        return (
            ClusterEventWithHint.on(
                EventResource.NODE,
                ActionType.ADD | ActionType.UPDATE_NODE_TAINT,
                taints_became_tolerable,
            ),
            ClusterEventWithHint.on(
                EventResource.TARGET_POD, ActionType.UPDATE_POD_TOLERATION, own_tolerations_changed
            ),
        )


def _tolerated(taint: Taint, tolerations: Sequence[Toleration]) -> bool:
    return any(toleration.tolerates(taint) for toleration in tolerations)


def _repels(taints: Sequence[Taint], tolerations: Sequence[Toleration]) -> bool:
    return any(
        taint.effect in (NO_SCHEDULE, NO_EXECUTE) and not _tolerated(taint, tolerations)
        for taint in taints
    )


def _discouragements(taints: Sequence[Taint], tolerations: Sequence[Toleration]) -> int:
    return sum(
        taint.effect == PREFER_NO_SCHEDULE and not _tolerated(taint, tolerations)
        for taint in taints
    )


def taints_became_tolerable(pod: Pod, old: Object | None, new: Object | None) -> QueueingHint:
    """A node whose taints kept the pod off, or that was not there, and now does not."""
    tolerations = pod.spec.tolerations
    open_before = isinstance(old, Node) and not _repels(old.spec.taints, tolerations)
    open_now = isinstance(new, Node) and not _repels(new.spec.taints, tolerations)
    return QueueingHint.QUEUE if open_now and not open_before else QueueingHint.SKIP


def own_tolerations_changed(pod: Pod, old: Object | None, new: Object | None) -> QueueingHint:
    """Tolerations can only be added, so any change of the pod's own may help."""
    return QueueingHint.QUEUE if new is not None and new.uid == pod.uid else QueueingHint.SKIP
