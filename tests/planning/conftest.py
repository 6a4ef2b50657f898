from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import Executor
from pathlib import Path

import pytest

from asched.planning import own_processes
from tests.planning.journals import simulated_journal


@pytest.fixture(scope="session")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The journal of a scenario. Read-only: tests that change it copy it."""
    path = tmp_path_factory.mktemp("planning") / "journal.db"
    asyncio.run(simulated_journal(path))
    return path


@pytest.fixture(scope="session")
def processes() -> Iterator[Executor]:
    """Two processes, which keep what they loaded."""
    with own_processes(2) as executor:
        yield executor
