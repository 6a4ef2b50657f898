"""Faults of kube-scheduler 1.36's group cycle that asched does not have, as named rules.

A rule says by the recorded data alone which cases show its fault, and what must hold for asched's
answer there. Such a case is not compared with the recording.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from asched.framework.pod_info import PodInfo
from asched.model.pod import PodAffinityTerm
from tests.conformance.group_documents import CycleAnswer, GroupCase, GroupLaboratory, name_of


class FaultRule(NamedTuple):
    """One fault."""

    name: str
    shows: Callable[[GroupCase], bool]
    """Whether the recording shows it."""
    allows: frozenset[str]
    """The outcomes that asched may have there."""


def rule_for(case: GroupCase) -> FaultRule | None:
    """The first rule that excludes the case."""
    return next((rule for rule in RULES if rule.shows(case)), None)


def rule_by_answer(
    case: GroupCase, laboratory: GroupLaboratory, answer: CycleAnswer
) -> FaultRule | None:
    """The rule of a recorded group that waits for victims, where the recording alone does not show
    the fault: whether they are useless or for a surplus member, and which terms were missed in the
    passes that chose them, which are not recorded."""
    if case.canonical is None or case.canonical["outcome"] != "waiting":
        return None
    if case.gates["WorkloadAwarePreemption"]:
        same = sorted(case.cycle.get("victims") or ()) == answer.victims()
        return OUTDATED_AFFINITY if not same and _name_each_other(case.pods) else None
    if answer.outcome == "waiting":
        return None
    preempting = sum(step.get("postFilter") == "Success" for step in case.cycle["trace"])
    others = len(case.pods) - preempting + len(case.bound)
    if answer.outcome == "scheduled" and others >= _min_count(case):
        return SURPLUS_PREEMPTS
    return None if laboratory.recorded_victims_suffice() else VICTIMS_IN_VAIN


def broken_promises(
    rule: FaultRule, laboratory: GroupLaboratory, answer: CycleAnswer
) -> Iterator[str]:
    """What does not hold for asched's answer, although it must wherever a rule excludes a case."""
    if answer.outcome not in rule.allows:
        yield f"outcome: expected one of {sorted(rule.allows)}, got {answer.outcome}"
    if answer.members is None or answer.result is None:
        return
    placed = answer.nodes()
    needed = answer.members.rules.min_count
    running = {name_of(m.pod.key): m.node for m in answer.members.group.running}
    if placed and len(placed) + len(running) < needed:
        yield f"only {len(placed)} members placed: {needed} must run together"
    if answer.outcome == "scheduled" and not placed:
        yield "scheduled without a member that is placed"
    victims = answer.victims()
    if victims and answer.outcome != "waiting":
        yield f"victims {sorted(victims)} although the group is {answer.outcome}"
    if victims and not laboratory.fits_without(victims, answer):
        yield f"the group does not fit without the victims {sorted(victims)}"
    yield from _outside_domain(laboratory, answer, {**running, **placed})
    yield from _violated_terms(laboratory, {**running, **placed}, {*placed})


def _outside_domain(
    laboratory: GroupLaboratory, answer: CycleAnswer, placed: Mapping[str, str]
) -> Iterator[str]:
    key = answer.members.rules.topology_key if answer.members is not None else ""
    if (
        not key
        or not answer.nodes()
        or not laboratory.case.gates["TopologyAwareWorkloadScheduling"]
    ):
        return
    nodes = laboratory.state.nodes
    domains = {nodes.node(nodes.row_of(n) or 0).labels.get(key) for n in placed.values()}
    if len(domains) != 1:
        yield f"members in several domains of {key}: {domains}"


def _violated_terms(
    laboratory: GroupLaboratory, placed: Mapping[str, str], new: set[str]
) -> Iterator[str]:
    """Required anti-affinity between members in one domain; one of them is new."""
    nodes = laboratory.state.nodes
    for name, node in placed.items():
        owner = laboratory.pod(name)
        labels = nodes.node(nodes.row_of(node) or 0).labels
        for term in _required_anti_affinity(owner):
            for other, other_node in placed.items():
                if other == name or not {name, other} & new:
                    continue
                theirs = nodes.node(nodes.row_of(other_node) or 0).labels
                key = term.topology_key
                together = key in labels and labels[key] == theirs.get(key)
                if together and _selects(term, laboratory.pod(other)):
                    yield f"required anti-affinity of {name} is violated by {other}"


# -- which cases show a fault ---------------------------------------------------------------------


def _victims_in_vain(case: GroupCase) -> bool:
    """Victims are evicted, or chosen although they terminate, and the group does not run
    afterwards."""
    if case.canonical is None:
        return False
    if case.canonical["outcome"] == "unschedulable":
        chosen = any(step.get("nominated") for step in case.cycle.get("trace") or ())
        return chosen or bool(case.cycle.get("victims"))
    if not case.cycle.get("victims"):
        return False
    cycles = case.canonical["run"]["cycles"]
    return len(cycles) > 1 and not any(p.get("node") for p in cycles[1]["pods"].values())


def _surplus_preempts(case: GroupCase) -> bool:
    """The group waits for victims of a member, although it is complete without that member."""
    if case.canonical is None or case.canonical["outcome"] != "waiting":
        return False
    if case.gates["WorkloadAwarePreemption"]:
        return False
    fitting = sum("node" in step for step in case.cycle["trace"])
    return fitting > 0 and fitting + len(case.bound) >= _min_count(case)


def _terminating_member_counts(case: GroupCase) -> bool:
    """A running member that is being deleted counts for the minimum, and for the domain."""
    return any("deletionTimestamp" in pod["metadata"] for pod in case.bound)


def _nomination_ignored(case: GroupCase) -> bool:
    """A gated member has a nominated node. kube-scheduler does not keep the room for a pod that it
    knows only as gated."""
    return bool(case.cycle) and any(
        (pod.get("status") or {}).get("nominatedNodeName") and pod["spec"].get("schedulingGates")
        for pod in case.pods
    )


def _min_count(case: GroupCase) -> int:
    """How many members must run together; 1 for a group without minimum."""
    policy = (case.pod_group or {}).get("spec", {}).get("schedulingPolicy", {})
    count: int = (policy.get("gang") or {}).get("minCount", 1)
    return count


def _outdated_affinity(case: GroupCase) -> bool:
    """An affinity term of an earlier member is missed, because kube-scheduler looks it up in lists
    that assumed members do not enter (rule 13 of the recorded data), and a later member may get
    another node because of that."""
    pods = {pod["metadata"]["name"]: pod for pod in case.pods}
    missed = _MissedTerms(case)
    by_placement: dict[str, list[tuple[dict[str, Any], str]]] = {}
    for step in case.cycle.get("trace") or ():
        later = pods.get(step["pod"])
        # A node that it gets by preemption passed the filters, too.
        feasible = step.get("feasible") or [node for node in (step.get("nominated"),) if node]
        earlier = by_placement.setdefault(step.get("placement", ""), [])
        if later is None:
            continue
        if any(missed.matter(before, node, later, feasible) for before, node in earlier):
            return True
        if node := step.get("node") or step.get("nominated"):
            earlier.append((later, node))
    return False


def _name_each_other(pods: Sequence[dict[str, Any]]) -> bool:
    """Whether any pod has an affinity term that selects another one."""
    return any(
        True
        for pod in pods
        for other in pods
        for kind in ("podAffinity", "podAntiAffinity")
        for when in (_REQUIRED, _PREFERRED)
        for _ in _matching(pod, kind, when, other)
        if pod is not other
    )


class _MissedTerms:
    """Terms of assumed members that kube-scheduler does not see."""

    def __init__(self, case: GroupCase) -> None:
        self._running = _running_terms(case)
        nodes = case.objects.get("nodes", ())
        self._labels = {n["metadata"]["name"]: n["metadata"].get("labels") or {} for n in nodes}

    def matter(
        self, before: dict[str, Any], node: str, later: dict[str, Any], feasible: Sequence[str]
    ) -> bool:
        """Whether a term of an earlier member on a node would change the feasible nodes of a later
        one, or the order of their scores."""
        any_terms, anti_terms = self._running.get(node, (False, False))
        if not anti_terms:
            for term in _matching(before, "podAntiAffinity", _REQUIRED, later):
                if self._in_domain(term, node, feasible):
                    return True
        if any_terms or _has_preferred(later):
            return False
        return any(
            0 < self._in_domain(term, node, feasible) < len(feasible)
            for kind, when in (
                ("podAffinity", _REQUIRED),
                ("podAffinity", _PREFERRED),
                ("podAntiAffinity", _PREFERRED),
            )
            for term in _matching(before, kind, when, later)
        )

    def _in_domain(self, term: dict[str, Any], node: str, feasible: Sequence[str]) -> int:
        """How many of the feasible nodes are in the domain of the node."""
        key = term["topologyKey"]
        value = self._labels[node].get(key)
        return sum(value is not None and self._labels[n].get(key) == value for n in feasible)


_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def _terms(pod: dict[str, Any], kind: str, when: str) -> list[dict[str, Any]]:
    listed = ((pod["spec"].get("affinity") or {}).get(kind) or {}).get(when) or []
    return [term.get("podAffinityTerm", term) for term in listed]


def _has_preferred(pod: dict[str, Any]) -> bool:
    return bool(
        _terms(pod, "podAffinity", _PREFERRED) or _terms(pod, "podAntiAffinity", _PREFERRED)
    )


def _matching(
    pod: dict[str, Any], kind: str, when: str, other: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """The terms that may select the other pod: by their ``matchLabels``."""
    labels = other["metadata"].get("labels") or {}
    for term in _terms(pod, kind, when):
        wanted = (term.get("labelSelector") or {}).get("matchLabels") or {}
        if all(labels.get(key) == value for key, value in wanted.items()):
            yield term


def _running_terms(case: GroupCase) -> dict[str, tuple[bool, bool]]:
    """By node, whether running pods have affinity terms, and required anti-affinity."""
    found: dict[str, tuple[bool, bool]] = {}
    for pod in (*case.objects.get("pods", ()), *case.bound):
        affinity = pod["spec"].get("affinity") or {}
        terms = bool(affinity.get("podAffinity") or affinity.get("podAntiAffinity"))
        anti = bool(_terms(pod, "podAntiAffinity", _REQUIRED))
        node = pod["spec"].get("nodeName", "")
        before = found.get(node, (False, False))
        found[node] = (before[0] or terms, before[1] or anti)
    return found


def _refused_by_api_server(case: GroupCase) -> bool:
    """A member has an ``In`` without values in a spread constraint, which no API server accepts.
    kube-scheduler's error fails the whole group; asched reads it as a selector without matches."""
    return any(
        expression.get("operator") in ("In", "NotIn") and not expression.get("values")
        for pod in case.pods
        for constraint in pod["spec"].get("topologySpreadConstraints") or ()
        for expression in (constraint.get("labelSelector") or {}).get("matchExpressions") or ()
    )


_ANY_OUTCOME = frozenset({"scheduled", "waiting", "unschedulable"})

VICTIMS_IN_VAIN = FaultRule("victims-in-vain", _victims_in_vain, _ANY_OUTCOME)
SURPLUS_PREEMPTS = FaultRule("surplus-preempts", _surplus_preempts, frozenset({"scheduled"}))
OUTDATED_AFFINITY = FaultRule("outdated-affinity", _outdated_affinity, _ANY_OUTCOME)
RULES: Sequence[FaultRule] = (
    FaultRule("terminating-member-counts", _terminating_member_counts, _ANY_OUTCOME | {"gated"}),
    FaultRule("nomination-ignored", _nomination_ignored, _ANY_OUTCOME),
    FaultRule("refused-by-api-server", _refused_by_api_server, _ANY_OUTCOME),
    VICTIMS_IN_VAIN,
    SURPLUS_PREEMPTS,
    OUTDATED_AFFINITY,
)


# -- members --------------------------------------------------------------------------------------


def _required_anti_affinity(pod: PodInfo) -> Sequence[PodAffinityTerm]:
    affinity = pod.pod.spec.affinity
    anti = None if affinity is None else affinity.pod_anti_affinity
    return () if anti is None else anti.required


def _selects(term: PodAffinityTerm, pod: PodInfo) -> bool:
    """Whether a term without namespaces selects a pod of its own namespace."""
    return term.label_selector is not None and term.label_selector.matches(pod.labels)
