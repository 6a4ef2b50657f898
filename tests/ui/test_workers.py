"""Processes for questions about the past: answers, errors, and processes that end."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
from multiprocessing.connection import wait
from pathlib import Path

import pytest

from asched.audit.lookup import AuditError, fold_before
from asched.journal.opening import open_journal
from asched.proof.keys import NO_KEYS
from asched.state.checkpoint import checkpoint_of
from asched.state.cluster import ClusterState
from asched.ui.errors import AnsweredError, BusyError
from asched.ui.fork_host import Branch, WorkerSettings
from asched.ui.past import PastStates
from asched.ui.state_file import StateFile
from asched.ui.workers import Workers
from tests.audit.recording import REGISTRY, woken_pod


def _pods(state: ClusterState, seq: int) -> tuple[str, ...]:
    return tuple(state.pods)


async def _process(journal: PastStates, number: int) -> int:
    return os.getpid()


async def _known(journal: PastStates, seq: int, number: int) -> tuple[int, int]:
    """The process that forked this one, and the time of the state."""
    return os.getppid(), await journal.on_state(seq, lambda state: state.date_ns)


async def _ends(journal: PastStates) -> int:
    os._exit(3)


async def _fails(journal: PastStates) -> int:
    raise AuditError("no such pod")


async def _branched(journal: PastStates) -> tuple[int, int]:
    branch = Branch(lambda: str(os.getpid()).encode())
    return os.getpid(), int(branch.result())


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
        with pytest.raises(AnsweredError, match="no such pod"):
            await workers.call(_fails)
        with pytest.raises(BusyError, match="ended"):
            await workers.call(_ends)
        assert await workers.call(_process, 5) > 0, "one that ends does not disturb others"
        os.kill(workers.start().pid, 9)
        with pytest.raises(BusyError, match="ended"):
            await workers.call(_process, 6)
        assert await workers.call(_process, 6) > 0, "they are started again"
    finally:
        workers.stop()


async def test_questions_about_near_records_share_a_state(tmp_path: Path) -> None:
    recording = woken_pod()
    last = len(recording.records)
    async with open_journal(str(tmp_path / "journal.db")) as store:
        await recording.store_in(store)
        expected = {
            seq: (await fold_before(store, REGISTRY.load, seq + 1)).state.date_ns
            for seq in (4, last)
        }
        states = StateFile(tmp_path / "states")
        for seq in (3, last - 1):
            fold = await fold_before(store, REGISTRY.load, seq + 1)
            states.add(seq, checkpoint_of(fold.state))
        states.close()
    assert expected[4] != expected[last]
    workers = Workers(WorkerSettings(str(tmp_path / "journal.db"), REGISTRY, NO_KEYS), count=2)
    workers.use_states(tmp_path / "states")
    try:
        host = workers.start().pid

        async def ask(seq: int, number: int, near: int) -> int:
            parent, date_ns = await workers.call(_known, seq, number, near=near)
            assert date_ns == expected[seq]
            return parent

        first = await ask(4, 1, 4)
        assert first != host
        assert await ask(4, 2, 4) == first
        assert await ask(last, 1, 4) == first, "near enough"
        assert await ask(4, 3, 0) == host, "it did not say what it reads"
        assert await ask(4, 4, 2) == host, "no checkpoint is before it"
        assert await ask(last, 2, last) == first
        ended = os.pidfd_open(first)
        os.kill(first, 9)
        await asyncio.to_thread(wait, [ended])
        os.close(ended)
        assert await ask(4, 5, 4) == host, "the process with the state ended"
        again = await ask(4, 6, 4)
        assert again not in (host, first)
        workers.use_states(tmp_path / "missing")
        assert await ask(4, 7, 4) == again
    finally:
        workers.stop()


async def test_damaged_state_is_not_used(tmp_path: Path) -> None:
    recording = woken_pod()
    last = len(recording.records)
    async with open_journal(str(tmp_path / "journal.db")) as store:
        await recording.store_in(store)
        expected = (await fold_before(store, REGISTRY.load, last + 1)).state.date_ns
    states = StateFile(tmp_path / "states")
    states.add(last - 1, b"damaged")
    states.close()
    workers = Workers(WorkerSettings(str(tmp_path / "journal.db"), REGISTRY, NO_KEYS), count=2)
    workers.use_states(tmp_path / "states")
    try:
        _, date_ns = await workers.call(_known, last, 1, near=last)
        assert date_ns == expected
    finally:
        workers.stop()
