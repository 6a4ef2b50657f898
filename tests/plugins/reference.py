"""Simple implementations of the plugins for one node, on the API objects.

Nothing here knows of columns; amounts are Python integers, wrapped to 64 bits only where Go wraps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from asched.framework.pod_info import PodInfo
from asched.model.node import Node, Taint
from asched.model.pod import Pod
from asched.model.quantity import MAX_INT64
from asched.model.requests import Amounts, amounts
from asched.model.selectors import NodeSelectorTerm
from asched.plugins.image_locality import normalized_image_name

Refusal = tuple[str, tuple[str, ...]]
"""Code title and reasons."""

UNRESOLVABLE = "UnschedulableAndUnresolvable"


class NodeView(NamedTuple):
    """One node with its pods."""

    node: Node
    pods: list[PodInfo]

    @property
    def offered(self) -> Amounts:
        return amounts(self.node.status.allocatable)

    def used(self, resource: str) -> int:
        return min(MAX_INT64, sum(p.shape.requests.get(resource, 0) for p in self.pods))


def view(nodes: Sequence[Node], bound: Sequence[Pod], name: str) -> NodeView:
    node = next(n for n in nodes if n.name == name)
    return NodeView(node, [PodInfo(p) for p in bound if p.node_name == name])


def wrapped(number: int) -> int:
    """Signed 64-bit overflow as in Go."""
    return (number + 2**63) % 2**64 - 2**63


def quotient(dividend: int, divisor: int) -> int:
    """Division towards zero as in Go."""
    magnitude = abs(dividend) // divisor
    return magnitude if dividend >= 0 else -magnitude


# -- filters --------------------------------------------------------------------------------------


def node_name(pod: PodInfo, here: NodeView) -> Refusal | None:
    if pod.pod.node_name in ("", here.node.name):
        return None
    return UNRESOLVABLE, ("node(s) didn't match the requested node name",)


def node_unschedulable(pod: PodInfo, here: NodeView) -> Refusal | None:
    cordon = Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")
    if not here.node.spec.unschedulable or tolerated(pod, cordon):
        return None
    return UNRESOLVABLE, ("node(s) were unschedulable",)


def tolerated(pod: PodInfo, taint: Taint) -> bool:
    for t in pod.pod.spec.tolerations:
        same_effect = t.effect in ("", taint.effect)
        same_key = t.key in ("", taint.key)
        same_value = t.operator == "Exists" or (
            t.operator in ("", "Equal") and t.value == taint.value
        )
        if same_effect and same_key and same_value:
            return True
    return False


def taint_toleration(pod: PodInfo, here: NodeView) -> Refusal | None:
    for taint in here.node.spec.taints:
        if taint.effect in ("NoSchedule", "NoExecute") and not tolerated(pod, taint):
            return UNRESOLVABLE, ("node(s) had untolerated taint(s)",)
    return None


def node_affinity(pod: PodInfo, here: NodeView) -> Refusal | None:
    spec, labels = pod.pod.spec, here.node.labels
    selected = all(labels.get(k) == v for k, v in (spec.node_selector or {}).items())
    affinity = spec.affinity.node_affinity if spec.affinity else None
    if affinity is not None and affinity.required is not None:
        selected = selected and any(
            parses(term) and term.matches(labels, here.node.name)
            for term in affinity.required.node_selector_terms
        )
    if selected:
        return None
    return UNRESOLVABLE, ("node(s) didn't match Pod's node affinity/selector",)


def parses(term: NodeSelectorTerm) -> bool:
    """Whether the drawn terms are valid: enough values, integers, known names."""
    for r in term.match_expressions:
        counts = {"In": {1, 2}, "NotIn": {1, 2}, "Exists": {0}, "DoesNotExist": {0}}
        if len(r.values) not in counts.get(r.operator, {1}) or r.operator == "Like":
            return False
        if any(" " in text for text in r.values):
            return False
        if r.operator in ("Gt", "Lt") and r.values[0] not in ("3", "10", "-7"):
            return False
        if any(text.startswith("-") for text in r.values):
            return False
    return all(
        r.key == "metadata.name" and r.operator in ("In", "NotIn") and len(r.values) == 1
        for r in term.match_fields
    )


def node_ports(pod: PodInfo, here: NodeView) -> Refusal | None:
    for wanted in pod.shape.ports:
        for other in here.pods:
            for taken in other.shape.ports:
                same = (wanted.protocol, wanted.port) == (taken.protocol, taken.port)
                if same and (wanted.ip == taken.ip or "0.0.0.0" in (wanted.ip, taken.ip)):
                    return "Unschedulable", (
                        "node(s) didn't have free ports for the requested pod ports",
                    )
    return None


def node_resources_fit(
    pod: PodInfo, here: NodeView, ignored: frozenset[str] = frozenset()
) -> Refusal | None:
    reasons, resolvable = [], True
    if len(here.pods) + 1 > here.offered.get("pods", 0):
        reasons.append("Too many pods")
    wanted = pod.shape.requests
    native = ("cpu", "memory", "ephemeral-storage")
    for name in (*native, *sorted(set(wanted) - set(native))):
        asked, offered = wanted.get(name, 0), here.offered.get(name, 0)
        if asked and name not in ignored and asked > offered - here.used(name):
            reasons.append(f"Insufficient {name}")
            resolvable = resolvable and asked <= offered
    if not reasons:
        return None
    return ("Unschedulable" if resolvable else UNRESOLVABLE), tuple(reasons)


# -- scores ---------------------------------------------------------------------------------------


def soft_taints(pod: PodInfo, here: NodeView) -> int:
    return sum(
        taint.effect == "PreferNoSchedule" and not tolerated(pod, taint)
        for taint in here.node.spec.taints
    )


def preference(pod: PodInfo, here: NodeView) -> int:
    affinity = pod.pod.spec.affinity
    preferred = affinity.node_affinity.preferred if affinity and affinity.node_affinity else ()
    return sum(
        p.weight for p in preferred if p.preference.matches(here.node.labels, here.node.name)
    )


def scored(
    pod: PodInfo, here: NodeView, weights: dict[str, int], *, assume: bool
) -> list[tuple[int, int, int, int]]:
    """(used, requested, allocatable, weight) of the resources that count on this node."""
    found = []
    for name, weight in weights.items():
        used = here.used(name)
        asks = pod.shape.scoring_asks if assume else pod.shape.requests
        asked = asks.get(name, 0)
        if assume and name == "cpu":
            used = sum(p.shape.scoring_cpu_milli for p in here.pods)
        if assume and name == "memory":
            used = min(MAX_INT64, sum(p.shape.scoring_memory_bytes for p in here.pods))
        offered = here.offered.get(name, 0)
        if offered and (asked or "/" not in name):
            found.append((used, asked, offered, weight))
    return found


def least_allocated(requested: int, offered: int) -> int:
    if requested > offered:
        return 0
    return quotient(wrapped((offered - requested) * 100), offered)


def most_allocated(requested: int, offered: int) -> int:
    return quotient(wrapped(min(requested, offered) * 100), offered)


def balance(fractions: list[float]) -> int:
    if len(fractions) == 2:
        deviation = abs((fractions[0] - fractions[1]) / 2)
    elif len(fractions) > 2:
        mean = sum(fractions) / len(fractions)
        squares = 0.0
        for fraction in fractions:
            squares += (fraction - mean) * (fraction - mean)
        deviation = math.sqrt(squares / len(fractions))
    else:
        deviation = 0.0
    return int((1 - deviation) * 100)


def balanced_allocation(pod: PodInfo, here: NodeView, weights: dict[str, int]) -> int:
    counted = scored(pod, here, weights, assume=False)
    without = balance([min(1.0, used / offered) for used, _, offered, _ in counted])
    including = balance([min(1.0, (u + a) / offered) for u, a, offered, _ in counted])
    return 50 + quotient(50 + including - without, 2)


def image_locality(pod: PodInfo, here: NodeView, cluster: Sequence[Node]) -> int:
    mebibyte = 1024 * 1024
    wanted = (*pod.shape.init_images, *pod.shape.images)
    total = 0
    for image in map(normalized_image_name, wanted):
        holders = [n for n in cluster if _size(n, image) is not None]
        if _size(here.node, image) is not None:
            total += int(float(_size(holders[0], image) or 0) * (len(holders) / len(cluster)))
    low, high = 23 * mebibyte, 1000 * mebibyte * len(wanted)
    return 100 * (min(max(total, low), high) - low) // (high - low)


def _size(node: Node, image: str) -> int | None:
    return next((i.size_bytes for i in node.status.images if image in i.names), None)


def normalized(raw: list[int], *, reverse: bool) -> list[int]:
    highest = max(raw, default=0)
    if highest == 0:
        return [100 if reverse else score for score in raw]
    scaled = [100 * score // highest for score in raw]
    return [100 - score for score in scaled] if reverse else scaled
