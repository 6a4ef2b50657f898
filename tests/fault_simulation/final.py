"""Checks at the end of a seed."""

from __future__ import annotations

from asched.journal.checkpoints import nearest
from asched.journal.errors import JournalCorruptError
from asched.journal.memory import MemoryStore
from asched.journal.verification import verify_journal
from asched.state.fold import Fold
from tests.fault_simulation.breach import BreachError, demand
from tests.fault_simulation.differences import differences, plain
from tests.fault_simulation.processes import Surroundings
from tests.fault_simulation.stores import KEYS


async def check_end(around: Surroundings) -> None:
    """Raises BreachError."""
    store = MemoryStore(around.disk.journal, KEYS)
    try:
        verified = await verify_journal(store)
    except JournalCorruptError as error:
        raise BreachError(f"the journal does not verify: {error}") from None
    auditor = around.auditor
    demand(verified.records == auditor.records, "the auditor missed records")
    demand(verified.trusted or not verified.records, "the journal is not signed")
    auditor.check_end()
    fold, kept_seq = await nearest(store, around.registry.load)
    await _follow(fold, store, kept_seq)
    demand(
        plain(fold.state) == plain(auditor.state),
        f"the state from the checkpoint at {kept_seq} differs from that of all records:"
        f" {differences(auditor.state, fold.state)}",
    )
    around.trace("simulation", f"journal {verified.head}")


async def _follow(fold: Fold, store: MemoryStore, after_seq: int) -> None:
    async for stored in store.read(after_seq):
        fold.apply(stored.record)
