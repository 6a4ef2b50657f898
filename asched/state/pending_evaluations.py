"""Requests to external evaluators (HTTP extenders and external plugins), and their answers.

An attempt that needs an answer is paused: its pod is in flight until every evaluator in the request
has answered or failed. Then the pod goes to the front of the active queue. The answers are dropped
when the attempt ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from asched.framework.nodes import BoolColumn, Int64Column, RowArray
from asched.framework.runtime.extenders import (
    EXTENDER,
    ExtenderSpec,
    ExtenderVerb,
    ExternalEvaluator,
    PreemptionCandidate,
    rejection_status,
)
from asched.framework.status import Status
from asched.state import records as r
from asched.state.stored_form import StoredForm

_DELETED = -1
"""Replaces the row of a deleted node: another node may have taken the row since."""


def pack_mask(mask: BoolColumn) -> bytes:
    """One bit per position, most significant bit first."""
    return np.packbits(mask).tobytes()


def unpack_mask(bits: bytes, size: int) -> BoolColumn:
    """The mask of ``size`` positions; positions beyond ``bits`` are false."""
    # ``unpackbits(count=size)`` returns uninitialised memory for an empty array.
    given = np.unpackbits(np.frombuffer(bits, np.uint8))[:size]
    mask = np.zeros(size, np.bool_)
    mask[: len(given)] = given
    return mask


class FilterResultsSnapshot(StoredForm):
    rows: tuple[int, ...]
    codes: tuple[int, ...]
    statuses: tuple[Status, ...]


class PendingEvaluationSnapshot(StoredForm):
    key: str
    uid: str
    attempt: int
    verb: ExtenderVerb
    pending: tuple[int, ...]
    rows: tuple[int, ...]
    candidates: tuple[PreemptionCandidate, ...]
    filters: dict[int, FilterResultsSnapshot]
    scored_rows: tuple[int, ...]
    scores: dict[int, tuple[int, ...]]
    preemptions: dict[int, tuple[PreemptionCandidate, ...]]
    failures: tuple[tuple[ExtenderVerb, int, str], ...]


class FilterResults:
    """The answers of one evaluator about the nodes it filtered."""

    __slots__ = ("codes", "rows", "statuses")

    def __init__(self) -> None:
        self.rows: RowArray = np.zeros(0, np.intp)
        self.codes: NDArray[np.int16] = np.zeros(0, np.int16)
        """Aligned with ``rows``: 0 for a node that passed, else ``statuses[code - 1]``."""
        self.statuses: list[Status] = []

    def add(self, rows: RowArray, answer: r.ExtenderFiltered, by: str = EXTENDER) -> None:
        # A node that the answer does not mention is rejected without a reason, as unresolvable.
        statuses = [rejection_status("", unresolvable=True, by=by)]
        codes = np.ones(len(rows), np.int16)
        for failed in answer.failed_nodes:
            statuses.append(
                rejection_status(failed.message, unresolvable=failed.unresolvable, by=by)
            )
            codes[unpack_mask(failed.nodes, len(rows))] = len(statuses)
        codes[unpack_mask(answer.passed, len(rows))] = 0
        codes[codes > 0] += len(self.statuses)
        self.rows = np.concatenate([self.rows, rows])
        self.codes = np.concatenate([self.codes, codes])
        self.statuses += statuses

    def column(self, size: int) -> tuple[NDArray[np.int16], BoolColumn]:
        """(code by row of the table, rows that the evaluator answered about)."""
        codes, answered = np.zeros(size, np.int16), np.zeros(size, np.bool_)
        present = self.rows != _DELETED
        codes[self.rows[present]] = self.codes[present]
        answered[self.rows[present]] = True
        return codes, answered

    def snapshot(self) -> FilterResultsSnapshot:
        return FilterResultsSnapshot(
            tuple(self.rows.tolist()), tuple(self.codes.tolist()), tuple(self.statuses)
        )

    def restore(self, snapshot: FilterResultsSnapshot) -> None:
        self.rows = np.array(snapshot.rows, np.intp)
        self.codes = np.array(snapshot.codes, np.int16)
        self.statuses = [*snapshot.statuses]


class PendingEvaluation:
    """All requests and answers of one attempt."""

    def __init__(self, uid: str, attempt: int) -> None:
        self.uid = uid
        self.attempt = attempt
        self.verb = ExtenderVerb.FILTER
        self.pending: set[int] = set()
        """Indices of the evaluators that have not answered the current request."""
        self.rows: RowArray = np.zeros(0, np.intp)
        """The nodes of the current request, in its order."""
        self.candidates: tuple[PreemptionCandidate, ...] = ()
        """The candidates of the current request."""
        self.filters: dict[int, FilterResults] = {}
        self.scored_rows: RowArray = np.zeros(0, np.intp)
        """The nodes to score."""
        self.scores: dict[int, Int64Column] = {}
        """By evaluator, aligned with ``scored_rows``."""
        self.preemptions: dict[int, tuple[PreemptionCandidate, ...]] = {}
        self.failures: dict[tuple[ExtenderVerb, int], str] = {}

    def is_of(self, uid: str, attempt: int) -> bool:
        return self.uid == uid and self.attempt == attempt

    def begin(self, request: r.ExtenderCallRequested, table_size: int) -> None:
        """The next request of the attempt."""
        self.verb = request.verb
        self.pending = set(request.extenders)
        self.rows = np.flatnonzero(unpack_mask(request.nodes, table_size))
        self.candidates = request.candidates
        if request.verb is ExtenderVerb.PRIORITIZE:
            self.scored_rows = self.rows.copy()
            self.scores.clear()

    def expects(self, answer: r.ExtenderAnswer) -> bool:
        """Whether the answer belongs to the current request; a late one does not."""
        return (
            self.is_of(answer.uid, answer.attempt)
            and answer.verb_answered is self.verb
            and answer.extender in self.pending
        )

    def add(self, answer: r.ExtenderAnswer, by: str = EXTENDER) -> None:
        """Store an answer. ``by`` is the plugin name of its rejections."""
        self.pending.remove(answer.extender)
        match answer:
            case r.ExtenderFiltered():
                results = self.filters.setdefault(answer.extender, FilterResults())
                results.add(self.rows, answer, by)
            case r.ExtenderPrioritized():
                scores = np.zeros(len(self.scored_rows), np.int64)
                given = answer.scores[: len(scores)]
                scores[: len(given)] = given
                self.scores[answer.extender] = scores
            case r.ExtenderPreemptionProcessed():
                self.preemptions[answer.extender] = answer.candidates
            case r.ExtenderCallFailed():
                self.failures[answer.verb, answer.extender] = answer.message

    def on_node_deleted(self, row: int) -> None:
        """Drop what is known about the row, so that it is not taken for the row's next node."""
        self.rows[self.rows == row] = _DELETED
        self.scored_rows[self.scored_rows == row] = _DELETED
        for results in self.filters.values():
            results.rows[results.rows == row] = _DELETED

    def snapshot(self, key: str) -> PendingEvaluationSnapshot:
        return PendingEvaluationSnapshot(
            key=key,
            uid=self.uid,
            attempt=self.attempt,
            verb=self.verb,
            pending=tuple(sorted(self.pending)),
            rows=tuple(self.rows.tolist()),
            candidates=self.candidates,
            filters={index: results.snapshot() for index, results in self.filters.items()},
            scored_rows=tuple(self.scored_rows.tolist()),
            scores={index: tuple(scores.tolist()) for index, scores in self.scores.items()},
            preemptions={**self.preemptions},
            failures=tuple((verb, index, text) for (verb, index), text in self.failures.items()),
        )

    def restore(self, snapshot: PendingEvaluationSnapshot) -> None:
        self.verb, self.candidates = snapshot.verb, snapshot.candidates
        self.pending = set(snapshot.pending)
        self.rows = np.array(snapshot.rows, np.intp)
        self.scored_rows = np.array(snapshot.scored_rows, np.intp)
        for index, results in snapshot.filters.items():
            self.filters[index] = FilterResults()
            self.filters[index].restore(results)
        self.scores = {index: np.array(s, np.int64) for index, s in snapshot.scores.items()}
        self.preemptions = {**snapshot.preemptions}
        self.failures = {(verb, index): text for verb, index, text in snapshot.failures}


class PendingEvaluations(dict[str, PendingEvaluation]):
    """The paused attempts by pod key. Only the fold changes them."""

    def __init__(self) -> None:
        super().__init__()
        self.extenders: tuple[ExtenderSpec, ...] = ()
        self.evaluators: tuple[ExternalEvaluator, ...] = ()
        """The extenders and the external plugins of each profile, as records number them."""

    def configure(
        self, extenders: tuple[ExtenderSpec, ...], plugins: Iterable[ExternalEvaluator]
    ) -> None:
        self.extenders = extenders
        self.evaluators = (*extenders, *plugins)

    def snapshot(self) -> tuple[PendingEvaluationSnapshot, ...]:
        return tuple(evaluation.snapshot(key) for key, evaluation in self.items())

    def restore(self, snapshots: Sequence[PendingEvaluationSnapshot]) -> None:
        for snapshot in snapshots:
            evaluation = self[snapshot.key] = PendingEvaluation(snapshot.uid, snapshot.attempt)
            evaluation.restore(snapshot)


def present_rows(rows: RowArray) -> BoolColumn:
    """Which of the rows still hold the node that the request was about."""
    present: BoolColumn = rows != _DELETED
    return present


def mask_of_rows(rows: RowArray, size: int) -> BoolColumn:
    """The mask of the rows that still have their node."""
    mask = np.zeros(size, np.bool_)
    mask[rows[rows != _DELETED]] = True
    return mask
