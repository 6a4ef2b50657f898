"""Answers of one request for all sites, kept until a pool of the site changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from asched.dra.outcomes import TOO_EXPENSIVE, Allocated, AllocationFailed, NotAllocated
from asched.dra.pools import PoolView
from asched.dra.preparation import PlannedClaim
from asched.dra.requests import ClaimError
from asched.dra.site_search import SearchResult
from asched.dra.site_table import Indexes, SiteTable
from asched.dra.steps import AttemptMeter, Evaluated, StepMeter
from asched.dra.usage import UsedDevice

CodeColumn = NDArray[np.int16]
StepColumn = NDArray[np.int64]

UNKNOWN = -1
ALLOCATED = 0

Refusal = NotAllocated | AllocationFailed


@dataclass(frozen=True, slots=True)
class NodeAnswers:
    """What an allocation comes to, by row of the cluster's nodes."""

    codes: CodeColumn
    """0 if all claims can be allocated; otherwise the number of a refusal, from 1; -1 for rows that
    were not asked for."""
    refusals: Sequence[Refusal]
    scores: StepColumn
    """The raw score where all claims can be allocated."""
    solutions: Sequence[Allocated | None]
    """By index of the site."""
    site_of_row: Indexes

    def solution(self, row: int) -> Allocated | None:
        """The devices on a node; None if not all claims can be allocated."""
        index = int(self.site_of_row[row])
        return self.solutions[index] if self.codes[row] == ALLOCATED else None

    def refusal(self, row: int) -> Refusal | None:
        """Why not all claims can be allocated on a node."""
        code = int(self.codes[row])
        return self.refusals[code - 1] if code > 0 else None


class SiteAnswers:
    """Answers of one request by index of the site."""

    def __init__(self, plans: Sequence[PlannedClaim]) -> None:
        self.plans = plans
        self.position = 0
        """Of the changes of usage that were taken over."""
        self.epoch = -1
        self.codes: CodeColumn = np.zeros(0, np.int16)
        self.scores: StepColumn = np.zeros(0, np.int64)
        self.steps: StepColumn = np.zeros(0, np.int64)
        """How many steps each search took, without evaluations."""
        self.groups: Indexes = np.zeros(0, np.int32)
        """Of each search, the index in :attr:`_evaluated`; 0 for none."""
        self._evaluated: list[tuple[Evaluated, ...]] = [()]
        """What searches evaluated. Many searches evaluate the same."""
        self._group_of: dict[tuple[int, ...], int] = {(): 0}
        self.kept_steps = 0
        """The steps of all searches so far: memory is proportional to them."""
        self.solutions: list[Allocated | None] = []
        self.refusals: list[NotAllocated | ClaimError] = []
        self._numbers: dict[tuple[str, int | None, bool], int] = {}

    def adapt(self, table: SiteTable) -> None:
        """Make room for new sites."""
        if self.epoch != table.epoch:
            self.epoch = table.epoch
            self.codes = np.zeros(0, np.int16)
            self.scores = np.zeros(0, np.int64)
            self.steps = np.zeros(0, np.int64)
            self.groups = np.zeros(0, np.int32)
            self.solutions = []
        missing = len(table.sites) - len(self.solutions)
        if missing > 0:
            self.codes = np.concatenate((self.codes, np.full(missing, UNKNOWN, np.int16)))
            self.scores = np.concatenate((self.scores, np.zeros(missing, np.int64)))
            self.steps = np.concatenate((self.steps, np.zeros(missing, np.int64)))
            self.groups = np.concatenate((self.groups, np.zeros(missing, np.int32)))
            self.solutions += [None] * missing

    def forget_users_of(self, used: UsedDevice, table: SiteTable) -> None:
        """Drop the answers of the sites that the use of a device may change."""
        for index, pool, position in table.sites_using(used):
            is_elsewhere = position >= 0 and pool.elsewhere >> position & 1
            if not is_elsewhere or pool.counters or self._may_fail(pool, position):
                self.codes[index] = UNKNOWN

    def _may_fail(self, pool: PoolView, position: int) -> bool:
        """Whether a selector has an error for a device, unless the device is in use."""
        return any(
            matcher.failing(pool) >> position & 1
            for plan in self.plans
            for request in plan.requests
            if not isinstance(request, ClaimError)
            for matcher in request
        )

    def forget_all(self) -> None:
        self.codes[:] = UNKNOWN

    def store(self, index: int, outcome: SearchResult, meter: StepMeter) -> None:
        """Keep the answer of a site."""
        self.steps[index] = meter.steps
        self.groups[index] = self._group(meter)
        self.kept_steps += meter.steps
        if isinstance(outcome, Allocated):
            self.codes[index] = ALLOCATED
            self.scores[index] = outcome.score
            self.solutions[index] = outcome
        else:
            self.codes[index] = self.number(outcome)
            self.scores[index] = 0
            self.solutions[index] = None

    def count(self, index: int, meter: AttemptMeter) -> None:
        """Count the search of a site."""
        meter.add(int(self.steps[index]), self._evaluated[self.groups[index]])

    def count_all(self, indexes: Indexes, meter: AttemptMeter) -> None:
        """Count the searches of some sites."""
        meter.add(int(self.steps[indexes].sum()))
        for group in np.unique(self.groups[indexes]).tolist():
            meter.add(0, self._evaluated[group])

    def _group(self, meter: StepMeter) -> int:
        key = tuple(meter.evaluated)
        group = self._group_of.get(key)
        if group is None:
            group = self._group_of[key] = len(self._evaluated)
            self._evaluated.append(tuple(meter.evaluated.values()))
            self.kept_steps += len(key)
        return group

    def number(self, outcome: NotAllocated | ClaimError) -> int:
        """The code of a refusal."""
        if isinstance(outcome, ClaimError):
            key = (outcome.text, outcome.claim, True)
        else:
            key = (outcome.reason, None, False)
        if key not in self._numbers:
            self.refusals.append(outcome)
            self._numbers[key] = len(self.refusals)
        return self._numbers[key]

    def columns(
        self, table: SiteTable, asked: Indexes, skipped: Indexes, claim_keys: tuple[str, ...]
    ) -> NodeAnswers:
        """The answers by row. ``skipped`` are sites that were too expensive to search."""
        shown = np.full(len(self.codes) + 1, UNKNOWN, np.int16)
        shown[asked] = self.codes[asked]
        if len(skipped):
            shown[skipped] = self.number(NotAllocated(TOO_EXPENSIVE))
        return NodeAnswers(
            codes=shown[table.of_row],
            refusals=[_describe(refusal, claim_keys) for refusal in self.refusals],
            scores=np.append(self.scores, 0)[table.of_row],
            solutions=self.solutions.copy(),
            site_of_row=table.of_row.copy(),
        )


def _describe(refusal: NotAllocated | ClaimError, claim_keys: tuple[str, ...]) -> Refusal:
    if isinstance(refusal, NotAllocated):
        return refusal
    return AllocationFailed(refusal.describe(claim_keys))
