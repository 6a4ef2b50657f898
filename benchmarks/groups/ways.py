"""The ways to schedule gangs, and the workload in the objects that each of them reads."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import yaml

from asched.model.groups import (
    CustomPodGroupSpec,
    CustomQueueSpec,
    GangPolicy,
    IncubatorPodGroup,
    IncubatorQueue,
    PodGroup,
    PodGroupSpec,
    SchedulingPolicy,
)
from asched.model.meta import Annotations, ObjectMeta
from asched.model.node import Node
from asched.model.pod import Container, Pod, PodSchedulingGroup, PodSpec, ResourceRequirements
from asched.model.quantity import NS_PER_S
from asched.simulator.openb import BEGIN_NS, GPU_MILLI
from asched.simulator.trace import ObjectSet, PodCreated, TraceEvent, WorkloadTrace
from benchmarks.groups.jobs import Job, JobTrace

RACK: Final = "example.com/rack"
BLOCK: Final = "example.com/block"
NODES_IN_RACK: Final = 8
RACKS_IN_BLOCK: Final = 4
_NAMESPACE: Final = "jobs"
_SCHEDULER: Final = "gangs"


class Way(NamedTuple):
    """A way to schedule gangs."""

    name: str
    group_cycle: bool = False
    prefers_racks: bool = False
    kube_batch: bool = False

    @property
    def configuration(self) -> str:
        """The text of a configuration file."""
        return _kube_batch() if self.kube_batch else self._profile()

    def _profile(self) -> str:
        fit: dict[str, Any] = {
            "scoringStrategy": {
                "type": "MostAllocated",
                "resources": [{"name": GPU_MILLI, "weight": 5}, {"name": "cpu", "weight": 1}],
            }
        }
        names = ["GangScheduling"]
        arguments: dict[str, dict[str, Any]] = {"NodeResourcesFit": fit}
        if self.group_cycle:
            names += ["TopologyPlacementGenerator", "PodGroupPodsCount", "PlacementBestFit"]
            arguments["GangScheduling"] = {"groupCycle": True, "groupPreemption": True}
            arguments["TopologyPlacementGenerator"] = {"levels": [BLOCK, RACK]}
        profile = {
            "schedulerName": _SCHEDULER,
            "plugins": {
                "multiPoint": {"enabled": [{"name": name} for name in names]},
                "queueSort": {"disabled": [{"name": "*"}], "enabled": [{"name": "GangSort"}]},
            },
            "pluginConfig": [{"name": name, "args": args} for name, args in arguments.items()],
        }
        return yaml.safe_dump(
            {
                "apiVersion": "kubescheduler.config.k8s.io/v1",
                "kind": "KubeSchedulerConfiguration",
                "profiles": [profile],
            }
        )

    def trace(self, workload: JobTrace) -> WorkloadTrace:
        """The workload for the simulator."""
        events: list[TraceEvent] = [
            ObjectSet(BEGIN_NS, _in_rack(node, number))
            for number, node in enumerate(workload.nodes)
        ]
        if self.kube_batch:
            events.append(
                ObjectSet(
                    BEGIN_NS,
                    IncubatorQueue(
                        metadata=ObjectMeta(name="default"), spec=CustomQueueSpec(weight=1)
                    ),
                )
            )
        for job in workload.jobs:
            events += self._job(job)
        return WorkloadTrace(tuple(events), BEGIN_NS)

    def _job(self, job: Job) -> Iterator[TraceEvent]:
        created = datetime.fromtimestamp(job.at_ns // NS_PER_S, UTC)
        preferred = RACK if self.prefers_racks else None
        meta = ObjectMeta(
            name=job.name,
            namespace=_NAMESPACE,
            uid=f"group-{job.name}",
            creation_timestamp=created,
            annotations=Annotations(preferred_topology=preferred),
        )
        if self.kube_batch:
            spec = CustomPodGroupSpec(min_member=job.workers, queue="default")
            yield ObjectSet(job.at_ns, IncubatorPodGroup(metadata=meta, spec=spec))
        else:
            policy = SchedulingPolicy(gang=GangPolicy(min_count=job.workers))
            native = PodGroupSpec(
                scheduling_policy=policy, priority=job.priority, disruption_mode="All"
            )
            yield ObjectSet(job.at_ns, PodGroup(metadata=meta, spec=native))
        for number in range(job.workers):
            yield PodCreated(job.at_ns, self._worker(job, number, created), job.run_ns)

    def _worker(self, job: Job, number: int, created: datetime) -> Pod:
        name = f"{job.name}-{number}"
        amounts: dict[str, str | int | float] = {
            k: f"{v}m" if k == "cpu" else str(v) for k, v in job.requests.items()
        }
        group = None if self.kube_batch else PodSchedulingGroup(pod_group_name=job.name)
        return Pod(
            metadata=ObjectMeta(
                name=name,
                namespace=_NAMESPACE,
                uid=name,
                creation_timestamp=created,
                annotations=Annotations(group_name=job.name if self.kube_batch else None),
            ),
            spec=PodSpec(
                scheduler_name=_SCHEDULER,
                priority=job.priority,
                scheduling_group=group,
                containers=(
                    Container(name="main", resources=ResourceRequirements(requests=amounts)),
                ),
            ),
        )


WAYS: Final = (
    Way("whole groups, racks preferred", group_cycle=True, prefers_racks=True),
    Way("whole groups", group_cycle=True),
    Way("pod by pod"),
    Way("kube-batch sessions", kube_batch=True),
)


def rack_of(node: int) -> int:
    """The rack of a node, by its number in the workload."""
    return node // NODES_IN_RACK


def _in_rack(node: Node, number: int) -> Node:
    rack = rack_of(number)
    labels = {RACK: f"rack-{rack}", BLOCK: f"block-{rack // RACKS_IN_BLOCK}"}
    meta = msgspec.structs.replace(node.metadata, labels={**node.metadata.labels, **labels})
    return msgspec.structs.replace(node, metadata=meta)


def _kube_batch() -> str:
    session = {
        "schedulerName": _SCHEDULER,
        "conf": str(Path(__file__).with_name("kube-batch.yaml")),
        "period": "1s",
    }
    return yaml.safe_dump(
        {"apiVersion": "asched.dev/v1", "kind": "AschedConfiguration", "batch": [session]}
    )
