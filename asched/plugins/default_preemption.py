"""DefaultPreemption: where no node is feasible, evict pods of lower priority to make one so."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import ClassVar, NamedTuple

import numpy as np

from asched.framework.cycle_state import CycleState
from asched.framework.events import (
    ActionType,
    ClusterEvent,
    ClusterEventWithHint,
    EventResource,
    QueueingHint,
)
from asched.framework.extenders import (
    CANDIDATE_REVIEW,
    ExtenderFailureError,
    PreemptionCandidate,
)
from asched.framework.findings import histogram
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
from asched.framework.row_memo import RowMemo
from asched.framework.status import SUCCESS, Code, Status
from asched.framework.trial import Fit, Placed, Trial
from asched.model.meta import Object
from asched.model.pod import Pod
from asched.model.workloads import PodDisruptionBudget

NEVER = "not eligible due to preemptionPolicy=Never."
VICTIMS_LEAVING = "not eligible due to a terminating pod on the nominated node."
NO_VICTIMS = Status.unresolvable("No preemption victims found for incoming pod")
NO_CANDIDATE = "no candidate node for preemption"
NOT_HELPFUL = "Preemption is not helpful for scheduling"
UNDER_WAY = Status.unresolvable("waiting for the preemption for this pod to be finished")

_PREFIX = "preemption: "
_DISRUPTED = "DisruptionTarget"
_BY_SCHEDULER = "PreemptionByScheduler"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NEVER_STARTED = datetime.max.replace(tzinfo=UTC)
_MOST_MEMOS = 64
_PRIORITY_OFFSET = 1 << 31
"""Added to each priority in a sum, so that fewer pods of a negative one count less, not more."""


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


class Candidate(NamedTuple):
    """A node on which the pod would fit if the victims were gone."""

    node: str
    victims: tuple[PodInfo, ...]
    """The most important first. Some may be on their way out already."""
    pdb_violations: int
    harm: tuple[int, int, int, int, timedelta]
    """What evicting them would do; compares as ``pickOneNodeForPreemption`` does."""

    @classmethod
    def of(cls, node: str, victims: Sequence[PodInfo], pdb_violations: int) -> Candidate:
        priorities = [victim.priority for victim in victims]
        highest = max(priorities)
        earliest = min(_started(victim) for victim in victims if victim.priority == highest)
        total = sum(priorities) + _PRIORITY_OFFSET * len(priorities)
        # The first stands for the most important, also in the order that an extender gives.
        harm = (pdb_violations, priorities[0], total, len(priorities), _EPOCH - earliest)
        return cls(node, tuple(victims), pdb_violations, harm)


class Refusal(NamedTuple):
    """A node where evictions would not help, and why."""

    node: str
    status: Status


Outcome = Candidate | Refusal


class DryRun:
    """What evictions would bring about."""

    __slots__ = ("candidates", "rejected")

    def __init__(self) -> None:
        self.candidates: list[Candidate] = []
        self.rejected: dict[str, Status] = {}
        """Node to why evictions would not help there."""

    def is_enough(self, wanted: int) -> bool:
        """The search ends once there are so many, and one of them violates no budget."""
        found = len(self.candidates)
        return found >= wanted and any(not c.pdb_violations for c in self.candidates)

    def shortlist(self, wanted: int) -> list[Candidate]:
        """Those that violate no budget, then the others, so many of each."""
        kind = [c for c in self.candidates if not c.pdb_violations]
        unkind = [c for c in self.candidates if c.pdb_violations]
        return kind[:wanted] + unkind[:wanted]

    @property
    def errors(self) -> list[str]:
        return [s.message for s in self.rejected.values() if s.code is Code.ERROR]


class DefaultPreemption(PostFilterPlugin, PreEnqueuePlugin, EnqueueExtensions):
    """Chooses a node and the victims on it as kube-scheduler does. While the evictions are being
    carried out the pod is not tried again; other pods are."""

    name: ClassVar[str] = "DefaultPreemption"
    api_version: ClassVar[int] = 1
    arguments: ClassVar[type[DefaultPreemptionArgs]] = DefaultPreemptionArgs

    def __init__(self, args: DefaultPreemptionArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        self._args = args
        self._memos: Memo[tuple[PodShape, int], RowMemo[Outcome]] = Memo(_MOST_MEMOS)
        self._budgets_version = -1

    # -- the decision -------------------------------------------------------------------------

    def post_filter(
        self, state: CycleState, pod: PodInfo, statuses: NodeStatuses
    ) -> PostFilterResult:
        reason = self.ineligible(pod, statuses)
        if reason:
            return PostFilterResult(Status.unschedulable(_PREFIX + reason))
        rows = statuses.rows(Code.UNSCHEDULABLE)
        lowest = self.handle.cluster.lowest_priority
        if lowest is None or lowest >= pod.priority:
            # No need to look: there is nobody anywhere to be evicted.
            text = self._helpless(len(rows), {NO_VICTIMS: len(rows)} if len(rows) else {})
            return PostFilterResult(Status.unschedulable(_PREFIX + text), "")
        wanted = self._args.enough(len(rows))
        if len(rows):
            now_ns = self.handle.cluster.now_ns
            offset = self.handle.draw(f"{self.name}/{pod.uid}/{now_ns}", len(rows))
            rows = np.roll(rows, -offset)
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
        leaving = any(_preempted(other) for other in _less_important(nodes.pods(row), pod))
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
        least = min(candidate.harm for candidate in candidates)
        return [candidate for candidate in candidates if candidate.harm == least]

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
        displaced = _less_important(handle.nominated_pods(candidate.node), pod)
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
        run = DryRun()
        fit = self.handle.fit(state, pod)
        known = self._known(fit)
        budgets = _Budgets(self.handle.cluster.objects(PodDisruptionBudget).values())
        # No more at a time than are likely to be needed.
        size = max(1, len(rows) if wanted is None else wanted) if fit.local else 1
        for start in range(0, len(rows), size):
            batch = rows[start : start + size]
            for outcome in self._outcomes(fit, batch, known, budgets):
                if not isinstance(outcome, Candidate):
                    run.rejected[outcome.node] = outcome.status
                    continue
                run.candidates.append(outcome)
                if wanted is not None and run.is_enough(wanted):
                    return run
        return run

    def _known(self, fit: Fit) -> RowMemo[Outcome]:
        """What earlier pods of the same shape and priority found out."""
        version = self.handle.cluster.objects_version(PodDisruptionBudget)
        if version != self._budgets_version:
            self._budgets_version = version
            self._memos.clear()
        if not fit.shareable:
            return RowMemo()
        return self._memos.get((fit.pod.shape, fit.pod.priority), RowMemo)

    def _outcomes(
        self, fit: Fit, rows: RowArray, known: RowMemo[Outcome], budgets: _Budgets
    ) -> Iterator[Outcome]:
        """What evictions would bring about on each row, in order."""
        cluster = self.handle.cluster
        stamps, names = cluster.row_stamps, cluster.nodes.names
        own = cluster.nodes.row_of(self.handle.nominated_node(fit.pod))
        fresh: dict[int, Outcome] = {}
        # Where the pod itself is nominated, a pod like it would find itself beside it.
        stale = known.stale(rows if own is None else rows[rows != own], stamps)
        if own is not None and own in rows:
            stale = np.append(stale, own)
        if len(stale):
            for trial in fit.trials(stale):
                rounds = _Rounds(trial, _potential_victims(trial, fit.pod), budgets)
                rounds.play()
                for index, row in enumerate(trial.rows.tolist()):
                    fresh[row] = rounds.outcome(index, names[row])
        for row, outcome in fresh.items():
            if row != own:
                known.put(row, int(stamps[row]), outcome)
        for row in rows.tolist():
            yield fresh[row] if row in fresh else known.get(row)

    # -- while victims go ---------------------------------------------------------------------

    def pre_enqueue(self, pod: PodInfo) -> Status:
        return UNDER_WAY if self.handle.is_preempting(pod.uid) else SUCCESS

    def events_to_register(self) -> Sequence[ClusterEventWithHint]:
        event = ClusterEvent(EventResource.ASSIGNED_POD, ActionType.DELETE)
        return (ClusterEventWithHint(event, self._evictions_done),)

    def _evictions_done(self, pod: Pod, old: Object | None, new: Object | None) -> QueueingHint:
        """A pod held back here was on its way to be tried: it goes on once its evictions are done.

        kube-scheduler answers Skip and lets the plugins that had rejected the pod decide again,
        which only some of them do at the right moment.
        """
        done = not self.handle.is_preempting(pod.uid)
        return QueueingHint.QUEUE if done else QueueingHint.SKIP


def _started(pod: PodInfo) -> datetime:
    """When the pod started. One that has not is the latest of all."""
    return pod.pod.status.start_time or _NEVER_STARTED


def _potential_victims(trial: Trial, pod: PodInfo) -> list[list[PodInfo]]:
    """The less important pods of each row, the most important of them first."""
    found = []
    for row in range(trial.nodes.size):
        lower = _less_important(trial.nodes.pods(row), pod)
        if len(lower) > 1:
            lower.sort(key=lambda victim: (-victim.priority, _started(victim)))
        found.append(lower)
    return found


def _less_important(pods: Iterable[PodInfo], than: PodInfo) -> list[PodInfo]:
    priority = than.priority
    return [pod for pod in pods if pod.priority < priority]


def _preempted(pod: PodInfo) -> bool:
    """Being deleted because a scheduler preempted it."""
    if not pod.pod.terminating:
        return False
    for condition in pod.pod.status.conditions:
        if condition.type == _DISRUPTED:
            return condition.status == "True" and condition.reason == _BY_SCHEDULER
    return False


class _Rounds:
    """The dry run on the rows of one trial (``SelectVictimsOnNode`` of kube-scheduler, for all rows
    at once): all potential victims are taken away; then, round by round, the next one of each row
    is put back, and stays if the pod still fits."""

    def __init__(
        self, trial: Trial, potential: Sequence[Sequence[PodInfo]], budgets: _Budgets
    ) -> None:
        self._trial = trial
        self._potential = potential
        self._budgets = budgets
        self._victims: dict[int, list[PodInfo]] = {}
        self._violating: dict[int, set[str]] = {}
        self._refusals: dict[int, Status] = {}

    def play(self) -> None:
        trial, potential = self._trial, self._potential
        trial.remove([(row, pod) for row, pods in enumerate(potential) for pod in pods])
        found = trial.refusals()
        queues: dict[int, list[PodInfo]] = {}
        for row, pods in enumerate(potential):
            refusal = found.status(row) if pods else NO_VICTIMS
            if refusal is not None:
                self._refusals[row] = refusal
                continue
            violating, others = self._budgets.split(pods)
            self._violating[row] = {pod.uid for pod in violating}
            self._victims[row] = []
            queues[row] = violating + others
        for number in range(max(map(len, queues.values()), default=0)):
            self._reprieve([(row, q[number]) for row, q in queues.items() if number < len(q)])

    def _reprieve(self, placed: Sequence[Placed]) -> None:
        """Put one pod back on each of some rows; where the pod does not fit then, it is a victim."""
        self._trial.add(placed)
        passing = self._trial.refusals().passing.tolist()
        victims = [(row, pod) for row, pod in placed if not passing[row]]
        if victims:
            self._trial.remove(victims)
        for row, pod in victims:
            self._victims[row].append(pod)

    def outcome(self, row: int, node: str) -> Outcome:
        refusal = self._refusals.get(row)
        if refusal is not None:
            return Refusal(node, refusal)
        victims, violating = self._victims[row], self._violating[row]
        if not victims:
            return Refusal(node, Status.error(f'expected at least one victim pod on node "{node}"'))
        chosen = {pod.uid for pod in victims}
        in_order = [pod for pod in self._potential[row] if pod.uid in chosen]
        return Candidate.of(node, in_order, len(violating & chosen))


class _Budgets:
    """The PodDisruptionBudgets, and which pods they protect."""

    def __init__(self, budgets: Iterable[PodDisruptionBudget]) -> None:
        self._by_namespace: dict[str, list[PodDisruptionBudget]] = {}
        for budget in budgets:
            # One that selects nothing in particular protects nobody.
            selector = budget.spec.selector
            if selector and (selector.match_labels or selector.match_expressions):
                self._by_namespace.setdefault(budget.namespace, []).append(budget)
        self._of_labels: dict[int, list[PodDisruptionBudget]] = {}

    def split(self, pods: Sequence[PodInfo]) -> tuple[list[PodInfo], list[PodInfo]]:
        """(pods whose eviction would violate a budget, the others), if they were evicted in this
        order (``filterPodsWithPDBViolation``). A budget that already counts a pod as disrupted is
        not charged for it again."""
        if not self._by_namespace:
            return [], list(pods)
        left: dict[str, int] = {}
        violating: list[PodInfo] = []
        others: list[PodInfo] = []
        for pod in pods:
            violates = False
            for budget in self._protecting(pod):
                if pod.name in budget.status.disrupted_pods:
                    continue
                left.setdefault(budget.key, budget.status.disruptions_allowed)
                left[budget.key] -= 1
                violates = violates or left[budget.key] < 0
            (violating if violates else others).append(pod)
        return violating, others

    def _protecting(self, pod: PodInfo) -> list[PodDisruptionBudget]:
        labels = pod.label_set
        known = self._of_labels.get(labels.number)
        if known is None:
            near: Mapping[str, list[PodDisruptionBudget]] = self._by_namespace
            known = self._of_labels[labels.number] = [
                budget
                for budget in near.get(pod.namespace, ())
                if pod.labels and budget.spec.selector and budget.spec.selector.matches(pod.labels)
            ]
        return known
