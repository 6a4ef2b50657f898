"""The structured allocator: devices for all claims of a pod on a node, or on all nodes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

import msgspec
import numpy as np

from asched.dra.answers import UNKNOWN, NodeAnswers, SiteAnswers
from asched.dra.devices import NodeView
from asched.dra.inventory import Inventory
from asched.dra.outcomes import Allocated, AllocationError, NotAllocated
from asched.dra.preparation import PlannedClaim, expression_steps, plan_claim
from asched.dra.requests import ClaimError
from asched.dra.site_search import SearchResult, search_site
from asched.dra.site_table import Indexes, NodeRows, SiteTable
from asched.dra.sites import Site
from asched.dra.steps import AttemptMeter, StepMeter
from asched.model.resource_claims import ResourceClaim, ResourceClaimSpec

KEPT_REQUESTS: Final = 128
"""Answers are kept for this many different requests."""
KEPT_STEPS: Final = 2_000_000
"""Answers are kept of searches with this many steps together: 500 MiB at most."""
UNSORTED: Final = 64
"""Up to this many sites are searched in any order."""


class SearchLimits(msgspec.Struct, frozen=True):
    """Limits of searches in counted steps, of about two microseconds each."""

    steps_per_node: int = 200_000
    steps_per_attempt: int = 400_000
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
        self._answers: OrderedDict[bytes, SiteAnswers] = OrderedDict()
        self._version = inventory.answers_version
        self._encoder = msgspec.msgpack.Encoder(order="deterministic")
        self.searches = 0
        """How many sites were searched."""

    def allocate(self, request: AllocationRequest, node: NodeView) -> Allocated | NotAllocated:
        """The devices for all claims on a node. Raises AllocationError."""
        plans = self._answers_for(request).plans
        outcome = self._search(plans, Site(self.inventory.pools_of(node)), self._meter())
        if isinstance(outcome, ClaimError):
            raise AllocationError(outcome.describe(request.claim_keys))
        return outcome

    def allocate_all(
        self, request: AllocationRequest, nodes: NodeRows, rows: Indexes | None = None
    ) -> NodeAnswers:
        """The answers for the nodes of the cluster, or for some rows of them."""
        table = self._table
        table.refresh(nodes)
        answers = self._answers_for(request)
        self._take_over_changes(answers)
        indexes = table.of_row if rows is None else table.of_row[rows]
        asked = np.unique(indexes[indexes >= 0])
        skipped = self._complete(answers, asked)
        if skipped is None:
            skipped = self._complete_within_budget(answers, asked)
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
        if answers is None:
            plans = [
                plan_claim(index, spec, self.inventory) for index, spec in enumerate(request.specs)
            ]
            answers = self._answers[signature] = SiteAnswers(plans)
            answers.position = self.inventory.usage_changes.position
            self._drop_old()
        else:
            self._answers.move_to_end(signature)
        return answers

    def _drop_old(self) -> None:
        """Drop the answers that were not needed for the longest time."""
        kept = sum(answers.kept_steps for answers in self._answers.values())
        while len(self._answers) > KEPT_REQUESTS or (kept > KEPT_STEPS and len(self._answers) > 1):
            _, dropped = self._answers.popitem(last=False)
            kept -= dropped.kept_steps

    def _take_over_changes(self, answers: SiteAnswers) -> None:
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
        unknown = asked[is_unknown].tolist()
        if len(unknown) > UNSORTED:
            # The same order as within the budget: nothing is searched that is not needed there.
            unknown.sort(key=self._table.first_name)
        for index in unknown:
            if meter.is_exceeded:
                return None
            self._complete_site(answers, index)
            answers.count(index, meter)
        return None if meter.is_exceeded else asked[:0]

    def _complete_within_budget(self, answers: SiteAnswers, asked: Indexes) -> Indexes:
        """Search in the order of names while steps are left. Returns the sites that are skipped.

        The order does not depend on what is known already, so the result does not either.
        """
        meter = self._attempt_meter(answers)
        skipped: list[int] = []
        for index in sorted(asked.tolist(), key=self._table.first_name):
            if meter.is_exceeded:
                skipped.append(index)
                continue
            if answers.codes[index] == UNKNOWN:
                self._complete_site(answers, index)
            answers.count(index, meter)
        return np.array(skipped, np.int32)

    def _complete_site(self, answers: SiteAnswers, index: int) -> None:
        meter = self._meter()
        answers.store(index, self._search(answers.plans, self._table.sites[index], meter), meter)

    def _attempt_meter(self, answers: SiteAnswers) -> AttemptMeter:
        meter = AttemptMeter(self._limits.steps_per_attempt)
        meter.add(expression_steps([plan.spec for plan in answers.plans]))
        return meter

    def _meter(self) -> StepMeter:
        return StepMeter(self._limits.steps_per_node)

    def _search(self, plans: Sequence[PlannedClaim], site: Site, meter: StepMeter) -> SearchResult:
        self.searches += 1
        return search_site(plans, site, self.inventory.usage, meter)
