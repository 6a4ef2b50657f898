"""DefaultPreemption: where no node is feasible, evict pods of lower priority to make one so."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import ClassVar

import numpy as np

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
    Handle,
    NodeStatuses,
    PostFilterPlugin,
    PostFilterResult,
    PreEnqueuePlugin,
    Victim,
)
from asched.framework.memo import Memo
from asched.framework.nodes import RowArray
from asched.framework.pod_info import PodInfo, PodShape
from asched.framework.runtime.extenders import (
    CANDIDATE_REVIEW,
    ExtenderFailureError,
    PreemptionCandidate,
)
from asched.framework.runtime.findings import histogram
from asched.framework.status import SUCCESS, Code, Status
from asched.framework.trial import Fit
from asched.model.meta import Object
from asched.model.pod import Pod
from asched.model.workloads import PodDisruptionBudget
from asched.plugins.default_preemption.dry_run import (
    NO_VICTIMS,
    Budgets,
    Candidate,
    DryRun,
    Outcomes,
    dry_run,
    less_important,
)

NEVER = "not eligible due to preemptionPolicy=Never."
VICTIMS_LEAVING = "not eligible due to a terminating pod on the nominated node."
NO_CANDIDATE = "no candidate node for preemption"
NOT_HELPFUL = "Preemption is not helpful for scheduling"
UNDER_WAY = Status.unresolvable("waiting for the preemption for this pod to be finished")

_PREFIX = "preemption: "
_DISRUPTED = "DisruptionTarget"
_BY_SCHEDULER = "PreemptionByScheduler"
_MOST_MEMOS = 64


class DefaultPreemptionArgs(Arguments, frozen=True):
    """How many candidates are enough: a share of the nodes where preemption may help, and never
    less than an absolute number."""

    min_candidate_nodes_percentage: int = 10
    min_candidate_nodes_absolute: int = 100

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

    def enough(self, nodes: int) -> int:
        """How many candidates to look for among so many nodes."""
        share = nodes * self.min_candidate_nodes_percentage // 100
        return min(nodes, max(share, self.min_candidate_nodes_absolute))


class DefaultPreemption(PostFilterPlugin, PreEnqueuePlugin, EnqueueExtensions):
    """Chooses a node and the victims on it as kube-scheduler does. While the evictions are being
    carried out the pod is not tried again; other pods are."""

    name: ClassVar[str] = "DefaultPreemption"
    api_version: ClassVar[int] = 1
    arguments: ClassVar[type[DefaultPreemptionArgs]] = DefaultPreemptionArgs

    def __init__(self, args: DefaultPreemptionArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        self._args = args
        self._memos: Memo[tuple[PodShape, int, tuple[int, ...]], Outcomes] = Memo(_MOST_MEMOS)
        self._budgets = Budgets(())
        self._budgets_version = -1

    # -- the decision -------------------------------------------------------------------------

    def post_filter(
        self, state: CycleState, pod: PodInfo, statuses: NodeStatuses
    ) -> PostFilterResult:
        reason = self.ineligible(pod, statuses)
        if reason:
            return PostFilterResult(Status.unschedulable(_PREFIX + reason))
        rows = statuses.rows(Code.UNSCHEDULABLE)
        if not len(rows):
            return PostFilterResult(Status.unschedulable(_PREFIX + self._helpless(0, {})), "")
        lowest = self.handle.cluster.lowest_priority
        if lowest is None or lowest >= pod.priority:
            # No need to look: there is nobody anywhere to be evicted.
            text = self._helpless(len(rows), {NO_VICTIMS: len(rows)})
            return PostFilterResult(Status.unschedulable(_PREFIX + text), "")
        wanted = self._args.enough(len(rows))
        now_ns = self.handle.cluster.now_ns
        offset = self.handle.draw(f"{self.name}/{pod.uid}/{now_ns}", len(rows))
        rows = np.concatenate([rows[offset:], rows[:offset]])
        run = self.dry_run(state, pod, rows, wanted)
        if run.candidates:
            try:
                candidates = self._reviewed(state, run.shortlist(wanted))
            except ExtenderFailureError as failure:
                return PostFilterResult(Status.error(f"{_PREFIX}{failure}"))
            if not candidates:
                return PostFilterResult(Status.unschedulable(_PREFIX + NO_CANDIDATE))
            return self._preempt(pod, self.best(candidates)[0])
        if run.errors:
            text = run.errors[0] if len(run.errors) == 1 else f"[{', '.join(run.errors)}]"
            return PostFilterResult(Status.error(_PREFIX + text))
        return PostFilterResult(Status.unschedulable(_PREFIX + self.no_candidate(run)), "")

    def _reviewed(self, state: CycleState, candidates: Sequence[Candidate]) -> Sequence[Candidate]:
        """What extenders leave of the candidates (``callExtenders``). Raises
        :class:`ExtenderFailureError`, and AttemptPausedError where one must be asked first."""
        review = state.get(CANDIDATE_REVIEW)
        if review is None:
            return candidates
        nodes = self.handle.cluster.nodes
        offered = [
            PreemptionCandidate(
                c.node, tuple(Victim(v.key, v.uid) for v in c.victims), c.pdb_violations
            )
            for c in candidates
        ]
        found = []
        for left in review.review(offered):
            row = nodes.row_of(left.node)
            there = {} if row is None else {p.uid: p for p in nodes.pods(row)}
            victims = [there[v.uid] for v in left.victims if v.uid in there]
            if victims:
                found.append(Candidate.of(left.node, victims, left.pdb_violations))
        return found

    def ineligible(self, pod: PodInfo, statuses: NodeStatuses) -> str:
        """Why the pod may not preempt (``PodEligibleToPreemptOthers``); empty if it may.

        One that preempted already waits for its victims to go, unless its node turned out to be
        hopeless.
        """
        if pod.pod.spec.preemption_policy == "Never":
            return NEVER
        nodes, nominated = self.handle.cluster.nodes, self.handle.nominated_node(pod)
        row = nodes.row_of(nominated) if nominated else None
        if row is None:
            return ""
        status = statuses.status(nominated)
        if status is not None and status.code is Code.UNSCHEDULABLE_AND_UNRESOLVABLE:
            return ""
        leaving = any(_preempted(other) for other in less_important(nodes.pods(row), pod))
        return VICTIMS_LEAVING if leaving else ""

    def no_candidate(self, run: DryRun) -> str:
        """What to say where no evictions would help: each node counts."""
        return self._helpless(len(run.rejected), Counter(run.rejected.values()))

    def _helpless(self, tried: int, why: Mapping[Status, int]) -> str:
        size = self.handle.cluster.nodes.cluster_size
        counted = [(status.reasons, number) for status, number in why.items()]
        others = size - tried
        if others:
            counted.append(((NOT_HELPFUL,), others))
        return f"0/{size} nodes are available: {histogram(counted)}."

    def best(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """The candidates that do the least harm (``pickOneNodeForPreemption``): fewest violations
        of budgets, then the lowest priority of the most important victim, the smallest sum of
        priorities, the fewest victims, the latest start of the most important victims."""
        harms = [candidate.harm for candidate in candidates]
        least = min(harms)
        return [c for c, harm in zip(candidates, harms, strict=True) if harm == least]

    def _preempt(self, pod: PodInfo, candidate: Candidate) -> PostFilterResult:
        # Graceful deletion has begun: asking for it again would do nothing.
        staying = [v for v in candidate.victims if not v.pod.terminating]
        if not staying:
            return PostFilterResult(SUCCESS, candidate.node)
        handle = self.handle
        evicted = {v.uid: v for v in staying if v.uid not in handle.evictions}
        for waiting in handle.waiting_pods():
            # Not bound yet: it gives its place back without being deleted.
            if evicted.pop(waiting.info.uid, None) is not None:
                waiting.reject(self.name, "preempted")
        displaced = less_important(handle.nominated_pods(candidate.node), pod)
        return PostFilterResult(
            SUCCESS,
            candidate.node,
            tuple(Victim(v.key, v.uid) for v in evicted.values()),
            tuple(Victim(p.key, p.uid) for p in displaced),
        )

    # -- the dry run --------------------------------------------------------------------------

    def dry_run(
        self, state: CycleState, pod: PodInfo, rows: RowArray, wanted: int | None = None
    ) -> DryRun:
        """Look for candidates among these rows of the cluster's nodes, in order, until ``wanted``
        are found; None looks at all. Raises PluginFailure where a filter fails."""
        handle = self.handle
        own = handle.cluster.nodes.row_of(handle.nominated_node(pod))
        fit = handle.fit(state, pod)
        budgets = self._current_budgets()  # first: what is known depends on them
        known = self._known(fit)
        return dry_run(fit, rows, known, budgets, own=own, wanted=wanted)

    def _current_budgets(self) -> Budgets:
        cluster = self.handle.cluster
        version = cluster.objects_version(PodDisruptionBudget)
        if version != self._budgets_version:
            self._budgets_version = version
            self._budgets = Budgets(cluster.objects(PodDisruptionBudget).values())
            self._memos.clear()
        return self._budgets

    def _known(self, fit: Fit) -> Outcomes:
        """What earlier pods of the same shape and priority found out, by the same filters: an optional
        one may be left out while its circuit is open."""
        if not fit.shareable:
            return Outcomes()
        asked = tuple([rank for rank, _ in (*fit.fixed, *fit.moving)])
        return self._memos.get((fit.pod.shape, fit.pod.priority, asked), Outcomes)

    # -- while victims go ---------------------------------------------------------------------

    def pre_enqueue(self, pod: PodInfo) -> Status:
        return UNDER_WAY if self.handle.is_preempting(pod.uid) else SUCCESS

    def events_to_register(self) -> Sequence[ClusterEventWithHint]:
        event = ClusterEvent(EventResource.ASSIGNED_POD, ActionType.DELETE)
        return (ClusterEventWithHint(event, self._evictions_done, only_for=self._preempted_for),)

    def _preempted_for(self) -> Collection[str]:
        return self.handle.preempted_for

    def _evictions_done(self, pod: Pod, old: Object | None, new: Object | None) -> QueueingHint:
        """A pod held back here was on its way to be tried: it goes on once its evictions are done.

        kube-scheduler answers Skip and lets the plugins that had rejected the pod decide again,
        which only some of them do at the right moment.
        """
        done = not self.handle.is_preempting(pod.uid)
        return QueueingHint.QUEUE if done else QueueingHint.SKIP


def _preempted(pod: PodInfo) -> bool:
    """Being deleted because a scheduler preempted it."""
    if not pod.pod.terminating:
        return False
    for condition in pod.pod.status.conditions:
        if condition.type == _DISRUPTED:
            return condition.status == "True" and condition.reason == _BY_SCHEDULER
    return False
