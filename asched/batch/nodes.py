"""The nodes of a session: resource amounts in columns, tasks by node, and pod requests.

Rows are those of the cluster's node table. Amounts are in the units of
:mod:`asched.framework.resource_vector`: floats that hold whole numbers below 2**53, so exact.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from asched.framework.nodes import BoolColumn, Nodes, RowArray
from asched.framework.pod_info import PodShape
from asched.framework.resource_vector import CPU, MEMORY, ResourceVector, Tolerance
from asched.framework.session_objects import Task, TaskStatus
from asched.model.node import Node
from asched.model.pod import Container, Pod
from asched.model.quantity import QuantityText, milli_value, value
from asched.model.requests import PODS, is_scalar_resource

FloatColumn = NDArray[np.float64]

MANY = 1 << 16
"""Number of tasks that counts as unlimited on one node."""


class SessionNodes:
    """The idle, used and releasing amounts of every node, and the tasks on it."""

    def __init__(
        self,
        names: Sequence[str],
        present: BoolColumn,
        allocatable: Mapping[str, FloatColumn],
        tolerance: Tolerance,
    ) -> None:
        """``present``: the rows in the session. ``allocatable`` by resource, for all rows."""
        self.names = names
        self.size = len(names)
        self.present = present
        self._rows = {name: row for row, name in enumerate(names) if name}
        self.tolerance = tolerance
        self.allocatable: dict[str, FloatColumn] = {CPU: self._zeros(), MEMORY: self._zeros()}
        self.allocatable.update(allocatable)
        self.idle = {name: column.copy() for name, column in self.allocatable.items()}
        self.used = {name: self._zeros() for name in self.idle}
        self.releasing = {name: self._zeros() for name in self.idle}
        self.tasks: list[dict[str, Task]] = [{} for _ in range(self.size)]
        """By row: the tasks by uid, in order of arrival."""
        self.counts = np.zeros(self.size, np.int64)
        """By row: the number of tasks."""
        self.charged_as: dict[str, TaskStatus] = {}
        """By uid: the status with which a task was added to its node."""
        self._some_releasing = False
        self.changes: list[int] = []
        """Log of changed rows, which caches use to refresh."""

    def _zeros(self) -> FloatColumn:
        return np.zeros(self.size, np.float64)

    def _column(self, columns: dict[str, FloatColumn], name: str) -> FloatColumn:
        column = columns.get(name)
        if column is None:
            column = columns[name] = self._zeros()
        return column

    def row_of(self, name: str) -> int:
        """Raises ValueError for an unknown name."""
        row = self._rows.get(name)
        if row is None:
            raise ValueError(f"no node is named {name}")
        return row

    def add_counted(self, row: int, task: Task) -> None:
        """Adds a task to the initial state; ``idle`` and ``used`` include its request already."""
        self._register(row, task)
        if task.status is TaskStatus.RELEASING:
            self._some_releasing = True
            for name, number in task.request.amounts().items():
                self._column(self.releasing, name)[row] += number

    def add_initial(self, row: int, task: Task) -> None:
        self._register(row, task)
        self._charge(row, task.request, task.status, 1.0)

    def _register(self, row: int, task: Task) -> None:
        self.tasks[row][task.uid] = task
        self.counts[row] += 1
        self.charged_as[task.uid] = task.status

    def add(self, row: int, task: Task) -> None:
        """Adds the task in its present status."""
        self.add_initial(row, task)
        self.changes.append(row)

    def remove(self, row: int, task: Task) -> None:
        """Raises KeyError if the task is not on the node."""
        del self.tasks[row][task.uid]
        self.counts[row] -= 1
        self._charge(row, task.request, self.charged_as.pop(task.uid), -1.0)
        self.changes.append(row)

    def _charge(self, row: int, request: ResourceVector, status: TaskStatus, sign: float) -> None:
        for name, number in request.amounts().items():
            if not number:
                continue
            amount = sign * number
            self._column(self.used, name)[row] += amount
            if status is TaskStatus.PIPELINED:
                self._some_releasing = True
                self._column(self.releasing, name)[row] -= amount
                continue
            self._column(self.idle, name)[row] -= amount
            if status is TaskStatus.RELEASING:
                self._some_releasing = True
                self._column(self.releasing, name)[row] += amount

    def at(self, columns: Mapping[str, FloatColumn], row: int) -> ResourceVector:
        """One row of :attr:`idle`, :attr:`used` or :attr:`releasing`."""
        return ResourceVector.of({name: float(c[row]) for name, c in columns.items()})

    def fit_now_or_later(
        self, request: ResourceVector, *, exact: bool
    ) -> tuple[BoolColumn, BoolColumn]:
        """(Rows where the request fits now, rows where it fits after the releases). ``exact``
        reserves idle amounts for pipelined tasks, and adds idle to releasing amounts for the second
        result. kube-batch compares with either alone."""
        if not exact:
            return self.fit(request, self.idle), self.fit(request, self.releasing)
        if not self._some_releasing:
            fits = self.fit(request, self.idle)
            return fits, fits
        later = {}
        for name in request.names():
            idle, releasing = self.idle.get(name), self.releasing.get(name)
            if idle is not None:
                later[name] = idle if releasing is None else idle + releasing
        fits_later = self.fit(request, later)
        return self.fit(request, self.idle) & fits_later, fits_later

    def capacity(self, request: ResourceVector, rows: RowArray) -> int:
        """How many tasks with that request fit on the rows, now or after the releases."""
        each: FloatColumn | None = None
        for name, number, _ in self._demands(request):
            idle = self.idle.get(name)
            if idle is None:
                return 0
            later = idle[rows] + self.releasing[name][rows]
            fitting = np.floor(np.maximum(np.minimum(idle[rows], later), 0.0) / number)
            each = fitting if each is None else np.minimum(each, fitting)
        return len(rows) * MANY if each is None else int(each.sum())

    def _demands(self, request: ResourceVector) -> Iterable[tuple[str, float, float]]:
        """Resource, amount and tolerance of the resources to compare."""
        tolerance = self.tolerance
        for name, number in request.amounts().items():
            threshold = tolerance.of(name)
            native = name in (CPU, MEMORY)
            # As in the kubelet, a request of zero fits on an overcommitted node.
            if number > 0 if not threshold else (native or number > threshold):
                yield name, number, threshold

    def fit(
        self,
        request: ResourceVector,
        columns: Mapping[str, FloatColumn],
        rows: slice = slice(None),
    ) -> BoolColumn:
        """On which of the rows ``request`` is less than or equal to the columns."""
        present = self.present[rows]
        fit: BoolColumn | None = None
        for name, number, threshold in self._demands(request):
            column = columns.get(name)
            if column is None:
                return np.zeros(len(present), np.bool_)
            bound = number - threshold
            enough = column[rows] > bound if threshold else column[rows] >= bound
            fit = enough if fit is None else fit & enough
        return present.copy() if fit is None else fit & present

    def total(self) -> ResourceVector:
        """The allocatable amounts of all nodes in the session."""
        return ResourceVector.of(
            {name: float(column[self.present].sum()) for name, column in self.allocatable.items()}
        )


READY = "Ready"


def condition(node: Node, condition_type: str) -> str:
    """The status of a condition; empty if the node does not have it."""
    return next((c.status for c in node.status.conditions if c.type == condition_type), "")


def is_usable(node: Node, refused: Collection[str] = ()) -> bool:
    """Whether no condition says that the node is not ready, has no network, or is in a ``refused``
    condition (``CheckNodeCondition`` of Kubernetes 1.16)."""
    return (
        condition(node, READY) in ("", "True")
        and condition(node, "NetworkUnavailable") in ("", "False")
        and not any(condition(node, pressure) == "True" for pressure in refused)
    )


def where(nodes: Nodes, holds: Callable[[Node], bool]) -> BoolColumn:
    """The rows of live nodes for which ``holds`` is true."""
    column = np.zeros(nodes.size, np.bool_)
    for row in np.flatnonzero(nodes.alive).tolist():
        column[row] = holds(nodes.node(row))
    return column


SCALAR_UNIT = 1000.0
"""Sessions use thousandths for resources other than cpu and memory."""


class Requests(NamedTuple):
    """What a pod needs while it runs, and what it needs to start."""

    running: ResourceVector
    starting: ResourceVector


def effective_requests(shape: PodShape) -> Requests:
    """kube-scheduler's requests: one amount for the pod's lifetime, which includes init containers,
    sidecars and overhead."""
    amounts = {
        name: float(number) if name in (CPU, MEMORY) else number * SCALAR_UNIT
        for name, number in shape.requests.items()
        if name != PODS
    }
    vector = ResourceVector.of(amounts)
    return Requests(vector, vector)


def requests_as_kube_batch(pod: Pod) -> Requests:
    """The sum over containers, and the maximum of that and each init container. kube-batch ignores
    ephemeral storage, sidecars and overhead."""
    running = ResourceVector()
    for container in pod.spec.containers:
        running.add(container_request(container))
    starting = running.copy()
    for container in pod.spec.init_containers:
        _raise_to(starting, container_request(container))
    return Requests(running, starting)


def container_request(container: Container) -> ResourceVector:
    return ResourceVector.of(
        {
            name: scalar_amount(name, quantity)
            for name, quantity in container.resources.requests.items()
            if is_counted(name)
        }
    )


def is_counted(resource: str) -> bool:
    """Whether kube-batch counts the resource."""
    return resource in (CPU, MEMORY) or is_scalar_resource(resource)


def scalar_amount(resource: str, quantity: QuantityText) -> float:
    """A quantity in the session's unit of ``resource``."""
    return float(value(quantity) if resource == MEMORY else milli_value(quantity))


def _raise_to(vector: ResourceVector, floor: ResourceVector) -> None:
    vector.milli_cpu = max(vector.milli_cpu, floor.milli_cpu)
    vector.memory_bytes = max(vector.memory_bytes, floor.memory_bytes)
    for name, number in (floor.scalars or {}).items():
        if vector.scalars is None:
            vector.scalars = {}
        vector.scalars[name] = max(vector.scalars.get(name, 0.0), number)
