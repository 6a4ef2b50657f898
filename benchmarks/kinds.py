"""The kinds of pods that the engine is measured on.

They copy the workloads of Kubernetes' own benchmark (``test/integration/scheduler_perf``):
requests, selectors, topology keys, label values and proportions.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

Json = dict[str, Any]

HOSTNAME: Final = "kubernetes.io/hostname"
ZONE: Final = "topology.kubernetes.io/zone"
NAMED_NODE: Final = "scheduler-perf-node"
"""The node that all pods of a daemonset workload go to."""

_TOKEN = "kube-api-access-token"
_TOKEN_PATH = "/var/run/secrets/kubernetes.io/serviceaccount"
_SCHEDULED_NAMESPACES = ("sched-0", "sched-1")
_MEASURED = "measured"
_TEAM = {"team": "devops"}


class PodKind(NamedTuple):
    """Pods of one template."""

    spec: Json
    labels: dict[str, str] = {}  # noqa: RUF012  never changed
    namespace: str = "default"


class Kind(NamedTuple):
    """A workload: existing objects and the pods to schedule."""

    name: str
    measured: PodKind
    pods: int = 5_000
    """Pods to schedule by default."""
    placed: PodKind | None = None
    """Template of pods that are bound already; None: the template of the measured ones."""
    placed_pods: int = 5_000
    """For 5,000 nodes; scaled with the number of nodes."""
    zones: tuple[str, ...] = ()
    """Values of the zone label, round-robin; empty: no zone label."""
    placed_namespaces: tuple[str, ...] = ()
    """Namespaces of the bound pods, round-robin; empty: the namespace of their template."""
    namespaces: dict[str, dict[str, str]] = {}  # noqa: RUF012  never changed
    """Namespaces with their labels."""
    unschedulable: PodKind | None = None
    """Template of every tenth measured pod, which fits on no node."""
    service: Json | None = None
    named_node: bool = False
    one_per_node: bool = False
    """Schedule one pod for each node instead of :attr:`pods`."""

    @property
    def exclusive(self) -> bool:
        """Whether at most one of the pods fits on a node."""
        affinity = self.measured.spec.get("affinity", {})
        required = "requiredDuringSchedulingIgnoredDuringExecution"
        return required in affinity.get("podAntiAffinity", {})


def pod_spec(cpu: str = "100m", **more: Any) -> Json:
    """One container of the benchmark's usual size."""
    size = {"cpu": cpu, "memory": "500Mi"}
    container = {
        "name": "pause",
        "image": "registry.k8s.io/pause:3.10.1",
        "ports": [{"containerPort": 80}],
        "resources": {"requests": size, "limits": size},
    }
    return {"containers": [container], **more}


def ready_node(number: int, cpu: str = "4") -> Json:
    """A ready node; by default with room for forty pods of the usual size."""
    name, size = f"node-{number}", {"pods": "110", "cpu": cpu, "memory": "32Gi"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {HOSTNAME: name}},
        "status": {
            "capacity": size,
            "allocatable": size,
            "conditions": [{"status": "True", "type": "Ready"}],
        },
    }


def with_token(spec: Json) -> Json:
    """The pod spec with the token volume that the ServiceAccount admission adds to each pod."""
    sources: list[Json] = [
        {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
        {
            "configMap": {
                "name": "kube-root-ca.crt",
                "items": [{"key": "ca.crt", "path": "ca.crt"}],
            }
        },
        {
            "downwardAPI": {
                "items": [
                    {
                        "path": "namespace",
                        "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"},
                    }
                ]
            }
        },
    ]
    volume = {"name": _TOKEN, "projected": {"defaultMode": 420, "sources": sources}}
    mount = {"name": _TOKEN, "readOnly": True, "mountPath": _TOKEN_PATH}
    containers = [
        {**each, "volumeMounts": [*each.get("volumeMounts", []), mount]}
        for each in spec["containers"]
    ]
    volumes = [*spec.get("volumes", []), volume]
    return {**spec, "serviceAccountName": "default", "containers": containers, "volumes": volumes}


def _term(color: str, topology_key: str, **namespaces: Any) -> Json:
    selector = {"matchLabels": {"color": color}}
    return {"labelSelector": selector, "topologyKey": topology_key, **namespaces}


def _affinity(kind: str, term: Json, *, preferred: bool = False) -> Json:
    if preferred:
        weighted = [{"weight": 1, "podAffinityTerm": term}]
        rule = {"preferredDuringSchedulingIgnoredDuringExecution": weighted}
    else:
        rule = {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
    return {"affinity": {kind: rule}}


def _between_namespaces(
    name: str,
    kind: str,
    color: str,
    key: str,
    *,
    preferred: bool = False,
    pods: int = 5_000,
    placed_pods: int = 5_000,
    zones: tuple[str, ...] = (),
) -> Kind:
    """Affinity to pods of two namespaces that the term names."""
    term = _term(color, key, namespaces=list(_SCHEDULED_NAMESPACES))
    spec = pod_spec(**_affinity(kind, term, preferred=preferred))
    return Kind(
        name,
        PodKind(spec, {"color": color}, "sched-1"),
        pods,
        placed_pods=placed_pods,
        placed_namespaces=("sched-0",),
        zones=zones,
        namespaces={each: {} for each in _SCHEDULED_NAMESPACES},
    )


def _selected_namespaces(
    name: str,
    kind: str,
    color: str,
    key: str,
    *,
    preferred: bool = False,
    zones: tuple[str, ...] = (),
    placed_pods: int = 4_000,
) -> Kind:
    """Affinity to pods of a hundred namespaces that the term selects by label."""
    term = _term(color, key, namespaceSelector={"matchLabels": _TEAM})
    spec = pod_spec(**_affinity(kind, term, preferred=preferred))
    placed = tuple(f"init-ns-{number}" for number in range(100))
    return Kind(
        name,
        PodKind(spec, {"color": color}, _MEASURED),
        900 if kind == "podAntiAffinity" and not preferred else 2_000,
        placed_pods=placed_pods,
        placed_namespaces=placed,
        zones=zones,
        namespaces=dict.fromkeys((*placed, _MEASURED), _TEAM),
    )


def _spreading(name: str, when: str) -> Kind:
    constraint = {
        "maxSkew": 5,
        "topologyKey": ZONE,
        "whenUnsatisfiable": when,
        "labelSelector": {"matchLabels": {"color": "blue"}},
    }
    spec = pod_spec(topologySpreadConstraints=[constraint])
    return Kind(name, PodKind(spec, {"color": "blue"}), placed=_PLAIN, zones=_MOONS)


_PLAIN = PodKind(pod_spec())
_MOONS = ("moon-1", "moon-2", "moon-3")
_BARE_SPEC = {"containers": [{"name": "pause", "image": "registry.k8s.io/pause:3.10.1"}]}


def _node_affinity(term: Json) -> Json:
    required = {"nodeSelectorTerms": [term]}
    return {
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    }


def _all() -> tuple[Kind, ...]:
    between, selected = _between_namespaces, _selected_namespaces
    in_zones = {"key": ZONE, "operator": "In", "values": ["zone1", "zone2"]}
    on_named = {"key": "metadata.name", "operator": "In", "values": [NAMED_NODE]}
    unschedulable = pod_spec("9", priority=10)
    app = {"app": "scheduler-perf"}
    secret = {"name": "secret", "secret": {"secretName": "secret"}}
    service = {
        "metadata": {"name": "service", "namespace": "service-ns"},
        "spec": {"selector": app, "ports": [{"protocol": "TCP", "port": 80, "targetPort": 8000}]},
    }
    return (
        Kind("basic", _PLAIN, 10_000, placed_pods=1_000),
        between(
            "anti-affinity", "podAntiAffinity", "green", HOSTNAME, pods=2_000, placed_pods=1_000
        ),
        Kind(
            "matching-anti-affinity",
            PodKind(pod_spec(), {"color": "green"}, "sched-1"),
            placed=between("", "podAntiAffinity", "green", HOSTNAME).measured,
            placed_namespaces=("sched-0",),
            placed_pods=1_000,
            namespaces={each: {} for each in _SCHEDULED_NAMESPACES},
        ),
        between("affinity", "podAffinity", "blue", ZONE, zones=("zone1",)),
        between("zone-affinity", "podAffinity", "blue", ZONE, zones=_MOONS),
        between("preferred-affinity", "podAffinity", "red", HOSTNAME, preferred=True),
        between("preferred-anti-affinity", "podAntiAffinity", "yellow", HOSTNAME, preferred=True),
        Kind(
            "node-affinity",
            PodKind(pod_spec(**_node_affinity({"matchExpressions": [in_zones]}))),
            10_000,
            zones=("zone1",),
        ),
        _spreading("spread", "DoNotSchedule"),
        _spreading("preferred-spread", "ScheduleAnyway"),
        Kind(
            "default-spread",
            PodKind(_BARE_SPEC, app, "service-ns"),
            10_000,
            placed=_PLAIN,
            zones=_MOONS,
            namespaces={"service-ns": {}},
            service=service,
        ),
        selected("ns-selector-anti-affinity", "podAntiAffinity", "green", HOSTNAME),
        selected(
            "ns-selector-affinity", "podAffinity", "blue", ZONE, zones=("zone1",), placed_pods=5_000
        ),
        selected(
            "ns-selector-preferred-affinity",
            "podAffinity",
            "red",
            HOSTNAME,
            preferred=True,
            placed_pods=5_000,
        ),
        selected(
            "ns-selector-preferred-anti-affinity",
            "podAntiAffinity",
            "green",
            HOSTNAME,
            preferred=True,
        ),
        Kind(
            "unschedulable", _PLAIN, 10_000, placed_pods=100, unschedulable=PodKind(unschedulable)
        ),
        Kind(
            "preemption",
            PodKind(pod_spec("3", priority=10)),
            placed_pods=20_000,
            one_per_node=True,
            placed=PodKind(pod_spec("900m", terminationGracePeriodSeconds=0)),
        ),
        Kind(
            "daemonset",
            PodKind({**_BARE_SPEC, **_node_affinity({"matchFields": [on_named]})}),
            30_000,
            placed_pods=0,
            named_node=True,
        ),
        Kind("secrets", PodKind(pod_spec(volumes=[secret])), 10_000, placed_pods=1_000),
    )


KINDS: Final = {kind.name: kind for kind in _all()}
"""By name, as in ``--kind``."""
