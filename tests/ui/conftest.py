"""Journals for the tests of the browser interface."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from filelock import FileLock

from tests.demo.running import demo
from tests.journal.conftest import new_postgres_database
from tests.ui import forked_lab
from tests.ui.group_scenario import record

ROOT = Path(__file__).parents[2]

__all__ = ["new_postgres_database"]


@pytest.fixture(scope="session", autouse=True)
def forked_workers() -> Iterator[None]:
    """The worker processes of a server are forked from one process that has imported everything.

    Most tests start a server, and each import would take 0.8 s of CPU. ``test_workers``,
    ``test_lab_process`` and a test of ``test_lab`` start the processes as the command does.
    """
    multiprocessing.set_forkserver_preload(["tests.ui.preloaded"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("asched.ui.workers.CONTEXT", multiprocessing.get_context("forkserver"))
        patch.setattr("asched.ui.lab.runs.start_worker", forked_lab.start_worker)
        yield


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """The journal.db that ``make`` records in a folder. The first worker of a run records it."""
    in_worker = "PYTEST_XDIST_WORKER" in os.environ
    common = factory.getbasetemp().parent if in_worker else factory.getbasetemp()
    folder = common / name
    with FileLock(common / f"{name}.lock"):
        if not folder.exists():
            making = common / f"{name}-unfinished"
            making.mkdir()
            make(making)
            making.rename(folder)
    return folder / "journal.db"


def record_demo(folder: Path) -> None:
    journal = str(folder / "journal.db")
    done = demo(
        "--nodes", "20", "--pods", "120", "--over", "1", "--journal", journal, cwd=folder,
        command=("env", f"PYTHONPATH={ROOT}", sys.executable, "-m", "asched"),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="session")
def recorded_demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The journal of a demo."""
    return made_once(tmp_path_factory, "demo", record_demo)


@pytest.fixture(scope="session")
def recorded_groups(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A journal with gangs, queues and evictions."""
    return made_once(tmp_path_factory, "groups", record)


@pytest.fixture
def group_journal(recorded_groups: Path, tmp_path: Path) -> str:
    """A copy of it."""
    return str(shutil.copy(recorded_groups, tmp_path / "groups.db"))


@pytest.fixture
def demo_journal(recorded_demo: Path, tmp_path: Path) -> str:
    """A copy of it."""
    return str(shutil.copy(recorded_demo, tmp_path / "journal.db"))


@pytest.fixture(autouse=True)
def cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands keep the index below the folder of the test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
