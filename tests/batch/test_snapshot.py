"""Jobs, queues and nodes of a session."""

from __future__ import annotations

import pytest

from asched.batch.snapshot import NO_SCHEDULING_SPEC, QUEUE_NOT_FOUND, Cache, Snapshot
from asched.framework.session_objects import TaskStatus
from asched.framework.sessions import Compatibility
from asched.model.groups import (
    CustomPodGroupSpec,
    GangPolicy,
    PodGroup,
    PodGroupSpec,
    SchedulingPolicy,
    SigsPodGroup,
)
from asched.model.meta import Annotations, ObjectMeta, OwnerReference
from asched.model.pod import Pod, PodSchedulingGroup, PodSpec, PodStatus, SchedulingGate
from asched.model.workloads import PodDisruptionBudget, PodDisruptionBudgetSpec, PriorityClass
from tests.batch.worlds import SCHEDULER, START, World, session_spec


def snapshot(world: World, mode: Compatibility = Compatibility.NONE) -> Snapshot:
    spec = session_spec("allocate", compatibility=mode)
    return Cache(world.state, spec).snapshot(frozenset())


def pod(name: str, phase: str = "Pending", **changes: object) -> Pod:
    meta: dict[str, object] = {"name": name, "namespace": "ns", "uid": f"uid-{name}"}
    spec: dict[str, object] = {"scheduler_name": SCHEDULER}
    for field, value in changes.items():
        (spec if field in PodSpec.__struct_fields__ else meta)[field] = value
    return Pod(
        metadata=ObjectMeta(**meta),  # type: ignore[arg-type]
        spec=PodSpec(**spec),  # type: ignore[arg-type]
        status=PodStatus(phase=phase),
    )


def owned_by(uid: str) -> tuple[OwnerReference, ...]:
    return (OwnerReference(kind="Job", name="owner", uid=uid, controller=True),)


def test_pods_without_group_form_a_shadow_job() -> None:
    world = World()
    world.queue("default")
    world.add(PriorityClass(metadata=ObjectMeta(name="high"), value=7))
    least = Annotations(group_min_member="2")
    world.add(
        pod("a", owner_references=owned_by("o"), annotations=least, priority_class_name="high")
    )
    world.add(pod("b", owner_references=owned_by("o")))
    world.add(pod("c", annotations=Annotations(group_min_member="many")))
    jobs = snapshot(world).jobs
    assert {j.id: (j.min_available, len(j.tasks), j.priority, j.shadow) for j in jobs.values()} == {
        "o": (2, 2, 7, True),
        "uid-c": (1, 1, 0, True),
    }


def test_group_without_queue_uses_the_default_queue() -> None:
    world = World()
    world.queue("default")
    world.job("j", "", pods=1)
    assert snapshot(world).jobs["ns/j"].queue == "default"


def test_jobs_without_group_or_queue_are_ignored() -> None:
    world = World()
    world.queue("q")
    world.job("j", "nowhere", pods=1)
    world.add(pod("lost", annotations=Annotations(group_name="missing")))
    found = snapshot(world)
    assert found.jobs == {}
    assert found.ignored_jobs == {"ns/j": QUEUE_NOT_FOUND, "ns/missing": NO_SCHEDULING_SPEC}


def test_kubernetes_pod_groups_are_jobs() -> None:
    world = World()
    world.queue("default")
    policy = SchedulingPolicy(gang=GangPolicy(min_count=2))
    world.add(
        PodGroup(
            metadata=ObjectMeta(name="g", namespace="ns"),
            spec=PodGroupSpec(scheduling_policy=policy),
        )
    )
    for name in ("a", "b"):
        world.add(pod(name, scheduling_group=PodSchedulingGroup(pod_group_name="g")))
    [job] = snapshot(world).jobs.values()
    assert (job.group, job.min_available, len(job.tasks)) == ("ns/g", 2, 2)
    assert job.id != "ns/g"


def test_first_group_kind_takes_precedence() -> None:
    world = World()
    world.queue("q")
    world.job("j", "q", pods=1, minimum=1)
    meta = ObjectMeta(name="j", namespace="ns")
    world.add(SigsPodGroup(metadata=meta, spec=CustomPodGroupSpec(min_member=5, queue="q")))
    assert snapshot(world).jobs["ns/j"].min_available == 5


def test_budget_sets_the_minimum_of_its_owners_job() -> None:
    world = World()
    world.queue("default")
    world.add(pod("a", owner_references=owned_by("o")))
    world.add(
        PodDisruptionBudget(
            metadata=ObjectMeta(name="pdb", namespace="ns", owner_references=owned_by("o")),
            spec=PodDisruptionBudgetSpec(min_available=3),
        )
    )
    job = snapshot(world).jobs["o"]
    assert (job.name, job.min_available, job.min_member) == ("pdb", 3, 1)


@pytest.mark.parametrize(
    ("found", "status"),
    [
        (pod("p"), TaskStatus.PENDING),
        (pod("p", node_name="n"), TaskStatus.BOUND),
        (pod("p", "Running", node_name="n"), TaskStatus.RUNNING),
        (pod("p", "Running", node_name="n", deletion_timestamp=START), TaskStatus.RELEASING),
        (pod("p", deletion_timestamp=START), TaskStatus.RELEASING),
        (pod("p", "Unknown", node_name="n"), TaskStatus.UNKNOWN),
        (pod("p", "Succeeded", node_name="n"), TaskStatus.SUCCEEDED),
        (pod("p", "Failed", node_name="n"), TaskStatus.FAILED),
    ],
)
def test_task_status_of_pods(found: Pod, status: TaskStatus) -> None:
    world = World()
    world.node("n")
    world.queue("default")
    world.add(found)
    [job] = snapshot(world).jobs.values()
    assert [task.status for task in job.tasks.values()] == [status]


def test_gated_pod_is_ignored() -> None:
    world = World()
    world.queue("default")
    world.add(pod("p", scheduling_gates=(SchedulingGate(name="quota"),)))
    assert snapshot(world).jobs == {}
    # kube-batch ignores scheduling gates.
    [job] = snapshot(world, Compatibility.KUBE_BATCH).jobs.values()
    assert job.count(TaskStatus.PENDING) == 1


def test_nodes_count_requests_of_all_pods() -> None:
    world = World()
    world.node("n", cpu=4, memory="8Gi", gpu=2)
    world.queue("q")
    world.job("mine", "q", pods=1, cpu=1, memory="1Gi", on=["n"])
    world.foreign_pod("theirs", "n", cpu=2, phase="Running")
    nodes = snapshot(world).nodes
    assert nodes.at(nodes.idle, 0).amounts() == {
        "cpu": 1000,
        "memory": 7 * 1024**3,
        "gpu": 2000,
    }
    assert [task.key for task in nodes.tasks[0].values()] == ["ns/mine-0"]
