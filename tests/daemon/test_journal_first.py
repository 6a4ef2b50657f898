"""Durable before effect: nothing reaches the cluster that a reader does not find in the journal."""

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
from tests.daemon.world import World, world


class Reader:
    """At every change of a pod, inside the request that makes it, compares with the journal."""

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
            said = [r["message"] for r in self._records("Rejected", name)]
            self._compare(name, condition["message"], said)

    def _compare(self, name: str, effect: str, decisions: list[str]) -> None:
        self.compared += 1
        if effect not in decisions:
            self.missing.append(f"{name}: {effect}")


async def test_every_decision_is_in_the_journal_before_its_effect(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=3, cpu="4") as w, w.daemon() as daemon:
        # The journal's file is there once the daemon runs; nothing is decided before it synced.
        with closing(Reader(w)) as reader:
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
            assert reader.missing == []
            assert reader.compared >= 105


async def test_a_full_disk_stops_decisions_and_loses_nothing(tmp_path: Path) -> None:
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
                await limit(1)  # SQLite takes that for the size it has
                held = (await store.head()).seq
                w.add_pods(100, "after")  # more than what is left of the last page can hold
                while not daemon.engine.journal_error:
                    await anyio.wait_all_tasks_blocked()
                assert "the disk is full" in daemon.troubles()[0]
                assert len(w.placements.order) == 5
                await limit(1_000_000)
                await w.until(lambda: not w.unbound())
                assert daemon.troubles() == []
            assert (await store.head()).seq > held
        finally:
            await database.close()
        # And what was stored is one gapless history that folds to the same.
        async with w.daemon() as again:
            await again.engine.synced.wait()
            assert again.engine.stats.assigned == 0


async def test_a_deposed_daemon_stops(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=1) as w:
        with pytest.RaisesGroup(FencedError, flatten_subgroups=True, allow_unwrapped=True):
            async with w.daemon():
                w.add_pod("first")
                await w.until(lambda: not w.unbound())
                async with open_journal(str(w.journal)) as usurper:
                    await usurper.claim("usurper", claimed_at_ns=1)
                w.add_pod("second")
                await anyio.sleep_forever()
        assert w.unbound() == ["second"]
        async with w.daemon():
            await w.until(lambda: not w.unbound())
