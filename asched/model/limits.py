"""Limits of single objects, so that no object takes over the scheduler's memory or time.

A pod above a limit is kept as a stub: it counts on its node and is never placed. Any other object
above its limit is not kept. The limits are far above real use; docs/explanation/security.md lists
them with the reasons. They are constants: a replay of a journal does not depend on them, because
they apply before anything is recorded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from asched.model.meta import Annotations, Object, ObjectMeta
from asched.model.node import Node
from asched.model.pod import (
    Affinity,
    Container,
    ContainerStatus,
    Pod,
    PodAffinity,
    PodAffinityTerm,
    PodSchedulingGroup,
    PodSpec,
    PodStatus,
    ResourceRequirements,
)
from asched.model.quantity import QuantityText
from asched.model.requests import CPU, EPHEMERAL_STORAGE, MEMORY, host_ports, pod_requests
from asched.model.selectors import LabelSelector, NodeSelectorTerm

KIB = 1024

POD_LIMITS = "PodLimits"
"""The name under which a pod above a limit waits. Only a change of the pod itself requeues it."""

MAX_TERMS = 128
"""Pod affinity and anti-affinity terms, and topology spread constraints, together."""
MAX_RESOURCE_NAMES = 64
"""Different names in requests, limits and overhead."""
MAX_LABELS = 256
MAX_LABEL_BYTES = 16 * KIB
MAX_ANNOTATION_BYTES = 16 * KIB
"""Of the annotations that plugins declare to read."""
MAX_TOLERATIONS = 256
MAX_VOLUMES = 256
"""Volumes of the types that affect scheduling."""
MAX_POD_CLAIMS = 32
"""Entries of ``spec.resourceClaims``."""
MAX_CONTAINERS = 256
"""With init containers."""
MAX_HOST_PORTS = 1024
MAX_SELECTOR_VALUES = 2048
"""Requirements and values of all selectors of a pod, together."""
MAX_POD_BYTES = 64 * KIB
"""Kept form of a pod: the JSON of the fields that are read."""
MAX_NAMESPACED_BYTES = 32 * KIB
"""Kept form of another object that a tenant can create."""
MAX_CLUSTER_BYTES = 256 * KIB
"""Kept form of an object without a namespace."""

_MAX_NAME = 253
_MIN_QUANTITY_BYTES = 6
"""Of JSON, for a resource name and its amount."""
_NO_RESOURCES = ResourceRequirements()
_STUB_PORTS = 128
_FIRST_NAMES = (CPU, MEMORY, EPHEMERAL_STORAGE)

_encode = msgspec.json.Encoder().encode
_replace = msgspec.structs.replace


def limited_pod(pod: Pod, raw_bytes: int) -> Pod:
    """The pod, or its stub if it is above a limit. ``raw_bytes``: size of the JSON that it was
    decoded from, which is never less than its kept form. Raises QuantityError for a stub with an
    invalid quantity."""
    excess = _excess(pod, raw_bytes)
    return stub_of(pod, excess) if excess else pod


def limited_annotations(pod: Pod) -> Pod:
    """The pod, or its stub if its declared annotations are above their limit."""
    size_bytes = _text_bytes(pod.metadata.declared_annotations)
    if size_bytes <= MAX_ANNOTATION_BYTES:
        return pod
    return stub_of(pod, _kib(size_bytes, "of annotations that plugins read", MAX_ANNOTATION_BYTES))


def limited_node(node: Node, raw_bytes: int) -> Node:
    """The node; above its limit without images, or else as a node that accepts no pods: the pods on
    it have to count."""
    if raw_bytes <= MAX_CLUSTER_BYTES or len(_encode(node)) <= MAX_CLUSTER_BYTES:
        return node
    node = _replace(node, status=_replace(node.status, images=()))
    if len(_encode(node)) <= MAX_CLUSTER_BYTES:
        return node
    allocatable = node.status.allocatable
    names = _first_names([allocatable])
    status = _replace(
        node.status,
        capacity={},
        conditions=node.status.conditions[:MAX_LABELS],
        allocatable={name: allocatable[name] for name in names},
        declared_features=(),
    )
    metadata = ObjectMeta(name=node.name, uid=node.uid)
    return Node(
        metadata=metadata, spec=_replace(node.spec, unschedulable=True, taints=()), status=status
    )


def excess_of_other(decoded: Object, raw_bytes: int) -> str:
    """By how much an object that is no pod and no node exceeds its limit; empty if it does not."""
    most = MAX_NAMESPACED_BYTES if decoded.namespace else MAX_CLUSTER_BYTES
    if raw_bytes <= most:
        return ""
    size_bytes = len(_encode(decoded))
    return _kib(size_bytes, "of fields that scheduling reads", most) if size_bytes > most else ""


def too_expensive(excess: str) -> str:
    """The message of the rejection of a pod with that ``spec.oversized``."""
    return f"too expensive: {excess}"


def term_count(spec: PodSpec) -> int:
    """The number of pod affinity and anti-affinity terms and of topology spread constraints."""
    count, affinity = len(spec.topology_spread_constraints), spec.affinity
    if affinity is not None:
        for rule in (affinity.pod_affinity, affinity.pod_anti_affinity):
            if rule is not None:
                count += len(rule.required) + len(rule.preferred)
    return count


def pod_terms(spec: PodSpec) -> Iterator[PodAffinityTerm]:
    """The pod affinity and anti-affinity terms."""
    return _terms(spec.affinity)


def node_requirement_count(spec: PodSpec) -> int:
    """The number of requirements of the node selector, and of required and preferred node
    affinity."""
    count = len(spec.node_selector or ())
    affinity = None if spec.affinity is None else spec.affinity.node_affinity
    if affinity is None:
        return count
    terms = [preferred.preference for preferred in affinity.preferred]
    if affinity.required is not None:
        terms += affinity.required.node_selector_terms
    return count + sum(len(term.match_expressions) + len(term.match_fields) for term in terms)


# -- pods -----------------------------------------------------------------------------------------


def _excess(pod: Pod, raw_bytes: int) -> str:
    """The first limit that the pod exceeds; empty if it exceeds none. Called for each pod that is
    decoded, so the common case takes a few comparisons."""
    spec, labels = pod.spec, pod.metadata.labels
    if spec.affinity is not None or spec.topology_spread_constraints:
        terms = term_count(spec)
        if terms > MAX_TERMS:
            return _count(terms, "affinity terms and spread constraints", MAX_TERMS)
    containers = len(spec.containers)
    if spec.init_containers:
        containers += len(spec.init_containers)
    items = len(labels) + containers
    for few in (spec.tolerations, spec.volumes, spec.resource_claims):
        if few:
            items += len(few)
    if items > MAX_POD_CLAIMS:  # the lowest of these limits
        excess = _excess_of_lists(pod)
        if excess:
            return excess
    # A container or its status has few names: all are counted only if there could be too many.
    statuses = pod.status.container_statuses or pod.status.init_container_statuses
    if containers > 1 or statuses or spec.resources is not None or spec.overhead:
        most = raw_bytes // _MIN_QUANTITY_BYTES
    else:
        resources = spec.containers[0].resources if spec.containers else _NO_RESOURCES
        most = len(resources.requests) + len(resources.limits)
    if most > MAX_RESOURCE_NAMES:
        most = sum(map(len, _quantities(pod)))
    if most > MAX_RESOURCE_NAMES:
        names = len({name for quantities in _quantities(pod) for name in quantities})
        if names > MAX_RESOURCE_NAMES:
            return _count(names, "resource names", MAX_RESOURCE_NAMES)
    return _excess_of_large(pod, raw_bytes) if raw_bytes > 4 * MAX_SELECTOR_VALUES else ""


def _excess_of_lists(pod: Pod) -> str:
    """The limits of numbers of items."""
    spec = pod.spec
    for items, most, what in (
        (len(pod.metadata.labels), MAX_LABELS, "labels"),
        (len(spec.tolerations), MAX_TOLERATIONS, "tolerations"),
        (len(spec.volumes), MAX_VOLUMES, "volumes"),
        (len(spec.resource_claims), MAX_POD_CLAIMS, "resource claims"),
        (len(spec.containers) + len(spec.init_containers), MAX_CONTAINERS, "containers"),
    ):
        if items > most:
            return _count(items, what, most)
    return ""


def _excess_of_large(pod: Pod, raw_bytes: int) -> str:
    """The limits that only a pod with many bytes can exceed."""
    values = _selector_values(pod.spec)
    if values > MAX_SELECTOR_VALUES:
        return _count(values, "selector requirements and values", MAX_SELECTOR_VALUES)
    ports = len(host_ports(pod))
    if ports > MAX_HOST_PORTS:
        return _count(ports, "host ports", MAX_HOST_PORTS)
    label_bytes = _text_bytes(pod.metadata.labels)
    if label_bytes > MAX_LABEL_BYTES:
        return _kib(label_bytes, "of labels", MAX_LABEL_BYTES)
    if raw_bytes > MAX_POD_BYTES:
        size_bytes = len(_encode(pod))
        if size_bytes > MAX_POD_BYTES:
            return _kib(size_bytes, "of fields that scheduling reads", MAX_POD_BYTES)
    return ""


def stub_of(pod: Pod, excess: str) -> Pod:
    """The pod reduced to a few KiB, with the reason in ``spec.oversized``.

    It keeps its identity, node, priority, owner, group, phase and deletion, and the requests, host
    ports and labels that are within their limits, because these matter to other pods on its node.
    """
    spec, meta, status = pod.spec, pod.metadata, pod.status
    labels = meta.labels
    if len(labels) > MAX_LABELS or _text_bytes(labels) > MAX_LABEL_BYTES:
        labels = {}
    controller = meta.controller
    ports = host_ports(pod)
    container = Container(
        name="all",
        resources=ResourceRequirements(requests=_stub_requests(pod)),
        ports=ports if len(ports) <= _STUB_PORTS else (),
    )
    return Pod(
        metadata=ObjectMeta(
            name=meta.name,
            namespace=meta.namespace,
            uid=meta.uid,
            labels=labels,
            creation_timestamp=meta.creation_timestamp,
            deletion_timestamp=meta.deletion_timestamp,
            owner_references=() if controller is None else (controller,),
            annotations=stub_annotations(meta.annotations),
        ),
        spec=PodSpec(
            node_name=spec.node_name,
            scheduler_name=spec.scheduler_name[:_MAX_NAME],
            priority=spec.priority,
            priority_class_name=spec.priority_class_name[:_MAX_NAME],
            preemption_policy=spec.preemption_policy,
            containers=(container,),
            scheduling_group=_stub_group(spec.scheduling_group),
            termination_grace_period_seconds=spec.termination_grace_period_seconds,
            oversized=excess,
        ),
        status=PodStatus(
            phase=status.phase,
            conditions=status.conditions[:MAX_LABELS],
            nominated_node_name=status.nominated_node_name[:_MAX_NAME],
            start_time=status.start_time,
        ),
    )


def _stub_requests(pod: Pod) -> dict[str, QuantityText]:
    """The effective requests of the first allowed resource names."""
    kept = frozenset(_first_names([*_quantities(pod)]))
    spec, status = pod.spec, pod.status

    def reduced(requirements: ResourceRequirements) -> ResourceRequirements:
        requests = requirements.requests
        found = requests.keys() & kept
        return ResourceRequirements(requests={name: requests[name] for name in sorted(found)})

    def of(containers: Sequence[Container]) -> tuple[Container, ...]:
        asking = (c for c in containers if c.resources.requests)
        return tuple([_replace(c, resources=reduced(c.resources)) for c in asking])

    small = _replace(
        pod,
        spec=_replace(
            spec,
            containers=of(spec.containers),
            init_containers=of(spec.init_containers),
            resources=None if spec.resources is None else reduced(spec.resources),
            overhead={name: q for name, q in spec.overhead.items() if name in kept},
        ),
        status=_replace(
            status,
            container_statuses=(),
            init_container_statuses=(),
            resources=None,
            allocated_resources=None,
        ),
    )
    return {
        name: f"{number}m" if name == CPU else str(number)
        for name, number in pod_requests(small).items()
        if number
    }


def _first_names(amounts: Sequence[Mapping[str, QuantityText]]) -> list[str]:
    """Native resources, then others in their order, as many as a pod may have."""
    names = dict.fromkeys(n for n in _FIRST_NAMES if any(n in quantities for quantities in amounts))
    for quantities in amounts:
        for name in quantities:
            if len(names) == MAX_RESOURCE_NAMES:
                return [*names]
            names[name] = None
    return [*names]


def stub_annotations(annotations: Annotations) -> Annotations:
    """The annotations that are not longer than a name."""
    values = msgspec.structs.asdict(annotations)
    return Annotations(**{k: v for k, v in values.items() if v is None or len(v) <= _MAX_NAME})


def _stub_group(group: PodSchedulingGroup | None) -> PodSchedulingGroup | None:
    return None if group is None or len(group.pod_group_name) > _MAX_NAME else group


def _terms(affinity: Affinity | None) -> Iterator[PodAffinityTerm]:
    """The terms of pod affinity and anti-affinity."""
    if affinity is None:
        return
    rules: tuple[PodAffinity | None, ...] = (affinity.pod_affinity, affinity.pod_anti_affinity)
    for rule in rules:
        if rule is not None:
            yield from rule.required
            for weighted in rule.preferred:
                yield weighted.pod_affinity_term


def _quantities(pod: Pod) -> Iterator[dict[str, QuantityText]]:
    spec, status = pod.spec, pod.status
    for container in spec.containers:
        yield container.resources.requests
        yield container.resources.limits
    for container in spec.init_containers:
        yield container.resources.requests
        yield container.resources.limits
    yield spec.overhead
    if spec.resources is not None:
        yield spec.resources.requests
        yield spec.resources.limits
    containers = (*status.container_statuses, *status.init_container_statuses)
    reports: tuple[ContainerStatus | PodStatus, ...] = (*containers, status)
    for reported in reports:
        if reported.resources is not None:
            yield reported.resources.requests
            yield reported.resources.limits
        if reported.allocated_resources:
            yield reported.allocated_resources


def _selector_values(spec: PodSpec) -> int:
    count = len(spec.node_selector or {})
    affinity = spec.affinity
    if affinity is not None and affinity.node_affinity is not None:
        node_affinity = affinity.node_affinity
        if node_affinity.required is not None:
            count += sum(map(_node_values, node_affinity.required.node_selector_terms))
        count += sum(_node_values(preferred.preference) for preferred in node_affinity.preferred)
    for term in _terms(affinity):
        count += label_values(term.label_selector) + label_values(term.namespace_selector)
        count += len(term.namespaces) + len(term.match_label_keys) + len(term.mismatch_label_keys)
    for constraint in spec.topology_spread_constraints:
        count += label_values(constraint.label_selector) + len(constraint.match_label_keys)
    return count


def _node_values(term: NodeSelectorTerm) -> int:
    requirements = (*term.match_expressions, *term.match_fields)
    return 1 + sum(1 + len(requirement.values) for requirement in requirements)


def label_values(selector: LabelSelector | None) -> int:
    """The number of requirements and values of a selector."""
    if selector is None:
        return 0
    values = sum(1 + len(requirement.values) for requirement in selector.match_expressions)
    return len(selector.match_labels) + values


def _text_bytes(texts: dict[str, str]) -> int:
    return sum(len(key) + len(text) for key, text in texts.items())


def _count(number: int, what: str, most: int) -> str:
    return f"{number:,} {what}, at most {most:,}"


def _kib(size_bytes: int, what: str, most_bytes: int) -> str:
    return f"{-(-size_bytes // KIB):,} KiB {what}, at most {most_bytes // KIB:,} KiB"
