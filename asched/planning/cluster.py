"""Executors on a Dask cluster (extra ``asched[dask]``). The only code that imports Dask."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from typing import Any, Final

import msgspec

from asched.planning.errors import ExecutionError, PlanningError
from asched.planning.provenance import Provenance, own_provenance

CONNECT_TIMEOUT_S: Final = 10.0
RETRIES: Final = 3
"""How often Dask repeats an item after the end of its worker."""


class WorkerReport(msgspec.Struct, frozen=True, rename="camel"):
    """One worker of a cluster."""

    address: str
    threads: int
    memory_bytes: int
    """Its limit; 0 for none."""
    differences: str
    """How its code differs from that here; empty if it does not."""


@contextmanager
def dask_executor(address: str) -> Iterator[Executor]:
    """An executor on the cluster with the scheduler at ``address``, such as ``tcp://host:8786``.

    If a worker ends, Dask repeats its item on another one. Raises PlanningError if Dask is not
    installed, the scheduler does not answer, or the connection ends.
    """
    with _client(address) as client:
        executor: Executor = client.get_executor(pure=False, retries=RETRIES)
        yield executor


def is_worker_loss(error: BaseException) -> bool:
    """Whether Dask gives up a call because several workers ended during it (``KilledWorker``)."""
    # An error of Dask exists only if Dask is imported.
    dask_scheduler = sys.modules.get("distributed.scheduler")
    return dask_scheduler is not None and isinstance(error, dask_scheduler.KilledWorker)


def workers_of(address: str) -> tuple[WorkerReport, ...]:
    """The workers of a cluster and how their code differs. Raises as :func:`dask_executor`."""
    with _client(address) as client:
        found: dict[str, bytes | str] = client.run(encoded_provenance, on_error="return")
        info: dict[str, dict[str, Any]] = client.scheduler_info(n_workers=-1)["workers"]
    return tuple(
        WorkerReport(
            address=worker,
            threads=info.get(worker, {}).get("nthreads", 0),
            memory_bytes=info.get(worker, {}).get("memory_limit", 0),
            differences=_differences(found[worker], worker),
        )
        for worker in sorted(found)
    )


def encoded_provenance() -> bytes:
    """Executed on a worker."""
    return msgspec.json.encode(own_provenance())


def _differences(found: object, worker: str) -> str:
    if not isinstance(found, bytes):
        return f"asched cannot be imported there: {found}"
    theirs = msgspec.json.decode(found, type=Provenance)
    return own_provenance().differences(theirs, worker)


@contextmanager
def _client(address: str) -> Iterator[Any]:
    try:
        from distributed import Client
    except ModuleNotFoundError:
        raise PlanningError(
            "a Dask cluster needs the package distributed: pip install 'asched[dask]'"
        ) from None
    try:
        connect: Any = Client  # Dask has no types
        client = connect(address, timeout=CONNECT_TIMEOUT_S, set_as_default=False)
    except (OSError, TimeoutError, ValueError) as error:
        raise ExecutionError(f"no Dask scheduler answers at {address}: {error}") from None
    try:
        yield client
    finally:
        client.close(timeout=CONNECT_TIMEOUT_S)
