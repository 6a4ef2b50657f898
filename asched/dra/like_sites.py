"""Sites that are alike: a search on one of them has the same outcome on the others.

Nodes of one kind publish equal devices. One search serves all of them on which the same devices are
in use.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Final, NamedTuple

import msgspec

from asched.dra.outcomes import Allocated
from asched.dra.pools import DeviceCandidate
from asched.dra.sites import Site, SiteUse

KEPT_KINDS: Final = 10_000
KEPT_OUTCOMES: Final = 256
"""Outcomes are kept for this many kinds of sites and uses of their devices, by request."""


class SiteKinds:
    """Numbers the kinds of sites. A number is never used again for another kind."""

    def __init__(self) -> None:
        self._numbers: dict[bytes, int] = {}
        self._next = 0

    def kind(self, site: Site) -> int | None:
        """Equal for sites with equal devices; None for a site that is like no other."""
        if not site.is_numbered:
            site.is_numbered, site.kind = True, self._number(site)
        return site.kind

    def _number(self, site: Site) -> int | None:
        if site.elsewhere or any(not pool.usable or pool.counters for pool in site.pools):
            # Errors, and tables of counters, depend on the names of pools.
            return None
        devices = [candidate.device for candidate in site.candidates]
        traits = msgspec.msgpack.encode([(device.content, device.taints) for device in devices])
        key = blake2b(traits, digest_size=16).digest()
        number = self._numbers.get(key)
        if number is None:
            if len(self._numbers) >= KEPT_KINDS:
                self._numbers.clear()
            self._next += 1
            number = self._numbers[key] = self._next
        return number


class SiteOutcome(NamedTuple):
    """The outcome of a search as :class:`asched.dra.allocator.SiteAnswers` keeps it."""

    code: int
    found: Allocated | None
    score: int
    steps: int
    """Without those of evaluations."""
    group: int
    """Of evaluations."""


class LikeSites:
    """The outcomes of searches for one list of claims, by all that they depend on."""

    def __init__(self) -> None:
        self._outcomes: dict[tuple[int, SiteUse], SiteOutcome] = {}

    def get(self, kind: int | None, use: SiteUse) -> SiteOutcome | None:
        """The outcome on sites of this kind with this use of their devices, if it is known."""
        return None if kind is None else self._outcomes.get((kind, use))

    def put(self, kind: int | None, use: SiteUse, outcome: SiteOutcome) -> None:
        """Keep an outcome. All are dropped once there are many."""
        if kind is None:
            return
        if len(self._outcomes) >= KEPT_OUTCOMES:
            self._outcomes.clear()
        self._outcomes[kind, use] = outcome


class SiteSolution(NamedTuple):
    """The devices that a search found on a site, or on one like it."""

    found: Allocated
    candidates: Sequence[DeviceCandidate]
    """Of the site."""

    def here(self) -> Allocated:
        """The devices of the site."""
        return self.found.on(self.candidates)
