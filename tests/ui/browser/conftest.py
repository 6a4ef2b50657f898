"""The browser of these tests: Debian's Chromium, which the test set-up installs."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from asched.journal.opening import open_journal
from asched.state.records import Assigned
from tests.ui.browser.browsing import Chromium, SharedJournal


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All tests of pages run in one event loop: they share the browser and its servers."""
    marker = pytest.mark.asyncio(loop_scope="session")
    folder = f"{Path(__file__).parent}{os.sep}"
    for item in items:
        if str(item.path).startswith(folder) and pytest_asyncio.is_async_test(item):
            item.add_marker(marker, append=False)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def chromium() -> AsyncIterator[Chromium]:
    """The browser."""
    path = shutil.which("chromium")
    if path is None:
        pytest.skip("chromium is not installed (apt-get install chromium): no page is tested")
    async with Chromium.run(path) as running:
        yield running


@pytest.fixture
def demo_journal(recorded_demo: Path) -> SharedJournal:
    """The journal of a demo, which is only read."""
    return SharedJournal(recorded_demo)


@pytest.fixture
def group_journal(recorded_groups: Path) -> SharedJournal:
    """A journal with gangs, queues and evictions, which is only read."""
    return SharedJournal(recorded_groups)


@pytest.fixture
async def assigned_pod(demo_journal: str) -> str:
    """The first pod that had a choice between nodes, as NAMESPACE/NAME."""
    async with open_journal(demo_journal, read_only=True) as store:
        async for stored in store.read():
            record = stored.record
            if isinstance(record, Assigned) and record.feasible_nodes > 1 and record.attempt == 1:
                return record.key
    raise AssertionError("no pod had a choice")
