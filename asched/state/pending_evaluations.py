"""Requests to external evaluators (HTTP extenders and external plugins), and their answers.

The pod of such an attempt is in flight until every evaluator in the request has answered or failed.
Then it goes to the front of the active queue. The answers are dropped when the attempt ends.
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy

import msgspec
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

_DELETED = -1
"""Replaces the row of a deleted node: another node may have taken the row since."""

_NO_ROWS: RowArray = np.zeros(0, np.intp)


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


class FilterResults(msgspec.Struct, array_like=True):
    """The answers of one evaluator about the nodes it filtered. Fields are replaced, not
    modified."""

    rows: RowArray = _NO_ROWS
    codes: NDArray[np.int32] = np.zeros(0, np.int32)
    """Aligned with ``rows``: 0 for a node that passed, else ``statuses[code - 1]``."""
    statuses: tuple[Status, ...] = ()

    def add(self, rows: RowArray, answer: r.ExtenderFiltered, by: str = EXTENDER) -> None:
        # A node that the answer does not mention is rejected without a reason, as unresolvable.
        statuses = [rejection_status("", unresolvable=True, by=by)]
        codes = np.ones(len(rows), np.int32)
        for failed in answer.failed_nodes:
            statuses.append(
                rejection_status(failed.message, unresolvable=failed.unresolvable, by=by)
            )
            codes[unpack_mask(failed.nodes, len(rows))] = len(statuses)
        codes[unpack_mask(answer.passed, len(rows))] = 0
        codes[codes > 0] += len(self.statuses)
        self.rows = np.concatenate([self.rows, rows])
        self.codes = np.concatenate([self.codes, codes])
        self.statuses = (*self.statuses, *statuses)

    def column(self, size: int) -> tuple[NDArray[np.int32], BoolColumn]:
        """(code by row of the table, rows that the evaluator answered about)."""
        codes, answered = np.zeros(size, np.int32), np.zeros(size, np.bool_)
        present = self.rows != _DELETED
        codes[self.rows[present]] = self.codes[present]
        answered[self.rows[present]] = True
        return codes, answered


class PendingEvaluation(msgspec.Struct, array_like=True):
    """All requests and answers of one attempt. Arrays are replaced, not modified."""

    uid: str
    attempt: int
    verb: ExtenderVerb = ExtenderVerb.FILTER
    pending: set[int] = set()
    """Indices of the evaluators that have not answered the current request."""
    rows: RowArray = _NO_ROWS
    """The nodes of the current request, in its order."""
    candidates: tuple[PreemptionCandidate, ...] = ()
    """The candidates of the current request."""
    filters: dict[int, FilterResults] = {}
    scored_rows: RowArray = _NO_ROWS
    """The nodes to score."""
    scores: dict[int, Int64Column] = {}
    """By evaluator, aligned with ``scored_rows``."""
    preemptions: dict[int, tuple[PreemptionCandidate, ...]] = {}
    failures: dict[tuple[ExtenderVerb, int], str] = {}

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
        self.rows = _without_row(self.rows, row)
        self.scored_rows = _without_row(self.scored_rows, row)
        for results in self.filters.values():
            results.rows = _without_row(results.rows, row)

    def copy(self) -> PendingEvaluation:
        return msgspec.structs.replace(
            self,
            pending={*self.pending},
            filters={index: copy(results) for index, results in self.filters.items()},
            scores={**self.scores},
            preemptions={**self.preemptions},
            failures={**self.failures},
        )


def _without_row(rows: RowArray, row: int) -> RowArray:
    return np.where(rows == row, _DELETED, rows)


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

    def snapshot(self) -> tuple[tuple[str, PendingEvaluation], ...]:
        return tuple((key, evaluation.copy()) for key, evaluation in self.items())


def present_rows(rows: RowArray) -> BoolColumn:
    """Which of the rows still hold the node that the request was about."""
    present: BoolColumn = rows != _DELETED
    return present


def mask_of_rows(rows: RowArray, size: int) -> BoolColumn:
    """The mask of the rows that still have their node."""
    mask = np.zeros(size, np.bool_)
    mask[rows[rows != _DELETED]] = True
    return mask
