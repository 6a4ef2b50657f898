"""Results do not depend on where they are computed, also when workers and schedulers end."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dask
import msgspec
import pytest
from distributed import LocalCluster

from asched import planning
from asched.planning.cluster import dask_executor, workers_of
from asched.planning.errors import ExecutionError, ForeignWorkerError, LostWorkersError
from asched.planning.execution import MAX_TRIES, Progress
from asched.planning.items import RunItem, RunSettings, WorkAnswer, WorkRequest
from asched.planning.processes import ProcessExecutor
from asched.planning.provenance import CodeVersion, own_provenance
from asched.planning.result_cache import ResultCache
from asched.planning.worker import perform
from asched.planning.workloads import ScenarioText


@contextmanager
def local_cluster(workers: int = 2) -> Iterator[Any]:
    """A Dask cluster of processes on this machine."""
    with LocalCluster(  # type: ignore[no-untyped-call]
        n_workers=workers,
        threads_per_worker=1,
        host="127.0.0.1",
        dashboard_address="127.0.0.1:0",
        worker_dashboard_address="127.0.0.1:0",
    ) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with local_cluster() as running:
        yield running


def some_runs(journal: Path) -> planning.Sweep:
    return planning.sweep(
        planning.open(journal), seed=[None, 1], add_nodes=[0, 2], drop_nodes=[0, "25%"]
    )


@pytest.fixture(scope="module")
def serial(journal: Path) -> planning.RunTable:
    with ThreadPoolExecutor(1) as thread:
        table = some_runs(journal).run(thread)
    assert not any(row.error for row in table.rows)
    assert len({row.figures and row.figures.sha256 for row in table.rows}) > 4
    return table


def same(one: planning.RunTable, other: planning.RunTable) -> bool:
    figures = [[msgspec.json.encode(row.figures) for row in table.rows] for table in (one, other)]
    return figures[0] == figures[1]


def test_sweep_in_processes(journal: Path, serial: planning.RunTable, processes: Executor) -> None:
    assert same(some_runs(journal).run(processes), serial)


def test_sweep_and_replay_on_a_cluster(
    journal: Path, serial: planning.RunTable, cluster: Any
) -> None:
    history = planning.open(journal)
    with dask_executor(cluster.scheduler_address) as executor:
        assert same(some_runs(journal).run(executor), serial)
        found = planning.verify(history, executor, max_segments=64)
    with ThreadPoolExecutor(1) as thread:
        assert found == planning.verify(history, thread)
    assert [worker.differences for worker in workers_of(cluster.scheduler_address)] == ["", ""]


class OnFirstResult:
    """Calls a function once, at the first result."""

    def __init__(self, act: Any) -> None:
        self._act = act
        self.last = Progress(0, 0, 0)

    def __call__(self, progress: Progress) -> None:
        self.last = progress
        if progress.done and self._act is not None:
            act, self._act = self._act, None
            act()


def kill_children() -> None:
    for child in multiprocessing.active_children():
        assert child.pid is not None
        os.kill(child.pid, signal.SIGKILL)


def test_killed_processes_cost_their_items_only(
    journal: Path, serial: planning.RunTable, tmp_path: Path
) -> None:
    kill = OnFirstResult(kill_children)
    with planning.own_processes(2) as executor:
        table = some_runs(journal).run(executor, cache=tmp_path, progress=kill)
    assert same(table, serial)
    assert len([*tmp_path.iterdir()]) == len(table)


def test_replay_with_killed_processes_is_complete(journal: Path, tmp_path: Path) -> None:
    history, cache = planning.open(journal), ResultCache(tmp_path)
    with planning.own_processes(2) as executor:
        found = planning.verify(
            history, executor, max_segments=64, cache=cache, progress=OnFirstResult(kill_children)
        )
    last = OnFirstResult(None)
    with ThreadPoolExecutor(1) as thread:
        assert planning.verify(history, thread) == found
        again = planning.verify(history, thread, max_segments=64, cache=cache, progress=last)
    assert again == found
    assert last.last.from_cache == last.last.total > 2


def exit_at_once() -> None:
    os._exit(3)


def test_process_that_ends_costs_only_its_call() -> None:
    with ProcessExecutor(1) as executor:
        lost = executor.submit(exit_at_once)
        kept = executor.submit(abs, -1)
        with pytest.raises(BrokenProcessPool):
            lost.result()
        assert kept.result() == 1


class EndsEachWorker(ThreadPoolExecutor):
    """Its processes always end."""

    calls = 0

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1

        def fail() -> None:
            raise BrokenProcessPool("the process ended")

        return super().submit(fail)


def test_item_that_ends_its_workers_is_given_up(journal: Path) -> None:
    with EndsEachWorker(1) as executor:
        (row,) = planning.sweep(planning.open(journal)).run(executor).rows
        assert executor.calls == MAX_TRIES
        with pytest.raises(LostWorkersError, match=r"records 1 to \d+: its worker ended 3 times"):
            planning.verify(planning.open(journal), executor)
    assert row.figures is None
    assert row.error.startswith("its worker ended 3 times")


class LosesOneItem(Executor):
    """As a Dask cluster on which every worker ends that executes one of the items."""

    def __init__(self, executor: Executor, seed: int, error: BaseException) -> None:
        self._executor = executor
        self._seed = seed
        self._error = error
        self.lost = 0

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        request = msgspec.json.decode(args[0], type=WorkRequest)
        assert isinstance(request.item, RunItem)
        if request.item.settings.seed != self._seed:
            return self._executor.submit(fn, *args, **kwargs)
        self.lost += 1
        failed: Future[bytes] = Future()
        failed.set_exception(self._error)
        return failed


def test_item_that_ends_workers_of_a_cluster_fails_alone(journal: Path) -> None:
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 0}),
        local_cluster(1) as cluster,
        dask_executor(cluster.scheduler_address) as executor,
    ):
        error = executor.submit(exit_at_once).exception()
    assert error is not None
    assert type(error).__name__ == "KilledWorker"
    with ThreadPoolExecutor(1) as thread:
        cluster_like = LosesOneItem(thread, 2, error)
        table = planning.sweep(planning.open(journal), seed=[1, 2, 3]).run(cluster_like)
    assert cluster_like.lost == MAX_TRIES
    errors = [row.error for row in table.rows]
    assert [bool(error) for error in errors] == [False, True, False], errors
    assert errors[1].startswith("its worker ended 3 times")
    assert "\n" not in errors[1]


def test_executor_that_was_shut_down(journal: Path) -> None:
    executor = ProcessPoolExecutor(1)
    executor.shutdown()
    with pytest.raises(ExecutionError, match="accepts no work"):
        some_runs(journal).run(executor)


def test_killed_worker_of_a_cluster(journal: Path, serial: planning.RunTable) -> None:
    with local_cluster() as cluster:

        def kill() -> None:
            worker = next(iter(cluster.workers.values()))
            os.kill(worker.pid, signal.SIGKILL)

        with dask_executor(cluster.scheduler_address) as executor:
            table = some_runs(journal).run(executor, progress=OnFirstResult(kill))
    assert same(table, serial)


def test_lost_scheduler_and_resumption(
    journal: Path, serial: planning.RunTable, tmp_path: Path
) -> None:
    cache = tmp_path / "runs"
    with local_cluster(1) as cluster, dask_executor(cluster.scheduler_address) as executor:
        progress = OnFirstResult(cluster.close)
        with pytest.raises(ExecutionError, match=r"results are in .*start again to continue"):
            some_runs(journal).run(executor, cache=cache, progress=progress)
    done = len([*cache.iterdir()])
    assert 1 <= done < len(serial)
    last = OnFirstResult(None)
    with ThreadPoolExecutor(1) as thread:
        table = some_runs(journal).run(thread, cache=cache, progress=last)
    assert same(table, serial)
    assert last.last == Progress(len(serial), len(serial), done)


def test_absent_scheduler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asched.planning.cluster.CONNECT_TIMEOUT_S", 0.2)
    with (
        pytest.raises(ExecutionError, match=r"no Dask scheduler answers at tcp://127.0.0.1:9"),
        dask_executor("tcp://127.0.0.1:9"),
    ):
        pass


def test_worker_with_other_code_does_no_work() -> None:
    other = msgspec.structs.replace(
        own_provenance(), code=(CodeVersion("asched", "0.0.9", "ab" * 32),)
    )
    item = RunItem(ScenarioText("s", ""), RunSettings(), "namespace")
    encoded = perform(msgspec.json.encode(WorkRequest(item, other)))
    answer = msgspec.json.decode(encoded, type=WorkAnswer)
    assert answer.foreign
    assert "here is asched 0.0.9 (code abababab)" in answer.error
    assert "asched-gpu" in answer.error, "a plugin that the planning process lacks"


class AnswersForeign(ThreadPoolExecutor):
    """Its workers have another plugin version."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        answer = WorkAnswer(error="worker w has no asched-gpu", foreign=True, worker="w")
        return super().submit(msgspec.json.encode, answer)


def test_foreign_worker_ends_the_sweep(journal: Path) -> None:
    with AnswersForeign(1) as executor, pytest.raises(ForeignWorkerError, match="no asched-gpu"):
        some_runs(journal).run(executor)
