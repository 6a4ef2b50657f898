"""DefaultPreemption: evicts pods of lower priority to make a node feasible."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import ClassVar

import numpy as np

from asched.framework.caching import LruCache
from asched.framework.cluster import Handle, PodRef
from asched.framework.cycle_state import CycleState
from asched.framework.events import (
    ActionType,
    ClusterEvent,
    ClusterEventWithHint,
    EventResource,
    QueueingHint,
)
from asched.framework.interface import (
    Arguments,
    EnqueueExtensions,
    NodeToStatus,
    PostFilterPlugin,
    PostFilterResult,
    PreEnqueuePlugin,
)
from asched.framework.nodes import RowArray
from asched.framework.placements import NO_PREEMPTION
from asched.framework.pod_info import PodInfo, PodShape
from asched.framework.runtime.diagnosis import histogram
from asched.framework.runtime.dry_run import SEARCH_STEPS, FilterDryRunner
from asched.framework.runtime.extenders import (
    CANDIDATE_REVIEW,
    CandidateReview,
    ExtenderFailureError,
    PreemptionCandidate,
)
from asched.framework.status import SUCCESS, Code, Status
from asched.model.meta import Object
from asched.model.pod import Pod
from asched.model.workloads import PodDisruptionBudget
from asched.plugins.default_preemption.budgets import Budgets
from asched.plugins.default_preemption.dry_run import CandidateSearch, DryRunCache
from asched.plugins.default_preemption.importance import PodsByImportance
from asched.plugins.default_preemption.victims import (
    NO_VICTIMS,
    Candidate,
    less_important,
)
from asched.plugins.shared import queue_if

NEVER = "not eligible due to preemptionPolicy=Never."
VICTIMS_TERMINATING = "not eligible due to a terminating pod on the nominated node."
NO_CANDIDATE = "no candidate node for preemption"
NOT_HELPFUL = "Preemption is not helpful for scheduling"
IN_PROGRESS = Status.unresolvable("waiting for the preemption for this pod to be finished")

_PREFIX = "preemption: "
_MAX_CACHES = 64


class DefaultPreemptionArgs(Arguments, frozen=True):
    """How many candidates to find: a share of the nodes on which preemption may help, but at least
    an absolute number."""

    min_candidate_nodes_percentage: int = 10
    """Percentage of the nodes on which preemption may help."""
    min_candidate_nodes_absolute: int = 100
    """At least so many nodes."""

    def __post_init__(self) -> None:
        percentage = self.min_candidate_nodes_percentage
        absolute = self.min_candidate_nodes_absolute
        if not 0 <= percentage <= 100:
            raise ValueError(
                f"minCandidateNodesPercentage: Invalid value: {percentage}:"
                " not in valid range [0, 100]"
            )
        if absolute < 0:
            raise ValueError(
                f"minCandidateNodesAbsolute: Invalid value: {absolute}: not in valid range [0, inf)"
            )
        if not percentage and not absolute:
            raise ValueError(
                "minCandidateNodesPercentage: Invalid value: 0:"
                " cannot be zero at the same time as minCandidateNodesAbsolute"
            )

    def num_candidates(self, nodes: int) -> int:
        """How many candidates to find among ``nodes`` nodes."""
        share = nodes * self.min_candidate_nodes_percentage // 100
        return min(nodes, max(share, self.min_candidate_nodes_absolute))


class DefaultPreemption(PostFilterPlugin, PreEnqueuePlugin, EnqueueExtensions):
    """Selects a node and its victims as kube-scheduler does.

    The pod is not retried while its evictions are in progress; other pods are.
    """

    name: ClassVar[str] = "DefaultPreemption"
    api_version: ClassVar[int] = 1
    arguments: ClassVar[type[DefaultPreemptionArgs]] = DefaultPreemptionArgs
    rejects_like_pods: ClassVar[bool] = True

    def __init__(self, args: DefaultPreemptionArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        self._args = args
        self._caches: LruCache[tuple[PodShape, int, tuple[int, ...]], DryRunCache]
        self._caches = LruCache(_MAX_CACHES)
        self._by_importance = PodsByImportance()
        self._budgets = Budgets(())
        self._budgets_version = -1

    def post_filter(
        self, state: CycleState, pod: PodInfo, statuses: NodeToStatus
    ) -> PostFilterResult:
        reason = state.get(NO_PREEMPTION) or self.ineligible(pod, statuses)
        if reason:
            return PostFilterResult(Status.unschedulable(_PREFIX + reason))
        rows = statuses.rows(Code.UNSCHEDULABLE)
        if not len(rows):
            return PostFilterResult(Status.unschedulable(_PREFIX + self._not_helpful(0, {})), "")
        lowest = self.handle.cluster.lowest_priority
        if lowest is None or lowest >= pod.priority:
            # No pod on any node has a lower priority.
            text = self._not_helpful(len(rows), {NO_VICTIMS: len(rows)})
            return PostFilterResult(Status.unschedulable(_PREFIX + text), "")
        rows, limit = self.examined(pod, rows)
        search = self.dry_run(state, pod, rows, limit)
        state.write(SEARCH_STEPS, search.steps)
        if search.found:
            review = state.get(CANDIDATE_REVIEW)
            if review is None:
                return self._preempt(pod, search.best(limit))
            try:
                candidates = self._reviewed(review, search.shortlist(limit))
            except ExtenderFailureError as failure:
                return PostFilterResult(Status.error(f"{_PREFIX}{failure}"))
            if not candidates:
                return PostFilterResult(Status.unschedulable(_PREFIX + NO_CANDIDATE))
            return self._preempt(pod, self.lowest_cost(candidates)[0])
        errors = search.errors
        if errors:
            text = errors[0] if len(errors) == 1 else f"[{', '.join(errors)}]"
            return PostFilterResult(Status.error(_PREFIX + text))
        counted = search.counted()
        text = self._not_helpful(sum(counted.values()), counted)
        return PostFilterResult(Status.unschedulable(_PREFIX + text), "")

    def examined(self, pod: PodInfo, rows: RowArray) -> tuple[RowArray, int]:
        """These rows in the order in which an attempt now examines them, and how many candidates
        are enough."""
        now_ns = self.handle.cluster.now_ns
        offset = self.handle.stable_random(f"{self.name}/{pod.uid}/{now_ns}", len(rows))
        limit = self._args.num_candidates(len(rows))
        return np.concatenate([rows[offset:], rows[:offset]]), limit

    def _reviewed(
        self, review: CandidateReview, candidates: Sequence[Candidate]
    ) -> Sequence[Candidate]:
        """The candidates that extenders leave (``callExtenders``). Raises
        :class:`ExtenderFailureError`, and AttemptPausedError if an answer is missing."""
        nodes = self.handle.cluster.nodes
        offered = [
            PreemptionCandidate(
                c.node, tuple(PodRef(v.key, v.uid) for v in c.victims), c.pdb_violations
            )
            for c in candidates
        ]
        found = []
        for left in review.review(offered):
            row = nodes.row_of(left.node)
            on_node = {} if row is None else {p.uid: p for p in nodes.pods(row)}
            victims = [on_node[v.uid] for v in left.victims if v.uid in on_node]
            if victims:
                found.append(Candidate.of(left.node, victims, left.pdb_violations))
        return found

    def ineligible(self, pod: PodInfo, statuses: NodeToStatus) -> str:
        """Why the pod may not preempt (``PodEligibleToPreemptOthers``); empty if it may. A pod that
        has preempted waits for its victims, unless its nominated node is unresolvable."""
        if pod.pod.spec.preemption_policy == "Never":
            return NEVER
        nodes, nominated = self.handle.cluster.nodes, self.handle.nominated_node(pod)
        row = nodes.row_of(nominated) if nominated else None
        if row is None:
            return ""
        status = statuses.status(nominated)
        if status is not None and status.code is Code.UNSCHEDULABLE_AND_UNRESOLVABLE:
            return ""
        terminating = any(
            _is_terminating_by_preemption(other) for other in less_important(nodes.pods(row), pod)
        )
        return VICTIMS_TERMINATING if terminating else ""

    def _not_helpful(self, helpful: int, statuses: Mapping[Status, int]) -> str:
        size = self.handle.cluster.nodes.cluster_size
        counted = [(status.reasons, number) for status, number in statuses.items()]
        others = size - helpful
        if others:
            counted.append(((NOT_HELPFUL,), others))
        return f"0/{size} nodes are available: {histogram(counted)}."

    def lowest_cost(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """The candidates with the lowest cost (``pickOneNodeForPreemption``).

        The criteria are: fewest budget violations, lowest priority of the most important victim,
        lowest sum of priorities, fewest victims, latest start of the most important victims.
        """
        lowest = min(candidate.cost for candidate in candidates)
        return [candidate for candidate in candidates if candidate.cost == lowest]

    def _preempt(self, pod: PodInfo, candidate: Candidate) -> PostFilterResult:
        # Graceful deletion of terminating victims has already begun.
        running = [v for v in candidate.victims if not v.pod.terminating]
        if not running:
            return PostFilterResult(SUCCESS, candidate.node)
        handle = self.handle
        evicted = {v.uid: v for v in running if v.uid not in handle.evictions}
        for waiting in handle.waiting_pods():
            # Not bound yet: rejecting it is enough.
            if evicted.pop(waiting.info.uid, None) is not None:
                waiting.reject(self.name, "preempted")
        lower = less_important(handle.nominated_pods(candidate.node), pod)
        return PostFilterResult(
            SUCCESS,
            candidate.node,
            tuple(PodRef(v.key, v.uid) for v in evicted.values()),
            tuple(PodRef(p.key, p.uid) for p in lower),
        )

    def dry_run(
        self, state: CycleState, pod: PodInfo, rows: RowArray, limit: int | None = None
    ) -> CandidateSearch:
        """Find candidates among these rows of the cluster's nodes, in order, until there are
        ``limit``; None finds all. Raises PluginFailure if a filter fails."""
        handle = self.handle
        dry_runner = handle.dry_run(state, pod)
        budgets = self._current_budgets()  # before the cache, which depends on them
        own_row = handle.cluster.nodes.row_of(handle.nominated_node(pod))
        cache = self._cache(dry_runner)
        search = CandidateSearch(
            dry_runner, cache, budgets, self._by_importance, own_row=own_row, limit=limit
        )
        search.run(rows)
        return search

    def _current_budgets(self) -> Budgets:
        cluster = self.handle.cluster
        version = cluster.objects_version(PodDisruptionBudget)
        if version != self._budgets_version:
            self._budgets_version = version
            self._budgets = Budgets(cluster.objects(PodDisruptionBudget).values())
            self._caches.clear()
        return self._budgets

    def _cache(self, dry_runner: FilterDryRunner) -> DryRunCache:
        """The results of pods of the same shape and priority with the same filters: an optional
        filter is skipped while its circuit is open."""
        if not dry_runner.shareable:
            return DryRunCache()
        filters = tuple([rank for rank, _ in (*dry_runner.node_filters, *dry_runner.pod_filters)])
        pod = dry_runner.pod
        return self._caches.get((pod.shape, pod.priority, filters), DryRunCache)

    def pre_enqueue(self, pod: PodInfo) -> Status:
        return IN_PROGRESS if self.handle.is_preempting(pod.uid) else SUCCESS

    def events_to_register(self) -> Sequence[ClusterEventWithHint]:
        def keys() -> Collection[str]:
            return self.handle.preemptors_without_evictions

        event = ClusterEvent(EventResource.ASSIGNED_POD, ActionType.DELETE)
        return (ClusterEventWithHint(event, self._evictions_done, only_for=keys),)

    def _evictions_done(self, pod: Pod, old: Object | None, new: Object | None) -> QueueingHint:
        """Queue a pod that PreEnqueue held once its evictions are done. kube-scheduler returns Skip
        and relies on the hints of the plugins that rejected the pod. Only some of them queue it at
        this time."""
        return queue_if(not self.handle.is_preempting(pod.uid))


def _is_terminating_by_preemption(pod: PodInfo) -> bool:
    """Whether the pod is terminating because a scheduler preempted it."""
    if not pod.pod.terminating:
        return False
    for condition in pod.pod.status.conditions:
        if condition.type == "DisruptionTarget":
            return condition.status == "True" and condition.reason == "PreemptionByScheduler"
    return False
