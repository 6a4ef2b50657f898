"""The extenders' part of an attempt: apply their answers, or say which answer is missing.

Nothing is called here. The answers are in the state (:mod:`asched.state.inquiries`); where one is
missing the attempt's decision is :class:`~asched.state.records.ExtenderAsked`, and the attempt is
run again when it is there. The plugins are then asked anew, on the state as it is by then, and the
answers count for those of the nodes they were given about that are still feasible.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from asched.cycle.attempt import Screening
from asched.framework.nodes import BoolColumn, Int64Column, Verdicts
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
from asched.state.inquiries import FilterAnswers, PendingEvaluation, mask_of, packed
from asched.state.records import ExtenderAsked


class ExtenderRound:
    """The extenders that are interested in one attempt's pod, and what they said so far."""

    def __init__(self, cluster: ClusterState, profile: Profile, pod: PodInfo, attempt: int) -> None:
        self._cluster = cluster
        self._pod = pod
        self._attempt = attempt
        # After all filters: what a plugin refuses no extender is asked about.
        self._rank = len(profile.filter)
        known = cluster.inquiries.get(pod.key)
        self._known = known if known is not None and known.is_of(pod.uid, attempt) else None
        self._extenders = [
            (index, spec)
            for index, spec in enumerate(cluster.outsiders)
            if spec.is_interested_in(pod) and spec.speaks_as not in profile.left_out
        ]

    @property
    def begun(self) -> bool:
        """Whether this attempt has asked before."""
        return self._known is not None

    def _answers(self) -> PendingEvaluation:
        return self._known or PendingEvaluation(self._pod.uid, self._attempt)

    def _ask(
        self, verb: ExtenderVerb, extenders: Sequence[int], nodes: BoolColumn, examined: int = 0
    ) -> ExtenderAsked:
        return ExtenderAsked(
            self._pod.key, self._pod.uid, self._attempt, verb, tuple(extenders),
            nodes=packed(nodes), examined=examined,
        )  # fmt: skip

    # -- filter -------------------------------------------------------------------------------

    def filter(self, screening: Screening) -> ExtenderAsked | None:
        """Take out of ``screening`` what extenders refuse; or say whom to ask first.

        They are asked one after the other, each about what the one before left
        (``findNodesThatPassExtenders``). A node that became feasible since the question was asked
        is asked about only if no other is left. Raises :class:`ExtenderFailureError`.
        """
        if not screening.count or not self._extenders:
            return None
        left, unasked = screening.feasible, None
        for index, spec in self._extenders:
            if not spec.filter_verb:
                continue
            if not left.any():
                break
            failure = self._answers().failures.get((ExtenderVerb.FILTER, index))
            if failure is not None:
                if not spec.ignorable:
                    raise ExtenderFailureError(failure, spec.speaks_as)
                continue
            answers = self._answers().filters.get(index, FilterAnswers())
            codes, asked = answers.column(self._cluster.nodes.size)
            refused = left & asked & (codes > 0)
            self._enter_refusals(screening, refused, answers, spec.speaks_as)
            missing = left & ~asked
            if missing.any():
                unasked = index, missing
            left = left & asked & (codes == 0)
        if unasked is not None and not left.any():
            index, missing = unasked
            return self._ask(ExtenderVerb.FILTER, [index], missing, screening.examined)
        _restrict(screening, left)
        return None

    def _enter_refusals(
        self, screening: Screening, refused: BoolColumn, answers: FilterAnswers, by: str
    ) -> None:
        rows = np.flatnonzero(refused)
        if not len(rows):
            return
        codes, _ = answers.column(len(refused))
        # Findings may be shared with like pods, which the extender said nothing about.
        screening.findings = screening.findings.copy()
        screening.findings.add(self._rank, by, Verdicts(codes[rows], answers.statuses), rows)

    # -- prioritize ---------------------------------------------------------------------------

    def prioritize(self, screening: Screening) -> ExtenderAsked | Int64Column | None:
        """What extenders add to the scores, by row of the table; None where none scores; or whom to
        ask first.

        ``screening`` is left with the nodes that they were asked about. All are asked at the same
        time; one that fails adds nothing, ignorable or not (``prioritizeNodes``). A plugin's scores
        are needed unless it is optional. Raises :class:`ExtenderFailureError`.
        """
        scorers = [(index, spec) for index, spec in self._extenders if spec.prioritize_verb]
        if not scorers:
            return None
        answers = self._answers()
        size = self._cluster.nodes.size
        left = screening.feasible & mask_of(answers.compared, size)
        if not left.any():
            indices = [index for index, _ in scorers]
            return self._ask(
                ExtenderVerb.PRIORITIZE, indices, screening.feasible, screening.examined
            )
        _restrict(screening, left)
        bonus = np.zeros(size, np.int64)
        there = answers.compared >= 0
        for index, spec in scorers:
            failure = answers.failures.get((ExtenderVerb.PRIORITIZE, index))
            if failure is not None and spec.must_score:
                raise ExtenderFailureError(failure, spec.speaks_as)
            scores = answers.scores.get(index)
            if scores is not None:
                bonus[answers.compared[there]] += scores[there] * (spec.weight * spec.score_scale)
        return bonus

    # -- preempt ------------------------------------------------------------------------------

    def offer_review(self, screening: Screening) -> None:
        """Let PostFilter plugins find :data:`CANDIDATE_REVIEW`, if an extender has a say."""
        reviewers = [(index, spec) for index, spec in self._extenders if spec.preempt_verb]
        if reviewers:
            review = _Review(self._cluster, self._answers(), reviewers)
            screening.state.write(CANDIDATE_REVIEW, review)

    def ask_review(self, paused: AttemptPausedError) -> ExtenderAsked:
        return ExtenderAsked(
            self._pod.key, self._pod.uid, self._attempt, ExtenderVerb.PREEMPT, (paused.extender,),
            candidates=paused.candidates,
        )  # fmt: skip


class NoExtenders:
    """The :class:`ExtenderRound` of an attempt where there are no extenders."""

    begun = False

    def filter(self, screening: Screening) -> None:
        """Nobody refuses any node."""

    def prioritize(self, screening: Screening) -> None:
        """Nobody scores."""

    def offer_review(self, screening: Screening) -> None:
        """Nobody has a say in preemption."""

    def ask_review(self, paused: AttemptPausedError) -> ExtenderAsked:
        """Nobody pauses an attempt. Raises RuntimeError."""
        raise RuntimeError("an attempt is paused for an extender, and there is none") from paused


_NOBODY = NoExtenders()


def consult(
    cluster: ClusterState, profile: Profile, pod: PodInfo, attempt: int
) -> ExtenderRound | NoExtenders:
    """Whoever has a say in the attempt beside the plugins."""
    return ExtenderRound(cluster, profile, pod, attempt) if cluster.outsiders else _NOBODY


def _restrict(screening: Screening, left: BoolColumn) -> None:
    screening.feasible = left
    screening.count = int(np.count_nonzero(left))


class _Review:
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
            answer = self._answers.reviews.get(index)
            if answer is None:
                raise AttemptPausedError(index, candidates)
            candidates = self._still_possible(answer, candidates)
        return candidates

    def _still_possible(
        self, answer: Sequence[PreemptionCandidate], candidates: Sequence[PreemptionCandidate]
    ) -> list[PreemptionCandidate]:
        """The answer, less the pods and nodes that went since it was asked for."""
        order = {candidate.node: place for place, candidate in enumerate(candidates)}
        found = []
        for candidate in answer:
            victims = tuple(
                victim
                for victim in candidate.victims
                if (entry := self._cluster.entry(victim.key, victim.uid)) is not None
                and entry.node == candidate.node
            )
            if victims and self._cluster.nodes.row_of(candidate.node) is not None:
                found.append(msgspec.structs.replace(candidate, victims=victims))
        return sorted(found, key=lambda c: (order.get(c.node, len(order)), c.node))
