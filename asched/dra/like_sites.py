"""Sites that are alike: a search on one of them has the same outcome on the others.

Nodes of one kind publish equal devices. One search serves all of them on which the same devices are
in use.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from asched.dra.inventory import Inventory
from asched.dra.outcomes import Allocated
from asched.dra.sites import Indexes, Site, SiteTable, SiteUse

KEPT_KINDS: Final = 10_000
KEPT_OUTCOMES: Final = 256
"""Outcomes of one request are kept for this many sites that differ."""
_UNKNOWN: Final = -1

Numbers = NDArray[np.int64]


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
        if any(len(device.selector_terms) > 1 for device in devices):
            return None  # an error once the device is chosen
        traits = msgspec.msgpack.encode([(device.content, device.taints) for device in devices])
        key = blake2b(traits, digest_size=16).digest()
        number = self._numbers.get(key)
        if number is None:
            if len(self._numbers) >= KEPT_KINDS:
                self._numbers.clear()
            self._next += 1
            number = self._numbers[key] = self._next
        return number


class SiteStates:
    """Numbers the sites of a table by everything that searches read, the use of devices included.

    A number is never used again for another state.
    """

    def __init__(self, table: SiteTable, inventory: Inventory) -> None:
        self._table = table
        self._inventory = inventory
        self._kinds = SiteKinds()
        self._numbers: dict[tuple[int, SiteUse], int] = {}
        self._next = 0
        self._column: Numbers = np.zeros(0, np.int64)
        """By index of the site."""
        self._epoch = -1
        self._position = 0
        """Of the changes of usage that were taken over."""

    def refresh(self) -> None:
        """Apply changes of the table and of the use of devices since the last call."""
        table, log = self._table, self._inventory.usage_changes
        if self._epoch != table.epoch:
            self._epoch = table.epoch
            self._column = np.zeros(0, np.int64)
        missing = len(table.sites) - len(self._column)
        self._column = np.concatenate((self._column, np.full(missing, _UNKNOWN, np.int64)))
        changes = log.since(self._position)
        self._position = log.position
        if changes is None:
            self._column[:] = _UNKNOWN
        for change in changes or ():
            for index, _, _ in table.sites_using(change):
                self._column[index] = _UNKNOWN

    def of(self, indexes: Indexes) -> Numbers:
        """Equal for sites on which every search has the same outcome, after :meth:`refresh`."""
        numbers = self._column[indexes]
        for index in indexes[numbers == _UNKNOWN].tolist():
            self._column[index] = self._number(self._table.sites[index])
        return self._column[indexes]

    def _number(self, site: Site) -> int:
        kind = self._kinds.kind(site)
        key = None if kind is None else (kind, site.use(self._inventory.usage))
        known = None if key is None else self._numbers.get(key)
        if known is not None:
            return known
        self._next += 1
        if key is not None:
            if len(self._numbers) >= KEPT_KINDS:
                self._numbers.clear()
            self._numbers[key] = self._next
        return self._next


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
    """The outcomes of searches for one list of claims, by the states of sites."""

    def __init__(self) -> None:
        self._outcomes: dict[int, SiteOutcome] = {}

    def get(self, state: int) -> SiteOutcome | None:
        """The outcome on sites in this state, if it is known."""
        return self._outcomes.get(state)

    def put(self, state: int, outcome: SiteOutcome) -> None:
        """Keep an outcome. All are dropped once there are many."""
        if len(self._outcomes) >= KEPT_OUTCOMES:
            self._outcomes.clear()
        self._outcomes[state] = outcome
