"""What would unblock a pending pod: single changes, each tried before it is told.

For the nodes that come nearest, those that the fewest plugins refuse, candidates are made from what
the pod and the node say of themselves. Each is supposed on a copy of the state
(:mod:`asched.audit.supposition`) and told only where all filters pass then. Nothing is guessed: where
no single change helps, none is told.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from enum import Enum
from typing import Final, NamedTuple

import msgspec

from asched.audit.supposition import Hypotheticals
from asched.model.node import NO_EXECUTE, NO_SCHEDULE, UNSCHEDULABLE_TAINT, Node
from asched.model.pod import Affinity, Pod, Toleration
from asched.model.requests import CPU, PODS
from asched.model.selectors import NodeSelectorRequirement
from asched.plugins.inter_pod_affinity.plugin import InterPodAffinity
from asched.state.cluster import PodEntry

NEAREST: Final = 5
"""Nodes that are looked at."""
_MOST_VALUES: Final = 5
"""Values of a topology label that are tried."""
_MOST_OBJECTORS: Final = 50
"""Pods whose anti-affinity is tried to be left out."""


class ChangeKind(Enum):
    MORE_ROOM = "moreRoom"
    UNCORDON = "uncordon"
    TOLERATION = "toleration"
    NODE_LABEL = "nodeLabel"
    POD_CONSTRAINT = "podConstraint"
    """A constraint of the pod's own is left out."""
    OTHER_ANTI_AFFINITY = "otherAntiAffinity"
    """Another pod's required anti-affinity is left out."""
    EVICTIONS = "evictions"
    UNGATE = "ungate"


class Unblocking(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One change after which the pod fits on the node."""

    kind: ChangeKind
    summary: str
    """In words."""
    amounts: dict[str, int] = {}
    """How much more of which resource the node would need: cpu in thousandths of a core."""
    key: str = ""
    """Of the taint or label."""
    value: str | None = None
    """Of the taint or label; None for a label that has to go."""
    effect: str = ""
    pods: tuple[str, ...] = ()
    """The pods that would have to go, or whose anti-affinity is in the way."""
    lower_priority: bool = False
    """All of ``pods`` have a lower priority than the pod, so preemption may evict them."""


class Prospect(msgspec.Struct, frozen=True, rename="camel"):
    """A node, and each single change that makes it feasible."""

    node: str
    """Empty for what does not concern one node."""
    refused_by: tuple[str, ...]
    changes: tuple[Unblocking, ...]


class _Candidate(NamedTuple):
    told: Unblocking
    supposed: AbstractContextManager[None]


def prospects(
    supposing: Hypotheticals, refusals: Mapping[str, Sequence[str]], nearest: int = NEAREST
) -> tuple[Prospect, ...]:
    """The nearest nodes with the changes that would help.

    ``refusals`` names for each node the plugins that refuse it.
    """
    pod = supposing.pod
    if pod.spec.scheduling_gates:
        return _ungated(supposing)

    def distance(node: str) -> tuple[int, float, str]:
        return len(refusals[node]), _lacking_share(supposing, node), node

    found = []
    for name in sorted(refusals, key=distance)[:nearest]:
        changes = [
            candidate.told
            for candidate in _candidates(supposing, name, refusals[name])
            if _helps(supposing, candidate, name)
        ]
        evictions = _evictions(supposing, name)
        if evictions is not None:
            changes.append(evictions)
        found.append(Prospect(name, tuple(refusals[name]), tuple(changes)))
    return tuple(found)


def _helps(supposing: Hypotheticals, candidate: _Candidate, node: str) -> bool:
    with candidate.supposed:
        return supposing.feasible(node)


def _candidates(
    supposing: Hypotheticals, name: str, refused_by: Sequence[str]
) -> Iterator[_Candidate]:
    node, pod = supposing.state.objects(Node)[name], supposing.pod
    yield from _more_room(supposing, node)
    yield from _uncordoned(supposing, node)
    yield from _tolerations(supposing, node, pod)
    yield from _labels(supposing, node, pod)
    yield from _own_constraints(supposing, pod)
    if refused_by.count(InterPodAffinity.name):
        yield from _other_anti_affinity(supposing, node)


# -- the pod as a whole ---------------------------------------------------------------------------


def _ungated(supposing: Hypotheticals) -> tuple[Prospect, ...]:
    pod = supposing.pod
    names = ", ".join(gate.name for gate in pod.spec.scheduling_gates)
    with supposing.pod_is(_with_spec(pod, scheduling_gates=())):
        count = len(supposing.feasible_nodes())
    if not count:
        return ()
    summary = f"remove the scheduling gate {names}: {count} node(s) are feasible then"
    change = Unblocking(ChangeKind.UNGATE, summary, key=names)
    return (Prospect("", ("SchedulingGates",), (change,)),)


# -- the node -------------------------------------------------------------------------------------


def _lacking(supposing: Hypotheticals, name: str) -> dict[str, int]:
    """By resource, how much more the node would have to offer than it does."""
    state = supposing.state
    table, shape = state.nodes, state.pods[supposing.key].info.shape
    row = table.row_of(name)
    assert row is not None, "only asked about nodes of the state"
    lacking = {
        resource: asked
        + int(table.requested(resource)[row])
        - int(table.allocatable(resource)[row])
        for resource, asked in shape.requests.items()
        if asked
    }
    lacking[PODS] = 1 + int(table.pod_count[row]) - int(table.allowed_pods[row])
    return {resource: number for resource, number in lacking.items() if number > 0}


def _lacking_share(supposing: Hypotheticals, name: str) -> float:
    """What the node lacks, in parts of what the pod asks for: of nodes that equally many plugins
    refuse the one that lacks least is nearer."""
    requests = supposing.entry(supposing.key).info.shape.requests
    return sum(
        number / max(1, requests.get(resource, 1))
        for resource, number in _lacking(supposing, name).items()
    )


def _more_room(supposing: Hypotheticals, node: Node) -> Iterator[_Candidate]:
    lacking = _lacking(supposing, node.name)
    if not lacking:
        return
    table = supposing.state.nodes
    row = table.row_of(node.name)
    offered = {**node.status.allocatable}
    for resource, number in lacking.items():
        total = int(table.allocatable(resource)[row]) + number
        offered[resource] = f"{total}m" if resource == CPU else str(total)
    larger = msgspec.structs.replace(
        node, status=msgspec.structs.replace(node.status, allocatable=offered)
    )
    amounts = ", ".join(
        f"{_amount(resource, number)} {resource}" for resource, number in lacking.items()
    )
    told = Unblocking(ChangeKind.MORE_ROOM, f"{amounts} more on the node", amounts=lacking)
    yield _Candidate(told, supposing.node_is(larger))


def _amount(resource: str, number: int) -> str:
    if resource == CPU:
        return f"{number}m" if number % 1000 else str(number // 1000)
    for unit, size in (("Gi", 1 << 30), ("Mi", 1 << 20), ("Ki", 1 << 10)):
        if number >= size and number % size == 0:
            return f"{number // size}{unit}"
    return str(number)


def _uncordoned(supposing: Hypotheticals, node: Node) -> Iterator[_Candidate]:
    if not node.spec.unschedulable:
        return
    # The node controller takes the taint off together with the mark.
    taints = tuple(taint for taint in node.spec.taints if taint.key != UNSCHEDULABLE_TAINT)
    spec = msgspec.structs.replace(node.spec, unschedulable=False, taints=taints)
    told = Unblocking(ChangeKind.UNCORDON, "uncordon the node")
    yield _Candidate(told, supposing.node_is(msgspec.structs.replace(node, spec=spec)))


def _tolerations(supposing: Hypotheticals, node: Node, pod: Pod) -> Iterator[_Candidate]:
    for taint in node.spec.taints:
        if taint.effect not in (NO_SCHEDULE, NO_EXECUTE):
            continue
        if any(toleration.tolerates(taint) for toleration in pod.spec.tolerations):
            continue
        added = Toleration(key=taint.key, operator="Equal", value=taint.value, effect=taint.effect)
        said = f"{taint.key}={taint.value}" if taint.value else taint.key
        told = Unblocking(
            ChangeKind.TOLERATION, f"the pod tolerates {said}:{taint.effect}", key=taint.key,
            value=taint.value, effect=taint.effect,
        )  # fmt: skip
        tolerant = _with_spec(pod, tolerations=(*pod.spec.tolerations, added))
        yield _Candidate(told, supposing.pod_is(tolerant))


def _labels(supposing: Hypotheticals, node: Node, pod: Pod) -> Iterator[_Candidate]:
    tried = dict.fromkeys((*_wanted_labels(pod, node), *_topology_labels(supposing, pod, node)))
    for key, value in tried:
        labels = {**node.metadata.labels}
        labels.pop(key, None)
        if value is not None:
            labels[key] = value
        if labels == node.metadata.labels:
            continue
        metadata = msgspec.structs.replace(node.metadata, labels=labels)
        summary = f"label the node {key}={value}" if value is not None else f"no label {key} on it"
        told = Unblocking(ChangeKind.NODE_LABEL, summary, key=key, value=value)
        yield _Candidate(told, supposing.node_is(msgspec.structs.replace(node, metadata=metadata)))


def _wanted_labels(pod: Pod, node: Node) -> Iterator[tuple[str, str | None]]:
    """Of each label that the pod's selectors ask about, the first value that would do."""
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
    supposing: Hypotheticals, pod: Pod, node: Node
) -> Iterator[tuple[str, str | None]]:
    """Values that other nodes have of the labels by which the pod spreads or gathers."""
    keys = [constraint.topology_key for constraint in pod.spec.topology_spread_constraints]
    affinity = pod.spec.affinity
    for terms in (affinity.pod_affinity, affinity.pod_anti_affinity) if affinity else ():
        keys += [term.topology_key for term in terms.required] if terms else []
    others = supposing.state.objects(Node).values()
    for key in dict.fromkeys(keys):
        values = sorted({n.metadata.labels[key] for n in others if key in n.metadata.labels})
        for value in values[:_MOST_VALUES]:
            if value != node.metadata.labels.get(key):
                yield key, value


# -- other constraints ----------------------------------------------------------------------------


def _with_spec(pod: Pod, **fields: object) -> Pod:
    return msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, **fields))


def _own_constraints(supposing: Hypotheticals, pod: Pod) -> Iterator[_Candidate]:
    affinity, replace = pod.spec.affinity, msgspec.structs.replace
    changed: list[tuple[str, str, Pod]] = []
    for what, field in (
        ("required pod anti-affinity", "pod_anti_affinity"),
        ("required pod affinity", "pod_affinity"),
    ):
        held = getattr(affinity, field) if affinity is not None else None
        if affinity is not None and held is not None and held.required:
            without = replace(affinity, **{field: replace(held, required=())})
            changed.append((what, "", _with_spec(pod, affinity=without)))
    constraints = pod.spec.topology_spread_constraints
    for index, constraint in enumerate(constraints):
        if constraint.when_unsatisfiable == "DoNotSchedule":
            rest = constraints[:index] + constraints[index + 1 :]
            what = f"spread constraint over {constraint.topology_key}"
            spread = _with_spec(pod, topology_spread_constraints=rest)
            changed.append((what, constraint.topology_key, spread))
    for what, key, without_it in changed:
        told = Unblocking(ChangeKind.POD_CONSTRAINT, f"without the pod's own {what}", key=key)
        yield _Candidate(told, supposing.pod_is(without_it))


def _other_anti_affinity(supposing: Hypotheticals, node: Node) -> Iterator[_Candidate]:
    objectors = [entry for entry in supposing.state.pods.values() if _objects_to_some(entry)]
    # Those on the node itself are the likeliest.
    objectors.sort(key=lambda entry: (entry.node != node.name, entry.info.key))
    for entry in objectors[:_MOST_OBJECTORS]:
        pod = entry.info.pod
        affinity = msgspec.structs.replace(pod.spec.affinity or Affinity(), pod_anti_affinity=None)
        told = Unblocking(
            ChangeKind.OTHER_ANTI_AFFINITY,
            f"without the anti-affinity of {pod.key} on {entry.node}",
            pods=(pod.key,),
        )
        yield _Candidate(told, supposing.pod_is(_with_spec(pod, affinity=affinity)))


def _objects_to_some(entry: PodEntry) -> bool:
    affinity = entry.info.shape.affinity
    anti = affinity.pod_anti_affinity if affinity is not None else None
    return bool(entry.node) and anti is not None and bool(anti.required)


# -- evictions ------------------------------------------------------------------------------------


def _evictions(supposing: Hypotheticals, node: str) -> Unblocking | None:
    """The pods that would have to go, as few and as unimportant as can be."""
    own = supposing.pod.spec.priority
    here = [entry for entry in supposing.state.pods.values() if entry.node == node]
    # Important ones are spared first; of equals the one that has been there longest.
    here.sort(key=lambda entry: (-entry.info.priority, entry.info.pod.status.start_time is None))
    lower = [entry.info.key for entry in here if entry.info.priority < own]
    everyone = [entry.info.key for entry in here]
    for candidates in (lower, everyone) if len(lower) < len(everyone) else (lower,):
        victims = _fewest(supposing, node, candidates)
        if victims:
            unimportant = candidates is lower
            summary = f"after evicting {', '.join(victims)}"
            if not unimportant:
                summary += " (not all of lower priority)"
            return Unblocking(
                ChangeKind.EVICTIONS, summary, pods=victims, lower_priority=unimportant
            )
    return None


def _fewest(supposing: Hypotheticals, node: str, candidates: Iterable[str]) -> tuple[str, ...]:
    """What is left of the candidates when each that can stay stays; none if all together do not
    suffice."""
    everyone = [*candidates]
    if not everyone:
        return ()
    with supposing.without(everyone) as absence:
        if not supposing.feasible(node):
            return ()
        for key in everyone:
            absence.bring_back(key)
            if not supposing.feasible(node):
                absence.take_away(key)
        victims = absence.away
    if not victims:
        return ()
    # Once more from the state as it was: who was brought back came without what plugins had noted.
    with supposing.without(victims):
        return victims if supposing.feasible(node) else ()
