"""The structured allocator: devices for all claims of a pod on a node, or on all nodes.

Answers for all sites are kept by request, until a pool of the site changes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from asched.dra.devices import NodeView, UsedDevice
from asched.dra.inventory import Inventory
from asched.dra.like_sites import LikeSites, SiteOutcome, SiteStates
from asched.dra.outcomes import (
    TOO_EXPENSIVE,
    Allocated,
    AllocationError,
    AllocationFailed,
    NotAllocated,
)
from asched.dra.pools import PoolView
from asched.dra.preparation import PlannedClaim, expression_steps, plan_claim
from asched.dra.requests import ClaimError
from asched.dra.search import SearchResult, search_site
from asched.dra.sites import Indexes, Site, SiteNodes, SiteTable
from asched.dra.steps import AttemptMeter, Evaluated, StepMeter
from asched.model.resource_claims import ResourceClaim, ResourceClaimSpec

CodeColumn = NDArray[np.int32]
StepColumn = NDArray[np.int64]
BoolColumn = NDArray[np.bool_]
SolutionColumn = NDArray[np.object_]

UNKNOWN = -1
ALLOCATED = 0

Refusal = NotAllocated | AllocationFailed


@dataclass(frozen=True, slots=True)
class NodeAnswers:
    """The devices of the claims, or why there are none, by row of the cluster's nodes."""

    codes: CodeColumn
    """0 if all claims can be allocated; otherwise the number of a refusal, from 1; -1 for rows that
    were not asked for."""
    refusals: Sequence[NotAllocated | ClaimError]
    claim_keys: tuple[str, ...]
    site_scores: StepColumn
    """By index of the site, the raw score where all claims can be allocated."""
    solutions: SolutionColumn
    """By index of the site, with the devices of that site or of one like it."""
    sites: Sequence[Site]
    site_of_row: Indexes
    longest: int = 0
    """The steps of the longest search for one of these nodes, as if no answer were known."""

    def solution(self, row: int) -> Allocated | None:
        """The devices on a node; None if not all claims can be allocated."""
        if self.codes[row] != ALLOCATED:
            return None
        index = int(self.site_of_row[row])
        found: Allocated = self.solutions[index]
        return found.on(self.sites[index].candidates)

    def scores(self, rows: Indexes | NDArray[np.intp]) -> StepColumn:
        """The raw scores of nodes on which all claims can be allocated."""
        return self.site_scores[self.site_of_row[rows]]

    def refusal(self, row: int) -> Refusal | None:
        """Why not all claims can be allocated on a node."""
        code = int(self.codes[row])
        return self.refusal_of(code) if code > 0 else None

    def refusal_of(self, code: int) -> Refusal:
        """What a positive code means."""
        found = self.refusals[code - 1]
        if isinstance(found, NotAllocated):
            return found
        return AllocationFailed(found.describe(self.claim_keys))

    def with_rows(self, rows: BoolColumn, later: NodeAnswers) -> NodeAnswers | None:
        """These answers, and later ones for some rows; None if too much changed in between."""
        same_sites = np.array_equal(self.site_of_row, later.site_of_row)
        if later.refusals is not self.refusals or not same_sites:
            return None
        codes = np.where(rows, later.codes, self.codes)
        return replace(later, codes=codes, longest=max(self.longest, later.longest))


class SiteAnswers:
    """Answers for one list of claims, by index of the site.

    Searches fill them in. A change of devices or of their use drops those that may differ.
    """

    def __init__(self, plans: Sequence[PlannedClaim]) -> None:
        self.plans = plans
        self.position = 0
        """Of the changes of usage that were taken over."""
        self.epoch = -1
        self.codes: CodeColumn = np.zeros(0, np.int32)
        self.scores: StepColumn = np.zeros(0, np.int64)
        self.steps: StepColumn = np.zeros(0, np.int64)
        """How many steps each search took, without evaluations."""
        self.groups: Indexes = np.zeros(0, np.int32)
        """Of each search, the index in :attr:`_evaluated`; 0 for none."""
        self._evaluated: list[tuple[Evaluated, ...]] = [()]
        """What searches evaluated. Many searches evaluate the same."""
        self._group_of: dict[tuple[int, ...], int] = {(): 0}
        self.kept_steps = 0
        """The steps of the searches with an answer: memory is proportional to them."""
        self.like = LikeSites()
        self.solutions: SolutionColumn = np.zeros(0, np.object_)
        self.refusals: list[NotAllocated | ClaimError] = []
        self._numbers: dict[tuple[str, int | None, bool], int] = {}

    def adapt(self, table: SiteTable) -> None:
        """Add room for new sites; drop all answers if sites have new indexes."""
        if self.epoch != table.epoch:
            self.epoch = table.epoch
            self.kept_steps -= int(self.steps.sum())
            self.codes = np.zeros(0, np.int32)
            self.scores = np.zeros(0, np.int64)
            self.steps = np.zeros(0, np.int64)
            self.groups = np.zeros(0, np.int32)
            self.solutions = np.zeros(0, np.object_)
        missing = len(table.sites) - len(self.solutions)
        if missing > 0:
            self.codes = np.concatenate((self.codes, np.full(missing, UNKNOWN, np.int32)))
            self.scores = np.concatenate((self.scores, np.zeros(missing, np.int64)))
            self.steps = np.concatenate((self.steps, np.zeros(missing, np.int64)))
            self.groups = np.concatenate((self.groups, np.zeros(missing, np.int32)))
            self.solutions = np.concatenate((self.solutions, np.full(missing, None)))

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

    def outcome(self, found: SearchResult, meter: StepMeter) -> SiteOutcome:
        """The outcome of a search in the form of :meth:`store`."""
        group = self._group(meter)
        if isinstance(found, Allocated):
            return SiteOutcome(ALLOCATED, found, found.score, meter.steps, group)
        return SiteOutcome(self.number(found), None, 0, meter.steps, group)

    def store(self, indexes: Indexes, outcome: SiteOutcome) -> None:
        """Keep the answer of some sites."""
        self.kept_steps += outcome.steps * len(indexes) - int(self.steps[indexes].sum())
        self.codes[indexes] = outcome.code
        self.scores[indexes] = outcome.score
        self.steps[indexes] = outcome.steps
        self.groups[indexes] = outcome.group
        self.solutions[indexes] = outcome.found

    @property
    def has_old_refusals(self) -> bool:
        """Whether many refusals are of answers that were dropped."""
        return len(self.refusals) > len(self.codes) + KEPT_REFUSALS

    def count(self, index: int, meter: AttemptMeter) -> None:
        """Count the search of a site."""
        meter.add(int(self.steps[index]), self._evaluated[self.groups[index]])

    def count_all(self, indexes: Indexes, meter: AttemptMeter) -> None:
        """Count the searches of some sites."""
        meter.add(int(self.steps[indexes].sum()))
        # Groups have small numbers, and numpy.unique is slow.
        for group in np.flatnonzero(np.bincount(self.groups[indexes])).tolist():
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
        shown = np.full(len(self.codes) + 1, UNKNOWN, np.int32)
        shown[asked] = self.codes[asked]
        searched = asked
        if len(skipped):
            shown[skipped] = self.number(NotAllocated(TOO_EXPENSIVE))
            searched = np.setdiff1d(asked, skipped)
        return NodeAnswers(
            codes=shown[table.of_row],
            refusals=self.refusals,
            claim_keys=claim_keys,
            site_scores=self.scores.copy(),
            solutions=self.solutions.copy(),
            sites=table.sites.copy(),
            site_of_row=table.of_row.copy(),
            longest=int(self.steps[searched].max(initial=0)),
        )


KEPT_REFUSALS: Final = 10_000
"""Refusals of dropped answers that are kept, by request. Their texts may name pools and devices."""
KEPT_REQUESTS: Final = 128
"""Answers are kept for this many different requests."""
KEPT_STEPS: Final = 2_000_000
"""Answers are kept of searches with this many steps together: 500 MiB at most."""
UNSORTED: Final = 64
"""Up to this many sites are searched in any order."""


class SearchLimits(msgspec.Struct, frozen=True):
    """Limits of searches in counted steps (:data:`asched.dra.steps.STEP`)."""

    steps_per_node: int = 200_000
    steps_per_attempt: int = 200_000
    """For all nodes together, as if no answer were known."""


@dataclass(frozen=True, slots=True)
class AllocationRequest:
    """Claims that are allocated together, in this order."""

    claims: tuple[ResourceClaim, ...]

    @property
    def claim_keys(self) -> tuple[str, ...]:
        return tuple(claim.key for claim in self.claims)

    @property
    def specs(self) -> tuple[ResourceClaimSpec, ...]:
        return tuple(claim.spec for claim in self.claims)


class Allocator:
    """Allocates devices of an inventory. Answers are kept until something changes them."""

    def __init__(self, inventory: Inventory, limits: SearchLimits | None = None) -> None:
        self.inventory = inventory
        self._limits = limits if limits is not None else SearchLimits()
        self._table = SiteTable(inventory)
        self._states = SiteStates(self._table, inventory)
        self._answers: OrderedDict[bytes, SiteAnswers] = OrderedDict()
        self._version = inventory.answers_version
        self._encoder = msgspec.msgpack.Encoder(order="deterministic")
        self.searches = 0
        """How many sites were searched."""

    def allocate(self, request: AllocationRequest, node: NodeView) -> Allocated | NotAllocated:
        """The devices for all claims on a node, searched now. Raises AllocationError."""
        plans = self._answers_for(request).plans
        outcome = self._search(plans, Site(self.inventory.pools_of(node)), self._meter())
        if isinstance(outcome, ClaimError):
            raise AllocationError(outcome.describe(request.claim_keys))
        return outcome

    def allocate_all(
        self, request: AllocationRequest, nodes: SiteNodes, rows: Indexes | None = None
    ) -> NodeAnswers:
        """The answers for the nodes of the cluster, or for some rows of them."""
        table = self._table
        table.refresh(nodes)
        self._states.refresh()
        answers = self._answers_for(request)
        self._apply_usage_changes(answers)
        asked = table.of_rows(rows)
        steps_before = answers.kept_steps
        skipped = self._complete(answers, asked)
        if skipped is None:
            skipped = self._complete_within_budget(answers, asked)
        if answers.kept_steps > steps_before:
            self._drop_old()
        return answers.columns(table, asked, skipped, request.claim_keys)

    # -- answers that are kept --------------------------------------------------------------------

    def _answers_for(self, request: AllocationRequest) -> SiteAnswers:
        if self._version != self.inventory.answers_version:
            self._version = self.inventory.answers_version
            self._answers.clear()
        elif self.inventory.selectors.is_full:
            self.inventory.forget_selectors()
            self._version = self.inventory.answers_version
            self._answers.clear()
        signature = blake2b(self._encoder.encode(request.specs), digest_size=16).digest()
        answers = self._answers.get(signature)
        if answers is None or answers.has_old_refusals:
            plans = [
                plan_claim(index, spec, self.inventory) for index, spec in enumerate(request.specs)
            ]
            answers = self._answers[signature] = SiteAnswers(plans)
            answers.position = self.inventory.usage_changes.position
        self._answers.move_to_end(signature)
        return answers

    def _drop_old(self) -> None:
        """Drop the answers that were not needed for the longest time."""
        kept = sum(answers.kept_steps for answers in self._answers.values())
        while len(self._answers) > KEPT_REQUESTS or (kept > KEPT_STEPS and len(self._answers) > 1):
            _, dropped = self._answers.popitem(last=False)
            kept -= dropped.kept_steps

    def _apply_usage_changes(self, answers: SiteAnswers) -> None:
        answers.adapt(self._table)
        log = self.inventory.usage_changes
        if answers.position == log.position:
            return
        changes = log.since(answers.position)
        answers.position = log.position
        if changes is None:
            answers.forget_all()
            return
        for change in changes:
            answers.forget_users_of(change, self._table)

    def _complete(self, answers: SiteAnswers, asked: Indexes) -> Indexes | None:
        """Search the sites without an answer; None if all sites together exceed the budget."""
        meter = self._attempt_meter(answers)
        is_unknown = answers.codes[asked] == UNKNOWN
        answers.count_all(asked[~is_unknown], meter)
        for like in self._like(asked[is_unknown]):
            if meter.is_exceeded:
                return None
            self._complete_sites(answers, like)
            answers.count_all(like, meter)
        return None if meter.is_exceeded else asked[:0]

    def _like(self, indexes: Indexes) -> list[Indexes]:
        """The sites in groups on which every search has the same outcome."""
        by_state: dict[int, list[int]] = {}
        states = self._states.of(indexes).tolist()
        for index, state in zip(indexes.tolist(), states, strict=True):
            by_state.setdefault(state, []).append(index)
        groups = [np.array(group, np.int32) for group in by_state.values()]
        if len(groups) > UNSORTED:
            # The same order as within the budget: nothing is searched that is not needed there.
            place = np.zeros(len(self._table.sites), np.int64)
            place[self._table.by_first_name(indexes)] = np.arange(len(indexes))
            groups.sort(key=lambda group: int(place[group].min()))
        return groups

    def _complete_within_budget(self, answers: SiteAnswers, asked: Indexes) -> Indexes:
        """Search in the order of names while steps are left. Returns the sites that are skipped.

        The order does not depend on what is known already, so the result does not either.
        """
        meter = self._attempt_meter(answers)
        skipped: list[int] = []
        order = self._table.by_first_name(asked)
        for place, index in enumerate(order):
            if meter.is_exceeded:
                skipped = order[place:]
                break
            if answers.codes[index] == UNKNOWN:
                self._complete_sites(answers, np.array([index], np.int32))
            answers.count(index, meter)
        return np.array(skipped, np.int32)

    def _complete_sites(self, answers: SiteAnswers, indexes: Indexes) -> None:
        """Search one of these sites, which are alike."""
        state = int(self._states.of(indexes[:1])[0])
        outcome = answers.like.get(state)
        if outcome is not None:
            answers.store(indexes, outcome)
            return
        for index in indexes:
            meter = self._meter()
            found = self._search(answers.plans, self._table.sites[int(index)], meter)
            outcome = answers.outcome(found, meter)
            if not isinstance(found, ClaimError):
                answers.like.put(state, outcome)
                answers.store(indexes, outcome)
                return
            # An error may name a device of the site.
            answers.store(np.array([index], np.int32), outcome)

    def _attempt_meter(self, answers: SiteAnswers) -> AttemptMeter:
        meter = AttemptMeter(self._limits.steps_per_attempt)
        meter.add(expression_steps([plan.spec for plan in answers.plans]))
        return meter

    def _meter(self) -> StepMeter:
        return StepMeter(self._limits.steps_per_node)

    def _search(self, plans: Sequence[PlannedClaim], site: Site, meter: StepMeter) -> SearchResult:
        self.searches += 1
        return search_site(plans, site, self.inventory.usage, meter)
