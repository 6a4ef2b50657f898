"""For each rejecting plugin of the default profile: helpful events queue a pod, others do not."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec
import pytest

from asched.framework.interface import EnqueueExtensions
from asched.model.meta import Object
from asched.model.pod import Pod, PodCondition
from asched.model.resources import AnyObject
from asched.state.checkpoint import checkpoint_of, restore
from asched.state.records import EvictionSucceeded, ObjectObserved, Rejected
from tests.cycle.default_profile import default_profiles, default_scheduling, installed
from tests.cycle.scheduling import Scheduling, nodes_of, the_one
from tests.cycle.unrelated_events import FLOODS, a_node, a_pod, busy_node, gone, made
from tests.plugins.volume_clusters import a_claim, a_volume, claim_volume

Event = Callable[[Scheduling], None]

KEY = "d/waiting"
MAX_BACKOFF_S = 10
ROUNDS = 10
EBS = "ebs.csi.aws.com"
ZONE = "topology.kubernetes.io/zone"


class Case(NamedTuple):
    """A pod that one plugin rejects."""

    plugin: str
    cluster: tuple[Object, ...]
    pod: Pod
    helps: dict[str, Event]
    """Each event alone makes the pod schedulable."""
    heeds: frozenset[str] = frozenset()
    """Events that queue the pod although they do not help it, as in kube-scheduler."""
    what: str = ""

    @property
    def title(self) -> str:
        return f"{self.plugin} {self.what}".strip()


def sees(*items: Object) -> Event:
    def event(s: Scheduling) -> None:
        s.see(*(item for item in items if isinstance(item, AnyObject)))

    return event


def goes(item: AnyObject) -> Event:
    return lambda s: gone(s, item)


def waiting(cpu: str = "1", *, labels: dict[str, str] | None = None, **spec: Any) -> Pod:
    return a_pod("waiting", cpu=cpu, labels=labels, **spec)


def holder(cpu: str = "1", *, labels: dict[str, str] | None = None, **spec: Any) -> Pod:
    """A pod on the node n."""
    return a_pod("holder", cpu=cpu, labels=labels, nodeName="n", **spec)


def mounting(*sources: dict[str, Any]) -> dict[str, Any]:
    return {"volumes": [{"name": f"v{i}", **source} for i, source in enumerate(sources)]}


def csi_node(limit: int) -> AnyObject:
    drivers = [{"name": EBS, "nodeID": "n", "allocatable": {"count": limit}}]
    return made("CSINode", "n", spec={"drivers": drivers})


def bound_claim(name: str, labels: dict[str, str] | None = None) -> tuple[Object, Object]:
    source = {"driver": EBS, "volumeHandle": name}
    volume = a_volume(f"pv-{name}", csi=source, labels=labels)
    return volume, a_claim(name, bound_to=f"pv-{name}")


def spreading_by_zone() -> dict[str, Any]:
    constraint = {
        "maxSkew": 1,
        "topologyKey": "zone",
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "x"}},
    }
    return {"topologySpreadConstraints": [constraint]}


def required(kind: str, app: str, topology_key: str) -> dict[str, Any]:
    term = {"labelSelector": {"matchLabels": {"app": app}}, "topologyKey": topology_key}
    return {"affinity": {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}


_NEW_NODES = frozenset({"useless_nodes_come_and_go"})
_CORDON = {"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}
_TAINTED = {"taints": [{"key": "k", "effect": "NoSchedule"}]}
_PORT: dict[str, Any] = {
    "containers": [{"name": "c", "ports": [{"hostPort": 80, "containerPort": 80}]}]
}
_DISK = mounting({"gcePersistentDisk": {"pdName": "disk"}})
_X, _Y, _Z = {"app": "x"}, {"app": "y"}, {"app": "z"}
_FEATURE = ["UserNamespacesHostNetworkSupport"]
_USER_NAMESPACE: dict[str, Any] = {"hostNetwork": True, "hostUsers": False}
_NEAR_Y = required("podAffinity", "y", "zone")
_AWAY_FROM_X = required("podAntiAffinity", "x", "kubernetes.io/hostname")
_AWAY_FROM_Y = required("podAntiAffinity", "y", "kubernetes.io/hostname")
_MORE_CPU = {"cpu": "8"}

CASES = (
    Case(
        "SchedulingGates",
        (a_node(),),
        waiting(schedulingGates=[{"name": "example.com/gate"}]),
        {"its gate opens": sees(waiting())},
    ),
    Case(
        "NodeUnschedulable",
        (a_node(spec={"unschedulable": True}),),
        waiting(),
        {
            "the node is uncordoned": sees(a_node()),
            "a node comes": sees(a_node("m")),
            "it tolerates the cordon": sees(waiting(tolerations=[_CORDON])),
        },
    ),
    Case(
        "TaintToleration",
        (a_node(spec=_TAINTED),),
        waiting(),
        {
            "the taint goes": sees(a_node()),
            "a node comes": sees(a_node("m")),
            "it tolerates the taint": sees(waiting(tolerations=[{"operator": "Exists"}])),
        },
    ),
    Case(
        "NodeAffinity",
        (a_node(),),
        waiting(nodeSelector={"disk": "ssd"}),
        {
            "the node gets the label": sees(a_node(labels={"disk": "ssd"})),
            "a node with the label comes": sees(a_node("m", {"disk": "ssd"})),
        },
    ),
    Case(
        "NodePorts",
        (a_node(), holder(**_PORT)),
        waiting(**_PORT),
        {"the port is freed": goes(holder()), "a node comes": sees(a_node("m"))},
        _NEW_NODES,
    ),
    Case(
        "NodeResourcesFit",
        (a_node(), holder("3")),
        waiting("2"),
        {
            "a pod leaves the node": goes(holder()),
            "a pod there asks for less": sees(holder("2")),
            "the node grows": sees(a_node(allocatable=_MORE_CPU)),
            "a node comes": sees(a_node("m")),
            "it asks for less": sees(waiting("1")),
        },
        frozenset({"pods_leave_nodes"}),
    ),
    Case(
        "VolumeRestrictions",
        (a_node(), holder(**_DISK)),
        waiting(**_DISK),
        {"the disk is given back": goes(holder()), "a node comes": sees(a_node("m"))},
        _NEW_NODES,
    ),
    Case(
        "NodeVolumeLimits",
        (
            a_node(), csi_node(1), *bound_claim("held"), *bound_claim("own"),
            holder(**mounting(claim_volume("held"))),
        ),
        waiting(**mounting(claim_volume("own"))),
        {"a volume is detached": goes(holder()), "the limit is raised": sees(csi_node(2))},
        frozenset({"csi_nodes_come_and_go", "csi_drivers_and_attachments"}),
    ),
    Case(
        "VolumeBinding",
        (a_node(), a_claim("own")),
        waiting(**mounting(claim_volume("own"))),
        {"its claim is bound": sees(*bound_claim("own"))},
        _NEW_NODES | {
            "nodes_are_labelled", "volumes_come_and_go", "storage_classes_come_and_go",
            "csi_nodes_come_and_go",
        },
    ),
    Case(
        "VolumeRestrictions",
        (a_node(),),
        waiting(**mounting(claim_volume("own"))),
        {"its claim comes": sees(*bound_claim("own"))},
        _NEW_NODES,
        "of a claim that is missing",
    ),
    Case(
        "VolumeZone",
        (a_node(labels={ZONE: "here"}), *bound_claim("own", {ZONE: "there"})),
        waiting(**mounting(claim_volume("own"))),
        {
            "the node moves": sees(a_node(labels={ZONE: "there"})),
            "a node comes there": sees(a_node("m", {ZONE: "there"})),
            "the volume moves": sees(bound_claim("own", {ZONE: "here"})[0]),
        },
        _NEW_NODES | {"nodes_are_labelled", "volumes_come_and_go"},
    ),
    Case(
        "PodTopologySpread",
        (a_node(), holder(labels=_X)),
        waiting(labels=_X, **spreading_by_zone()),
        {
            "a pod leaves the domain": goes(holder(labels=_X)),
            "a pod there no longer counts": sees(holder(labels=_Z)),
            "a domain comes": sees(a_node("m", {"zone": "z2"})),
        },
        frozenset({"nodes_get_soft_taints"}),
    ),
    Case(
        "InterPodAffinity",
        (a_node(), holder(labels=_Z)),
        waiting(**_NEAR_Y),
        {
            "a neighbour comes": sees(a_pod("y", labels=_Y, nodeName="n")),
            "a pod there becomes one": sees(holder(labels=_Y)),
        },
        what="that wants a neighbour",
    ),
    Case(
        "InterPodAffinity",
        (a_node(), holder(labels=_Y)),
        waiting(**_AWAY_FROM_Y),
        {
            "the neighbour goes": goes(holder(labels=_Y)),
            "it is no longer one": sees(holder(labels=_Z)),
            "a node comes": sees(a_node("m")),
        },
        _NEW_NODES,
        "that keeps away",
    ),
    Case(
        "InterPodAffinity",
        (a_node(), holder(**_AWAY_FROM_X)),
        waiting(labels=_X),
        {
            "the neighbour goes": goes(holder(**_AWAY_FROM_X)),
            "it gets other labels": sees(waiting(labels=_Z)),
            "a node comes": sees(a_node("m")),
        },
        _NEW_NODES,
        "that is kept away",
    ),
    Case(
        "NodeDeclaredFeatures",
        (a_node(),),
        waiting(**_USER_NAMESPACE),
        {
            "the node declares the feature": sees(a_node(declaredFeatures=_FEATURE)),
            "a node that does comes": sees(a_node("m", declaredFeatures=_FEATURE)),
        },
        _NEW_NODES,
    ),
    Case("DynamicResources", (a_node(),), waiting(resourceClaims=[{"name": "gpu"}]), {}),
)  # fmt: skip


def rejected(case: Case) -> Scheduling:
    """A scheduling in which the pod was rejected once."""
    s = default_scheduling()
    s.see(busy_node())
    sees(*case.cluster, case.pod)(s)
    s.decide()
    assert is_waiting(s), "it is not even rejected"
    queued = s.state.queue.find_queued(KEY)
    assert queued is not None
    # NodeUnschedulable rejects the busy node.
    rejecting = queued.unschedulable_plugins | {queued.gating_plugin}
    assert case.plugin in rejecting <= {case.plugin, "NodeUnschedulable", ""}
    return s


def is_waiting(s: Scheduling) -> bool:
    return KEY in s.state.queue.unschedulable or KEY in s.state.queue.gated


def write_its_condition(s: Scheduling, pod: Pod, number: int) -> None:
    """The watch reports the scheduler's own write to the pod status."""
    condition = PodCondition(type="PodScheduled", status="False", message=f"because {number}")
    status = msgspec.structs.replace(pod.status, conditions=(condition,))
    s.see(msgspec.structs.replace(pod, status=status))


cases = pytest.mark.parametrize("case", CASES, ids=lambda case: case.title)


@cases
def test_unrelated_events_queue_no_pod(case: Case) -> None:
    s = rejected(case)
    for number in range(ROUNDS):
        for name, flood in FLOODS.items():
            if name not in case.heeds:
                flood(s, number)
                assert is_waiting(s), f"woken by {name}"
        write_its_condition(s, case.pod, number)
        assert is_waiting(s), "woken by what was written on it"
    s.pass_time(MAX_BACKOFF_S)
    assert s.decide() == []
    assert is_waiting(s)


@pytest.mark.parametrize(
    ("case", "event"),
    [
        pytest.param(case, event, id=f"{case.title}: {name}")
        for case in CASES
        for name, event in case.helps.items()
    ],
)
def test_helpful_event_queues_the_pod(case: Case, event: Event) -> None:
    s = rejected(case)
    event(s)
    assert not is_waiting(s)
    s.pass_time(MAX_BACKOFF_S)
    assert nodes_of(s.decide())[KEY] in ("n", "m")


@pytest.mark.parametrize(
    ("case", "name"),
    [
        pytest.param(case, name, id=f"{case.title}: {name}")
        for case in CASES
        for name in sorted(case.heeds)
    ],
)
def test_registered_event_queues_the_pod(case: Case, name: str) -> None:
    """Check that the exceptions above are needed."""
    s = rejected(case)
    FLOODS[name](s, 1)
    assert not is_waiting(s)


def test_every_rejecting_plugin_is_covered() -> None:
    plugins = {name: installed().load(name) for name in default_profiles()[0].plugin_names}
    extending = {name for name, plugin in plugins.items() if issubclass(plugin, EnqueueExtensions)}
    # NodeName never rejects a pending pod, because pods with a node name are not scheduled;
    # DefaultPreemption has the test below.
    assert {case.plugin for case in CASES} == extending - {"NodeName", "DefaultPreemption"}


def test_preemptor_waits_until_its_victims_are_evicted() -> None:
    s = default_scheduling()
    victim = holder("3", priority=0)
    s.see(busy_node(), a_node())
    s.see(victim, waiting("2", priority=10))
    rejection = the_one(s.decide())
    assert isinstance(rejection, Rejected)
    assert [v.key for v in rejection.victims] == [victim.key]
    for number in range(ROUNDS):
        for flood in FLOODS.values():
            flood(s, number)
        s.pass_time(MAX_BACKOFF_S)
        assert s.decide() == []
    leaving = datetime(2026, 1, 1, tzinfo=UTC)
    metadata = msgspec.structs.replace(victim.metadata, deletion_timestamp=leaving)
    s.see(msgspec.structs.replace(victim, metadata=metadata))
    s.apply(EvictionSucceeded(victim.key, victim.uid))
    gone(s, victim)
    s.pass_time(MAX_BACKOFF_S)
    assert nodes_of(s.decide()) == {KEY: "n"}


def test_pods_of_two_constraints_with_one_selector_come_and_go() -> None:
    """Constraints by zone and by host: the index of rejected pods stays complete."""
    constraints = [
        {**spreading_by_zone()["topologySpreadConstraints"][0], "topologyKey": key}
        for key in ("zone", "kubernetes.io/hostname")
    ]
    s = default_scheduling()
    s.see(busy_node(), a_node(), holder(labels=_X))
    first = a_pod("first", labels=_X, topologySpreadConstraints=constraints)
    other = a_pod("other", labels=_Z, nodeName="n")
    s.see(first)
    s.decide()
    s.see(other)
    gone(s, first)
    s.see(waiting(labels=_X, topologySpreadConstraints=constraints))
    s.decide()
    gone(s, other)
    assert is_waiting(s)
    gone(s, holder(labels=_X))
    assert not is_waiting(s)


def test_relabelled_node_queues_no_pod_for_terms_of_deleted_pods() -> None:
    """As after a restore: the plugin's caches still have such terms."""
    s = default_scheduling()
    holding = holder(**required("podAntiAffinity", "x", "zone"))
    s.see(busy_node(), a_node(), holding)
    s.see(waiting(labels=_X, **required("podAffinity", "y", "kubernetes.io/hostname")))
    s.decide()
    gone(s, holding)
    s.pass_time(MAX_BACKOFF_S)
    s.decide()
    assert is_waiting(s)
    s.see(a_node(labels={"zone": "z2"}))
    assert is_waiting(s)


@pytest.mark.parametrize("is_restored", [False, True])
def test_node_without_the_topology_of_a_term_queues_the_pod(is_restored: bool) -> None:
    """No other node has the label."""
    s = default_scheduling()
    s.see(busy_node(), a_node(labels={"rack": "r"}))
    s.see(holder(**required("podAntiAffinity", "x", "rack")), waiting(labels=_X))
    s.decide()
    assert is_waiting(s)
    fold = restore(checkpoint_of(s.state), installed().load) if is_restored else s.fold
    fold.apply(ObjectObserved(a_node()))
    assert KEY not in fold.state.queue.unschedulable
