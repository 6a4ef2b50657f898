"""Counts violations of topology spread constraints in a run.

Applies the run to a separate state and uses the code of PodTopologySpread, so that node affinity
and taint policies, ``minDomains`` and terminating pods count as in the plugin.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import groupby
from operator import itemgetter
from typing import Final, NamedTuple, NoReturn

import msgspec

from asched.framework.pod_info import PodInfo
from asched.framework.pod_queries import PodQuery, Selector
from asched.model.pod import Pod, TopologySpreadConstraint
from asched.model.quantity import NS_PER_S
from asched.plugins.pod_topology_spread.constraints import (
    Constraint,
    ConstraintCounts,
    ConstraintSet,
)
from asched.simulator.trace import PodRun, WorkloadRun
from asched.state.cluster import ClusterState
from asched.state.fold import Fold
from asched.state.records import AnyRecord, ObjectDeleted, ObjectObserved

HARD: Final = "DoNotSchedule"
SOFT: Final = "ScheduleAnyway"

_encode = msgspec.json.Encoder(order="deterministic").encode


class SpreadViolations(msgspec.Struct, frozen=True, rename="camel"):
    """Constraints with a skew above ``maxSkew``. The skew is the number of matching pods in a
    domain minus the minimum over all domains."""

    constraints: int = 0
    """Distinct constraints of the pods on nodes at the end."""
    hard_at_placement: int = 0
    """``DoNotSchedule`` constraints that placements violated in the pod's own domain."""
    soft_at_placement: int = 0
    """``ScheduleAnyway`` constraints that placements violated."""
    hard_at_end: int = 0
    """Distinct constraints that are violated at the end."""
    soft_at_end: int = 0


_PodKind = dict[bool, ConstraintSet]
"""The constraints of pods with equal constraints and node requirements: hard ones by True, soft
ones by False."""


class _TimedRecord(NamedTuple):
    at_ns: int
    order: int
    """At the same time: deletions, added nodes, added pods."""
    record: AnyRecord
    placed: tuple[PodInfo, str] | None = None
    """A pod that a decision placed, and its node."""


def spread_violations(run: WorkloadRun) -> SpreadViolations:
    """The violations after each placement and at the end of the run."""
    queries = _queries(run.pods)
    if not queries:
        return SpreadViolations()
    counter = _ViolationCounter()
    steps = sorted(_steps(run, queries), key=itemgetter(0, 1))
    for at_ns, at_once in groupby(steps, key=itemgetter(0)):
        if at_ns > run.end_ns:
            break
        counter.apply([*at_once])
    return counter.result()


class _ViolationCounter:
    def __init__(self) -> None:
        self._state = ClusterState()
        self._fold = Fold(self._state, _no_plugins)
        self._kinds: dict[bytes, _PodKind] = {}
        self._at_placement = {True: 0, False: 0}

    def apply(self, steps: Sequence[_TimedRecord]) -> None:
        """Applies all steps of the same time, then counts the violations of placed pods."""
        for step in steps:
            self._fold.apply(step.record)
        for step in steps:
            if step.placed is not None:
                self._count(*step.placed)

    def _count(self, pod: PodInfo, node: str) -> None:
        row = self._state.nodes.row_of(node)
        if row is None:
            return
        for hard, plan in self._kind(pod).items():
            plan.refresh(self._state)
            self._at_placement[hard] += sum(
                _excess(spread, int(spread.domains.of_row[row]), hard=hard)
                for spread in plan.counts
            )

    def result(self) -> SpreadViolations:
        counted: set[bytes] = set()
        constraints = 0
        at_end = {True: 0, False: 0}
        for entry in self._state.pods.values():
            kind, key = self._kind(entry.info), _kind_key(entry.info)
            if key in counted:
                continue
            counted.add(key)
            for hard, plan in kind.items():
                plan.refresh(self._state)
                constraints += len(plan.counts)
                at_end[hard] += sum(
                    any(_excess(spread, domain, hard=hard) for domain in range(spread.domains.live))
                    for spread in plan.counts
                )
        return SpreadViolations(
            constraints,
            self._at_placement[True],
            self._at_placement[False],
            at_end[True],
            at_end[False],
        )

    def _kind(self, pod: PodInfo) -> _PodKind:
        if not pod.pod.spec.topology_spread_constraints:
            return {}
        key = _kind_key(pod)
        if key not in self._kinds:
            plans = {True: _plan(pod, HARD), False: _plan(pod, SOFT)}
            self._kinds[key] = {hard: plan for hard, plan in plans.items() if plan is not None}
        return self._kinds[key]


def _excess(spread: ConstraintCounts, domain: int, *, hard: bool) -> bool:
    """Whether the domain has more pods than the constraint allows. A node without a domain violates
    hard constraints only."""
    if domain >= spread.domains.number:
        return hard
    held = int(spread.by_domain.sums[domain])
    return held > spread.max_count({}, self_match=False)


def _plan(pod: PodInfo, when: str) -> ConstraintSet | None:
    constraints = [
        Constraint(
            written.topology_key,
            written.max_skew,
            1 if written.min_domains is None else written.min_domains,
            written.node_affinity_policy == "Honor",
            written.node_taints_policy == "Honor",
            _query(written, pod.pod),
        )
        for written in pod.pod.spec.topology_spread_constraints
        if written.when_unsatisfiable == when
    ]
    return ConstraintSet(constraints, pod.shape, require_all_keys=True) if constraints else None


def _query(written: TopologySpreadConstraint, pod: Pod) -> PodQuery:
    selectors = (Selector(written.label_selector),)
    return PodQuery(selectors, frozenset({pod.namespace}), count_terminating=False)


def _kind_key(pod: PodInfo) -> bytes:
    spec = pod.pod.spec
    constraints = spec.topology_spread_constraints
    return _encode(
        (pod.namespace, constraints, spec.node_selector, spec.affinity, spec.tolerations)
    )


def _queries(pods: Iterable[PodRun]) -> list[PodQuery]:
    """Select the pods that any constraint counts."""
    return [
        *dict.fromkeys(
            _query(written, run.pod)
            for run in pods
            for written in run.pod.spec.topology_spread_constraints
        )
    ]


def _steps(run: WorkloadRun, queries: Sequence[PodQuery]) -> Iterator[_TimedRecord]:
    begun = {(span.node.name, span.from_ns) for span in run.nodes}
    for span in run.nodes:
        yield _TimedRecord(span.from_ns, 1, ObjectObserved(span.node))
        # A span that ends where the next one begins is an update.
        if span.to_ns is not None and (span.node.name, span.to_ns) not in begun:
            yield _TimedRecord(span.to_ns, 0, ObjectDeleted("Node", span.node.key, span.node.uid))
    for pod in run.pods:
        labels = PodInfo(pod.pod).label_set
        constrained = bool(pod.pod.spec.topology_spread_constraints)
        if constrained or any(query.matches(labels) for query in queries):
            yield from _steps_of(pod)


def _steps_of(run: PodRun) -> Iterator[_TimedRecord]:
    for number, placement in enumerate(run.placements):
        pod = _numbered(run.pod, placement.node, number)
        decided = not run.pod.spec.node_name or number > 0
        placed = (PodInfo(pod), placement.node) if decided else None
        yield _TimedRecord(placement.assigned_ns, 2, ObjectObserved(pod), placed)
        if placement.evicted_ns is not None and placement.ended_ns != placement.evicted_ns:
            # A terminating pod does not count.
            terminating = _terminating(pod, placement.evicted_ns)
            yield _TimedRecord(placement.evicted_ns, 1, ObjectObserved(terminating))
        if placement.ended_ns is not None:
            yield _TimedRecord(placement.ended_ns, 0, ObjectDeleted("Pod", pod.key, pod.uid))


def _numbered(pod: Pod, node: str, number: int) -> Pod:
    """The pod on a node. Each placement has its own name, because they may overlap in a recorded
    run."""
    replace, metadata = msgspec.structs.replace, pod.metadata
    if number:
        name, uid = f"{metadata.name}.{number}", f"{metadata.uid}.{number}"
        metadata = replace(metadata, name=name, uid=uid)
    return replace(pod, metadata=metadata, spec=replace(pod.spec, node_name=node))


def _terminating(pod: Pod, at_ns: int) -> Pod:
    at = datetime.fromtimestamp(at_ns // NS_PER_S, UTC)
    metadata = msgspec.structs.replace(pod.metadata, deletion_timestamp=at)
    return msgspec.structs.replace(pod, metadata=metadata)


def _no_plugins(name: str) -> NoReturn:
    raise AssertionError(f"plugin {name} requested without a profile")
