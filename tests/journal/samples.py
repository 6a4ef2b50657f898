"""Records to fill a journal with."""

from __future__ import annotations

from asched.journal.chain import GENESIS, Head, verify
from asched.journal.store import JournalStore
from asched.model.meta import ObjectMeta
from asched.model.node import Node
from asched.state.records import AnyRecord, Assigned, Bound, ObjectObserved, TurnStarted


def turn(number: int, pods: int = 2) -> list[AnyRecord]:
    """A batch of a turn: its start, and ``pods`` decisions that depend on ``number``."""
    decided: list[AnyRecord] = [
        Assigned(f"default/web-{pod}", f"uid-{pod}", f"node-{number}", number, 3)
        for pod in range(pods)
    ]
    return [TurnStarted(number), *decided]


def mixed() -> list[AnyRecord]:
    return [
        ObjectObserved(Node(metadata=ObjectMeta(name="node-1"))),
        Assigned("default/web-1", "uid-1", "node-1", 1, 3),
        Assigned("default/web-2", "uid-2", "node-1", 1, 3),
        Bound("default/web-1", "uid-1", "node-1"),
    ]


async def verified_head(store: JournalStore) -> Head:
    """Verify the chain of ``store`` and return its head."""
    head = GENESIS
    async for sealed in store.batches():
        head = verify(sealed, head)
    return head
