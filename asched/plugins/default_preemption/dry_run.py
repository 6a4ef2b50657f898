"""The dry run of preemption: what evictions would bring about, node by node, remembered.

Preemptors come in series of like pods. What would happen on a node is found out once for all of them,
and again only where something about the node has changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import NamedTuple, cast

import numpy as np

from asched.framework.memo import RowMemo
from asched.framework.nodes import BoolColumn, RowArray
from asched.framework.pod_info import PodInfo
from asched.framework.runtime.plugin_calls import PluginFailure
from asched.framework.status import Code, Status
from asched.framework.trial import Fit, Placed, Trial
from asched.model.workloads import PodDisruptionBudget

NO_VICTIMS = Status.unresolvable("No preemption victims found for incoming pod")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NEVER_STARTED = datetime.max.replace(tzinfo=UTC)
_PRIORITY_OFFSET = 1 << 31
"""Added to each priority in a sum, so that fewer pods of a negative one count less, not more."""
_MOST_LABEL_SETS = 1024
"""That the budgets of are remembered: each rollout of a workload brings label sets of its own."""
_REFUSED, _UNKIND, _KIND = 0, 1, 2
"""What is known of a row: no candidate; one that violates a budget; one that violates none."""


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


class DryRunRejection(NamedTuple):
    """A node where evictions would not help, and why."""

    node: str
    status: Status


Outcome = Candidate | DryRunRejection

Kinds = np.ndarray[tuple[int], np.dtype[np.int8]]
"""What kind of an outcome there is, by row."""


class Outcomes(RowMemo[Outcome]):
    """What evictions for pods of one shape and priority would bring about, by row."""

    __slots__ = ("_kinds",)

    def __init__(self) -> None:
        super().__init__()
        self._kinds = np.zeros(0, np.int8)

    def learn(self, row: int, stamp: int, outcome: Outcome) -> None:
        """Keep an outcome. The row was asked for by :meth:`RowMemo.is_stale`."""
        self.put(row, stamp, outcome)
        missing = row + 1 - len(self._kinds)
        if missing > 0:
            more = max(missing, len(self._kinds))
            self._kinds = np.concatenate([self._kinds, np.zeros(more, np.int8)])
        kind = _REFUSED
        if isinstance(outcome, Candidate):
            kind = _UNKIND if outcome.pdb_violations else _KIND
        self._kinds[row] = kind

    def candidates(self, rows: Iterable[int]) -> list[Candidate]:
        """Those of these rows, each of which is one."""
        answers = self._answers
        # What kind of an outcome it is was looked up just now.
        return cast("list[Candidate]", [answers[row] for row in rows])

    def kinds(self, rows: RowArray) -> Kinds:
        """By row, none of which is stale: what kind of an outcome it is."""
        return self._kinds[rows]


class DryRun:
    """What evictions would bring about, on the rows that were looked at."""

    __slots__ = ("_looked_at", "_outcomes", "_wanted", "candidates", "complete", "kind")

    def __init__(self, outcomes: Outcomes, wanted: int | None) -> None:
        """``wanted``: how many candidates are enough; None looks for all."""
        self.candidates: list[Candidate] = []
        self.kind = 0
        """How many of the candidates violate no budget."""
        self.complete = False
        """Whether there are as many candidates as wanted, and one of them violates no budget."""
        self._outcomes = outcomes
        self._wanted = wanted
        self._looked_at: list[tuple[RowArray, Kinds]] = []

    def take_in(self, rows: RowArray) -> None:
        """Look at more rows, whose outcomes are known, in order, until it is :attr:`complete`."""
        kinds = self._outcomes.kinds(rows)
        places = kinds.nonzero()[0]
        last = self._last_wanted(kinds[places])
        if last is not None:
            self.complete = True
            places = places[: last + 1]
            kinds = kinds[: places.item(last) + 1]
        self.kind += int(np.count_nonzero(kinds == _KIND))
        self.candidates += self._outcomes.candidates(rows[places].tolist())
        self._looked_at.append((rows, kinds))

    def _last_wanted(self, kinds: Kinds) -> int | None:
        """The place among further candidates, of these kinds, of the one that makes it complete."""
        if self._wanted is None:
            return None
        last = max(self._wanted - len(self.candidates), 1) - 1
        if not self.kind:
            kind = (kinds == _KIND).nonzero()[0]
            if not len(kind):
                return None
            last = max(last, kind.item(0))
        return last if last < len(kinds) else None

    @property
    def rejected(self) -> Mapping[str, Status]:
        """Node to why evictions would not help there."""
        refused = [rows[: len(kinds)][kinds == _REFUSED] for rows, kinds in self._looked_at]
        found = (self._outcomes.get(row) for rows in refused for row in rows.tolist())
        return {
            refusal.node: refusal.status
            for refusal in found
            if isinstance(refusal, DryRunRejection)
        }

    @property
    def errors(self) -> list[str]:
        return [s.message for s in self.rejected.values() if s.code is Code.ERROR]

    def shortlist(self, wanted: int) -> Sequence[Candidate]:
        """Those that violate no budget, then the others, so many of each."""
        if self.kind == len(self.candidates) <= wanted:
            return self.candidates
        kind = [c for c in self.candidates if not c.pdb_violations]
        unkind = [c for c in self.candidates if c.pdb_violations]
        return kind[:wanted] + unkind[:wanted]


def dry_run(
    fit: Fit,
    rows: RowArray,
    known: Outcomes,
    budgets: Budgets,
    *,
    own: int | None = None,
    wanted: int | None = None,
) -> DryRun:
    """Look for candidates among these rows of the cluster's nodes, in order, until ``wanted`` are
    found; None looks at all.

    ``known`` is what pods of this shape and priority found before. ``own`` is the row to which the
    pod itself is nominated: a pod like it would find itself beside it, so what is found there is for
    this pod alone. Raises PluginFailure where a filter fails.
    """
    run = DryRun(known, wanted)
    stale = known.is_stale(rows, fit.row_stamps)
    if own is not None:
        stale |= rows == own
    # No more at a time than are likely to be needed.
    size = max(1, len(rows) if wanted is None else wanted) if fit.local else 1
    unknown = stale.nonzero()[0]
    bounds = [0, *unknown[::size].tolist(), len(rows)]
    for begin, end in pairwise(bounds):
        batch = rows[begin:end]
        if len(batch):
            try:
                _find_out(fit, batch[stale[begin:end]], known, budgets, own)
                run.take_in(batch)
            except PluginFailure:
                # Together, filters are asked about nodes that others refused before them, and about
                # more nodes than are needed. What comes of a failure must not depend on what is known.
                _go_through(fit, batch, stale[begin:end], known, budgets, own, run)
            if run.complete:
                break
    return run


def _go_through(
    fit: Fit,
    rows: RowArray,
    stale: BoolColumn,
    known: Outcomes,
    budgets: Budgets,
    own: int | None,
    run: DryRun,
) -> None:
    """As one batch of :func:`dry_run`, node by node."""
    for at in range(len(rows)):
        row = rows[at : at + 1]
        if stale[at]:
            _find_out(fit, row, known, budgets, own)
        run.take_in(row)
        if run.complete:
            return


def _find_out(fit: Fit, rows: RowArray, known: Outcomes, budgets: Budgets, own: int | None) -> None:
    if not len(rows):
        return
    stamps = fit.row_stamps
    for trial in fit.trials(rows):
        rounds = _Rounds(trial, _potential_victims(trial, fit.pod), budgets)
        rounds.play()
        for index, row in enumerate(trial.rows.tolist()):
            # No row ever has a stamp of -1: what holds for this pod alone is stale for the next.
            stamp = -1 if row == own else int(stamps[row])
            known.learn(row, stamp, rounds.outcome(index, trial.nodes.names[index]))


def _started(pod: PodInfo) -> datetime:
    """When the pod started. One that has not is the latest of all."""
    return pod.pod.status.start_time or _NEVER_STARTED


def _potential_victims(trial: Trial, pod: PodInfo) -> list[list[PodInfo]]:
    """The less important pods of each row, the most important of them first."""
    found = []
    for row in range(trial.nodes.size):
        lower = less_important(trial.nodes.pods(row), pod)
        if len(lower) > 1:
            lower.sort(key=lambda victim: (-victim.priority, _started(victim)))
        found.append(lower)
    return found


def less_important(pods: Iterable[PodInfo], than: PodInfo) -> list[PodInfo]:
    """Those of a lower priority, in order."""
    priority = than.priority
    return [pod for pod in pods if pod.priority < priority]


class _Rounds:
    """The dry run on the rows of one trial (``SelectVictimsOnNode`` of kube-scheduler, for all rows
    at once): all potential victims are taken away; then, round by round, the next one of each row
    is put back, and stays if the pod still fits."""

    def __init__(
        self, trial: Trial, potential: Sequence[Sequence[PodInfo]], budgets: Budgets
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
            return DryRunRejection(node, refusal)
        victims, violating = self._victims[row], self._violating[row]
        if not victims:
            return DryRunRejection(
                node, Status.error(f'expected at least one victim pod on node "{node}"')
            )
        chosen = {pod.uid for pod in victims}
        in_order = [pod for pod in self._potential[row] if pod.uid in chosen]
        return Candidate.of(node, in_order, len(violating & chosen))


class Budgets:
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
            if len(self._of_labels) >= _MOST_LABEL_SETS:
                self._of_labels.clear()
            near: Mapping[str, list[PodDisruptionBudget]] = self._by_namespace
            known = self._of_labels[labels.number] = [
                budget
                for budget in near.get(pod.namespace, ())
                if pod.labels and budget.spec.selector and budget.spec.selector.matches(pod.labels)
            ]
        return known
