"""Small clusters with jobs in queues, and sessions on them."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import NoReturn

import msgspec

from asched.batch.nodes import SessionNodes
from asched.batch.registry import SessionRegistry
from asched.batch.session import SessionRun, run_session
from asched.framework.session_objects import Job, TaskStatus
from asched.framework.sessions import (
    Compatibility,
    PluginOption,
    SessionOutcome,
    SessionSpec,
)
from asched.model.groups import (
    CustomPodGroupSpec,
    CustomQueueSpec,
    VolcanoPodGroup,
    VolcanoQueue,
)
from asched.model.meta import Annotations, ObjectMeta
from asched.model.node import Node, NodeCondition, NodeStatus
from asched.model.pod import Affinity, Container, Pod, PodSpec, PodStatus, ResourceRequirements
from asched.model.quantity import QuantityText
from asched.model.resources import AnyObject
from asched.model.workloads import PriorityClass
from asched.state.cluster import ClusterState
from asched.state.fold import Fold
from asched.state.records import EngineStarted, ObjectDeleted, ObjectObserved
from asched.state.session_records import SessionsLoaded

SCHEDULER = "batch"
START = datetime(2026, 1, 1, tzinfo=UTC)
DEFAULT_TIERS = (
    ("priority", "gang", "conformance"),
    ("drf", "predicates", "proportion", "nodeorder"),
)
REGISTRY = SessionRegistry.discover()


def session_spec(
    *actions: str,
    tiers: Iterable[Iterable[str | PluginOption]] = DEFAULT_TIERS,
    compatibility: Compatibility = Compatibility.NONE,
) -> SessionSpec:
    options = tuple(
        tuple(PluginOption(p) if isinstance(p, str) else p for p in tier) for tier in tiers
    )
    return SessionSpec(SCHEDULER, actions, options, compatibility=compatibility)


class World:
    """A cluster to which objects are added."""

    def __init__(self, seed: int = 1) -> None:
        self.state = ClusterState()
        self._fold = Fold(self.state, _no_plugins)
        self._fold.apply(EngineStarted("test", seed))
        self._fold.apply(SessionsLoaded((session_spec("allocate"),)))
        self._age_s = 0

    def add(self, seen: AnyObject) -> None:
        self._fold.apply(ObjectObserved(seen))

    def remove(self, pod: Pod) -> None:
        self._fold.apply(ObjectDeleted("Pod", pod.key, pod.uid))

    def delete(self, pod: Pod) -> None:
        """Marks the pod as terminating."""
        meta = msgspec.structs.replace(pod.metadata, deletion_timestamp=self._created())
        self.add(msgspec.structs.replace(pod, metadata=meta))

    def _created(self) -> datetime:
        self._age_s += 1
        return START + timedelta(seconds=self._age_s)

    def node(
        self,
        name: str,
        cpu: QuantityText = 4,
        memory: QuantityText = "8Gi",
        *,
        pods: int = 110,
        labels: dict[str, str] | None = None,
        ready: bool = True,
        **scalars: QuantityText,
    ) -> None:
        allocatable = {"cpu": cpu, "memory": memory, "pods": pods, **scalars}
        condition = NodeCondition(type="Ready", status="True" if ready else "False")
        self.add(
            Node(
                metadata=ObjectMeta(name=name, labels={"host": name, **(labels or {})}),
                status=NodeStatus(allocatable=allocatable, conditions=(condition,)),
            )
        )

    def queue(
        self, name: str, weight: int = 1, capability: dict[str, QuantityText] | None = None
    ) -> None:
        spec = CustomQueueSpec(weight=weight, capability=capability or {})
        meta = ObjectMeta(name=name, creation_timestamp=self._created())
        self.add(VolcanoQueue(metadata=meta, spec=spec))

    def priority_class(self, name: str, value: int) -> None:
        self.add(PriorityClass(metadata=ObjectMeta(name=name), value=value))

    def job(
        self,
        name: str,
        queue: str,
        pods: int,
        minimum: int = 1,
        *,
        cpu: QuantityText = 1,
        memory: QuantityText = "1Gi",
        on: Iterable[str] = (),
        priority_class: str = "",
        namespace: str = "ns",
        affinity: Affinity | None = None,
        init_cpu: QuantityText | None = None,
        priorities: Iterable[int] = (),
        terminating: bool = False,
        scheduler: str = SCHEDULER,
    ) -> None:
        """A PodGroup with ``pods`` pods; the first of them run ``on`` these nodes, one each."""
        self.add(
            VolcanoPodGroup(
                metadata=ObjectMeta(
                    name=name, namespace=namespace, creation_timestamp=self._created()
                ),
                spec=CustomPodGroupSpec(
                    min_member=minimum, queue=queue, priority_class_name=priority_class
                ),
            )
        )
        places = [*on]
        ranks = [*priorities]
        wanted = {"cpu": cpu, "memory": memory}
        main = _container("main", {name: amount for name, amount in wanted.items() if amount})
        init = () if init_cpu is None else (_container("init", {"cpu": init_cpu}),)
        for index in range(pods):
            node = places[index] if index < len(places) else ""
            self.add(
                Pod(
                    metadata=ObjectMeta(
                        name=f"{name}-{index}",
                        namespace=namespace,
                        uid=f"{namespace}-{name}-{index}",
                        creation_timestamp=self._created(),
                        deletion_timestamp=self._created() if terminating else None,
                        labels={"app": name},
                        annotations=Annotations(group_name=name),
                    ),
                    spec=PodSpec(
                        scheduler_name=scheduler,
                        node_name=node,
                        containers=(main,),
                        init_containers=init,
                        priority=ranks[index] if index < len(ranks) else 0,
                        affinity=affinity,
                    ),
                    status=PodStatus(phase="Running" if node else "Pending"),
                )
            )

    def foreign_pod(self, name: str, node: str, *, cpu: QuantityText, phase: str) -> None:
        """A pod of another scheduler, bound to the node."""
        container = _container("main", {"cpu": cpu})
        self.add(
            Pod(
                metadata=ObjectMeta(name=name, namespace="ns", uid=f"foreign-{name}"),
                spec=PodSpec(node_name=node, containers=(container,)),
                status=PodStatus(phase=phase),
            )
        )

    def hold(self, spec: SessionSpec, number: int = 1) -> SessionOutcome:
        return run_session(self.state, spec, REGISTRY, number)

    def run(self, spec: SessionSpec, number: int = 1) -> SessionRun:
        """A session after its actions."""
        run = SessionRun(self.state, spec, REGISTRY, number)
        run.run_actions()
        return run


def _container(name: str, requests: dict[str, QuantityText]) -> Container:
    return Container(name=name, resources=ResourceRequirements(requests=requests))


def _no_plugins(name: str) -> NoReturn:
    raise LookupError(f"no profile is loaded, and none needs {name}")


def bound(outcome: SessionOutcome) -> dict[str, str]:
    return {bind.pod: bind.node for bind in outcome.binds}


def evicted(outcome: SessionOutcome) -> list[str]:
    return sorted(eviction.pod for eviction in outcome.evictions)


def running(job: Job) -> int:
    return job.count(TaskStatus.RUNNING)


def overdrawn(nodes: SessionNodes) -> list[str]:
    """Nodes with negative idle amounts."""
    return sorted(
        {
            nodes.names[row]
            for column in nodes.idle.values()
            for row in range(nodes.size)
            if column[row] < 0
        }
    )
