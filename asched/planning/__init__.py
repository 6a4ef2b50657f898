"""Planning: recorded history decided again, with any number of processes.

    import asched.planning as planning

    history = planning.open("asched.db").between("2026-10-01", "2026-11-01")
    report = planning.verify(history)
    runs = planning.sweep(history, plugins=["", "NodeResourcesFit=5"], add_nodes=[0, 8])
    table = runs.run(cache="runs")
    table.best("p95_wait_s", subject_to={"evictions": "<= baseline"})

Every function that works takes an ``executor``, any ``concurrent.futures.Executor``. The results do
not depend on it. By default there is one process for each processor; :func:`own_processes` sets
their number and memory, :func:`dask_executor` uses a Dask cluster, and
``concurrent.futures.ThreadPoolExecutor(1)`` stays in this process. ``docs/how-to/planning.md`` is
the guide. Call from a script only below ``if __name__ == "__main__":``, because processes import
it.
"""

from asched.capacity.load import LoadForecast
from asched.capacity.node_mix import NodeMix
from asched.capacity.spot_nodes import SpotNodes
from asched.planning.cluster import WorkerReport, dask_executor, workers_of
from asched.planning.errors import (
    ExecutionError,
    ForeignWorkerError,
    LostWorkersError,
    PlanningError,
)
from asched.planning.execution import Progress, ProgressListener, own_processes
from asched.planning.history import History
from asched.planning.history import open_history as open
from asched.planning.items import ClassFigures, ConfigText, RunFigures, RunSettings
from asched.planning.result_cache import ResultCache
from asched.planning.sweeps import Sweep, sweep
from asched.planning.table import RunRow, RunTable
from asched.planning.verification import verify
from asched.planning.workloads import OpenbTables, ScenarioText

__all__ = [
    "ClassFigures",
    "ConfigText",
    "ExecutionError",
    "ForeignWorkerError",
    "History",
    "LoadForecast",
    "NodeMix",
    "OpenbTables",
    "PlanningError",
    "Progress",
    "ProgressListener",
    "ResultCache",
    "RunFigures",
    "RunRow",
    "RunSettings",
    "RunTable",
    "ScenarioText",
    "SpotNodes",
    "Sweep",
    "LostWorkersError",
    "WorkerReport",
    "dask_executor",
    "open",
    "own_processes",
    "sweep",
    "verify",
    "workers_of",
]
