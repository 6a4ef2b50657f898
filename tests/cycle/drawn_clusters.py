"""Random clusters in which everything changes that a decision may depend on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from random import Random
from typing import Any

from asched.framework.status import Code
from asched.model.quantity import NS_PER_S
from asched.model.resources import AnyObject
from asched.state import records as r
from asched.state.cluster import ClusterState, PlacementState
from asched.state.observe import observe_deletion, observe_object
from tests.cycle.unrelated_events import made

ZONES = ("z0", "z1", "z2")
NAMESPACES = ("a", "b")
APPS = ("x", "y")
CLASSES = ("wait", "local", "now")
CLAIMS = tuple(f"c{i}" for i in range(4))
VOLUMES = tuple(f"v{i}" for i in range(5))
QUEUES = ("default", "q")
BATCH_GROUPS = ("j1", "j2", "j3")
BATCH = "batch"
"""The scheduler name of batch sessions."""

News = r.AnyRecord
Spec = dict[str, Any]


class DrawnCluster:
    """Random events as records that change a state.

    Templates of pods are few, so that most pods are like others; each may demand any of what the
    built-in plugins know.
    """

    def __init__(self, random: Random, schedulers: Sequence[str] = ("default-scheduler",)) -> None:
        self._random = random
        self._schedulers = schedulers
        self._numbered = 0
        # With many nodes, caches are updated in another way.
        self._node_count = random.randint(30, 150) if self._maybe(0.15) else random.randint(2, 10)
        # If no node does, an added or removed node invalidates less of the caches.
        self._report_images = self._maybe(0.5)
        self._templates = [self._template() for _ in range(random.randint(2, 7))]
        self._happenings: dict[Callable[[ClusterState], AnyObject | r.AnyRecord | None], int] = {
            self._node: 5,
            self._lost_node: 2,
            self._pod: 22,
            self._changed_pod: 5,
            self._lost_pod: 6,
            self._settled_binding: 14,
            self._eviction_outcome: 6,
            self._turn: 8,
            self._claim: 5,
            self._volume: 5,
            self._storage_class: 2,
            self._csi: 3,
            self._budget: 3,
            self._namespace: 3,
            self._workload: 2,
            self._group: 2,
            self._batch_object: 2,
            self._lost_object: 4,
        }

    def start(self) -> list[AnyObject]:
        """The initial objects."""
        return [
            *(self._a_node(number) for number in range(self._node_count)),
            *(self._a_namespace(name) for name in NAMESPACES),
            *(self._a_class(name) for name in CLASSES),
            *(self._a_claim(name, ns) for name in CLAIMS for ns in NAMESPACES),
            *(self._a_volume(name) for name in VOLUMES),
            *(self._a_queue(name) for name in QUEUES),
            *(self._a_batch_group(name, ns) for name in BATCH_GROUPS for ns in NAMESPACES),
        ]

    def step(self, state: ClusterState) -> r.AnyRecord | None:
        """The next record; None if nothing changed."""
        kinds = [*self._happenings]
        what = self._random.choices(kinds, [*self._happenings.values()])[0](state)
        if what is None or isinstance(what, r.Record):
            return what
        return observe_object(state, what)

    # -- drawing ------------------------------------------------------------------------------

    def _one(self, *choices: Any) -> Any:
        return self._random.choice(choices)

    def _maybe(self, chance: float) -> bool:
        return self._random.random() < chance

    def _number(self) -> int:
        self._numbered += 1
        return self._numbered

    # -- nodes --------------------------------------------------------------------------------

    def _a_node(self, number: int) -> AnyObject:
        name = f"n{number}"
        labels = {"kubernetes.io/hostname": name}
        if self._maybe(0.9):
            labels |= {"zone": self._one(*ZONES), "topology.kubernetes.io/zone": self._one(*ZONES)}
        if self._maybe(0.5):
            labels["disk"] = self._one("ssd", "hdd")
        taints = []
        if self._maybe(0.15):
            taints.append(
                {"key": "t", "value": self._one("1", "2"),
                 "effect": self._one("NoSchedule", "PreferNoSchedule", "NoExecute")}
            )  # fmt: skip
        offered = {
            "cpu": self._one("2", "4"), "memory": self._one("4Gi", "8Gi"),
            "pods": self._one("3", "110", "110"), "ephemeral-storage": "10Gi",
        }  # fmt: skip
        for resource in self._random.sample(("example.com/gpu", "example.com/nic"), 2):
            if self._maybe(0.3):
                offered[resource] = self._one("1", "2")
        images = []
        if self._report_images and self._maybe(0.4):
            images.append({"names": ["app:v1"], "sizeBytes": 300_000_000})
        spec: Spec = {"taints": taints}
        if self._maybe(0.05):
            spec["unschedulable"] = True
        status = {"allocatable": offered, "images": images}
        if self._maybe(0.3):
            status["declaredFeatures"] = ["UserNamespacesHostNetworkSupport"]
        return made("Node", name, labels=labels, spec=spec, status=status)

    def _node(self, state: ClusterState) -> AnyObject:
        return self._a_node(self._random.randrange(self._node_count))

    def _lost_node(self, state: ClusterState) -> r.AnyRecord | None:
        names = [name for name in state.nodes.names if name]
        if len(names) < 2:
            return None
        name = self._one(*names)
        return r.ObjectDeleted("Node", name)

    # -- pods ---------------------------------------------------------------------------------

    def _selector(self) -> dict[str, Any]:
        if self._maybe(0.3):
            values = [self._one(*APPS)]
            operator = self._one("In", "NotIn")
            return {"matchExpressions": [{"key": "app", "operator": operator, "values": values}]}
        return {"matchLabels": {"app": self._one(*APPS)}}

    def _term(self) -> dict[str, Any]:
        term: Spec = {
            "topologyKey": self._one("zone", "kubernetes.io/hostname"),
            "labelSelector": self._selector(),
        }
        if self._maybe(0.3):
            term["namespaces"] = [self._one(*NAMESPACES)]
        if self._maybe(0.3):
            term["namespaceSelector"] = self._one({}, {"matchLabels": {"team": "red"}})
        if self._maybe(0.2):
            term[self._one("matchLabelKeys", "mismatchLabelKeys")] = ["version"]
        return term

    def _pod_terms(self) -> dict[str, Any]:
        if self._maybe(0.5):
            return {"requiredDuringSchedulingIgnoredDuringExecution": [self._term()]}
        weighted = {"weight": self._one(1, 50), "podAffinityTerm": self._term()}
        return {"preferredDuringSchedulingIgnoredDuringExecution": [weighted]}

    def _node_terms(self) -> dict[str, Any]:
        values = [self._one("ssd", "hdd")]
        term = {"matchExpressions": [{"key": "disk", "operator": "In", "values": values}]}
        if self._maybe(0.3):
            host = f"n{self._random.randrange(4)}"
            term["matchFields"] = [{"key": "metadata.name", "operator": "In", "values": [host]}]
        if self._maybe(0.5):
            required = {"nodeSelectorTerms": [term]}
            return {"requiredDuringSchedulingIgnoredDuringExecution": required}
        preferred = [{"weight": 10, "preference": term}]
        return {"preferredDuringSchedulingIgnoredDuringExecution": preferred}

    def _affinity(self) -> dict[str, Any]:
        found: Spec = {}
        if self._maybe(0.3):
            found["nodeAffinity"] = self._node_terms()
        if self._maybe(0.4):
            found["podAffinity"] = self._pod_terms()
        if self._maybe(0.4):
            found["podAntiAffinity"] = self._pod_terms()
        return found

    def _spreading(self) -> dict[str, Any]:
        hard = self._maybe(0.5)
        found: Spec = {
            "maxSkew": self._one(1, 2),
            "topologyKey": self._one("zone", "kubernetes.io/hostname"),
            "whenUnsatisfiable": "DoNotSchedule" if hard else "ScheduleAnyway",
            "labelSelector": self._selector(),
        }
        if hard and self._maybe(0.3):
            found["minDomains"] = self._one(1, 3)
        if self._maybe(0.3):
            found["nodeAffinityPolicy"] = self._one("Honor", "Ignore")
        if self._maybe(0.3):
            found["nodeTaintsPolicy"] = self._one("Honor", "Ignore")
        if self._maybe(0.3):
            found["matchLabelKeys"] = ["version"]
        return found

    def _volumes(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for name in self._random.sample(CLAIMS, self._one(1, 1, 2)):
            found += [{"name": name, "persistentVolumeClaim": {"claimName": name}}]
        if self._maybe(0.3):
            disk = {"pdName": self._one("d1", "d2"), "readOnly": self._maybe(0.5)}
            found.append({"name": "disk", "gcePersistentDisk": disk})
        if self._maybe(0.2):
            found.append({"name": "inline", "csi": {"driver": "csi.example.com"}})
        return found

    def _container(self) -> dict[str, Any]:
        asked = {"cpu": self._one("100m", "500m", "1", "2"), "memory": self._one("64Mi", "1Gi")}
        if self._maybe(0.15):
            asked[self._one("example.com/gpu", "example.com/nic")] = "1"
        if self._maybe(0.1):
            asked = {}
        ports = []
        if self._maybe(0.2):
            port = self._one(80, 81)
            ports.append(
                {"containerPort": port, "hostPort": port, "protocol": self._one("TCP", "UDP"),
                 "hostIP": self._one("", "127.0.0.1", "10.0.0.1")}
            )  # fmt: skip
        return {
            "name": "c", "image": self._one("app", "app:v1", "other:v2"),
            "resources": {"requests": asked}, "ports": ports,
        }  # fmt: skip

    def _template(self) -> dict[str, Any]:
        """Metadata and specification of identical pods."""
        spec: Spec = {
            "containers": [self._container()],
            "priority": self._one(0, 0, 5, 10),
            "schedulerName": self._one(*self._schedulers),
        }
        if self._maybe(0.15):
            spec["initContainers"] = [
                {**self._container(), "name": "i", "restartPolicy": self._one("", "Always")}
            ]
        if self._maybe(0.1):
            spec["overhead"] = {"cpu": "250m"}
        if self._maybe(0.1):
            spec["resources"] = {"requests": {"cpu": "1"}}
        if self._maybe(0.4):
            spec["affinity"] = self._affinity()
        if self._maybe(0.3):
            spec["topologySpreadConstraints"] = [self._spreading() for _ in range(self._one(1, 2))]
        if self._maybe(0.35):
            spec["volumes"] = self._volumes()
        if self._maybe(0.2):
            spec["nodeSelector"] = {"disk": self._one("ssd", "hdd")}
        if self._maybe(0.2):
            spec["tolerations"] = [
                self._one(
                    {"key": "t", "operator": "Exists"},
                    {"key": "t", "operator": "Equal", "value": "1", "effect": "NoSchedule"},
                    {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 10},
                )
            ]
        if self._maybe(0.1):
            spec["preemptionPolicy"] = "Never"
        if self._maybe(0.05):
            spec["schedulingGates"] = [{"name": "g"}]
        if self._maybe(0.02):
            spec["resourceClaims"] = [{"name": self._one("r1", "r2"), "resourceClaimName": "rc"}]
        if self._maybe(0.05):
            spec |= {"hostNetwork": True, "hostUsers": False}
        if self._maybe(0.2):
            spec["schedulingGroup"] = {"podGroupName": self._one("g1", "g2")}
        labels = {"app": self._one(*APPS), "version": self._one("1", "2")}
        owners = []
        if self._maybe(0.4):
            owners.append(
                {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "rs", "uid": "rs",
                 "controller": True}
            )  # fmt: skip
        annotations = {}
        if spec["schedulerName"] == BATCH:
            annotations["scheduling.k8s.io/group-name"] = self._one(*BATCH_GROUPS)
        return {
            "labels": labels, "annotations": annotations, "ownerReferences": owners, "spec": spec,
        }  # fmt: skip

    def _pod(self, state: ClusterState) -> AnyObject:
        template = self._one(*self._templates)
        if self._maybe(0.05):
            self._templates[self._random.randrange(len(self._templates))] = self._template()
        name = f"p{self._number()}"
        if self._maybe(0.06):
            node = f"n{self._random.randrange(self._node_count)}"
            template = {**template, "spec": {**template["spec"], "nodeName": node}}
        return made("Pod", name, self._one(*NAMESPACES), **template)

    def _some_pod(self, state: ClusterState) -> Any:
        return self._one(*state.pods.values()) if state.pods else None

    def _changed_pod(self, state: ClusterState) -> r.AnyRecord | None:
        entry = self._some_pod(state)
        if entry is None:
            return None
        pod = entry.info.pod
        labels, ends = pod.metadata.labels, pod.metadata.deletion_timestamp
        nominated, phase = pod.status.nominated_node_name, pod.status.phase
        match self._random.randrange(5):
            case 0:
                labels = {**labels, "app": self._one(*APPS)}
            case 1:
                labels = {**labels, "version": self._one("1", "2")}
            case 2:
                nominated = state.nominator.node_of(entry.info.key)
            case 3:
                ends = datetime(2026, 1, 2, tzinfo=UTC)
            case 4 if pod.spec.node_name:
                phase = self._one("Running", "Succeeded")
        return r.PodUpdated(
            entry.info.key, entry.info.uid, labels=labels, node_name=pod.spec.node_name,
            phase=phase, conditions=pod.status.conditions, nominated_node_name=nominated,
            deletion_timestamp=ends, start_time=pod.status.start_time,
        )  # fmt: skip

    def _lost_pod(self, state: ClusterState) -> r.AnyRecord | None:
        entry = self._some_pod(state)
        return None if entry is None else observe_deletion(state, entry.info.pod)

    def _settled_binding(self, state: ClusterState) -> r.AnyRecord | None:
        """The result of a binding."""
        due = [
            e for key, e in state.pods.items()
            if e.placement_state is PlacementState.ASSUMED and key not in state.waiting
        ]  # fmt: skip
        if not due:
            return None
        entry = self._one(*due)
        ref = entry.info.key, entry.info.uid, entry.node
        if self._maybe(0.7):
            return r.Bound(*ref)
        code = self._one(Code.ERROR, Code.UNSCHEDULABLE, Code.PENDING)
        return r.BindFailed(*ref, code, self._one("VolumeBinding", "DefaultBinder"), "no")

    def _eviction_outcome(self, state: ClusterState) -> r.AnyRecord | None:
        if not state.evictions:
            return None
        victim = self._one(*state.evictions.values()).victim
        match self._random.randrange(3):
            case 0:
                return r.EvictionSucceeded(victim.key, victim.uid, unplaced=self._maybe(0.3))
            case 1 if self._maybe(0.3):
                return r.EvictionFailed(victim.key, victim.uid, "no")
        return r.ObjectDeleted("Pod", victim.key, victim.uid)

    def _turn(self, state: ClusterState) -> r.AnyRecord:
        return r.TurnStarted(state.now_ns + round(self._one(0.1, 1, 2, 11, 301) * NS_PER_S))

    # -- volumes ------------------------------------------------------------------------------

    def _claim(self, state: ClusterState) -> AnyObject:
        return self._a_claim(self._one(*CLAIMS), self._one(*NAMESPACES))

    def _a_claim(self, name: str, namespace: str) -> AnyObject:
        storage_class = self._one("wait", "wait", *CLASSES)
        annotations = {}
        spec: Spec = {
            "accessModes": [self._one("ReadWriteOnce", "ReadWriteOncePod", "ReadWriteMany")],
            "resources": {"requests": {"storage": self._one("1Gi", "2Gi")}},
            "storageClassName": storage_class,
        }
        if self._maybe(0.4):
            spec["volumeName"] = self._one(*VOLUMES)
            annotations["pv.kubernetes.io/bind-completed"] = "yes"
        elif self._maybe(0.2):
            node = f"n{self._random.randrange(4)}"
            annotations["volume.kubernetes.io/selected-node"] = node
        status = {"phase": "Bound" if "volumeName" in spec else "Pending"}
        uid = f"claim-{name}-{self._one(1, 2)}"
        return made(
            "PersistentVolumeClaim", name, namespace,
            uid=uid, annotations=annotations, spec=spec, status=status,
        )  # fmt: skip

    def _volume(self, state: ClusterState) -> AnyObject:
        return self._a_volume(self._one(*VOLUMES))

    def _a_volume(self, name: str) -> AnyObject:
        spec: Spec = {
            "accessModes": ["ReadWriteOnce", "ReadWriteMany"],
            "capacity": {"storage": self._one("1Gi", "2Gi", "4Gi")},
            "storageClassName": self._one(*CLASSES),
        }
        if self._maybe(0.5):
            hosts = [f"n{i}" for i in self._random.sample(range(6), 2)]
            rule = {"key": "kubernetes.io/hostname", "operator": "In", "values": hosts}
            term = {"matchExpressions": [rule]}
            spec["nodeAffinity"] = {"required": {"nodeSelectorTerms": [term]}}
        if self._maybe(0.3):
            spec["csi"] = {"driver": "csi.example.com", "volumeHandle": name}
        if self._maybe(0.2):
            reference = {"namespace": self._one(*NAMESPACES), "name": self._one(*CLAIMS)}
            spec["claimRef"] = reference
        labels = {"topology.kubernetes.io/zone": self._one(*ZONES)} if self._maybe(0.4) else {}
        phase = "Bound" if "claimRef" in spec else "Available"
        return made("PersistentVolume", name, labels=labels, spec=spec, status={"phase": phase})

    def _a_class(self, name: str) -> AnyObject:
        mode = "Immediate" if name == "now" else "WaitForFirstConsumer"
        provisioner = "kubernetes.io/no-provisioner" if name == "local" else "csi.example.com"
        fields: Spec = {"volumeBindingMode": mode, "provisioner": provisioner}
        if self._maybe(0.3):
            rule = {"key": "zone", "values": [self._one(*ZONES)]}
            fields["allowedTopologies"] = [{"matchLabelExpressions": [rule]}]
        return made("StorageClass", name, **fields)

    def _storage_class(self, state: ClusterState) -> AnyObject:
        return self._a_class(self._one(*CLASSES))

    def _csi(self, state: ClusterState) -> AnyObject:
        match self._random.randrange(4):
            case 0:
                limit = {"count": self._one(0, 1, 2)}
                driver = {"name": "csi.example.com", "nodeID": "i", "allocatable": limit}
                name = f"n{self._random.randrange(self._node_count)}"
                return made("CSINode", name, spec={"drivers": [driver]})
            case 1:
                counts = {"storageCapacity": self._maybe(0.5)}
                return made("CSIDriver", "csi.example.com", spec=counts)
            case 2:
                topology = {"matchLabels": {"zone": self._one(*ZONES)}}
                return made(
                    "CSIStorageCapacity", self._one("k1", "k2"), "a", storageClassName="wait",
                    nodeTopology=topology, capacity=self._one("1Gi", "4Gi"),
                )  # fmt: skip
        attached = {
            "attacher": "csi.example.com", "nodeName": f"n{self._random.randrange(4)}",
            "source": {"persistentVolumeName": f"v{self._random.randrange(5)}"},
        }  # fmt: skip
        return made("VolumeAttachment", self._one("a1", "a2"), spec=attached)

    # -- the rest -----------------------------------------------------------------------------

    def _budget(self, state: ClusterState) -> AnyObject:
        return made(
            "PodDisruptionBudget", self._one("b1", "b2"), self._one(*NAMESPACES),
            spec={"selector": self._selector()},
            status={"disruptionsAllowed": self._one(0, 1)},
        )  # fmt: skip

    def _a_namespace(self, name: str) -> AnyObject:
        return made("Namespace", name, labels={"team": self._one("red", "blue")})

    def _namespace(self, state: ClusterState) -> AnyObject:
        return self._a_namespace(self._one(*NAMESPACES))

    def _workload(self, state: ClusterState) -> AnyObject:
        namespace = self._one(*NAMESPACES)
        if self._maybe(0.5):
            return made("ReplicaSet", "rs", namespace, spec={"selector": self._selector()})
        return made("Service", "s", namespace, spec={"selector": {"app": self._one(*APPS)}})

    def _group(self, state: ClusterState) -> AnyObject:
        name, namespace = self._one("g1", "g2"), self._one(*NAMESPACES)
        gang = {"gang": {"minCount": self._one(1, 2, 3)}}
        return made("PodGroup", name, namespace, spec={"schedulingPolicy": gang})

    def _a_queue(self, name: str) -> AnyObject:
        return made("IncubatorQueue", name, spec={"weight": self._one(1, 2)})

    def _a_batch_group(self, name: str, namespace: str) -> AnyObject:
        spec = {"minMember": self._one(1, 2, 3), "queue": self._one(*QUEUES)}
        return made("IncubatorPodGroup", name, namespace, spec=spec)

    def _batch_object(self, state: ClusterState) -> AnyObject:
        if self._maybe(0.2):
            return self._a_queue(self._one(*QUEUES))
        return self._a_batch_group(self._one(*BATCH_GROUPS), self._one(*NAMESPACES))

    def _lost_object(self, state: ClusterState) -> r.AnyRecord | None:
        kinds = sorted(
            (k for k, kept in state.object_store.by_kind.items() if kept and k.__name__ != "Node"),
            key=lambda kind: kind.__name__,
        )
        if not kinds:
            return None
        kind = self._one(*kinds)
        item = self._one(*state.object_store.by_kind[kind].values())
        return observe_deletion(state, item)
