"""Builds a session's snapshot: jobs, queues and nodes from the cluster state."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from asched.batch.corrections import Correction, corrections_of
from asched.batch.nodes import (
    READY,
    SCALAR_UNIT,
    FloatColumn,
    Requests,
    SessionNodes,
    condition,
    effective_requests,
    is_counted,
    requests_as_kube_batch,
    scalar_amount,
    where,
)
from asched.framework.nodes import Int64Column
from asched.framework.pod_groups import AnyPodGroup, PodGroupKey, group_of, key_of, min_count
from asched.framework.pod_info import PodInfo, PodShape
from asched.framework.resource_vector import CPU, EXACT, MEMORY, TOLERANT, ResourceVector
from asched.framework.session_objects import Job, Queue, Task, TaskStatus
from asched.framework.sessions import SessionSpec
from asched.model.groups import (
    CUSTOM_POD_GROUPS,
    CUSTOM_QUEUES,
    CustomPodGroup,
    CustomQueue,
    PodGroup,
)
from asched.model.meta import Object
from asched.model.pod import SUCCEEDED, Pod
from asched.model.requests import PODS
from asched.model.workloads import PodDisruptionBudget, PriorityClass
from asched.state.cluster import ClusterState, PlacementState

NO_SCHEDULING_SPEC = "no scheduling spec"
QUEUE_NOT_FOUND = "queue not found"


class Snapshot(NamedTuple):
    """The objects of a session, and the ones it ignores."""

    jobs: dict[str, Job]
    queues: dict[str, Queue]
    nodes: SessionNodes
    groups: dict[str, PodGroup | CustomPodGroup]
    """The real PodGroups of :attr:`jobs`, by job."""
    ignored_jobs: dict[str, str]
    """The reason by job."""
    ignored_nodes: dict[str, str]
    """kube-batch's reason by node; empty outside compatibility mode."""


class Cache:
    """Groups the cluster's objects into jobs, queues and nodes, as kube-batch's cache does."""

    def __init__(self, cluster: ClusterState, spec: SessionSpec) -> None:
        self._cluster = cluster
        self._spec = spec
        self._corrections = corrections_of(spec.compatibility)
        self._requests: dict[PodShape, Requests] = {}
        exact = Correction.EXACT_FIT in self._corrections
        self._tolerance = EXACT if exact else TOLERANT
        self._count_foreign = Correction.COUNT_FOREIGN_PODS in self._corrections
        self._jobs: dict[str, Job] = {}
        self._shadow_classes: dict[str, str] = {}
        self._with_spec: set[str] = set()
        self._groups: dict[str, PodGroup | CustomPodGroup] = {}
        self._ignored_nodes: dict[str, str] = {}
        self._with_foreign_pods: set[str] = set()
        """Jobs with pods of other schedulers."""

    def snapshot(self, shrunk: frozenset[str] = frozenset()) -> Snapshot:
        """``shrunk``: nodes with a last update below the requests of their pods, which kube-batch
        ignores."""
        tasks = [*self._tasks()]
        for task in tasks:
            self._assign(task)
        self._attach_groups()
        self._attach_budgets()
        self._set_priorities()
        if self._count_foreign:
            nodes = self._nodes_of_table(tasks)
        else:
            nodes = self._nodes_of_tasks(tasks, shrunk)
        if Correction.LEAVE_OTHERS_ALONE in self._corrections:
            self._leave_to_others()
        queues = self._queues()
        ignored_jobs = {}
        for job in self._jobs.values():
            if job.id not in self._with_spec:
                ignored_jobs[job.id] = NO_SCHEDULING_SPEC
            elif job.queue not in queues:
                ignored_jobs[job.id] = QUEUE_NOT_FOUND
        jobs = {job.id: job for job in self._jobs.values() if job.id not in ignored_jobs}
        groups = {job: group for job, group in self._groups.items() if job in jobs}
        return Snapshot(jobs, queues, nodes, groups, ignored_jobs, self._ignored_nodes)

    def _tasks(self) -> Iterator[Task]:
        """The pods that count. kube-batch ignores Pending pods of other schedulers."""
        ours, now_ns = self._spec.scheduler_name, self._cluster.now_ns
        own = self._cluster.sessions.get(ours)
        refused = own if own is not None and own.failed_bindings else None
        evicting = self._cluster.evictions
        for entry in self._cluster.pods.values():
            pod = entry.info.pod
            foreign = pod.spec.scheduler_name != ours
            if foreign and (group := group_of(pod)) is not None:
                self._with_foreign_pods.add(job_id_of(group))
            if foreign and not self._count_foreign and pod.status.phase in ("", "Pending"):
                continue
            status = _status(pod, entry.placement_state, evicted=entry.info.uid in evicting)
            if self._count_foreign and self._is_irrelevant(pod, status, foreign=foreign):
                continue
            if pod.spec.oversized and status is TaskStatus.PENDING:
                continue  # rejected without an attempt
            if refused is not None and status is TaskStatus.PENDING and not foreign:
                node = refused.backoff_node(entry.info.key, entry.info.uid, now_ns)
                if self._cluster.nodes.row_of(node) is not None:
                    # kube-batch counts the pod as Binding during the backoff.
                    yield self._task(entry.info, node, TaskStatus.BINDING)
                    continue
            yield self._task(entry.info, entry.node, status)
        for info in self._cluster.sessions.finished.values():
            done = TaskStatus.SUCCEEDED if info.pod.status.phase == SUCCEEDED else TaskStatus.FAILED
            yield self._task(info, info.pod.node_name, done)

    @staticmethod
    def _is_irrelevant(pod: Pod, status: TaskStatus, *, foreign: bool) -> bool:
        """Pending and not placed by this profile, or without a job: the node table counts it."""
        if status is TaskStatus.PENDING:
            return foreign or bool(pod.spec.scheduling_gates)
        return foreign and status is not TaskStatus.RELEASING and group_of(pod) is None

    def _task(self, info: PodInfo, node: str, status: TaskStatus) -> Task:
        """``node``: where it is bound or assumed; empty for none."""
        requests = self._requests.get(info.shape)
        if requests is None:
            count_all = Correction.COUNT_ALL_REQUESTS in self._corrections
            requests = self._requests[info.shape] = (
                effective_requests(info.shape) if count_all else requests_as_kube_batch(info.pod)
            )
        task = Task(
            info,
            request=requests.running,
            init_request=requests.starting,
            status=status,
            priority=info.priority,
            created_s=_created_s(info.pod),
            best_effort=requests.starting.is_empty(self._tolerance),
        )
        task.node = node
        return task

    def _assign(self, task: Task) -> None:
        """Adds the task to its job, if it has one."""
        pod = task.info.pod
        group = group_of(pod)
        if group is not None:
            job = self._job(job_id_of(group))
        elif pod.spec.scheduler_name == self._spec.scheduler_name:
            controller = pod.metadata.controller
            job = self._job(controller.uid if controller is not None else pod.uid)
            if job.id not in self._with_spec:
                self._make_shadow(job, pod)
        else:
            return
        job.add(task)

    def _job(self, job_id: str) -> Job:
        return self._jobs.setdefault(job_id, Job(job_id))

    def _make_shadow(self, job: Job, pod: Pod) -> None:
        """Derives a shadow PodGroup from the first pod of a job without a PodGroup."""
        self._with_spec.add(job.id)
        job.name, job.namespace = job.id, pod.namespace
        job.min_available = job.min_member = _integer(pod.metadata.annotations.group_min_member, 1)
        job.queue = self._spec.default_queue
        job.created_s = _created_s(pod)
        job.shadow = True
        self._shadow_classes[job.id] = pod.spec.priority_class_name

    def _leave_to_others(self) -> None:
        """Drops jobs with pods of other schedulers only, and scheduling.k8s.io groups without pods,
        for which the scheduler is still unknown."""
        ours = self._spec.scheduler_name
        for job in [*self._jobs.values()]:
            own = any(t.info.pod.spec.scheduler_name == ours for t in job.tasks.values())
            native = isinstance(self._groups.get(job.id), PodGroup)
            if not own and (native or job.id in self._with_foreign_pods):
                del self._jobs[job.id]

    def _attach_groups(self) -> None:
        for native in self._cluster.objects(PodGroup).values():
            self._attach(native)
        # The first kind takes precedence, so it is attached last.
        for kind in reversed(CUSTOM_POD_GROUPS):
            for custom in self._cluster.objects(kind).values():
                self._attach(custom)

    def _attach(self, group: AnyPodGroup) -> None:
        job = self._job(job_id_of(key_of(group)))
        self._with_spec.add(job.id)
        self._groups[job.id] = group
        job.name, job.namespace, job.group = group.name, group.namespace, group.key
        job.min_available = job.min_member = min_count(group)
        named = "" if isinstance(group, PodGroup) else group.spec.queue
        job.queue = named or self._spec.default_queue
        job.created_s = _created_s(group)

    def _attach_budgets(self) -> None:
        """A budget with a controller sets the minimum of that controller's job."""
        for budget in self._cluster.objects(PodDisruptionBudget).values():
            controller = budget.metadata.controller
            if controller is None:
                continue
            job = self._job(controller.uid)
            self._with_spec.add(job.id)
            least = budget.spec.min_available
            job.name, job.namespace = budget.name, budget.namespace
            job.min_available = least if isinstance(least, int) else 0
            job.created_s = _created_s(budget)
            job.queue = self._spec.default_queue

    def _set_priorities(self) -> None:
        classes = self._cluster.objects(PriorityClass)
        default = next((c.value for c in classes.values() if c.global_default), 0)
        for job in self._jobs.values():
            group = self._groups.get(job.id)
            if isinstance(group, CustomPodGroup):
                name = group.spec.priority_class_name
            else:
                name = self._shadow_classes.get(job.id, "")
            found = classes.get(name)
            job.priority = default if found is None else found.value

    def _queues(self) -> dict[str, Queue]:
        found: dict[str, Queue] = {}
        for kind in CUSTOM_QUEUES:
            for queue in self._cluster.objects(kind).values():
                found.setdefault(queue.name, _queue(queue))
        return found

    def _nodes_of_table(self, tasks: Iterable[Task]) -> SessionNodes:
        """Nodes with the amounts of the node table, which counts every pod on a node."""
        table = self._cluster.nodes
        unready = where(table, lambda node: condition(node, READY) not in ("", "True"))
        resources = [name for name in table.resources if name != PODS]
        nodes = SessionNodes(
            [*table.names],
            table.alive & ~unready,
            {name: _amounts(name, table.allocatable(name)) for name in resources},
            EXACT,
        )
        for name in resources:
            requested = _amounts(name, table.requested(name))
            nodes.idle[name] -= requested
            nodes.used[name] += requested
        for task in tasks:
            row = table.row_of(task.node) if task.node else None
            if row is not None and not task.info.pod.terminal:
                task.row = row
                nodes.add_counted(row, task)
        return nodes

    def _nodes_of_tasks(self, tasks: Iterable[Task], shrunk: frozenset[str]) -> SessionNodes:
        """Nodes as in kube-batch, which adds pods one by one and rejects those that do not fit."""
        table = self._cluster.nodes
        present = table.alive.copy()
        columns = {CPU: np.zeros(table.size), MEMORY: np.zeros(table.size)}
        for row in np.flatnonzero(present).tolist():
            if table.names[row] in shrunk:
                self._ignored_nodes[table.names[row]] = "OutOfSync"
                present[row] = False
            for name, quantity in table.node(row).status.allocatable.items():
                if is_counted(name):
                    column = columns.setdefault(name, np.zeros(table.size))
                    column[row] = scalar_amount(name, quantity)
        nodes = SessionNodes([*table.names], present, columns, TOLERANT)
        for task in tasks:
            if not task.node or task.info.pod.terminal:
                continue
            found = table.row_of(task.node)
            if found is None:
                self._ignored_nodes[task.node] = "UnInitialized"  # only pods refer to it
            elif present[found]:
                task.row = found
                if task.request.less_equal(nodes.at(nodes.idle, found)):
                    nodes.add_initial(found, task)
        return nodes


def job_id_of(group: PodGroupKey) -> str:
    """``namespace/name``, with the API group in front for a scheduling.k8s.io PodGroup."""
    return f"scheduling.k8s.io/{group.key}" if group.native else group.key


def _status(pod: Pod, placement_state: PlacementState, *, evicted: bool) -> TaskStatus:
    match pod.status.phase:
        case "Unknown":
            return TaskStatus.UNKNOWN
        case "Succeeded":
            return TaskStatus.SUCCEEDED
        case "Failed":
            return TaskStatus.FAILED
    if pod.terminating or evicted:
        return TaskStatus.RELEASING
    if pod.status.phase == "Running":
        return TaskStatus.RUNNING
    match placement_state:
        case PlacementState.BOUND:
            return TaskStatus.BOUND
        case PlacementState.ASSUMED:
            return TaskStatus.BINDING
        case _:
            return TaskStatus.PENDING


def _queue(queue: CustomQueue) -> Queue:
    limits = {
        name: scalar_amount(name, quantity) for name, quantity in queue.spec.capability.items()
    }
    capability = ResourceVector.of(limits) if limits else None
    return Queue(queue.name, queue.spec.weight, created_s=_created_s(queue), capability=capability)


def _created_s(found: Object) -> float:
    created = found.metadata.creation_timestamp
    return 0.0 if created is None else created.timestamp()


def _integer(text: str | None, default: int) -> int:
    try:
        return default if text is None else int(text)
    except ValueError:
        return default


def _amounts(name: str, column: Int64Column) -> FloatColumn:
    amounts: FloatColumn = column.astype(np.float64)
    return amounts if name in (CPU, MEMORY) else amounts * SCALAR_UNIT
