"""Fixtures that every test may use."""

from __future__ import annotations

import gc
import importlib.metadata
import os
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import structlog
import typer.main
import typer.testing
from hypothesis import HealthCheck, settings
from hypothesis.strategies import text

from tests.journal.postgres_server import PostgresServer, running_server
from tests.run_size import PROFILE, examples

# The same examples every time: a change is to blame for a failure, not the day, nor a machine that
# is slow. `make fuzz` draws new ones.
for _name in ("fast", "thorough"):
    settings.register_profile(
        _name,
        derandomize=True,
        deadline=None,
        max_examples=examples(),
        suppress_health_check=[HealthCheck.too_slow],
    )
settings.register_profile("fuzz", deadline=None, max_examples=examples(), print_blob=True)
settings.load_profile(PROFILE)

SHARED_ENV = "ASCHED_SHARED"

# Python's default thresholds take 6 % of the CPU time of the tests.
gc.set_threshold(100_000, 20, 100)

# pytest-xdist sets the width of a terminal for its workers. Commands print as in a pipe here.
os.environ.pop("COLUMNS", None)


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """The folder of recorded data next to the checkout (or ``$ASCHED_SHARED``).

    It is not part of the project: where it is absent the test is skipped and says so. A folder that
    the variable names has to be there.
    """
    named = os.environ.get(SHARED_ENV)
    path = Path(named or Path(__file__).resolve().parents[2] / "shared")
    if path.is_dir():
        return path
    if named:
        pytest.fail(f"{SHARED_ENV} names no folder: {path}")
    pytest.skip(f"recorded data is not here: {path} (set {SHARED_ENV} to its folder)")


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    """A PostgreSQL server, started once for all tests of a process: a start takes seconds."""
    with running_server(tmp_path_factory.mktemp("postgres")) as server:
        yield server


@pytest.fixture(scope="session", autouse=True)
def command_lines_built_once() -> Iterator[None]:
    """A ``CliRunner`` builds all commands at each call otherwise, which is most of its time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.testing, "_get_command", cache(typer.main.get_command))
        yield


@pytest.fixture(scope="session", autouse=True)
def entry_points_read_once() -> Iterator[None]:
    """A start of the scheduler searches all installed distributions, which takes 8 ms.

    As in ``importlib.metadata``, a folder is searched again when it changes.
    """
    search = importlib.metadata.entry_points

    @cache
    def known(_: tuple[tuple[Path, int], ...], parameters: tuple[tuple[str, str], ...]) -> Any:
        return search(**dict(parameters))

    def entry_points(**parameters: str) -> Any:
        folders = (Path(name) for name in sys.path)
        times = [(folder, folder.stat().st_mtime_ns) for folder in folders if folder.is_dir()]
        return known((*times,), (*parameters.items(),))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(importlib.metadata, "entry_points", entry_points)
        yield


@pytest.fixture(autouse=True)
def logs_as_before() -> Iterator[None]:
    """A command sets up logs for its whole process: here that ends with the test, as the stream
    does that they are written to."""
    before = structlog.get_config()
    yield
    structlog.configure(**before)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A fast run leaves out the long tests."""
    if PROFILE == "fast":
        long = [item for item in items if item.get_closest_marker("thorough")]
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if item not in long]


def pytest_collection_finish(session: pytest.Session) -> None:
    """What the collection of tests made lives until the end, so the garbage collector skips it."""
    gc.freeze()
    if session.config.option.collectonly:
        # Stores Hypothesis' tables of characters for workers, which would compute them each.
        text().validate()
