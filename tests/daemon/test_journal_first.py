"""Durable before effect: every decision is in the journal before it reaches the cluster."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest

from asched.apiserver.storage import StoreChange
from asched.journal import open_journal
from asched.journal.errors import FencedError
from asched.journal.sql import SqlStore
from asched.journal.sqlite import SqliteDatabase
from tests.daemon.world import World, failed_checks, world


class JournalComparison:
    """Compares every change of a pod with the journal, within the request that makes it."""

    def __init__(self, w: World) -> None:
        self._connection = sqlite3.connect(f"file:{w.journal}?mode=ro", uri=True)
        self.compared = 0
        self.missing: list[str] = []
        w.cluster.listen("pods", self._on_pod)

    def close(self) -> None:
        self._connection.close()

    def _records(self, kind: str, pod: str) -> list[dict[str, Any]]:
        query = "select payload from journal_record where kind = ? and subject = ?"
        rows = self._connection.execute(query, (kind, f"pod/default/{pod}"))
        return [json.loads(payload) for (payload,) in rows]

    def _on_pod(self, change: StoreChange) -> None:
        pod = change.new.obj
        name, node = pod["metadata"]["name"], pod["spec"].get("nodeName", "")
        if node:
            self._compare(name, node, [r["node"] for r in self._records("Assigned", name)])
            return
        for condition in pod["status"].get("conditions") or ():
            messages = [r["message"] for r in self._records("Rejected", name)]
            self._compare(name, condition["message"], messages)

    def _compare(self, name: str, effect: str, decisions: list[str]) -> None:
        self.compared += 1
        if effect not in decisions:
            self.missing.append(f"{name}: {effect}")


async def test_decision_is_in_journal_before_its_effect(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=3, cpu="4") as w, w.daemon() as daemon:
        # The daemon creates the journal's file before it decides.
        with closing(JournalComparison(w)) as comparison:
            await daemon.engine.synced.wait()
            for wave in range(5):
                w.add_pods(20, f"wave-{wave}")
                w.add_pod(f"big-{wave}", "100")
                await w.until(
                    lambda wave=wave: (  # type: ignore[misc]
                        w.unbound() == [f"big-{n}" for n in range(wave + 1)]
                        and bool(w.message(f"big-{wave}"))
                    )
                )
            assert comparison.missing == []
            assert comparison.compared >= 105


async def test_full_disk_pauses_decisions_without_loss(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=2, cpu="16") as w:
        database = await SqliteDatabase.open(w.journal, read_only=False)
        store = SqlStore(database)

        async def limit(pages: int) -> None:
            async with database.write() as connection:
                await connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}")

        try:
            async with w.daemon_on(store) as daemon:
                w.add_pods(5, "before")
                await w.until(lambda: not w.unbound())
                await limit(1)  # SQLite raises this to the present size
                head_seq = (await store.head()).seq
                w.add_pods(100, "after")  # more than the last page can hold
                while not daemon.engine.journal_error:
                    await anyio.wait_all_tasks_blocked()
                assert "the disk is full" in failed_checks(daemon.checks())[0]
                assert len(w.placements.order) == 5
                await limit(1_000_000)
                await w.until(lambda: not w.unbound())
                assert failed_checks(daemon.checks()) == []
            assert (await store.head()).seq > head_seq
        finally:
            await database.close()
        # The stored records are complete: the next daemon assigns nothing.
        async with w.daemon() as again:
            await again.engine.synced.wait()
            assert again.engine.stats.assigned == 0


async def test_daemon_stops_when_journal_is_claimed_by_another(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=1) as w:
        with pytest.RaisesGroup(FencedError, flatten_subgroups=True, allow_unwrapped=True):
            async with w.daemon():
                w.add_pod("first")
                await w.until(lambda: not w.unbound())
                async with open_journal(str(w.journal)) as other:
                    await other.claim("other", claimed_at_ns=1)
                w.add_pod("second")
                await anyio.sleep_forever()
        assert w.unbound() == ["second"]
        async with w.daemon():
            await w.until(lambda: not w.unbound())
