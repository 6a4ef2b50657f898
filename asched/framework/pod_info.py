"""Pods with derived data that is computed once per pod template, and interned label sets."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
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
    """A namespace with labels, which is what pod selectors match. Interned."""

    __slots__ = ("__weakref__", "labels", "namespace", "number")

    def __init__(self, namespace: str, labels: Mapping[str, str], number: int) -> None:
        self.namespace = namespace
        self.labels = labels
        self.number = number
        """Unique within the process: a key for caches."""


_label_sets: WeakValueDictionary[tuple[str, frozenset[tuple[str, str]]], LabelSet] = (
    WeakValueDictionary()
)
_numbers = count(1)


def label_set_of(pod: Pod) -> LabelSet:
    labels = pod.metadata.labels
    key = (pod.metadata.namespace, frozenset(labels.items()))
    known = _label_sets.get(key)
    if known is None:
        known = LabelSet(pod.metadata.namespace, labels, next(_numbers))
        _label_sets[key] = known
    return known


class HostPort(NamedTuple):
    """A host port of a pod. ``ip`` is ``0.0.0.0`` if the pod sets none."""

    protocol: str
    port: int
    ip: str


ANY_IP = "0.0.0.0"


class PodShape:
    """The part of a pod that plugins with a shared :class:`~asched.framework.interface.Scope` read.

    Pods of one template usually have the same shape, and share the answers of these plugins. Shapes
    are interned: compare them with ``is``.
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
        "size_bytes",
        "tolerations",
        "volume_images",
    )

    def __init__(self, pod: Pod, size_bytes: int) -> None:
        spec = pod.spec
        self.size_bytes = size_bytes
        """JSON of these parts of the pod: a measure of the memory that it takes."""
        self.requests: Amounts = pod_requests(pod)
        """Effective requests: cpu in thousandths, others in whole units."""
        self.scoring_cpu_milli, self.scoring_memory_bytes = pod_scoring_requests(pod)
        self.scoring_asks: Amounts = pod_scoring_asks(pod)
        """The requests of the pod in NodeResourcesFit's score: see ``pod_scoring_asks``."""
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
        """Whether it has pod affinity or anti-affinity terms."""
        self.tolerations: tuple[Toleration, ...] = spec.tolerations
        self.annotations: dict[str, str] = pod.metadata.declared_annotations
        """The annotations that plugins declare in ``Plugin.reads_annotations``."""


def volume_images(pod: Pod) -> tuple[str, ...]:
    return tuple(v.image.reference for v in pod.spec.volumes if v.image is not None)


_encode = msgspec.json.Encoder(order="deterministic").encode
_shapes: WeakValueDictionary[bytes, PodShape] = WeakValueDictionary()


def shape_of(pod: Pod) -> PodShape:
    """The interned shape of a pod. Shapes are dropped when no pod uses them."""
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
    if status.reports_resources:
        resize = [c.reason for c in status.conditions if c.type == "PodResizePending"]
        parts += (bool(spec.node_name), status.container_statuses, status.init_container_statuses)
        parts += (status.resources, status.allocated_resources, resize)
    if pod.metadata.declared_annotations:
        parts += (pod.metadata.declared_annotations,)
    key = _encode(parts)
    shape = _shapes.get(key)
    if shape is None:
        shape = PodShape(pod, len(key))
        _shapes[key] = shape
    return shape


class PodInfo:
    """A pod with its shape. Immutable: a changed pod is a new PodInfo."""

    __slots__ = ("_label_set", "key", "pod", "seen_version", "shape", "uid")

    def __init__(
        self, pod: Pod, shape: PodShape | None = None, labels: LabelSet | None = None
    ) -> None:
        """``shape`` and ``labels`` are computed unless they are known from an equal pod."""
        self._label_set = labels
        self.pod = pod
        """The API object."""
        self.uid: str = pod.metadata.uid
        """``metadata.uid``."""
        self.key: str = pod.key
        """``namespace/name``."""
        self.seen_version = 0
        """Of the scheduler: see :mod:`asched.state.seen_versions`. It is not recorded, so a plugin
        must not depend on it."""
        self.shape: PodShape = shape or shape_of(pod)
        """What node-level plugins read of the pod; equal for pods of one template."""

    @property
    def label_set(self) -> LabelSet:
        """Namespace and labels, interned."""
        if self._label_set is None:
            self._label_set = label_set_of(self.pod)
        return self._label_set

    @property
    def priority(self) -> int:
        """``spec.priority``; 0 without one."""
        return self.pod.spec.priority

    @property
    def namespace(self) -> str:
        """``metadata.namespace``."""
        return self.pod.metadata.namespace

    @property
    def name(self) -> str:
        """``metadata.name``."""
        return self.pod.metadata.name

    @property
    def labels(self) -> dict[str, str]:
        """``metadata.labels``."""
        return self.pod.metadata.labels

    def __repr__(self) -> str:
        return f"PodInfo({self.key})"


_NEVER_STARTED = datetime.max.replace(tzinfo=UTC)


def start_time(pod: PodInfo) -> datetime:
    """When the pod started; a pod without a start time counts as the latest."""
    return pod.pod.status.start_time or _NEVER_STARTED


class QueuedPod:
    """A pending pod with its queue data. Only the fold changes it."""

    __slots__ = (
        "added_at_ns",
        "attempts",
        "charged_steps",
        "consecutive_errors",
        "entered_at_ns",
        "gating_plugin",
        "info",
        "pending_plugins",
        "rejected_at_ns",
        "timestamp_ns",
        "turn_ns",
        "unschedulable_count",
        "unschedulable_plugins",
        "yields",
    )

    def __init__(self, info: PodInfo, now_ns: int) -> None:
        self.info = info
        self.added_at_ns = now_ns
        """When the pod was first observed pending."""
        self.entered_at_ns: int | None = None
        """When the pod was first not gated, or None (``InitialAttemptTimestamp`` of
        kube-scheduler). For metrics only."""
        self.timestamp_ns = now_ns
        """When the pod was added or its last attempt ended (``Timestamp``)."""
        self.rejected_at_ns = 0
        self.attempts = 0
        self.unschedulable_count = 0
        """Number of rejected attempts: the exponent of the backoff."""
        self.consecutive_errors = 0
        """Number of consecutive failed attempts: the exponent of the backoff after errors."""
        self.unschedulable_plugins: frozenset[str] = frozenset()
        """The plugins that rejected the last attempt. Their hints requeue the pod."""
        self.pending_plugins: frozenset[str] = frozenset()
        self.turn_ns = 0
        """When a pod that was put off has its turn, until it was attempted; 0 for other pods."""
        self.yields = False
        """The pod was put off for others: while no pod is active, it may be attempted before its
        turn."""
        self.charged_steps = 0
        """Steps charged for the turn of a pod that was put off; returned if it does not need it."""
        self.gating_plugin = ""
        """The PreEnqueue plugin that gates the pod; empty if none does."""
