"""The search on one site, from claims to an outcome."""

from __future__ import annotations

from collections.abc import Sequence

from asched.dra.ledger import TakenDevice
from asched.dra.outcomes import (
    CANNOT_ALLOCATE,
    INVALID_POOLS,
    TOO_EXPENSIVE,
    Allocated,
    ClaimSolution,
    NotAllocated,
)
from asched.dra.preparation import Option, PlannedClaim, constraint_states, prepare
from asched.dra.requests import ClaimError, RequestedDevices
from asched.dra.search import Search, SearchInput
from asched.dra.sites import Site
from asched.dra.steps import SearchBudgetExceededError, StepMeter
from asched.dra.usage import Usage

SearchResult = Allocated | NotAllocated | ClaimError


def search_site(
    plans: Sequence[PlannedClaim], site: Site, usage: Usage, meter: StepMeter
) -> SearchResult:
    """The outcome on a site."""
    try:
        meter.add()
        claims = prepare(plans, site, usage, meter)
        found = Search(
            SearchInput(
                claims=claims,
                constraints=constraint_states(plans),
                site=site,
                usage=usage,
                meter=meter,
            )
        ).run()
    except SearchBudgetExceededError:
        return NotAllocated(TOO_EXPENSIVE)
    except ClaimError as error:
        return error
    if found is None:
        reason = INVALID_POOLS if site.has_invalid_pool else CANNOT_ALLOCATE
        return NotAllocated(reason)
    solutions = tuple(
        ClaimSolution(plan.spec, _chosen(requests, taken), tuple(taken))
        for plan, requests, taken in zip(plans, claims, found, strict=True)
    )
    return Allocated(solutions)


def _chosen(
    requests: Sequence[Sequence[Option]], taken: Sequence[TakenDevice]
) -> tuple[RequestedDevices, ...]:
    """The requests of a claim, with alternatives replaced by the chosen one."""
    used = {device.option for device in taken}
    return tuple(
        next((option.wanted for option in options if option in used), options[0].wanted)
        for options in requests
    )
