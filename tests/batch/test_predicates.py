"""Predicates of sessions: filters of pod-by-pod profiles that see placements of the session."""

from __future__ import annotations

import msgspec
import pytest

from asched.batch.session import run_session
from asched.batch.session_volumes import VolumeClaims
from asched.framework.session_objects import Task
from asched.framework.sessions import PluginOption, SessionOutcome
from asched.model.meta import Annotations, ObjectMeta
from asched.model.node import Node, NodeCondition, NodeSpec, NodeStatus, Taint
from asched.model.pod import (
    Affinity,
    Container,
    ContainerPort,
    PersistentVolumeClaimSource,
    Pod,
    PodAffinity,
    PodAffinityTerm,
    PodResourceClaim,
    PodSpec,
    PodStatus,
    ResourceRequirements,
    Toleration,
    TopologySpreadConstraint,
    Volume,
    WeightedPodAffinityTerm,
)
from asched.model.selectors import LabelSelector
from asched.model.storage import PersistentVolumeClaim, StorageClass
from tests.batch.worlds import REGISTRY, SCHEDULER, World, bound, session_spec

SPEC = session_spec("allocate", "backfill", tiers=(("gang",), ("predicates", "nodeorder")))


def add_pods(world: World, count: int, **spec: object) -> None:
    """Pods of one job with only the fields of ``spec``."""
    world.job("j", "q", pods=0)
    for index in range(count):
        meta = ObjectMeta(
            name=f"j-{index}",
            namespace="ns",
            uid=f"j-{index}",
            labels={"app": "j"},
            annotations=Annotations(group_name="j"),
        )
        fields = {"containers": (Container(name="main"),), **spec}
        pod_spec = PodSpec(scheduler_name=SCHEDULER, **fields)  # type: ignore[arg-type]
        world.add(Pod(metadata=meta, spec=pod_spec, status=PodStatus(phase="Pending")))


def asking(cpu: int) -> Container:
    return Container(name="main", resources=ResourceRequirements(requests={"cpu": cpu}))


def two_nodes() -> World:
    world = World()
    world.queue("q")
    for name in ("n1", "n2"):
        world.node(name, labels={"zone": name})
    return world


def places(outcome: SessionOutcome) -> list[str]:
    return sorted(bound(outcome).values())


def test_host_ports_of_pods_placed_in_the_session() -> None:
    world = two_nodes()
    port = ContainerPort(host_port=80)
    add_pods(world, 3, containers=(Container(name="main", ports=(port,)),))
    assert places(world.hold(SPEC)) == ["n1", "n2"]


def test_node_pod_limit() -> None:
    world = World()
    world.queue("q")
    world.node("n1", pods=2)
    add_pods(world, 3)
    outcome = world.hold(SPEC)
    assert places(outcome) == ["n1", "n1"]


def test_spread_over_zones() -> None:
    world = two_nodes()
    constraint = TopologySpreadConstraint(
        topology_key="zone", label_selector=LabelSelector(match_labels={"app": "j"})
    )
    add_pods(world, 4, topology_spread_constraints=(constraint,))
    assert places(world.hold(SPEC)) == ["n1", "n1", "n2", "n2"]


@pytest.mark.parametrize("tolerated", [True, False])
def test_taints_and_cordons(tolerated: bool) -> None:
    world = World()
    world.queue("q")
    world.add(
        Node(
            metadata=ObjectMeta(name="cordoned"),
            spec=NodeSpec(unschedulable=True, taints=(Taint(key="k", effect="NoSchedule"),)),
            status=NodeStatus(
                allocatable={"cpu": 4, "pods": 10},
                conditions=(NodeCondition(type="Ready", status="True"),),
            ),
        )
    )
    tolerations = (Toleration(operator="Exists"),) if tolerated else ()
    add_pods(world, 1, tolerations=tolerations)
    assert places(world.hold(SPEC)) == (["cordoned"] if tolerated else [])


@pytest.mark.parametrize(
    ("argument", "condition", "refused"),
    [
        ("predicate.DiskPressureEnable", "DiskPressure", True),
        ("predicate.MemoryPressureEnable", "DiskPressure", False),
        ("", "DiskPressure", False),
        ("", "NetworkUnavailable", True),
    ],
)
def test_node_conditions(argument: str, condition: str, refused: bool) -> None:
    world = World()
    world.queue("q")
    world.add(
        Node(
            metadata=ObjectMeta(name="n"),
            status=NodeStatus(
                allocatable={"cpu": 4, "pods": 10},
                conditions=(NodeCondition(type=condition, status="True"),),
            ),
        )
    )
    add_pods(world, 1)
    arguments = {argument: "true"} if argument else {}
    option = PluginOption("predicates", (), arguments)
    spec = session_spec("backfill", tiers=(("gang",), (option,)))
    assert places(world.hold(spec)) == ([] if refused else ["n"])


def mounting(claim: str) -> tuple[Volume, ...]:
    source = PersistentVolumeClaimSource(claim_name=claim)
    return (Volume(name="data", persistent_volume_claim=source),)


def test_volume_without_a_node() -> None:
    world = two_nodes()
    world.add(
        StorageClass(
            metadata=ObjectMeta(name="local"),
            provisioner="kubernetes.io/no-provisioner",
            volume_binding_mode="WaitForFirstConsumer",
        )
    )
    claim = {"metadata": {"name": "c", "namespace": "ns"}, "spec": {"storageClassName": "local"}}
    world.add(msgspec.convert(claim, PersistentVolumeClaim))
    add_pods(world, 1, volumes=mounting("c"), containers=(asking(1),))
    outcome = world.hold(SPEC)
    assert outcome.binds == ()
    assert "didn't find available persistent volumes" in outcome.unschedulable[0].message


class NoVolumeFor(VolumeClaims):
    """Cannot reserve volumes for one pod."""

    def __init__(self, pod: str) -> None:
        self._pod = pod

    def reserve(self, task: Task, node: str) -> str:
        return "gone meanwhile" if task.key == self._pod else ""


@pytest.mark.parametrize("action", ["allocate", "backfill", "preempt", "reclaim"])
def test_failed_volume_reservation_fails_only_its_pod(action: str) -> None:
    world = World()
    world.queue("q")
    world.queue("other")
    world.node("n", cpu=4)
    world.job("standing", "other", pods=2, on=["n"] * 2)
    cpu, memory = (0, 0) if action == "backfill" else (1, "1Gi")
    world.job("j", "q", pods=2, cpu=cpu, memory=memory)
    tiers = (("gang",), ("predicates", "proportion"))
    outcome = run_session(
        world.state, session_spec(action, tiers=tiers), REGISTRY, 1, volumes=NoVolumeFor("ns/j-0")
    )
    assert "ns/j-0" not in bound(outcome)
    assert outcome.evictions == ()


def test_missing_claim() -> None:
    world = two_nodes()
    add_pods(world, 1, volumes=mounting("missing"), containers=(asking(1),))
    outcome = world.hold(SPEC)
    assert outcome.binds == ()
    assert 'persistentvolumeclaim "missing" not found' in outcome.unschedulable[0].message


def test_unallocated_resource_claim() -> None:
    world = two_nodes()
    claims = (PodResourceClaim(name="gpu", resource_claim_name="mine"),)
    add_pods(world, 1, resource_claims=claims, containers=(asking(1),))
    assert world.hold(SPEC).binds == ()


def test_preferred_affinity_to_pods_of_the_session() -> None:
    world = World()
    world.queue("q")
    for name in ("n1", "n2", "n3"):
        world.node(name, cpu=8, memory="16Gi")
    term = PodAffinityTerm(
        label_selector=LabelSelector(match_labels={"app": "j"}), topology_key="host"
    )
    near = WeightedPodAffinityTerm(weight=100, pod_affinity_term=term)
    affinity = Affinity(pod_affinity=PodAffinity(preferred=(near,)))
    add_pods(world, 4, containers=(asking(1),), affinity=affinity)
    weights = {"podaffinity.weight": "10"}
    tiers = (("gang",), ("predicates", PluginOption("nodeorder", (), weights)))
    outcome = world.hold(session_spec("allocate", tiers=tiers))
    assert len(outcome.binds) == 4
    assert len(set(places(outcome))) == 1
