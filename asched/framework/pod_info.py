"""Pods with what is derived from them, computed once per distinct pod template.

Label sets, interned, so that what a selector says of one is remembered.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from typing import NamedTuple
from weakref import WeakValueDictionary

import msgspec

from asched.model.pod import Affinity, Pod, Toleration
from asched.model.requests import (
    Amounts,
    host_ports,
    pod_requests,
    pod_scoring_asks,
    pod_scoring_requests,
)


class LabelSet:
    """A namespace with a set of labels: all that selecting a pod depends on. Interned."""

    __slots__ = ("__weakref__", "labels", "namespace", "number")

    def __init__(self, namespace: str, labels: Mapping[str, str], number: int) -> None:
        self.namespace = namespace
        self.labels = labels
        self.number = number
        """Unique for the life of the process: what answers are remembered by."""


_label_sets: WeakValueDictionary[tuple[str, frozenset[tuple[str, str]]], LabelSet] = (
    WeakValueDictionary()
)
_numbers = count(1)


def label_set_of(pod: Pod) -> LabelSet:
    """The interned label set of a pod."""
    labels = pod.metadata.labels
    key = (pod.metadata.namespace, frozenset(labels.items()))
    known = _label_sets.get(key)
    if known is None:
        known = LabelSet(pod.metadata.namespace, labels, next(_numbers))
        _label_sets[key] = known
    return known


class HostPort(NamedTuple):
    """A port that a pod claims of its node. ``ip`` is ``0.0.0.0`` where the pod names none."""

    protocol: str
    port: int
    ip: str


ANY_IP = "0.0.0.0"


class PodShape:
    """What the copies of one pod template have in common, and all that a *node-scope* plugin may
    read of a pod (see :class:`asched.framework.interface.Scope`).

    Two pods with the same shape get the same answers from node-scope plugins, so the answers are
    shared. Shapes are interned: compare them with ``is``.
    """

    __slots__ = (
        "__weakref__",
        "affinity",
        "annotations",
        "images",
        "init_images",
        "names_pods",
        "node_selector",
        "ports",
        "requests",
        "scoring_asks",
        "scoring_cpu_milli",
        "scoring_memory_bytes",
        "tolerations",
        "volume_images",
    )

    def __init__(self, pod: Pod) -> None:
        spec = pod.spec
        self.requests: Amounts = pod_requests(pod)
        """Effective requests: cpu in thousandths of a core, all else in whole units."""
        self.scoring_cpu_milli, self.scoring_memory_bytes = pod_scoring_requests(pod)
        self.scoring_asks: Amounts = pod_scoring_asks(pod)
        """What the score of a node takes the pod to add: see ``pod_scoring_asks``."""
        self.ports: tuple[HostPort, ...] = tuple(
            HostPort(p.protocol or "TCP", p.host_port, p.host_ip or ANY_IP) for p in host_ports(pod)
        )
        self.images: tuple[str, ...] = tuple(c.image for c in spec.containers)
        self.init_images: tuple[str, ...] = tuple(c.image for c in spec.init_containers)
        self.volume_images: tuple[str, ...] = volume_images(pod)
        self.node_selector: dict[str, str] | None = spec.node_selector
        self.affinity: Affinity | None = spec.affinity
        rules = spec.affinity
        self.names_pods = rules is not None and bool(rules.pod_affinity or rules.pod_anti_affinity)
        """Whether it has affinity terms about other pods."""
        self.tolerations: tuple[Toleration, ...] = spec.tolerations
        self.annotations: dict[str, str] = pod.metadata.declared_annotations
        """Those that plugins declare to read (``Plugin.reads_annotations``)."""


def volume_images(pod: Pod) -> tuple[str, ...]:
    """The images that a pod mounts as volumes."""
    return tuple(v.image.reference for v in pod.spec.volumes if v.image is not None)


_encode = msgspec.json.Encoder(order="deterministic").encode
_shapes: WeakValueDictionary[bytes, PodShape] = WeakValueDictionary()


def shape_of(pod: Pod) -> PodShape:
    """The interned shape of a pod. Equal templates give the same object while any pod holds it."""
    spec, status = pod.spec, pod.status
    parts: tuple[object, ...] = (
        spec.containers,
        spec.init_containers,
        spec.resources,
        spec.overhead,
        spec.node_selector,
        spec.affinity,
        spec.tolerations,
        volume_images(pod),
    )
    if status.container_statuses or status.init_container_statuses:
        resize = [c.reason for c in status.conditions if c.type == "PodResizePending"]
        parts += (status.container_statuses, status.init_container_statuses, resize)
    if pod.metadata.declared_annotations:
        parts += (pod.metadata.declared_annotations,)
    key = _encode(parts)
    shape = _shapes.get(key)
    if shape is None:
        shape = PodShape(pod)
        _shapes[key] = shape
    return shape


class PodInfo:
    """A pod as plugins see it: the object, its identity and its shape.

    Immutable by convention: a changed pod is a new PodInfo.
    """

    __slots__ = ("_label_set", "key", "pod", "shape", "uid")

    def __init__(
        self, pod: Pod, shape: PodShape | None = None, labels: LabelSet | None = None
    ) -> None:
        """``shape`` and ``labels`` may be given where they are known, as of a copy of another pod."""
        self._label_set = labels
        self.pod = pod
        self.uid: str = pod.metadata.uid
        self.key: str = pod.key
        self.shape: PodShape = shape or shape_of(pod)

    @property
    def label_set(self) -> LabelSet:
        """Namespace and labels, interned: what selectors look at."""
        if self._label_set is None:
            self._label_set = label_set_of(self.pod)
        return self._label_set

    @property
    def priority(self) -> int:
        return self.pod.spec.priority

    @property
    def namespace(self) -> str:
        return self.pod.metadata.namespace

    @property
    def name(self) -> str:
        return self.pod.metadata.name

    @property
    def labels(self) -> dict[str, str]:
        return self.pod.metadata.labels

    def __repr__(self) -> str:
        return f"PodInfo({self.key})"


class QueuedPod:
    """A pending pod with what the queue knows of it. Only the fold changes it."""

    __slots__ = (
        "added_at_ns",
        "attempts",
        "consecutive_errors",
        "entered_at_ns",
        "gating_plugin",
        "info",
        "pending_plugins",
        "rejected_at_ns",
        "timestamp_ns",
        "unschedulable_count",
        "unschedulable_plugins",
    )

    def __init__(self, info: PodInfo, now_ns: int) -> None:
        self.info = info
        self.added_at_ns = now_ns
        """When the pod was first seen pending."""
        self.entered_at_ns: int | None = None
        """When it was first there to be tried, as nothing gated it; None until then. It stays as it is
        where the pod is gated again (``InitialAttemptTimestamp`` of kube-scheduler). For metrics
        alone."""
        self.timestamp_ns = now_ns
        """When it last entered a queue: the tie-break of PrioritySort."""
        self.rejected_at_ns = 0
        self.attempts = 0
        self.unschedulable_count = 0
        """Attempts that ended in a rejection: the exponent of its backoff."""
        self.consecutive_errors = 0
        """Attempts in a row that ended in an error: the exponent of its backoff after errors."""
        self.unschedulable_plugins: frozenset[str] = frozenset()
        """The plugins that rejected the last attempt; their hints decide when it is tried again."""
        self.pending_plugins: frozenset[str] = frozenset()
        self.gating_plugin = ""
        """The PreEnqueue plugin that holds the pod back, if one does."""
