"""One realistic object of each watched resource, as the API server sends it."""

from __future__ import annotations

from typing import Any

from asched.model.resources import GroupResource, Resource, WatchedResource

BEGAN = "2026-01-31T12:00:00Z"
SELECTOR = {
    "matchLabels": {"app": "hostile"},
    "matchExpressions": [{"key": "tier", "operator": "NotIn", "values": ["x"]}],
}


def meta(name: str, **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "namespace": "hostile",
        "uid": f"uid-{name}",
        "resourceVersion": "5",
        "labels": {"app": "hostile"},
        "creationTimestamp": BEGAN,
        "ownerReferences": [{"kind": "ReplicaSet", "name": "o", "uid": "u", "controller": True}],
        "managedFields": [{"fieldsV1": {"f:spec": {}}}],
        **more,
    }


def hostile_pod() -> dict[str, Any]:
    term = {"labelSelector": SELECTOR, "topologyKey": "zone"}
    requirement = {"key": "zone", "operator": "Gt", "values": ["3"]}
    spread = {
        "maxSkew": 1,
        "topologyKey": "zone",
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": SELECTOR,
        "minDomains": 2,
        "nodeAffinityPolicy": "Honor",
        "matchLabelKeys": ["app"],
    }
    container = {
        "name": "c",
        "image": "i:1",
        "resources": {"requests": {"cpu": "10m", "memory": "1Mi", "x.com/y": 1}},
        "ports": [{"hostPort": 80, "containerPort": 80, "protocol": "TCP", "hostIP": "0.0.0.0"}],
    }
    spec = {
        "schedulerName": "default-scheduler",
        "priority": 5,
        "containers": [container],
        "initContainers": [{**container, "restartPolicy": "Always"}],
        "overhead": {"cpu": "1m"},
        "nodeSelector": {"zone": "4"},
        "tolerations": [{"key": "t", "operator": "Exists", "effect": "NoSchedule"}],
        "topologySpreadConstraints": [spread],
        "schedulingGates": [],
        "preemptionPolicy": "Never",
        "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "claim"}}],
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [{"matchExpressions": [requirement]}]
                },
                "preferredDuringSchedulingIgnoredDuringExecution": [
                    {"weight": 3, "preference": {"matchExpressions": [requirement]}}
                ],
            },
            "podAntiAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": [term],
                "preferredDuringSchedulingIgnoredDuringExecution": [
                    {"weight": 3, "podAffinityTerm": term}
                ],
            },
            "podAffinity": {
                "preferredDuringSchedulingIgnoredDuringExecution": [
                    {"weight": 3, "podAffinityTerm": term}
                ]
            },
        },
    }
    status = {
        "phase": "Pending",
        "startTime": BEGAN,
        "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}],
        "containerStatuses": [
            {
                "name": "c",
                "resources": {"requests": {"cpu": "11m"}},
                "allocatedResources": {"cpu": "11m"},
            }
        ],
        "nominatedNodeName": "n1",
    }
    return {"metadata": meta("pod"), "spec": spec, "status": status}


def hostile_node() -> dict[str, Any]:
    return {
        "metadata": meta("node", namespace="", labels={"zone": "4"}),
        "spec": {"taints": [{"key": "t", "effect": "NoSchedule"}], "unschedulable": False},
        "status": {
            "allocatable": {"cpu": "4", "memory": "8Gi", "pods": "110", "x.com/y": "3"},
            "conditions": [{"type": "Ready", "status": "True"}],
            "images": [{"names": ["i:1"], "sizeBytes": 12345}],
            "declaredFeatures": ["f"],
        },
    }


def _volumes() -> dict[WatchedResource, dict[str, Any]]:
    volume_affinity: dict[str, Any] = {
        "required": {"nodeSelectorTerms": [{"matchExpressions": []}]}
    }
    return {
        Resource.STORAGE_CLASSES: {
            "metadata": meta("fast", namespace=""),
            "provisioner": "p",
            "volumeBindingMode": "WaitForFirstConsumer",
            "allowedTopologies": [{"matchLabelExpressions": [{"key": "zone", "values": ["4"]}]}],
        },
        Resource.CSI_NODES: {
            "metadata": meta("node", namespace=""),
            "spec": {"drivers": [{"name": "p", "nodeID": "i", "allocatable": {"count": 3}}]},
        },
        Resource.CSI_DRIVERS: {
            "metadata": meta("p", namespace=""),
            "spec": {"storageCapacity": True, "attachRequired": True},
        },
        Resource.CSI_STORAGE_CAPACITIES: {
            "metadata": meta("room"),
            "storageClassName": "fast",
            "capacity": "10Gi",
            "maximumVolumeSize": "1Gi",
            "nodeTopology": SELECTOR,
        },
        Resource.VOLUME_ATTACHMENTS: {
            "metadata": meta("attached", namespace=""),
            "spec": {"attacher": "p", "nodeName": "n1", "source": {"persistentVolumeName": "v"}},
        },
        Resource.PERSISTENT_VOLUMES: {
            "metadata": meta("v", namespace=""),
            "spec": {
                "capacity": {"storage": "1Gi"},
                "accessModes": ["ReadWriteOnce"],
                "storageClassName": "fast",
                "claimRef": {"namespace": "hostile", "name": "claim", "uid": "uid-claim"},
                "nodeAffinity": volume_affinity,
                "csi": {"driver": "p", "volumeHandle": "h"},
            },
            "status": {"phase": "Bound"},
        },
        Resource.PERSISTENT_VOLUME_CLAIMS: {
            "metadata": meta("claim", annotations={"pv.kubernetes.io/bind-completed": "yes"}),
            "spec": {
                "volumeName": "v",
                "storageClassName": "fast",
                "accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": "1Gi"}},
                "selector": SELECTOR,
            },
            "status": {"phase": "Bound"},
        },
    }


def _workloads() -> dict[WatchedResource, dict[str, Any]]:
    template = {"metadata": {"labels": {"app": "hostile"}, "creationTimestamp": None}}
    return {
        Resource.NAMESPACES: {"metadata": meta("hostile", namespace="")},
        Resource.PRIORITY_CLASSES: {
            "metadata": meta("high", namespace=""),
            "value": 1000,
            "globalDefault": False,
            "preemptionPolicy": "Never",
        },
        Resource.SERVICES: {"metadata": meta("s"), "spec": {"selector": {"app": "hostile"}}},
        Resource.REPLICATION_CONTROLLERS: {
            "metadata": meta("rc"),
            "spec": {"selector": {"app": "hostile"}, "template": template},
        },
        Resource.REPLICA_SETS: {
            "metadata": meta("rs"),
            "spec": {"selector": SELECTOR, "template": template},
        },
        Resource.STATEFUL_SETS: {
            "metadata": meta("ss"),
            "spec": {"selector": SELECTOR, "template": template},
        },
        Resource.POD_DISRUPTION_BUDGETS: {
            "metadata": meta("pdb"),
            "spec": {"selector": SELECTOR, "minAvailable": "50%"},
            "status": {"disruptionsAllowed": 1, "disruptedPods": {"pod": BEGAN}},
        },
    }


def _groups() -> dict[WatchedResource, dict[str, Any]]:
    spec = {
        "minMember": 2,
        "queue": "q",
        "priorityClassName": "high",
        "minResources": {"cpu": "1"},
        "schedulingPolicy": {"gang": {"minCount": 2}},
        "weight": 2,
        "capability": {"cpu": "9"},
        "podGroups": [{"name": "g", "policy": {"gang": {"minCount": 2}}}],
    }
    status = {"phase": "Pending", "running": 1, "conditions": [{"type": "Unschedulable"}]}
    return {
        resource: {
            "metadata": meta("q" if resource.kind == "Queue" else "g"),
            "spec": spec,
            "status": status,
        }
        for resource in GroupResource
    }


def examples() -> dict[WatchedResource, dict[str, Any]]:
    """The example of each resource, in the order of listing with pods last."""
    return {
        **_workloads(),
        Resource.NODES: hostile_node(),
        **_volumes(),
        **_groups(),
        Resource.PODS: hostile_pod(),
    }
