"""What extenders were asked for the attempts under way, and what they answered.

An attempt that needs an answer is paused: its pod is in flight until every extender that was asked
has answered or failed, and then comes to the front of the active queue again. The answers are
dropped when the attempt ends. Only the fold changes an inquiry.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from asched.framework.nodes import BoolColumn, Int64Column, RowArray
from asched.framework.runtime.extenders import EXTENDER, ExtenderVerb, PreemptionCandidate, refusal
from asched.framework.status import Status
from asched.state import records as r

_GONE = -1
"""Stands for a row whose node went: another node may have taken it since."""


def packed(mask: BoolColumn) -> bytes:
    """A bit for each position, the first one highest: how records say which of many."""
    return np.packbits(mask).tobytes()


def unpacked(bits: bytes, size: int) -> BoolColumn:
    """The mask of ``size`` positions; what the bits do not reach to is false."""
    # Not by ``unpackbits(count=size)``: of no bits at all that makes whatever was in memory.
    given = np.unpackbits(np.frombuffer(bits, np.uint8))[:size]
    mask = np.zeros(size, np.bool_)
    mask[: len(given)] = given
    return mask


class FilterAnswers:
    """What one extender said of the nodes that it was asked about."""

    __slots__ = ("codes", "rows", "statuses")

    def __init__(self) -> None:
        self.rows: RowArray = np.zeros(0, np.intp)
        self.codes: NDArray[np.int16] = np.zeros(0, np.int16)
        """Aligned with ``rows``: 0 for a node that passed, else ``statuses[code - 1]``."""
        self.statuses: list[Status] = []

    def add(self, rows: RowArray, answer: r.ExtenderFiltered, by: str = EXTENDER) -> None:
        # A node that the answer does not mention at all is refused without a word, for good.
        statuses = [refusal("", unresolvable=True, by=by)]
        codes = np.ones(len(rows), np.int16)
        for refused in answer.refused:
            statuses.append(refusal(refused.message, unresolvable=refused.unresolvable, by=by))
            codes[unpacked(refused.nodes, len(rows))] = len(statuses)
        codes[unpacked(answer.passed, len(rows))] = 0
        codes[codes > 0] += len(self.statuses)
        self.rows = np.concatenate([self.rows, rows])
        self.codes = np.concatenate([self.codes, codes])
        self.statuses += statuses

    def column(self, size: int) -> tuple[NDArray[np.int16], BoolColumn]:
        """(code by row of the table, rows that it was asked about)."""
        codes, asked = np.zeros(size, np.int16), np.zeros(size, np.bool_)
        there = self.rows != _GONE
        codes[self.rows[there]] = self.codes[there]
        asked[self.rows[there]] = True
        return codes, asked


class PendingEvaluation:
    """All questions and answers of one attempt."""

    def __init__(self, uid: str, attempt: int) -> None:
        self.uid = uid
        self.attempt = attempt
        self.verb = ExtenderVerb.FILTER
        self.pending: set[int] = set()
        """Positions of the extenders that have not answered the present question."""
        self.rows: RowArray = np.zeros(0, np.intp)
        """The nodes of the present question, in its order."""
        self.candidates: tuple[PreemptionCandidate, ...] = ()
        """The candidates of the present question."""
        self.filters: dict[int, FilterAnswers] = {}
        self.compared: RowArray = np.zeros(0, np.intp)
        """The nodes that were to be scored."""
        self.scores: dict[int, Int64Column] = {}
        """By extender, aligned with ``compared``."""
        self.reviews: dict[int, tuple[PreemptionCandidate, ...]] = {}
        self.failures: dict[tuple[ExtenderVerb, int], str] = {}

    def is_of(self, uid: str, attempt: int) -> bool:
        return self.uid == uid and self.attempt == attempt

    def ask(self, question: r.ExtenderAsked, table_size: int) -> None:
        self.verb = question.verb
        self.pending = set(question.extenders)
        self.rows = np.flatnonzero(unpacked(question.nodes, table_size))
        self.candidates = question.candidates
        if question.verb is ExtenderVerb.PRIORITIZE:
            self.compared = self.rows.copy()
            self.scores.clear()

    def expects(self, answer: r.ExtenderAnswer) -> bool:
        """Whether this answers the present question. A late one does not."""
        return (
            self.is_of(answer.uid, answer.attempt)
            and answer.verb_answered is self.verb
            and answer.extender in self.pending
        )

    def enter(self, answer: r.ExtenderAnswer, by: str = EXTENDER) -> None:
        """``by`` is who is said to refuse nodes."""
        self.pending.remove(answer.extender)
        match answer:
            case r.ExtenderFiltered():
                self.filters.setdefault(answer.extender, FilterAnswers()).add(self.rows, answer, by)
            case r.ExtenderPrioritized():
                scores = np.zeros(len(self.compared), np.int64)
                given = answer.scores[: len(scores)]
                scores[: len(given)] = given
                self.scores[answer.extender] = scores
            case r.ExtenderReviewed():
                self.reviews[answer.extender] = answer.candidates
            case r.ExtenderFailed():
                self.failures[answer.verb, answer.extender] = answer.message

    def node_gone(self, row: int) -> None:
        """The node of a row went; what is said of it must not be taken for the next one there."""
        self.rows[self.rows == row] = _GONE
        self.compared[self.compared == row] = _GONE
        for answers in self.filters.values():
            answers.rows[answers.rows == row] = _GONE


def present_rows(rows: RowArray) -> BoolColumn:
    """Which of the rows still hold the node that was asked about."""
    present: BoolColumn = rows != _GONE
    return present


def mask_of(rows: RowArray, size: int) -> BoolColumn:
    """Where the rows are, those left out whose node went."""
    mask = np.zeros(size, np.bool_)
    mask[rows[rows != _GONE]] = True
    return mask
