"""The report: how often asched agrees with another scheduler, and each difference with its cause.

It is made from records and the state that they were made from, so that a tape, a live run and a
replayed journal give the same report.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Protocol

import msgspec

from asched.cycle.inspect import Inspection, inspect
from asched.model.node import Node
from asched.model.requests import Amounts
from asched.state.cluster import ClusterState
from asched.state.records import DisagreementCause, ShadowCompared, ShadowExplained

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MAX_DIFFERENCES = 10_000
"""Differences beyond this number are only counted."""


class NodePricing(Protocol):
    """Prices of nodes, such as :class:`asched.pricing.prices.Prices`."""

    @property
    def currency(self) -> str: ...

    def node_per_hour(self, node: Node) -> float:
        """The price of a node."""

    def requests_per_hour(self, requests: Amounts, node: Node) -> float:
        """The part of a node's price that these requests account for."""


class ComparedNode(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Our evaluation of one node at the comparison."""

    name: str
    total: int | None = None
    """Weighted total score; None if the node is not feasible."""
    scores: dict[str, int] = {}
    """Weighted score by plugin."""
    rejection: str = ""
    """``plugin: reason`` if it is not feasible."""
    node_per_hour: float | None = None
    """The price of the node; None without prices, or if there is no such node."""
    pod_per_hour: float | None = None
    """The part of it that the pod's requests account for."""


class Difference(msgspec.Struct, rename="camel", omit_defaults=True):
    """One disagreement."""

    number: int
    at: datetime
    pod: str
    uid: str
    node: str = ""
    """The other scheduler's node; empty if it found none."""
    message: str = ""
    """Why it found none."""
    best: tuple[str, ...] = ()
    """Our best nodes; empty if there is none."""
    own_message: str = ""
    nodes: tuple[ComparedNode, ...] = ()
    """The other scheduler's node, then our best nodes."""
    pod_difference: float | None = None
    """What the pod costs more by the hour on the other scheduler's node than on our best nodes, on
    average; negative if it costs less. None without prices, or without a node of either."""
    cause: DisagreementCause = DisagreementCause.UNEXPLAINED
    detail: str = ""
    explained: bool = False


class AgreementCounts(msgspec.Struct, rename="camel"):
    """Comparisons of one kind."""

    compared: int = 0
    agreed: int = 0
    causes: dict[DisagreementCause, int] = {}
    """Disagreements by cause."""

    @property
    def share(self) -> float | None:
        """Share of comparisons that agreed; None without comparisons."""
        return self.agreed / self.compared if self.compared else None


class ShadowCosts(msgspec.Struct, rename="camel"):
    """What the pods of disagreements about a binding cost by the hour, for their requests."""

    currency: str = ""
    disagreements: int = 0
    """Those for which both schedulers have a node."""
    theirs_per_hour: float = 0.0
    """On the other scheduler's nodes."""
    ours_per_hour: float = 0.0
    """On our best nodes, the average of those that tie."""


class Report(msgspec.Struct, rename="camel"):
    """The report, also as JSON (``docs/how-to/shadow.md``)."""

    bindings: AgreementCounts
    """Agreed: the other scheduler's node is among our nodes with the highest total score."""
    sole_best: int
    """Agreed bindings without a tie for the highest score."""
    messages: AgreementCounts
    """Agreed: the condition's message equals that of our own rejection."""
    not_compared: dict[str, int]
    differences: list[Difference]
    differences_left_out: int = 0
    notes: list[str] = []
    costs: ShadowCosts | None = None
    """None without prices."""


class ReportWriter:
    """Builds a report from records. Each must be passed before it is folded."""

    def __init__(self, prices: NodePricing | None = None) -> None:
        """``prices`` adds costs."""
        self._prices = prices
        self._costs = None if prices is None else ShadowCosts(prices.currency)
        self._bindings, self._messages = AgreementCounts(causes={}), AgreementCounts(causes={})
        self._sole_best = 0
        self._differences: dict[int, Difference] = {}
        self._differed = 0

    def compared(self, state: ClusterState, record: ShadowCompared) -> None:
        counts = self._bindings if record.node else self._messages
        counts.compared += 1
        if record.agreed:
            counts.agreed += 1
            self._sole_best += bool(record.node) and len(record.best) == 1
            return
        self._differed += 1
        if self._prices is not None:
            self._add_costs(pod_costs(state, record, self._prices))
        if len(self._differences) < MAX_DIFFERENCES:
            self._differences[record.number] = _difference(state, record, self._prices)

    def _add_costs(self, found: tuple[float, float] | None) -> None:
        if found is not None and self._costs is not None:
            self._costs.disagreements += 1
            self._costs.theirs_per_hour += found[0]
            self._costs.ours_per_hour += found[1]

    def explained(self, record: ShadowExplained, *, binding: bool) -> Difference | None:
        """Store the cause. Returns the difference, unless it was only counted."""
        counts = self._bindings if binding else self._messages
        counts.causes[record.cause] = counts.causes.get(record.cause, 0) + 1
        difference = self._differences.get(record.number)
        if difference is not None:
            difference.cause, difference.detail = record.cause, record.detail
            difference.explained = True
        return difference

    def report(self, not_compared: dict[str, int], notes: list[str]) -> Report:
        return Report(
            bindings=self._bindings,
            sole_best=self._sole_best,
            messages=self._messages,
            not_compared=not_compared,
            differences=[*self._differences.values()],
            differences_left_out=self._differed - len(self._differences),
            notes=notes,
            costs=self._costs,
        )


def _difference(
    state: ClusterState, record: ShadowCompared, prices: NodePricing | None
) -> Difference:
    return Difference(
        number=record.number,
        at=_EPOCH + timedelta(microseconds=state.date_ns // 1000),
        pod=record.key,
        uid=record.uid,
        node=record.node,
        message=record.message,
        best=record.best,
        own_message=record.own_message,
        nodes=compared_nodes(state, record, prices),
        pod_difference=pod_difference(state, record, prices),
    )


def compared_nodes(
    state: ClusterState, record: ShadowCompared, prices: NodePricing | None = None
) -> tuple[ComparedNode, ...]:
    """Our evaluation of the other scheduler's node and of our best ones, in the state before the
    record. ``prices`` adds costs."""
    names = [*([record.node] if record.node else []), *record.best]
    info = state.pods[record.key].info
    found = inspect(state, state.profiles[info.pod.spec.scheduler_name], info)
    evaluated = tuple(_evaluation(found, name) for name in names)
    if prices is None:
        return evaluated
    nodes, requests = state.objects(Node), info.shape.requests
    return tuple(
        msgspec.structs.replace(
            one,
            node_per_hour=prices.node_per_hour(nodes[one.name]),
            pod_per_hour=prices.requests_per_hour(requests, nodes[one.name]),
        )
        if one.name in nodes
        else one
        for one in evaluated
    )


def pod_difference(
    state: ClusterState, record: ShadowCompared, prices: NodePricing | None
) -> float | None:
    """The value of :attr:`Difference.pod_difference`, in the state before the record."""
    found = None if prices is None else pod_costs(state, record, prices)
    return None if found is None else found[0] - found[1]


def pod_costs(
    state: ClusterState, record: ShadowCompared, prices: NodePricing
) -> tuple[float, float] | None:
    """What the pod costs by the hour on the other scheduler's node, and on our best ones on
    average; None without a node of either."""
    nodes, requests = state.objects(Node), state.pods[record.key].info.shape.requests
    if record.node not in nodes or not record.best:
        return None
    ours = [prices.requests_per_hour(requests, nodes[name]) for name in record.best]
    return prices.requests_per_hour(requests, nodes[record.node]), sum(ours) / len(ours)


def _evaluation(found: Inspection, name: str) -> ComparedNode:
    if name in found.feasible:
        index = found.feasible.index(name)
        scores = {
            plugin: scoring.normalized[index] * scoring.weight
            for plugin, scoring in found.scores.items()
        }
        return ComparedNode(name, found.total[index], scores)
    if name not in found.nodes:
        return ComparedNode(name, rejection="no such node")
    status = found.filter.nodes.get(name) if found.filter is not None else None
    if status is None and found.pre_filter is not None:
        status = found.pre_filter.status
    if status is None:
        return ComparedNode(name, rejection=found.message or "not evaluated")
    return ComparedNode(name, rejection=f"{status.plugin}: {', '.join(status.reasons)}")
