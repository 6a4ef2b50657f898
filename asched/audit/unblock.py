"""Finds single changes that would make a node feasible for a pending pod.

Looks at the nearest nodes: those that the fewest plugins reject. Candidate changes follow from the
specifications of pod and node. Each is tried on a copy of the state
(:mod:`asched.audit.hypotheticals`) and reported only if every filter then passes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from enum import Enum
from functools import partial
from typing import Final

import msgspec
import numpy as np
from msgspec.structs import replace

from asched.audit.devices import (
    MAX_MORE,
    DeviceChange,
    MoreDevices,
    claim_changes,
    claim_spec_changes,
    devices_of_others,
    more_devices,
    taint_changes,
)
from asched.audit.hypotheticals import HypotheticalState
from asched.framework.pod_info import start_time
from asched.model.node import NO_EXECUTE, NO_SCHEDULE, UNSCHEDULABLE_TAINT, Node
from asched.model.pod import Affinity, Pod, Toleration
from asched.model.requests import CPU, EPHEMERAL_STORAGE, MEMORY, PODS
from asched.model.selectors import NodeSelectorRequirement
from asched.plugins.dynamic_resources import DynamicResources
from asched.plugins.inter_pod_affinity.plugin import InterPodAffinity
from asched.plugins.node_resources.fit import NodeResourcesFit
from asched.state.cluster import PodEntry

NEAREST: Final = 5
"""Number of nodes examined. Nodes that devices reject alike count as one."""
_MAX_LABEL_VALUES: Final = 5
"""Values of a topology label that are tried."""
_MAX_ANTI_AFFINITY_PODS: Final = 50
"""Pods that are tried without their anti-affinity."""


class ChangeKind(Enum):
    MORE_CAPACITY = "moreCapacity"
    UNCORDON = "uncordon"
    TOLERATION = "toleration"
    NODE_LABEL = "nodeLabel"
    POD_CONSTRAINT = "podConstraint"
    """The pod loses one of its own constraints."""
    OTHER_ANTI_AFFINITY = "otherAntiAffinity"
    """Another pod loses its required anti-affinity."""
    EVICTIONS = "evictions"
    DEVICE_TAINT = "deviceTaint"
    """Devices lose a taint."""
    MORE_DEVICES = "moreDevices"
    CLAIM = "claim"
    """A ResourceClaim loses its allocation."""
    CLAIM_SPEC = "claimSpec"
    """A claim of the pod asks for less."""
    UNGATE = "ungate"


class UnblockingChange(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One change that makes a node feasible."""

    kind: ChangeKind
    summary: str
    amounts: dict[str, int] = {}
    """Additional amount of each resource that the node needs; cpu in millicores."""
    key: str = ""
    """Key of the taint or label."""
    value: str | None = None
    """Value of the taint or label; None for a label to remove."""
    effect: str = ""
    pods: tuple[str, ...] = ()
    """Pods to evict, or pods with the conflicting anti-affinity."""
    claim: str = ""
    """The ResourceClaim that loses its allocation, or asks for less."""
    devices: int = 0
    """How many more devices are needed."""
    lower_priority: bool = False
    """All of ``pods`` have a lower priority than the pod, so preemption may evict them."""


class NodeUnblocking(msgspec.Struct, frozen=True, rename="camel"):
    """A node and every single change that makes it feasible."""

    node: str
    """Empty for changes that do not concern one node."""
    rejected_by: tuple[str, ...]
    changes: tuple[UnblockingChange, ...]
    alike: int = 0
    """How many other nodes are rejected for the same reasons, with the same devices. The changes
    are verified for this one."""


_CandidateChange = tuple[UnblockingChange, AbstractContextManager[None]]
"""A change, and a context manager that applies it."""


def unblocking_changes(
    state: HypotheticalState,
    rejections: Mapping[str, Sequence[str]],
    findings: Mapping[str, Hashable] | None = None,
) -> tuple[NodeUnblocking, ...]:
    """The nearest nodes and the changes that make them feasible.

    ``rejections`` holds by node the plugins that reject it. Of nodes with equal ``findings`` one
    is examined.
    """
    if state.pod.spec.scheduling_gates:
        return _ungated(state)

    shares = _missing_shares(state)

    def distance(node: str) -> tuple[int, float, str]:
        return len(rejections[node]), shares[node], node

    findings = findings or {}
    alike = Counter(findings.values())
    nearest: dict[Hashable, str] = {}
    for name in sorted(rejections, key=distance):
        nearest.setdefault(findings.get(name, name), name)
    found = []
    for name in [*nearest.values()][:NEAREST]:
        changes = []
        for change, applied in _candidates(state, name, rejections[name]):
            with applied:
                if state.feasible(name):
                    changes.append(change)
        if DynamicResources.name in rejections[name]:
            changes += _device_changes(state, name)
        too_small = NodeResourcesFit.name in rejections[name] and _too_small(state, name)
        evictions = None if too_small else _evictions(state, name)
        if evictions is not None:
            changes.append(evictions)
        others = alike[findings[name]] - 1 if name in findings else 0
        found.append(NodeUnblocking(name, tuple(rejections[name]), tuple(changes), others))
    return tuple(found)


def _candidates(
    state: HypotheticalState, name: str, rejected_by: Sequence[str]
) -> Iterator[_CandidateChange]:
    node, pod = state.state.objects(Node)[name], state.pod
    yield from _more_room(state, node)
    yield from _uncordoned(state, node)
    yield from _tolerations(state, node, pod)
    yield from _labels(state, node, pod)
    yield from _own_constraints(state, pod)
    if InterPodAffinity.name in rejected_by:
        yield from _other_anti_affinity(state, node)


def _device_changes(state: HypotheticalState, name: str) -> Iterator[UnblockingChange]:
    """The changes of devices and claims that make the node feasible."""
    node = state.state.objects(Node)[name]
    for change in taint_changes(state, node):
        taint = change.taint
        if taint is not None and _helps(state, name, change):
            kind, key, value = ChangeKind.DEVICE_TAINT, taint.key, taint.value
            yield UnblockingChange(kind, change.summary, key=key, value=value, effect=taint.effect)
    for change in claim_changes(state, node):
        if _helps(state, name, change):
            yield UnblockingChange(ChangeKind.CLAIM, change.summary, claim=change.claim)
    more = [*_more_devices(state, name, more_devices(state, node))]
    yield from more or _more_devices(state, name, devices_of_others(state, node))
    for change in claim_spec_changes(state):
        if _helps(state, name, change):
            yield UnblockingChange(ChangeKind.CLAIM_SPEC, change.summary, claim=change.claim)


def _more_devices(
    state: HypotheticalState, name: str, models: Iterable[MoreDevices]
) -> Iterator[UnblockingChange]:
    """For each model the fewest devices that make the node feasible."""
    for more in models:
        least = _least(partial(_suffices, state, name, more))
        if least is not None:
            kind, summary = ChangeKind.MORE_DEVICES, more(least).summary
            yield UnblockingChange(kind, summary, devices=least)


def _suffices(state: HypotheticalState, name: str, more: MoreDevices, count: int) -> bool:
    return _helps(state, name, more(count))


def _least(suffices: Callable[[int], bool]) -> int | None:
    """The least number that suffices; None if :data:`MAX_MORE` does not."""
    high = 1
    while not suffices(high):
        if high >= MAX_MORE:
            return None
        high = min(2 * high, MAX_MORE)
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if suffices(middle) else (middle, high)
    return high


def _helps(state: HypotheticalState, name: str, change: DeviceChange) -> bool:
    with change.applied:
        return state.feasible(name)


def _ungated(state: HypotheticalState) -> tuple[NodeUnblocking, ...]:
    names = ", ".join(gate.name for gate in state.pod.spec.scheduling_gates)
    with state.replaced(_with_spec(state.pod, scheduling_gates=())):
        count = len(state.feasible_nodes())
    if not count:
        return ()
    summary = f"remove the scheduling gate {names}: {count} node(s) are feasible then"
    change = UnblockingChange(ChangeKind.UNGATE, summary, key=names)
    return (NodeUnblocking("", ("SchedulingGates",), (change,)),)


def _missing(state: HypotheticalState, name: str) -> dict[str, int]:
    """The resources that the node is short of, with the missing amounts."""
    table, shape = state.state.nodes, state.pod_entry.info.shape
    row = table.row_of(name)
    assert row is not None, "the node is part of the state"
    missing = {
        resource: requested
        + int(table.requested(resource)[row])
        - int(table.allocatable(resource)[row])
        for resource, requested in shape.requests.items()
        if requested
    }
    missing[PODS] = 1 + int(table.pod_count[row]) - int(table.allowed_pods[row])
    return {resource: number for resource, number in missing.items() if number > 0}


def _missing_shares(state: HypotheticalState) -> dict[str, float]:
    """What each node is short of, as a share of the pod's requests. Orders nodes that the same
    number of plugins reject."""
    table, requests = state.state.nodes, state.pod_entry.info.shape.requests
    # Saturated amounts cannot be added in 64 bits.
    short = 1.0 + table.pod_count - table.allowed_pods
    shares = np.maximum(short, 0.0)
    for resource, requested in requests.items():
        if requested:
            short = float(requested) + table.requested(resource) - table.allocatable(resource)
            shares += np.maximum(short, 0.0) / requested
    return dict(zip(table.names, shares.tolist(), strict=True))


def _too_small(state: HypotheticalState, name: str) -> bool:
    """Whether the node is too small for the pod even without other pods."""
    table, requests = state.state.nodes, state.pod_entry.info.shape.requests
    row = table.row_of(name)
    native = (CPU, MEMORY, EPHEMERAL_STORAGE)
    return any(requests.get(each, 0) > table.allocatable(each)[row] for each in native)


def _more_room(state: HypotheticalState, node: Node) -> Iterator[_CandidateChange]:
    missing = _missing(state, node.name)
    if not missing:
        return
    table = state.state.nodes
    row = table.row_of(node.name)
    allocatable = {**node.status.allocatable}
    for resource, number in missing.items():
        total = int(table.allocatable(resource)[row]) + number
        allocatable[resource] = f"{total}m" if resource == CPU else str(total)
    status = replace(node.status, allocatable=allocatable)
    amounts = ", ".join(
        f"{amount_text(resource, number)} {resource}" for resource, number in missing.items()
    )
    change = UnblockingChange(
        ChangeKind.MORE_CAPACITY, f"{amounts} more on the node", amounts=missing
    )
    yield change, state.replaced(replace(node, status=status))


def amount_text(resource: str, number: int) -> str:
    """An amount of a resource: cpu is in millicores."""
    if resource == CPU:
        return f"{number}m" if number % 1000 else str(number // 1000)
    for unit, size in (("Gi", 1 << 30), ("Mi", 1 << 20), ("Ki", 1 << 10)):
        if number >= size and number % size == 0:
            return f"{number // size}{unit}"
    return str(number)


def _uncordoned(state: HypotheticalState, node: Node) -> Iterator[_CandidateChange]:
    if not node.spec.unschedulable:
        return
    change = UnblockingChange(ChangeKind.UNCORDON, "uncordon the node")
    yield change, state.replaced(changed_node(change, node))


def _tolerations(state: HypotheticalState, node: Node, pod: Pod) -> Iterator[_CandidateChange]:
    for taint in node.spec.taints:
        if taint.effect not in (NO_SCHEDULE, NO_EXECUTE):
            continue
        if any(toleration.tolerates(taint) for toleration in pod.spec.tolerations):
            continue
        label = f"{taint.key}={taint.value}" if taint.value else taint.key
        change = UnblockingChange(
            ChangeKind.TOLERATION,
            f"the pod tolerates {label}:{taint.effect}",
            key=taint.key,
            value=taint.value,
            effect=taint.effect,
        )
        yield change, state.replaced(changed_pod(change, pod))


def _labels(state: HypotheticalState, node: Node, pod: Pod) -> Iterator[_CandidateChange]:
    wanted = dict.fromkeys((*selector_labels(pod, node), *_topology_labels(state, pod, node)))
    for key, value in wanted:
        summary = (
            f"label the node {key}={value}" if value is not None else f"remove label {key} from it"
        )
        change = UnblockingChange(ChangeKind.NODE_LABEL, summary, key=key, value=value)
        labeled = changed_node(change, node)
        if labeled != node:
            yield change, state.replaced(labeled)


def changed_node(change: UnblockingChange, node: Node) -> Node:
    """The node after a change of its labels or of ``spec.unschedulable``; after others as it is."""
    if change.kind is ChangeKind.UNCORDON:
        # The node controller removes the taint together with spec.unschedulable.
        taints = tuple(taint for taint in node.spec.taints if taint.key != UNSCHEDULABLE_TAINT)
        return replace(node, spec=replace(node.spec, unschedulable=False, taints=taints))
    if change.kind is ChangeKind.NODE_LABEL:
        labels = {key: value for key, value in node.metadata.labels.items() if key != change.key}
        if change.value is not None:
            labels[change.key] = change.value
        return replace(node, metadata=replace(node.metadata, labels=labels))
    return node


def changed_pod(change: UnblockingChange, pod: Pod) -> Pod:
    """The pod after a change of its own spec; after others as it is."""
    if change.kind is ChangeKind.UNGATE:
        return _with_spec(pod, scheduling_gates=())
    if change.kind is ChangeKind.TOLERATION:
        value = change.value or ""
        added = Toleration(key=change.key, operator="Equal", value=value, effect=change.effect)
        return _with_spec(pod, tolerations=(*pod.spec.tolerations, added))
    if change.kind is ChangeKind.POD_CONSTRAINT:
        relaxed = (one for name, _, one in relaxed_pods(pod) if change.summary == _without(name))
        return next(relaxed, pod)
    return pod


def _without(constraint: str) -> str:
    return f"without the pod's own {constraint}"


def selector_labels(pod: Pod, node: Node) -> Iterator[tuple[str, str | None]]:
    """For each label in the pod's node selectors, the first value that satisfies the selector."""
    yield from (pod.spec.node_selector or {}).items()
    affinity = pod.spec.affinity
    required = affinity.node_affinity.required if affinity and affinity.node_affinity else None
    if required is None:
        return
    for term in required.node_selector_terms:
        for requirement in term.match_expressions:
            if not requirement.matches(node.metadata.labels):
                yield from _satisfying(requirement)


def _satisfying(requirement: NodeSelectorRequirement) -> Iterator[tuple[str, str | None]]:
    match requirement.operator:
        case "In":
            yield from ((requirement.key, value) for value in requirement.values[:1])
        case "Exists":
            yield requirement.key, ""
        case "NotIn" | "DoesNotExist":
            yield requirement.key, None
        case "Gt" | "Lt" if requirement.values and requirement.values[0].lstrip("-").isdigit():
            step = 1 if requirement.operator == "Gt" else -1
            yield requirement.key, str(int(requirement.values[0]) + step)


def _topology_labels(
    state: HypotheticalState, pod: Pod, node: Node
) -> Iterator[tuple[str, str | None]]:
    """Values that other nodes have for the topology keys of the pod's constraints."""
    keys = [constraint.topology_key for constraint in pod.spec.topology_spread_constraints]
    affinity = pod.spec.affinity
    for terms in (affinity.pod_affinity, affinity.pod_anti_affinity) if affinity else ():
        keys += [term.topology_key for term in terms.required] if terms else []
    others = state.state.objects(Node).values()
    for key in dict.fromkeys(keys):
        values = sorted({n.metadata.labels[key] for n in others if key in n.metadata.labels})
        for value in values[:_MAX_LABEL_VALUES]:
            if value != node.metadata.labels.get(key):
                yield key, value


def _with_spec(pod: Pod, **fields: object) -> Pod:
    return replace(pod, spec=replace(pod.spec, **fields))


def _own_constraints(state: HypotheticalState, pod: Pod) -> Iterator[_CandidateChange]:
    for name, key, without_it in relaxed_pods(pod):
        change = UnblockingChange(ChangeKind.POD_CONSTRAINT, _without(name), key=key)
        yield change, state.replaced(without_it)


def relaxed_pods(pod: Pod) -> Iterator[tuple[str, str, Pod]]:
    """The pod without each of its constraints on other pods: name, topology key, and pod."""
    affinity = pod.spec.affinity
    for name, field in (
        ("required pod anti-affinity", "pod_anti_affinity"),
        ("required pod affinity", "pod_affinity"),
    ):
        terms = getattr(affinity, field) if affinity is not None else None
        if affinity is not None and terms is not None and terms.required:
            without = replace(affinity, **{field: replace(terms, required=())})
            yield name, "", _with_spec(pod, affinity=without)
    constraints = pod.spec.topology_spread_constraints
    for index, constraint in enumerate(constraints):
        if constraint.when_unsatisfiable == "DoNotSchedule":
            rest = constraints[:index] + constraints[index + 1 :]
            name = f"spread constraint over {constraint.topology_key}"
            yield name, constraint.topology_key, _with_spec(pod, topology_spread_constraints=rest)


def _other_anti_affinity(state: HypotheticalState, node: Node) -> Iterator[_CandidateChange]:
    entries = [entry for entry in state.state.pods.values() if _has_anti_affinity(entry)]
    # Pods on the node itself are the most likely cause.
    entries.sort(key=lambda entry: (entry.node != node.name, entry.info.key))
    for entry in entries[:_MAX_ANTI_AFFINITY_PODS]:
        pod = entry.info.pod
        affinity = replace(pod.spec.affinity or Affinity(), pod_anti_affinity=None)
        change = UnblockingChange(
            ChangeKind.OTHER_ANTI_AFFINITY,
            f"without the anti-affinity of {pod.key} on {entry.node}",
            pods=(pod.key,),
        )
        yield change, state.replaced(_with_spec(pod, affinity=affinity))


def _has_anti_affinity(entry: PodEntry) -> bool:
    affinity = entry.info.shape.affinity
    anti = affinity.pod_anti_affinity if affinity is not None else None
    return bool(entry.node) and anti is not None and bool(anti.required)


def _evictions(state: HypotheticalState, node: str) -> UnblockingChange | None:
    """The fewest and least important pods to evict."""
    own = state.pod.spec.priority
    here = [entry for entry in state.state.pods.values() if entry.node == node]
    # As in preemption, higher priorities are restored first, then earlier start times.
    here.sort(key=lambda entry: (-entry.info.priority, start_time(entry.info)))
    lower = [entry.info.key for entry in here if entry.info.priority < own]
    every = [entry.info.key for entry in here]
    for candidates in (lower, every) if len(lower) < len(every) else (lower,):
        victims = _fewest(state, node, candidates)
        if victims:
            all_lower = candidates is lower
            summary = f"after evicting {', '.join(victims)}"
            if not all_lower:
                summary += " (not all of lower priority)"
            return UnblockingChange(
                ChangeKind.EVICTIONS, summary, pods=victims, lower_priority=all_lower
            )
    return None


def _fewest(state: HypotheticalState, node: str, candidates: Sequence[str]) -> tuple[str, ...]:
    """The candidates that remain after restoring each one that may stay; none if evicting all of
    them does not suffice."""
    if not candidates:
        return ()
    with state.without_pods(candidates) as removed:
        if not state.feasible(node):
            return ()
        for key in candidates:
            removed.restore(key)
            if not state.feasible(node):
                removed.remove(key)
        victims = removed.keys
    if not victims:
        return ()
    # Checked again from the initial state: restored pods lack the notes of Reserve plugins.
    with state.without_pods(victims):
        return victims if state.feasible(node) else ()
