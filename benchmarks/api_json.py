"""Objects of a workload as JSON that an API server would send, with defaults applied.

The embedded cluster creates one object of each kind, and text replacement makes the copies. So a
measurement of the engine reads the same bytes as from a watch, without a server.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from asched.apiserver.cluster import EmbeddedCluster
from asched.framework.cluster import PodRef
from benchmarks.kinds import HOSTNAME, NAMED_NODE, ZONE, Json, Kind, PodKind

_NAME, _UID, _NODE, _MESSAGE = "@name@", "@uid@", "@node@", "@message@"
_NAMESPACE, _MEMORY = "@namespace@", "@memory@"


class PodJson:
    """Pods of one template: pending, bound and rejected."""

    def __init__(self, kind: PodKind) -> None:
        self.namespace = kind.namespace
        obj = _as_stored(kind)
        self._pending = _text(obj)
        obj["spec"]["nodeName"] = _NODE
        obj["status"]["conditions"] = [_condition("True")]
        self._bound = _text(obj)
        del obj["spec"]["nodeName"]
        rejected = {**_condition("False"), "reason": "Unschedulable", "message": _MESSAGE}
        obj["status"]["conditions"] = [rejected]
        obj["status"]["nominatedNodeName"] = _NODE
        self._rejected = _text(obj)

    def pending(self, pod: Pod) -> bytes:
        return self._of(self._pending, pod).encode()

    def bound(self, pod: Pod, node: str) -> bytes:
        return self._of(self._bound, pod).replace(_NODE, node).encode()

    def rejected(self, pod: Pod, message: str, nominated_node: str) -> bytes:
        text = self._of(self._rejected, pod).replace(_NODE, nominated_node)
        return text.replace(_MESSAGE, json.dumps(message)[1:-1]).encode()

    def _of(self, text: str, pod: Pod) -> str:
        namespace, _, name = pod.ref.key.partition("/")
        text = text.replace(_NAME, name).replace(_UID, pod.ref.uid).replace(_NAMESPACE, namespace)
        return text.replace(_MEMORY, f"{500 * 1024 + pod.shape}Ki")


class Pod(NamedTuple):
    """A pod of the workload."""

    text: PodJson
    ref: PodRef
    """Its key and uid."""
    shape: int = 0
    """Pods with the same template and number differ only in name and uid."""

    @property
    def pending(self) -> bytes:
        return self.text.pending(self)


def pods(
    kind: PodKind, count: int, *, prefix: str, namespaces: tuple[str, ...] = (), shapes: int = 1
) -> Iterator[Pod]:
    """``count`` pods of ``shapes`` different sizes, in ``namespaces`` round-robin."""
    text, places = PodJson(kind), namespaces or (kind.namespace,)
    for number in range(count):
        name = f"{prefix}-{number:06d}"
        key = f"{places[number % len(places)]}/{name}"
        yield Pod(text, PodRef(key, f"uid-{name}"), number % shapes)


def nodes(kind: Kind, count: int) -> Iterator[bytes]:
    """``count`` nodes with 4 cores, after :data:`NAMED_NODE` if the workload uses it."""
    cluster = EmbeddedCluster()
    if kind.named_node:
        yield _text(cluster.create("nodes", _node(NAMED_NODE, "90000", ""))).encode()
    zones = kind.zones or ("",)
    texts = []
    for zone in zones:
        placeholder = f"placeholder-{zone or 'none'}"
        created = cluster.create("nodes", _node(placeholder, "110", zone))
        created["metadata"]["uid"] = _UID
        texts.append(_text(created).replace(placeholder, _NAME))
    for number in range(count):
        name = f"scheduler-perf-{number:05d}"
        yield texts[number % len(texts)].replace(_NAME, name).replace(_UID, f"u-{name}").encode()


def other_objects(kind: Kind) -> Iterator[tuple[str, bytes]]:
    """Namespaces and services, each with the plural of its resource."""
    cluster = EmbeddedCluster()
    for name, labels in kind.namespaces.items():
        created = cluster.create("namespaces", {"metadata": {"name": name, "labels": labels}})
        yield "namespaces", _text(created).encode()
    if kind.service is not None:
        yield "services", _text(cluster.create("services", kind.service)).encode()


def _node(name: str, max_pods: str, zone: str) -> Json:
    labels = {HOSTNAME: name, **({ZONE: zone} if zone else {})}
    capacity = {"pods": max_pods, "cpu": "4", "memory": "32Gi"}
    ready = {"type": "Ready", "status": "True"}
    return {
        "metadata": {"name": name, "labels": labels},
        "status": {"capacity": capacity, "allocatable": capacity, "conditions": [ready]},
    }


def _condition(status: str) -> Json:
    return {"type": "PodScheduled", "status": status, "lastTransitionTime": "2026-01-01T00:00:00Z"}


def _as_stored(kind: PodKind) -> Json:
    """A pod of the template as the API server stores it, with placeholders."""
    cluster = EmbeddedCluster()
    if kind.namespace != "default":
        cluster.create("namespaces", {"metadata": {"name": kind.namespace}})
    spec = dict(kind.spec)
    priority = spec.pop("priority", None)
    if priority is not None:
        # An API server accepts a priority only through a PriorityClass.
        cluster.create("priorityclasses", {"metadata": {"name": "given"}, "value": priority})
        spec["priorityClassName"] = "given"
    obj = {"metadata": {"name": "pod", "labels": kind.labels}, "spec": spec}
    stored = cluster.create("pods", obj, namespace=kind.namespace)
    stored["metadata"] |= {"name": _NAME, "uid": _UID, "namespace": _NAMESPACE}
    requests = stored["spec"]["containers"][0]["resources"].get("requests")
    if requests is not None:
        requests["memory"] = _MEMORY
    return stored


def _text(obj: Json) -> str:
    return msgspec.json.encode(obj).decode()
