"""The browser of these tests: Debian's Chromium, which the test set-up installs."""

from __future__ import annotations

import shutil

import pytest

from asched.journal.opening import open_journal
from asched.state.records import Assigned


@pytest.fixture(scope="session")
def chromium() -> str:
    """The path of the browser."""
    path = shutil.which("chromium")
    if path is None:
        pytest.skip("chromium is not installed (apt-get install chromium): no page is tested")
    return path


@pytest.fixture
async def assigned_pod(demo_journal: str) -> str:
    """The first pod that had a choice between nodes, as NAMESPACE/NAME."""
    async with open_journal(demo_journal, read_only=True) as store:
        async for stored in store.read():
            record = stored.record
            if isinstance(record, Assigned) and record.feasible_nodes > 1 and record.attempt == 1:
                return record.key
    raise AssertionError("no pod had a choice")
