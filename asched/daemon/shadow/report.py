"""The report: how often another scheduler and we agree, and every difference with its cause.

It is made from the records and the state they were made from, so a tape, a live run and a journal
that is read again give the same one.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec

from asched.cycle.inspect import Inspection, inspect
from asched.state.cluster import ClusterState
from asched.state.records import DisagreementCause, ShadowCompared, ShadowExplained

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MOST_DIFFERENCES = 10_000
"""So many differences are kept; beyond it they are counted only."""


class NodeOpinion(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """What we say of one node, at the moment of the comparison."""

    name: str
    total: int | None = None
    """Weighted total score; None where the node is not feasible."""
    scores: dict[str, int] = {}
    """Weighted score by plugin."""
    refused: str = ""
    """``plugin: reason`` where it is not feasible."""


class Difference(msgspec.Struct, rename="camel", omit_defaults=True):
    """One disagreement."""

    number: int
    at: datetime
    pod: str
    uid: str
    node: str = ""
    """Where the other scheduler bound the pod; empty where it found none."""
    message: str = ""
    """Why it found none."""
    best: tuple[str, ...] = ()
    """Our best nodes; empty where we find none."""
    own_message: str = ""
    nodes: tuple[NodeOpinion, ...] = ()
    """The other's node, then our best ones."""
    cause: DisagreementCause = DisagreementCause.UNEXPLAINED
    detail: str = ""
    looked_into: bool = False


class AgreementCounts(msgspec.Struct, rename="camel"):
    """Comparisons of one kind."""

    compared: int = 0
    agreed: int = 0
    causes: dict[DisagreementCause, int] = {}
    """Disagreements by cause."""

    @property
    def share(self) -> float | None:
        """The agreed ones among the compared; None where there were none."""
        return self.agreed / self.compared if self.compared else None


class Report(msgspec.Struct, rename="camel"):
    """What was found. This is the JSON form (see ``docs/shadow.md``)."""

    bindings: AgreementCounts
    """The other scheduler's node is among our nodes of the highest total score."""
    sole_best: int
    """Agreed bindings where only one node had the highest score, so that no tie helped."""
    messages: AgreementCounts
    """The condition's message is, to the letter, that of our own rejection."""
    not_compared: dict[str, int]
    differences: list[Difference]
    differences_left_out: int = 0
    notes: list[str] = []


class ReportWriter:
    """Gathers a report from records, each given before it is folded."""

    def __init__(self) -> None:
        self._bindings, self._messages = AgreementCounts(causes={}), AgreementCounts(causes={})
        self._sole_best = 0
        self._differences: dict[int, Difference] = {}
        self._differed = 0

    def compared(self, state: ClusterState, record: ShadowCompared) -> None:
        tally = self._bindings if record.node else self._messages
        tally.compared += 1
        if record.agreed:
            tally.agreed += 1
            self._sole_best += bool(record.node) and len(record.best) == 1
            return
        self._differed += 1
        if len(self._differences) < MOST_DIFFERENCES:
            self._differences[record.number] = _difference(state, record)

    def explained(self, record: ShadowExplained, *, binding: bool) -> Difference | None:
        """Enter the cause. Returns the difference, if it was kept."""
        tally = self._bindings if binding else self._messages
        tally.causes[record.cause] = tally.causes.get(record.cause, 0) + 1
        difference = self._differences.get(record.number)
        if difference is not None:
            difference.cause, difference.detail = record.cause, record.detail
            difference.looked_into = True
        return difference

    def report(self, missed: dict[str, int], notes: list[str]) -> Report:
        return Report(
            self._bindings,
            self._sole_best,
            self._messages,
            missed,
            [*self._differences.values()],
            self._differed - len(self._differences),
            notes,
        )


def _difference(state: ClusterState, record: ShadowCompared) -> Difference:
    names = [*([record.node] if record.node else []), *record.best]
    info = state.pods[record.key].info
    found = inspect(state, state.profiles[info.pod.spec.scheduler_name], info)
    return Difference(
        number=record.number,
        at=_EPOCH + timedelta(microseconds=state.now_ns // 1000),
        pod=record.key,
        uid=record.uid,
        node=record.node,
        message=record.message,
        best=record.best,
        own_message=record.own_message,
        nodes=tuple(_opinion(found, name) for name in names),
    )


def _opinion(found: Inspection, name: str) -> NodeOpinion:
    if name in found.feasible:
        index = found.feasible.index(name)
        scores = {
            plugin: scoring.normalized[index] * scoring.weight
            for plugin, scoring in found.scores.items()
        }
        return NodeOpinion(name, found.total[index], scores)
    if name not in found.nodes:
        return NodeOpinion(name, refused="no such node")
    status = found.filter.nodes.get(name) if found.filter is not None else None
    if status is None and found.pre_filter is not None:
        status = found.pre_filter.status
    if status is None:
        return NodeOpinion(name, refused=found.message or "not looked at")
    return NodeOpinion(name, refused=f"{status.plugin}: {', '.join(status.reasons)}")
