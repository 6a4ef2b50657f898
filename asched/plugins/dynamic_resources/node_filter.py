"""Filter: the nodes on which the claims of a pod are available or can be allocated; Score."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import numpy as np

from asched.dra.allocator import AllocationRequest, NodeAnswers, SearchLimits
from asched.dra.binding_conditions import is_usable
from asched.dra.devices import NodeView
from asched.dra.diagnosis import ClaimDiagnoser, NodeDiagnosis
from asched.dra.extended import ExtendedResources
from asched.dra.outcomes import Allocated, AllocationFailed, NotAllocated, allocation_score
from asched.framework.cluster import Cluster
from asched.framework.devices import SharedDevices
from asched.framework.node_matching import selector_matches
from asched.framework.nodes import BoolColumn, FilterResult, Int64Column, Nodes, RowArray
from asched.framework.status import Code, ObjectErrorStatus, Status
from asched.model.pod import Pod
from asched.model.quantity import NS_PER_S
from asched.model.resource_claims import ResourceClaim
from asched.model.selectors import matchable
from asched.plugins.dynamic_resources.special_claim import (
    IN_MEMORY_NAME,
    SpecialRequests,
    special_requests,
    with_requests,
)

NOT_AVAILABLE = Status.unresolvable("resourceclaim not available on the node")
CANNOT_FIT = Status.unresolvable("cannot fit resource")
LEFT_OVER = Status.unresolvable("cannot schedule extended resource claim")


class NodeAllocation(NamedTuple):
    """What the unallocated claims of a pod get on a node."""

    solution: Allocated = Allocated(())
    """In the order of the claims, the special claim last."""
    special: ResourceClaim | None = None
    """The special claim with the requests for this node."""
    requests: SpecialRequests = SpecialRequests((), ())


NOTHING = NodeAllocation()


class GroupAnswers(NamedTuple):
    """What the claims get on nodes that need DRA for the same extended resources."""

    member: BoolColumn
    """By row of the cluster's nodes."""
    special: ResourceClaim | None
    requests: SpecialRequests
    answers: NodeAnswers | None
    """None if there is nothing to allocate."""

    def with_rows_of(self, later: GroupAnswers) -> GroupAnswers | None:
        """These answers and later ones; None if they cannot be combined."""
        if self.requests != later.requests:
            return None
        member = self.member | later.member
        if self.answers is None or later.answers is None:
            return None if self.answers is not later.answers else self._replace(member=member)
        answers = self.answers.with_rows(later.member, later.answers)
        return None if answers is None else self._replace(member=member, answers=answers)

    def allocation(self, row: int) -> NodeAllocation | None:
        """What the claims get on a node; None if they cannot be allocated there."""
        if self.answers is None:
            return NOTHING
        solution = self.answers.solution(row)
        return None if solution is None else NodeAllocation(solution, self.special, self.requests)


@dataclass(eq=False)
class PodDevices:
    """The claims of a pod during one attempt."""

    pod: Pod
    claims: tuple[ResourceClaim, ...]
    """Those of ``spec.resourceClaims``, in order."""
    special: ResourceClaim | None = None
    """The claim for extended resources: a left-over one, or one that is not created yet."""
    extended: Mapping[str, int] = field(default_factory=dict)
    """The extended resources that the pod requests."""
    answers: list[GroupAnswers] = field(default_factory=list)
    """What Filter found. Nothing that it depends on changes during the attempt."""

    def clone(self) -> PodDevices:
        return self

    @property
    def left_over(self) -> ResourceClaim | None:
        """A special claim of an earlier attempt."""
        special = self.special
        return None if special is None or special.name == IN_MEMORY_NAME else special

    def known(self, requests: SpecialRequests, rows: RowArray) -> NodeAnswers | None:
        """The answers for all of these rows of the cluster's nodes, if Filter has them."""
        for group in self.answers:
            if group.requests == requests and group.member[rows].all():
                return group.answers
        return None

    def add(self, found: GroupAnswers) -> None:
        """Keep answers. Preemption asks node by node, so they are combined where possible."""
        for index, group in enumerate(self.answers):
            combined = group.with_rows_of(found)
            if combined is not None:
                self.answers[index] = combined
                return
        self.answers.append(found)

    @property
    def longest_search(self) -> int:
        """The steps of the longest search for devices on a node."""
        return max((each.answers.longest for each in self.answers if each.answers), default=0)

    def allocation(self, row: int) -> NodeAllocation | None:
        """What the claims get on a node that Filter has seen; None if they cannot be allocated."""
        for group in reversed(self.answers):
            if group.member[row]:
                return group.allocation(row)
        return NOTHING


class DeviceNodeGroup(NamedTuple):
    """Nodes that need DRA for the same extended resources."""

    rows: RowArray
    special: ResourceClaim | None
    requests: SpecialRequests


def unallocated(data: PodDevices, group: DeviceNodeGroup) -> tuple[ResourceClaim, ...]:
    """The claims that are allocated together, the special claim last."""
    claims = tuple(claim for claim in data.claims if claim.status.allocation is None)
    return claims if group.special is None else (*claims, group.special)


class ExtendedColumns(NamedTuple):
    """By row, how the extended resources of a pod are served."""

    unfit: BoolColumn
    """No class and no device plugin serves one of them."""
    by_devices: Sequence[tuple[str, BoolColumn]]
    """The resources that a class serves, and where no device plugin does."""


def extended_columns(
    resources: Mapping[str, int], extended: ExtendedResources, nodes: Nodes
) -> ExtendedColumns:
    """Whether a device plugin, devices of a class, or neither serves each resource."""
    unfit = np.zeros(nodes.size, np.bool_)
    by_devices = []
    for resource in sorted(resources):
        missing = nodes.allocatable(resource) == 0
        if extended.class_of(resource) is not None:
            by_devices.append((resource, missing))
            continue
        for row in np.flatnonzero(missing & nodes.alive).tolist():
            unfit[row] |= resource not in nodes.node(row).status.allocatable
    return ExtendedColumns(unfit, by_devices)


def node_groups(
    data: PodDevices, extended: ExtendedResources, nodes: Nodes
) -> list[DeviceNodeGroup]:
    """The nodes on which something has to be allocated, by the claims that they need."""
    every = np.flatnonzero(nodes.alive)
    special = data.special
    if special is None or special.status.allocation is not None:
        return [DeviceNodeGroup(every, None, SpecialRequests((), ()))] if data.claims else []
    columns = extended_columns(data.extended, extended, nodes)
    return [
        _group(data, special, extended, rows, served)
        for rows, served in _patterns(columns, every)
        if served or data.claims
    ]


def _group(
    data: PodDevices,
    special: ResourceClaim,
    extended: ExtendedResources,
    rows: RowArray,
    served: Sequence[str],
) -> DeviceNodeGroup:
    requests = special_requests(data.pod, served, extended)
    return DeviceNodeGroup(rows, with_requests(special, requests.requests), requests)


def _patterns(
    columns: ExtendedColumns, rows: RowArray
) -> Iterator[tuple[RowArray, tuple[str, ...]]]:
    """The rows by the resources that devices have to serve there."""
    if not columns.by_devices:
        yield rows, ()
        return
    table = np.stack([column[rows] for _, column in columns.by_devices], axis=1)
    patterns, place = np.unique(table, axis=0, return_inverse=True)
    for number, pattern in enumerate(patterns):
        names = (name for name, _ in columns.by_devices)
        served = tuple(name for name, bit in zip(names, pattern, strict=True) if bit)
        yield rows[place.reshape(-1) == number], served


class StatusColumn:
    """Collects one status for each row; the first one counts."""

    def __init__(self, size: int) -> None:
        self.codes = np.zeros(size, np.int32)
        self._statuses: list[Status] = []
        self._numbers: dict[Status, int] = {}

    def reject(self, rows: BoolColumn | RowArray | int, status: Status) -> None:
        number = self._numbers.setdefault(status, len(self._statuses) + 1)
        if number > len(self._statuses):
            self._statuses.append(status)
        if isinstance(rows, int):
            self.codes[rows] = self.codes[rows] or number
        else:
            self.codes[rows] = np.where(self.codes[rows] == 0, number, self.codes[rows])

    def result(self) -> FilterResult:
        return FilterResult(self.codes, self._statuses)


class NodeFilter:
    """Filters nodes by the claims of a pod."""

    def __init__(
        self, cluster: Cluster, devices: SharedDevices, limits: SearchLimits, timeout: timedelta
    ) -> None:
        """``timeout``: how long devices may take to meet their binding conditions."""
        self._cluster = cluster
        self._devices = devices
        self._limits = limits
        self._timeout = timeout

    def run(self, data: PodDevices, nodes: Nodes) -> FilterResult:
        """The status of every row. :attr:`PodDevices.answers` then has what the claims get."""
        found = StatusColumn(nodes.size)
        extended = self._devices.extended
        special = data.special
        if special is not None and special.spec.devices.requests:
            found.reject(nodes.alive, LEFT_OVER)
            return found.result()
        if special is not None:
            found.reject(extended_columns(data.extended, extended, nodes).unfit, CANNOT_FIT)
        for group in node_groups(data, extended, nodes):
            self._allocate(data, group, nodes, found)
        for claim in data.claims:
            available = self.available(claim, nodes)
            if available is not None:
                found.reject(nodes.alive & ~available, NOT_AVAILABLE)
        return found.result()

    def available(self, claim: ResourceClaim, nodes: Nodes) -> BoolColumn | None:
        """Where an allocated claim can be used; None for everywhere."""
        allocation = claim.status.allocation
        if allocation is None:
            return None
        now = datetime.fromtimestamp(self._cluster.date_ns / NS_PER_S, UTC)
        if not is_usable(claim, now, self._timeout):
            return np.zeros(nodes.size, np.bool_)
        selector = allocation.node_selector
        return None if selector is None else selector_matches(matchable(selector), nodes)

    def diagnosis(
        self, data: PodDevices, row: int, diagnoser: ClaimDiagnoser
    ) -> NodeDiagnosis | None:
        """What the unallocated claims find on a node; None if there are none."""
        nodes = self._cluster.nodes.take(np.array([row], np.intp))
        group = next(iter(node_groups(data, self._devices.extended, nodes)), None)
        claims = () if group is None else unallocated(data, group)
        view = NodeView(nodes.names[0], nodes.node(0).labels)
        return diagnoser.run(claims, view) if claims else None

    def _allocate(
        self, data: PodDevices, group: DeviceNodeGroup, nodes: Nodes, found: StatusColumn
    ) -> None:
        claims = unallocated(data, group)
        rows = group.rows[found.codes[group.rows] == 0]
        table = self._cluster.nodes
        table_rows = rows if nodes is table else nodes.align(np.arange(table.size))[rows]
        answers = data.known(group.requests, table_rows)
        if answers is None:
            if claims:
                allocator = self._devices.allocator(self._limits)
                answers = allocator.allocate_all(AllocationRequest(claims), table, table_rows)
            member = np.zeros(table.size, np.bool_)
            member[table_rows] = True
            data.add(GroupAnswers(member, group.special, group.requests, answers))
        if answers is not None:
            codes = answers.codes[table_rows]
            for code in np.unique(codes[codes > 0]).tolist() if codes.any() else ():
                found.reject(rows[codes == code], _status(answers.refusal_of(code)))


def _status(refusal: NotAllocated | AllocationFailed) -> Status:
    if isinstance(refusal, AllocationFailed):
        return ObjectErrorStatus(Code.ERROR, (refusal.error,))
    return Status.unresolvable(refusal.reason)


# -- Score ----------------------------------------------------------------------------------------


def has_alternatives(data: PodDevices) -> bool:
    """Whether any request of the pod's claims has alternatives."""
    return any(
        request.first_available for claim in data.claims for request in claim.spec.devices.requests
    )


def raw_scores(data: PodDevices, rows: RowArray) -> Int64Column:
    """The raw scores of rows of the cluster's nodes that passed Filter; 0 where nothing is
    allocated (``computeScore``)."""
    allocated_before = sum(
        allocation_score(claim.spec, claim.status.allocation)
        for claim in data.claims
        if claim.status.allocation is not None
    )
    scores = np.zeros(len(rows), np.int64)
    for group in data.answers:
        if group.answers is not None:
            here = group.member[rows]
            scores[here] = group.answers.scores(rows[here]) + allocated_before
    return scores
