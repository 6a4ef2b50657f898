"""Which topology spread constraints a run kept.

The pods of a run are put on their nodes in a state of their own, so domains are counted by the very
code that PodTopologySpread counts them with: node affinity and taint policies, ``minDomains`` and
pods on their way out included.
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
from asched.simulator.trace import PodRun, Run
from asched.state.cluster import ClusterState
from asched.state.fold import Fold
from asched.state.records import AnyRecord, ObjectDeleted, ObjectObserved

HARD: Final = "DoNotSchedule"
SOFT: Final = "ScheduleAnyway"

_encode = msgspec.json.Encoder(order="deterministic").encode


class SpreadViolations(msgspec.Struct, frozen=True, rename="camel"):
    """Topology spread constraints whose skew exceeds their ``maxSkew``. The skew is the number of
    matching pods in a domain less that in the emptiest one."""

    constraints: int = 0
    """How many different ones the pods on nodes have."""
    hard_at_placement: int = 0
    """``DoNotSchedule``: placements after which the pod's domain was too full by one, for each
    constraint of the pod."""
    soft_at_placement: int = 0
    """``ScheduleAnyway``: the same."""
    hard_at_end: int = 0
    """How many different constraints do not hold for the pods that are there in the end."""
    soft_at_end: int = 0


class _Kind(NamedTuple):
    """Pods that have the same constraints and may be on the same nodes."""

    hard: ConstraintSet | None
    soft: ConstraintSet | None

    def plans(self) -> Iterator[tuple[bool, ConstraintSet]]:
        """(Whether it is about hard constraints, the plan)."""
        if self.hard is not None:
            yield True, self.hard
        if self.soft is not None:
            yield False, self.soft


class _Step(NamedTuple):
    at_ns: int
    order: int
    """Within one time: nodes and pods go, nodes come, pods come."""
    record: AnyRecord
    judged: tuple[PodInfo, str] | None = None
    """A pod that was placed by a decision, and its node."""


def spread_violations(run: Run) -> SpreadViolations:
    """Judge every placement of the run, and its end."""
    queries = _queries(run.pods)
    if not queries:
        return SpreadViolations()
    judge = _Judge()
    steps = sorted(_steps(run, queries), key=itemgetter(0, 1))
    for at_ns, together in groupby(steps, key=itemgetter(0)):
        if at_ns > run.end_ns:
            break
        judge.follow([*together])
    return judge.verdict()


class _Judge:
    def __init__(self) -> None:
        self._state = ClusterState()
        self._fold = Fold(self._state, _no_plugins)
        self._kinds: dict[bytes, _Kind] = {}
        self._too_uneven = {True: 0, False: 0}

    def follow(self, steps: Sequence[_Step]) -> None:
        """What happened at one time: judged is how it left things."""
        for step in steps:
            self._fold.apply(step.record)
        for step in steps:
            if step.judged is not None:
                self._judge(*step.judged)

    def _judge(self, pod: PodInfo, node: str) -> None:
        row = self._state.nodes.row_of(node)
        kind = self._kind(pod)
        if row is None or kind is None:
            return
        for hard, plan in kind.plans():
            plan.refresh(self._state)
            self._too_uneven[hard] += sum(
                _excess(spread, int(spread.domains.of_row[row]), hard=hard)
                for spread in plan.counts
            )

    def verdict(self) -> SpreadViolations:
        judged: set[bytes] = set()
        constraints = 0
        at_end = {True: 0, False: 0}
        for entry in self._state.pods.values():
            kind, key = self._kind(entry.info), _kind_key(entry.info)
            if kind is None or key in judged:
                continue
            judged.add(key)
            for hard, plan in kind.plans():
                plan.refresh(self._state)
                constraints += len(plan.counts)
                at_end[hard] += sum(
                    any(_excess(spread, domain, hard=hard) for domain in range(spread.domains.live))
                    for spread in plan.counts
                )
        return SpreadViolations(
            constraints,
            self._too_uneven[True],
            self._too_uneven[False],
            at_end[True],
            at_end[False],
        )

    def _kind(self, pod: PodInfo) -> _Kind | None:
        if not pod.pod.spec.topology_spread_constraints:
            return None
        key = _kind_key(pod)
        kind = self._kinds.get(key)
        if kind is None:
            kind = self._kinds[key] = _Kind(_plan(pod, HARD), _plan(pod, SOFT))
        return kind


def _excess(spread: ConstraintCounts, domain: int, *, hard: bool) -> bool:
    """Whether that domain holds more pods than the constraint allows. A node in no domain breaks a
    hard constraint, and a soft one does not concern it."""
    if domain >= spread.domains.number:
        return hard
    held = int(spread.by_domain.sums[domain])
    return held > spread.max_count({}, self_match=False)


def _plan(pod: PodInfo, when: str) -> ConstraintSet | None:
    constraints = [
        _constraint(written, pod.pod)
        for written in pod.pod.spec.topology_spread_constraints
        if written.when_unsatisfiable == when
    ]
    return ConstraintSet(constraints, pod.shape, require_all_keys=True) if constraints else None


def _constraint(written: TopologySpreadConstraint, pod: Pod) -> Constraint:
    return Constraint(
        written.topology_key,
        written.max_skew,
        1 if written.min_domains is None else written.min_domains,
        written.node_affinity_policy == "Honor",
        written.node_taints_policy == "Honor",
        _query(written, pod),
    )


def _query(written: TopologySpreadConstraint, pod: Pod) -> PodQuery:
    selectors = (Selector(written.label_selector),)
    return PodQuery(selectors, frozenset({pod.namespace}), count_terminating=False)


def _kind_key(pod: PodInfo) -> bytes:
    spec = pod.pod.spec
    return _encode(
        (
            pod.namespace,
            spec.topology_spread_constraints,
            spec.node_selector,
            spec.affinity,
            spec.tolerations,
        )
    )


# -- the run as records ---------------------------------------------------------------------------


def _queries(pods: Iterable[PodRun]) -> list[PodQuery]:
    """Which pods are counted by any constraint of any pod."""
    return [
        *dict.fromkeys(
            _query(written, run.pod)
            for run in pods
            for written in run.pod.spec.topology_spread_constraints
        )
    ]


def _steps(run: Run, queries: Sequence[PodQuery]) -> Iterator[_Step]:
    begun = {(span.node.name, span.from_ns) for span in run.nodes}
    for span in run.nodes:
        yield _Step(span.from_ns, 1, ObjectObserved(span.node))
        # Where another period of the node begins just then it changed, and did not go.
        if span.to_ns is not None and (span.node.name, span.to_ns) not in begun:
            yield _Step(span.to_ns, 0, ObjectDeleted("Node", span.node.key, span.node.uid))
    for pod in run.pods:
        labels = PodInfo(pod.pod).label_set
        constrained = bool(pod.pod.spec.topology_spread_constraints)
        if constrained or any(query.matches(labels) for query in queries):
            yield from _steps_of(pod)


def _steps_of(run: PodRun) -> Iterator[_Step]:
    for number, placement in enumerate(run.placements):
        placed = _stand_in(run.pod, placement.node, number)
        decided = not run.pod.spec.node_name or number > 0
        judged = (PodInfo(placed), placement.node) if decided else None
        yield _Step(placement.assigned_ns, 2, ObjectObserved(placed), judged)
        if placement.evicted_ns is not None and placement.ended_ns != placement.evicted_ns:
            # On its way out it does not count any more.
            yield _Step(
                placement.evicted_ns, 1, ObjectObserved(_terminating(placed, placement.evicted_ns))
            )
        if placement.ended_ns is not None:
            yield _Step(placement.ended_ns, 0, ObjectDeleted("Pod", placed.key, placed.uid))


def _stand_in(pod: Pod, node: str, number: int) -> Pod:
    """The pod on a node. Stints of one pod may overlap in a record, so each has a name of its own."""
    replace, metadata = msgspec.structs.replace, pod.metadata
    if number:
        metadata = replace(
            metadata, name=f"{metadata.name}.{number}", uid=f"{metadata.uid}.{number}"
        )
    return replace(pod, metadata=metadata, spec=replace(pod.spec, node_name=node))


def _terminating(pod: Pod, at_ns: int) -> Pod:
    at = datetime.fromtimestamp(at_ns // NS_PER_S, UTC)
    metadata = msgspec.structs.replace(pod.metadata, deletion_timestamp=at)
    return msgspec.structs.replace(pod, metadata=metadata)


def _no_plugins(name: str) -> NoReturn:
    raise AssertionError(f"plugin {name} was asked for, where no profile is")
