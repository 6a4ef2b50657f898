"""Repeats the decisions of a journal, which must be equal without any extender."""

from __future__ import annotations

from typing import Any

from asched.cycle.decide import Decider
from asched.framework.interface import Plugin
from asched.journal import open_journal
from asched.state.cluster import ClusterState
from asched.state.fold import Fold
from asched.state.records import DECISIONS, AnyRecord
from asched.testing import invariants
from tests.daemon.world import World, registry_with


async def records_of(w: World) -> list[AnyRecord]:
    async with open_journal(str(w.journal), read_only=True) as store:
        return [stored.record async for stored in store.read()]


async def replayed(w: World, *plugins: type[Plugin]) -> list[Any]:
    """The decisions of this world's journal, after each was decided again and found equal. The
    invariants of the state hold after every record."""
    records = await records_of(w)
    fold = Fold(ClusterState(), registry_with(*plugins).load)
    decider = Decider(fold.state)
    decisions: list[Any] = []
    due: list[AnyRecord] = []
    for record in records:
        if isinstance(record, DECISIONS):
            if not due:
                due = [*decider.next()]
            assert due.pop(0) == record
            decisions.append(record)
        fold.apply(record)
        invariants.check(fold.state)
    return decisions
