"""A leader stops while the outcome of a binding or of a commit is unknown."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from asched.journal.errors import JournalIOError
from asched.journal.memory import MemoryStore
from asched.journal.store import AppendResult, JournalStore
from asched.state.records import AnyRecord
from tests.daemon.world import TIMEOUT_S, World, world
from tests.replicas.single_replica import holder, running


class SilentStore(MemoryStore):
    """A journal that stores the last commit without confirming it."""

    def __init__(self) -> None:
        super().__init__()
        self.silent = False
        self.asked = anyio.Event()

    async def append(
        self, records: Sequence[AnyRecord], *, written_at_ns: int, first_seq: int | None = None
    ) -> AppendResult:
        appended = await super().append(records, written_at_ns=written_at_ns, first_seq=first_seq)
        if self.silent:
            self.asked.set()
            raise JournalIOError("no answer")
        return appended


@asynccontextmanager
async def leader(
    w: World, *, shared: bool, store: JournalStore | None = None
) -> AsyncIterator[None]:
    async with running(w, store or MemoryStore(), shared=shared) as it:
        await it.leadership.acquired.wait()
        yield


@pytest.mark.parametrize(("shared", "left_to"), [(False, "it"), (True, "")])
async def test_unknown_binding_lets_the_lease_expire_unless_journal_is_shared(
    tmp_path: Path, shared: bool, left_to: str
) -> None:
    """A next leader with its own journal would assign the room while the binding may arrive."""
    async with world(tmp_path, nodes=1) as w:
        w.faults.on_request = lambda verb, resource: w.touch()
        w.faults.respond(504, count=1000, resource="pods/binding")
        with anyio.fail_after(TIMEOUT_S):
            async with leader(w, shared=shared):
                w.add_pod("p")
                await w.until(lambda: w.faults.injected >= 2)
        assert not w.node_of("p")
        assert holder(w) == left_to


@pytest.mark.parametrize("shared", [False, True])
async def test_unsent_or_failed_binding_releases_the_lease(tmp_path: Path, shared: bool) -> None:
    async with world(tmp_path, nodes=1) as w:
        w.faults.on_request = lambda verb, resource: w.touch()
        w.faults.respond(429, count=1000, resource="pods/binding", retry_after_s=0)
        with anyio.fail_after(TIMEOUT_S):
            async with leader(w, shared=shared):
                w.add_pod("p")
                await w.until(lambda: w.faults.injected >= 2)
        assert holder(w) == ""


@pytest.mark.parametrize("shared", [False, True])
async def test_failed_commit_prevents_last_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared: bool
) -> None:
    """The last commit was stored, so that another one at its position is rejected."""
    monkeypatch.setattr("asched.daemon.daemon.DRAIN_S", 0.05)
    store = SilentStore()
    async with world(tmp_path, nodes=1) as w:
        with anyio.fail_after(TIMEOUT_S):
            async with leader(w, shared=shared, store=store):
                store.silent = True
                w.add_pod("p")
                await store.asked.wait()
        assert not w.node_of("p")
        assert holder(w) == ""
