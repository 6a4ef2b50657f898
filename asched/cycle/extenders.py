"""The extenders' part of an attempt: apply their answers, or request the missing one.

The answers are in the state (:mod:`asched.state.pending_evaluations`). Plugins run again on the
current state, and an answer counts for those of its nodes that are still feasible.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from asched.cycle.feasible_nodes import FeasibleNodes
from asched.framework.nodes import BoolColumn, FilterResult, Int64Column
from asched.framework.pod_info import PodInfo
from asched.framework.runtime.extenders import (
    CANDIDATE_REVIEW,
    AttemptPausedError,
    ExtenderFailureError,
    ExtenderVerb,
    ExternalEvaluator,
    PreemptionCandidate,
)
from asched.framework.runtime.profile import Profile
from asched.state.cluster import ClusterState
from asched.state.pending_evaluations import (
    FilterResults,
    PendingEvaluation,
    mask_of_rows,
    pack_mask,
)
from asched.state.records import ExtenderCallRequested

_NO_ANSWERS = PendingEvaluation("", 0)


class ExtenderRound:
    """The extenders that are interested in one attempt's pod, and their answers so far."""

    def __init__(self, cluster: ClusterState, profile: Profile, pod: PodInfo, attempt: int) -> None:
        self._cluster = cluster
        self._pod = pod
        self._attempt = attempt
        # After all filters: extenders get no node that a plugin rejects.
        self._rank = len(profile.filter)
        known = cluster.pending_evaluations.get(pod.key)
        self.started = known is not None and known.is_of(pod.uid, attempt)
        """Whether this attempt has requested a call before."""
        self._answers = known if known is not None and self.started else _NO_ANSWERS
        self._extenders = [
            (index, spec)
            for index, spec in enumerate(cluster.evaluators)
            if spec.is_interested_in(pod) and spec.reported_as not in profile.skipped
        ]

    def _request(
        self, verb: ExtenderVerb, extenders: Sequence[int], nodes: BoolColumn, evaluated: int = 0
    ) -> ExtenderCallRequested:
        return ExtenderCallRequested(
            self._pod.key,
            self._pod.uid,
            self._attempt,
            verb,
            tuple(extenders),
            nodes=pack_mask(nodes),
            evaluated_nodes=evaluated,
        )

    # -- filter -------------------------------------------------------------------------------

    def filter(self, found: FeasibleNodes) -> ExtenderCallRequested | None:
        """Remove the nodes that extenders reject, or request the next call.

        Each extender gets the nodes that the previous one left (``findNodesThatPassExtenders``).
        Nodes that became feasible since the request are only requested if no other is left. Raises
        :class:`ExtenderFailureError`.
        """
        if not found.count or not self._extenders:
            return None
        left, unknown = found.feasible, None
        for index, spec in self._extenders:
            if not spec.filter_verb:
                continue
            if not left.any():
                break
            failure = self._answers.failures.get((ExtenderVerb.FILTER, index))
            if failure is not None:
                if not spec.ignorable:
                    raise ExtenderFailureError(failure, spec.reported_as)
                continue
            answers = self._answers.filters.get(index, FilterResults())
            codes, answered = answers.column(self._cluster.nodes.size)
            rejected = np.flatnonzero(left & answered & (codes > 0))
            if len(rejected):
                # The diagnosis may be shared with pods of the same shape.
                found.findings = found.findings.copy()
                result = FilterResult(codes[rejected], answers.statuses)
                found.findings.add(self._rank, spec.reported_as, result, rejected)
            missing = left & ~answered
            if missing.any():
                unknown = index, missing
            left = left & answered & (codes == 0)
        if unknown is not None and not left.any():
            index, missing = unknown
            return self._request(ExtenderVerb.FILTER, [index], missing, found.evaluated)
        _set_feasible(found, left)
        return None

    # -- prioritize ---------------------------------------------------------------------------

    def prioritize(self, found: FeasibleNodes) -> ExtenderCallRequested | Int64Column | None:
        """The extenders' contribution to the totals by row, a request for it, or None without
        scorers.

        ``found`` is reduced to the nodes that were in the request. All extenders are called
        concurrently; a failed one adds nothing (``prioritizeNodes``), but a plugin's scores are
        required unless it is optional. Raises :class:`ExtenderFailureError`.
        """
        scorers = [(index, spec) for index, spec in self._extenders if spec.prioritize_verb]
        if not scorers:
            return None
        answers = self._answers
        size = self._cluster.nodes.size
        left = found.feasible & mask_of_rows(answers.scored_rows, size)
        if not left.any():
            indices = [index for index, _ in scorers]
            return self._request(ExtenderVerb.PRIORITIZE, indices, found.feasible, found.evaluated)
        _set_feasible(found, left)
        extender_scores = np.zeros(size, np.int64)
        present = answers.scored_rows >= 0
        for index, spec in scorers:
            failure = answers.failures.get((ExtenderVerb.PRIORITIZE, index))
            if failure is not None and spec.score_required:
                raise ExtenderFailureError(failure, spec.reported_as)
            scores = answers.scores.get(index)
            if scores is not None:
                weight = spec.weight * spec.score_scale
                extender_scores[answers.scored_rows[present]] += scores[present] * weight
        return extender_scores

    # -- preempt ------------------------------------------------------------------------------

    def offer_preemption_review(self, found: FeasibleNodes) -> None:
        """Provide :data:`CANDIDATE_REVIEW` to PostFilter plugins if an extender supports
        preemption."""
        reviewers = [(index, spec) for index, spec in self._extenders if spec.preempt_verb]
        if reviewers:
            review = _ExtenderCandidateReview(self._cluster, self._answers, reviewers)
            found.state.write(CANDIDATE_REVIEW, review)

    def request_preemption_review(self, paused: AttemptPausedError) -> ExtenderCallRequested:
        return ExtenderCallRequested(
            self._pod.key,
            self._pod.uid,
            self._attempt,
            ExtenderVerb.PREEMPT,
            (paused.extender,),
            candidates=paused.candidates,
        )


class NoExtenders:
    """The :class:`ExtenderRound` of an attempt without extenders."""

    started = False

    def filter(self, found: FeasibleNodes) -> None: ...

    def prioritize(self, found: FeasibleNodes) -> None: ...

    def offer_preemption_review(self, found: FeasibleNodes) -> None: ...

    def request_preemption_review(self, paused: AttemptPausedError) -> ExtenderCallRequested:
        raise RuntimeError("attempt paused for an extender, but none is configured") from paused


_NO_EXTENDERS = NoExtenders()


def extender_round(
    cluster: ClusterState, profile: Profile, pod: PodInfo, attempt: int
) -> ExtenderRound | NoExtenders:
    """The extenders' part of the attempt; it includes plugins that run outside decisions."""
    if cluster.evaluators:
        return ExtenderRound(cluster, profile, pod, attempt)
    return _NO_EXTENDERS


def _set_feasible(found: FeasibleNodes, feasible: BoolColumn) -> None:
    found.feasible = feasible
    found.count = int(np.count_nonzero(feasible))


class _ExtenderCandidateReview:
    """The :class:`~asched.framework.runtime.extenders.CandidateReview` of one attempt."""

    def __init__(
        self,
        cluster: ClusterState,
        answers: PendingEvaluation,
        reviewers: Sequence[tuple[int, ExternalEvaluator]],
    ) -> None:
        self._cluster = cluster
        self._answers = answers
        self._reviewers = reviewers

    def review(self, candidates: Sequence[PreemptionCandidate]) -> Sequence[PreemptionCandidate]:
        for index, spec in self._reviewers:
            if not candidates:
                break
            failure = self._answers.failures.get((ExtenderVerb.PREEMPT, index))
            if failure is not None:
                if not spec.ignorable:
                    raise ExtenderFailureError(failure)
                continue
            answer = self._answers.preemptions.get(index)
            if answer is None:
                raise AttemptPausedError(index, candidates)
            candidates = self._still_valid(answer, candidates)
        return candidates

    def _still_valid(
        self, answer: Sequence[PreemptionCandidate], candidates: Sequence[PreemptionCandidate]
    ) -> list[PreemptionCandidate]:
        """The answer without the pods and nodes that are gone since the request."""
        order = {candidate.node: place for place, candidate in enumerate(candidates)}
        valid = []
        for candidate in answer:
            victims = tuple(
                victim
                for victim in candidate.victims
                if (entry := self._cluster.entry(victim.key, victim.uid)) is not None
                and entry.node == candidate.node
            )
            if victims and self._cluster.nodes.row_of(candidate.node) is not None:
                valid.append(msgspec.structs.replace(candidate, victims=victims))
        return sorted(valid, key=lambda c: (order.get(c.node, len(order)), c.node))
