from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.planning.journals import simulated_journal


@pytest.fixture(scope="session")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The journal of a scenario. Read-only."""
    path = tmp_path_factory.mktemp("gate") / "journal.db"
    asyncio.run(simulated_journal(path))
    return path
