"""Processes for questions about the past: answers, errors, and processes that end."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from asched.audit.lookup import AuditError
from asched.journal.opening import open_journal
from asched.proof.keys import NO_KEYS
from asched.state.cluster import ClusterState
from asched.ui.errors import AnsweredError, BusyError
from asched.ui.fork_host import Branch, WorkerSettings
from asched.ui.past import PastStates
from asched.ui.workers import Workers
from tests.audit.recording import REGISTRY, woken_pod


def _pods(state: ClusterState, seq: int) -> tuple[str, ...]:
    return tuple(state.pods)


async def _process(journal: PastStates, number: int) -> int:
    return os.getpid()


async def _ends(journal: PastStates) -> int:
    os._exit(3)


async def _fails(journal: PastStates) -> int:
    raise AuditError(f"no such pod, says process {os.getpid()}")


async def _is_busy(journal: PastStates) -> int:
    raise BusyError(f"process {os.getpid()} is busy")


async def _branched(journal: PastStates) -> tuple[int, int]:
    branch = Branch(lambda: str(os.getpid()).encode())
    return os.getpid(), int(branch.result())


async def _error(workers: Workers, function: Callable[[PastStates], Awaitable[int]]) -> str:
    with pytest.raises(AnsweredError, match=r"no such pod|is busy") as raised:
        await workers.call(function)
    return str(raised.value)


async def test_calls_run_in_processes_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("asched.ui.workers.CONTEXT", multiprocessing.get_context("spawn"))
    path = tmp_path / "journal.db"
    recording = woken_pod()
    async with open_journal(str(path)) as store:
        await recording.store_in(store)
    workers = Workers(WorkerSettings(str(path), REGISTRY, NO_KEYS), count=2)
    try:
        assert await workers.at(len(recording.records), _pods) == tuple(recording.state.pods)
        pids = await asyncio.gather(*(workers.call(_process, number) for number in range(4)))
        assert len({os.getpid(), *pids}) == 5
        assert await workers.call(_process, 1) == pids[1], "equal calls share a result"
        here, there = await workers.call(_branched)
        assert len({os.getpid(), here, there}) == 3
        assert len({await _error(workers, _fails) for _ in range(2)}) == 1, "what is absent is kept"
        assert len({await _error(workers, _is_busy) for _ in range(2)}) == 2, "it may be gone"
        with pytest.raises(BusyError, match="ended"):
            await workers.call(_ends)
        assert await workers.call(_process, 5) > 0, "one that ends does not disturb others"
        os.kill(workers.start().pid, 9)
        with pytest.raises(BusyError, match="ended"):
            await workers.call(_process, 6)
        assert await workers.call(_process, 6) > 0, "they are started again"
    finally:
        workers.stop()
