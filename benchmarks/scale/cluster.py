"""The objects of a large cluster as JSON, generated when they are read.

Pods are as kubelets of 1.36 report them: a token volume, tolerations, managed fields, conditions,
and container statuses with allocated resources. A hundred pods have one template.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final

PODS_PER_TEMPLATE: Final = 100
_TEMPLATES_PER_NAMESPACE: Final = 50
_ZONES: Final = 10
_CREATED: Final = "2026-01-01T00:00:00Z"
_IMAGE: Final = "registry.example/team/service-{}@sha256:" + 64 * "0"

Json = dict[str, Any]


class GeneratedCluster:
    """Nodes and pods by number. Pods beyond ``pods`` are pending until they are bound."""

    def __init__(self, nodes: int, pods: int) -> None:
        self.nodes = nodes
        self.pods = pods
        self._node_template = _Template(_node())
        self._pod_templates: dict[bool, tuple[int, _Template]] = {}
        """The last one that was used, of bound and of pending pods."""

    def node(self, number: int) -> bytes:
        zone = f"zone-{number % _ZONES}"
        return self._node_template.filled({"number": f"{number}", "zone": zone, "version": "2"})

    def pod(self, number: int, node: str, version: int) -> bytes:
        """A pod on a node, or a pending one without ``node``."""
        number_of_template, bound = number // PODS_PER_TEMPLATE, bool(node)
        known, template = self._pod_templates.get(bound, (-1, None))
        if template is None or known != number_of_template:
            template = _Template(_pod(number_of_template, bound=bound))
            self._pod_templates[bound] = number_of_template, template
        return template.filled(
            {
                "number": f"{number}",
                "uid": f"{number:08x}-5f3c-4d2a-9b61-{number_of_template:012x}",
                "node": node,
                "version": f"{version}",
                "ip": f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}",
            }
        )

    def node_of(self, pod: int) -> str:
        """The node of a pod that is bound from the start."""
        return f"node-{pod % self.nodes}"

    @staticmethod
    def pod_key(number: int) -> tuple[str, str]:
        """Namespace and name."""
        template = number // PODS_PER_TEMPLATE
        return f"team-{template // _TEMPLATES_PER_NAMESPACE}", f"service-{template}-{number}"

    def namespaces(self, pods: int) -> Iterator[bytes]:
        """Those of the first ``pods`` pods."""
        for number in range(0, pods, PODS_PER_TEMPLATE * _TEMPLATES_PER_NAMESPACE):
            names = {"name": self.pod_key(number)[0], "uid": f"ns-{number}"}
            yield json.dumps({"metadata": names}).encode()


class _Template:
    """JSON with fields that are written as ``<name>``.

    Filling it copies the text once: the processor that the server needs lacks to the scheduler.
    """

    def __init__(self, value: Json) -> None:
        parts = _FIELD.split(json.dumps(value, separators=(",", ":")))
        self._parts = [part.encode() for part in parts]
        self._fields = [*enumerate(parts)][1::2]

    def filled(self, values: dict[str, str]) -> bytes:
        encoded = {name: value.encode() for name, value in values.items()}
        parts = self._parts
        for index, name in self._fields:
            parts[index] = encoded[name]
        return b"".join(parts)


_FIELD: Final = re.compile("<(number|uid|node|version|ip|zone)>")


def _node() -> Json:
    amounts = {"cpu": "16", "memory": "65536Mi", "pods": "110", "ephemeral-storage": "100Gi"}
    return {
        "metadata": {
            "name": "node-<number>",
            "uid": "node-<number>",
            "resourceVersion": "<version>",
            "creationTimestamp": _CREATED,
            "labels": {
                "kubernetes.io/hostname": "node-<number>",
                "kubernetes.io/arch": "amd64",
                "kubernetes.io/os": "linux",
                "node.kubernetes.io/instance-type": "m.large",
                "topology.kubernetes.io/region": "region-1",
                "topology.kubernetes.io/zone": "<zone>",
            },
            "managedFields": _managed("kubelet"),
        },
        "spec": {"podCIDR": "10.0.0.0/24", "providerID": "cloud:///node-<number>"},
        "status": {
            "capacity": amounts,
            "allocatable": amounts,
            "conditions": [
                _condition(kind, "True" if kind == "Ready" else "False")
                for kind in ("MemoryPressure", "DiskPressure", "PIDPressure", "Ready")
            ],
            "addresses": [{"type": "Hostname", "address": "node-<number>"}],
            "nodeInfo": {"kubeletVersion": "v1.36.2", "osImage": "Linux", "architecture": "amd64"},
            "images": [{"names": [_IMAGE.format(n)], "sizeBytes": 50_000_000} for n in range(5)],
        },
    }


def _pod(template: int, *, bound: bool) -> Json:
    namespace, name = GeneratedCluster.pod_key(template * PODS_PER_TEMPLATE)
    name = name.rpartition("-")[0]
    requests = {"cpu": f"{100 + template % 7}m", "memory": "128Mi"}
    pod: Json = {
        "metadata": {
            "name": f"{name}-<number>",
            "generateName": f"{name}-",
            "namespace": namespace,
            "uid": "<uid>",
            "resourceVersion": "<version>",
            "creationTimestamp": _CREATED,
            "labels": {"app": name, "pod-template-hash": f"{template:08x}", "tier": "backend"},
            "annotations": {"example.com/config-checksum": 32 * "0"},
            "ownerReferences": [_owner(name, template)],
            "managedFields": _managed("kube-controller-manager") + _managed("kubelet"),
        },
        "spec": {
            "schedulerName": "default-scheduler",
            "priority": 0,
            "preemptionPolicy": "PreemptLowerPriority",
            "enableServiceLinks": True,
            "dnsPolicy": "ClusterFirst",
            "restartPolicy": "Always",
            "securityContext": {},
            "serviceAccountName": "default",
            "terminationGracePeriodSeconds": 30,
            "containers": [_container(template, requests)],
            "tolerations": [
                {"key": f"node.kubernetes.io/{key}", "operator": "Exists", "effect": "NoExecute"}
                | {"tolerationSeconds": 300}
                for key in ("not-ready", "unreachable")
            ],
            "volumes": [{"name": "kube-api-access-<uid>", "projected": {"defaultMode": 420}}],
        },
        "status": {"phase": "Pending", "qosClass": "Burstable"},
    }
    if bound:
        pod["spec"]["nodeName"] = "<node>"
        pod["status"] |= _running(template, requests)
    return pod


def _owner(name: str, template: int) -> Json:
    return {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "name": name,
        "uid": f"rs-{template}",
        "controller": True,
        "blockOwnerDeletion": True,
    }


def _container(template: int, requests: Json) -> Json:
    return {
        "name": "main",
        "image": _IMAGE.format(template % 5),
        "imagePullPolicy": "IfNotPresent",
        "env": [{"name": f"SETTING_{n}", "value": "value"} for n in range(4)],
        "ports": [{"containerPort": 8080, "protocol": "TCP"}],
        "resources": {"requests": requests, "limits": {"memory": "256Mi"}},
        "volumeMounts": [{"name": "kube-api-access-<uid>", "readOnly": True, "mountPath": "/var"}],
        "livenessProbe": {"httpGet": {"path": "/healthz", "port": 8080}, "periodSeconds": 10},
    }


def _running(template: int, requests: Json) -> Json:
    kinds = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")
    return {
        "phase": "Running",
        "hostIP": "10.0.0.1",
        "podIP": "<ip>",
        "podIPs": [{"ip": "<ip>"}],
        "startTime": _CREATED,
        "conditions": [_condition(kind, "True") for kind in kinds],
        "containerStatuses": [
            {
                "name": "main",
                "ready": True,
                "started": True,
                "restartCount": 0,
                "image": _IMAGE.format(template % 5),
                "imageID": _IMAGE.format(template % 5),
                "containerID": "containerd://<uid>",
                "state": {"running": {"startedAt": _CREATED}},
                "allocatedResources": requests,
                "resources": {"requests": requests, "limits": {"memory": "256Mi"}},
            }
        ],
    }


def _condition(kind: str, status: str) -> Json:
    return {"type": kind, "status": status, "lastTransitionTime": _CREATED, "lastProbeTime": None}


def _managed(manager: str) -> list[Json]:
    fields: Json = {f"f:field-{n}": {"f:value": {}, ".": {}} for n in range(12)}
    return [
        {
            "manager": manager,
            "operation": "Update",
            "apiVersion": "v1",
            "time": _CREATED,
            "fieldsType": "FieldsV1",
            "fieldsV1": {"f:metadata": fields, "f:spec": fields},
        }
    ]
