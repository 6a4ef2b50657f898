"""The report: how often asched agrees with another scheduler, and each difference with its cause.

It is made from records and the state that they were made from, so that a tape, a live run and a
replayed journal give the same report.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec

from asched.cycle.inspect import Inspection, inspect
from asched.state.cluster import ClusterState
from asched.state.records import DisagreementCause, ShadowCompared, ShadowExplained

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MAX_DIFFERENCES = 10_000
"""Differences beyond this number are only counted."""


class ComparedNode(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Our evaluation of one node at the comparison."""

    name: str
    total: int | None = None
    """Weighted total score; None if the node is not feasible."""
    scores: dict[str, int] = {}
    """Weighted score by plugin."""
    rejection: str = ""
    """``plugin: reason`` if it is not feasible."""


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


class ReportWriter:
    """Builds a report from records. Each must be passed before it is folded."""

    def __init__(self) -> None:
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
        if len(self._differences) < MAX_DIFFERENCES:
            self._differences[record.number] = _difference(state, record)

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
        )


def _difference(state: ClusterState, record: ShadowCompared) -> Difference:
    return Difference(
        number=record.number,
        at=_EPOCH + timedelta(microseconds=state.date_ns // 1000),
        pod=record.key,
        uid=record.uid,
        node=record.node,
        message=record.message,
        best=record.best,
        own_message=record.own_message,
        nodes=compared_nodes(state, record),
    )


def compared_nodes(state: ClusterState, record: ShadowCompared) -> tuple[ComparedNode, ...]:
    """Our evaluation of the other scheduler's node and of our best ones, in the state before the
    record."""
    names = [*([record.node] if record.node else []), *record.best]
    info = state.pods[record.key].info
    found = inspect(state, state.profiles[info.pod.spec.scheduler_name], info)
    return tuple(_evaluation(found, name) for name in names)


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
