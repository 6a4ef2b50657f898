"""Exports as JSON lines and Parquet."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from asched.journal.codec import CODEC
from asched.journal.errors import JournalError, JournalIOError
from asched.journal.export import export, open_sink
from asched.journal.memory import MemoryStore
from asched.state.records import AnyRecord
from tests.journal.samples import mixed, turn

RECORDS: list[AnyRecord] = [*turn(1), *mixed()]
SECOND_NS = 1_700_000_000_123_456_789


@pytest.fixture
async def store() -> MemoryStore:
    store = MemoryStore()
    await store.claim("test", claimed_at_ns=1)
    await store.append(turn(1), written_at_ns=0)
    await store.append(mixed(), written_at_ns=SECOND_NS)
    return store


async def test_export_json_lines(store: MemoryStore, tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    assert await export(store.batches(), open_sink(path)) == 7
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["seq"] for line in lines] == list(range(1, 8))
    assert [line["record"] for line in lines] == [
        json.loads(CODEC.encode(record).payload) for record in RECORDS
    ]
    del lines[4]["record"]
    assert lines[4] == {
        "seq": 5,
        "writtenAt": "2023-11-14T22:13:20.123456Z",
        "batch": 2,
        "epoch": 1,
        "kind": "Assigned",
        "version": 1,
        "subject": "pod/default/web-1",
    }


async def test_export_parquet(store: MemoryStore, tmp_path: Path) -> None:
    path = tmp_path / "journal.parquet"
    assert await export(store.batches(), open_sink(path)) == 7
    rows = pq.read_table(path).to_pylist()
    assert [row["record"] for row in rows] == [CODEC.encode(record).payload for record in RECORDS]
    assert [row["kind"] for row in rows] == [type(record).__name__ for record in RECORDS]
    assert rows[4]["writtenAt"] == datetime(2023, 11, 14, 22, 13, 20, 123456, UTC)
    assert (rows[4]["seq"], rows[4]["batch"], rows[4]["epoch"]) == (5, 2, 1)


async def test_empty_journal(tmp_path: Path) -> None:
    for ending in ("jsonl", "parquet"):
        assert await export(MemoryStore().batches(), open_sink(tmp_path / f"none.{ending}")) == 0
    assert (tmp_path / "none.jsonl").read_bytes() == b""


def test_export_without_pyarrow_names_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(JournalError, match=r"pip install 'asched\[parquet\]'"):
        open_sink(tmp_path / "journal.parquet")
    assert not (tmp_path / "journal.parquet").exists()


def test_invalid_export_paths(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match=r"expected a name that ends with \.jsonl or \.parquet"):
        open_sink(tmp_path / "journal.csv")
    (tmp_path / "there.jsonl").write_text("mine")
    for path in (tmp_path / "there.jsonl", tmp_path / "absent" / "x.jsonl"):
        with pytest.raises(JournalIOError, match="cannot write"):
            open_sink(path)
    assert (tmp_path / "there.jsonl").read_text() == "mine"
