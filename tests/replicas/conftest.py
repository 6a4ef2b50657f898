from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from tests.journal.postgres_server import PostgresServer
from tests.replicas.pair import Journals

_numbers = itertools.count(1)


@pytest.fixture(params=["own", "shared"])
async def journals(request: pytest.FixtureRequest, tmp_path: Path) -> Journals:
    """Where two replicas keep their journals: each its own in SQLite, or both one in PostgreSQL."""
    if request.param == "own":
        return Journals(str(tmp_path / "a.db"), str(tmp_path / "b.db"))
    server: PostgresServer = request.getfixturevalue("postgres")
    url = await server.new_database(f"replicas_{next(_numbers)}")
    return Journals(url, url)
