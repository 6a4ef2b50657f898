"""Concentrates a group that fits in no narrow domain on as few of them as possible.

A group that prefers a rack and needs two would otherwise run anywhere in its block. The numbers
come from :class:`~asched.group_cycle.screening.Screening` and are upper limits if members differ,
so a result has to be tried.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from asched.framework.placements import GroupPlacement
from asched.group_cycle.members import CycleMembers
from asched.group_cycle.screening import Screening


class _Domain(NamedTuple):
    placement: GroupPlacement
    room: int
    """How many pending members fit at most."""


def fewest_domains(
    screening: Screening,
    members: CycleMembers,
    wide: GroupPlacement,
    narrower: Sequence[Sequence[GroupPlacement]],
    extra: int = 0,
) -> GroupPlacement | None:
    """``wide`` with only the nodes of as few narrower domains as have room for all pending members.

    ``narrower``: the tiers before that of ``wide``, the narrowest first. Few domains of the widest
    of them are chosen first, then few narrower ones within those. ``extra``: use so many more
    domains of each. None if no node is left out, or if the filters do not count. Raises
    :class:`PluginFailure`.
    """
    chosen = [wide]
    for tier in reversed(narrower):
        parts = _parts(chosen, tier)
        rooms = screening.rooms(members, parts)
        if rooms is None:
            return None
        domains = [
            _Domain(part, room.members) for part, room in zip(parts, rooms.found, strict=True)
        ]
        if sum(domain.room for domain in domains) < len(members.pending):
            break
        chosen = _fewest(domains, len(members.pending), extra)
    rows = np.unique(np.concatenate([one.rows for one in chosen]))
    return GroupPlacement(wide.name, rows, wide.tier) if len(rows) < len(wide.rows) else None


def _parts(
    chosen: Sequence[GroupPlacement], tier: Sequence[GroupPlacement]
) -> list[GroupPlacement]:
    """The domains of the tier within the chosen ones. A domain that contains none is its own part:
    a tier omits domains that are equal to a wider one."""
    size = 1 + max(int(one.rows.max(initial=0)) for one in (*chosen, *tier))
    owners = np.full(size, -1)
    for number, wider in enumerate(chosen):
        owners[wider.rows] = number
    found: list[list[GroupPlacement]] = [[] for _ in chosen]
    for one in tier:
        owner = int(owners[one.rows[0]])
        if owner >= 0 and (owners[one.rows] == owner).all():
            found[owner].append(one)
    pairs = zip(found, chosen, strict=True)
    return [part for parts, wider in pairs for part in parts or [wider]]


def _fewest(domains: Sequence[_Domain], count: int, extra: int) -> list[GroupPlacement]:
    """The domains with most room, until all members have some. The last one is the smallest that
    suffices, so that large domains remain for large groups."""
    ordered = sorted(domains, key=lambda one: (-one.room, one.placement.name))
    taken, left = 0, count
    while left > 0:
        left -= ordered[taken].room
        taken += 1
    if extra:
        return [one.placement for one in ordered[: taken + extra]]
    missing = left + ordered[taken - 1].room
    last = min(
        (one for one in ordered[taken - 1 :] if one.room >= missing),
        key=lambda one: (one.room, one.placement.name),
    )
    return [*(one.placement for one in ordered[: taken - 1]), last.placement]
