"""Nodes that vanish at random and may come back, as spot instances do.

Interruptions of a node are a Poisson process: times between them are exponentially distributed.
Every node has random numbers of its own, which follow from the seed and its name. So another node
more or less does not change when the others vanish.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import timedelta
from enum import IntEnum
from heapq import merge
from operator import attrgetter
from random import Random
from typing import Annotated, Final, NamedTuple

import msgspec

from asched.audit.whatif.node_changes import ChangedTrace
from asched.capacity.node_counts import chosen_nodes
from asched.config.kube_scheduler import Section
from asched.model.node import Node
from asched.model.quantity import NS_PER_S
from asched.simulator.trace import (
    NodeDrained,
    ObjectRemoved,
    ObjectSet,
    PodCreated,
    TraceEvent,
    WorkloadTrace,
)

_NS_PER_HOUR: Final = 3600 * NS_PER_S
_US: Final = timedelta(microseconds=1)


class SpotNodes(Section, frozen=True):
    """Which nodes vanish, and how often."""

    nodes: int | str = 0
    """A number, a percentage of the nodes at the beginning, or names; 0 for none."""
    per_hour: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    """Mean number of interruptions of each node in an hour of its presence."""
    notice: timedelta = timedelta()
    """How long before it vanishes a node is drained."""
    returns_after: timedelta | None = None
    """When an equal node takes its place; None for never."""
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    """Added to these nodes, such as for their price."""

    def __post_init__(self) -> None:
        if self.has_nodes and not self.per_hour:
            raise ValueError("expected perHour, the interruptions of a node in an hour")
        after = timedelta() if self.returns_after is None else self.returns_after
        if self.notice < timedelta() or after < timedelta():
            raise ValueError("notice and returnsAfter must not be negative")

    @property
    def has_nodes(self) -> bool:
        return self.nodes not in (0, "", "0")

    @property
    def label(self) -> str:
        """For tables; empty if nothing changes."""
        return f"{self.nodes} x {self.per_hour:g}/h" if self.has_nodes else ""


class _Phase(IntEnum):
    """At the same time, in this order."""

    RETURN = 0
    NOTICE = 1
    VANISH = 2


class _Interruption(NamedTuple):
    at_ns: int
    phase: _Phase
    node: str


def with_spot_nodes(trace: WorkloadTrace, spot: SpotNodes, seed: int) -> ChangedTrace:
    """The trace with nodes that vanish until its end. The pods of a node that vanishes end;
    their controllers create others with the remaining running time.

    A trace without an end ends with its last event, or with the last pod that could start at once.
    Events of a node, and pods created on it, are left out while it is absent. Raises AuditError
    for unknown nodes.
    """
    if not spot.has_nodes:
        return ChangedTrace(trace)
    names = chosen_nodes(trace, str(spot.nodes), "spotNodes", seed)
    end_ns = _end_ns(trace)
    planned = sorted(
        one for name in names for one in _interruptions(name, spot, trace.begin_ns, end_ns, seed)
    )
    cluster = _SpotCluster(frozenset(names), spot.labels)
    events = tuple(cluster.events(trace.events, planned))
    note = f"{len(names):,} spot nodes vanish {cluster.vanished:,} times"
    return ChangedTrace(msgspec.structs.replace(trace, events=events), (note,))


def _end_ns(trace: WorkloadTrace) -> int:
    if trace.end_ns is not None:
        return trace.end_ns
    last_ns = trace.events[-1].at_ns if trace.events else trace.begin_ns
    runs = (
        event.at_ns + event.run_ns
        for event in trace.events
        if isinstance(event, PodCreated) and event.run_ns is not None
    )
    return max([last_ns, *runs])


def _interruptions(
    name: str, spot: SpotNodes, begin_ns: int, end_ns: int, seed: int
) -> Iterator[_Interruption]:
    random, at_ns = Random(f"{seed}/{name}"), begin_ns
    notice_ns = spot.notice // _US * 1000
    while True:
        present_ns = at_ns
        at_ns += round(random.expovariate(spot.per_hour) * _NS_PER_HOUR)
        if at_ns > end_ns:
            return
        if notice_ns:
            yield _Interruption(max(present_ns, at_ns - notice_ns), _Phase.NOTICE, name)
        yield _Interruption(at_ns, _Phase.VANISH, name)
        if spot.returns_after is None:
            return
        at_ns += spot.returns_after // _US * 1000
        if at_ns > end_ns:
            return
        yield _Interruption(at_ns, _Phase.RETURN, name)


class _SpotCluster:
    """The spot nodes of a trace, event by event."""

    def __init__(self, names: frozenset[str], labels: dict[str, str]) -> None:
        self._names = names
        self._labels = labels
        self._forms: dict[str, Node] = {}
        """Nodes that exist in the original trace."""
        self._absent: set[str] = set()
        self._returns: dict[str, int] = {}
        self.vanished = 0

    def events(
        self, events: Iterable[TraceEvent], planned: Iterable[_Interruption]
    ) -> Iterator[TraceEvent]:
        # Events of the trace precede interruptions of the same time.
        for one in merge(events, planned, key=attrgetter("at_ns")):
            if isinstance(one, _Interruption):
                yield from self._interrupted(one)
            else:
                yield from self._changed(one)

    def _interrupted(self, one: _Interruption) -> Iterator[TraceEvent]:
        name = one.node
        if one.phase is _Phase.RETURN:
            if name in self._absent:
                self._absent.discard(name)
                self._returns[name] = self._returns.get(name, 0) + 1
                if name in self._forms:
                    yield ObjectSet(one.at_ns, self._form(name))
        elif name in self._forms and name not in self._absent:
            if one.phase is _Phase.NOTICE:
                yield NodeDrained(one.at_ns, name)
            else:
                self._absent.add(name)
                self.vanished += 1
                yield ObjectRemoved(one.at_ns, "Node", name)

    def _changed(self, event: TraceEvent) -> Iterator[TraceEvent]:
        match event:
            case ObjectSet(object=Node() as node) if node.name in self._names:
                self._forms[node.name] = node
                if node.name not in self._absent:
                    yield ObjectSet(event.at_ns, self._form(node.name))
            case ObjectRemoved(kind="Node", key=name) if name in self._names:
                self._forms.pop(name, None)
                if name not in self._absent:
                    # A node that came back has another uid than the trace says.
                    yield ObjectRemoved(event.at_ns, "Node", name)
            case NodeDrained(node=name) if name in self._absent:
                pass
            case PodCreated(pod=pod) if pod.spec.node_name in self._absent:
                pass
            case _:
                yield event

    def _form(self, name: str) -> Node:
        node, replace = self._forms[name], msgspec.structs.replace
        count = self._returns.get(name, 0)
        metadata = replace(
            node.metadata,
            labels={**node.metadata.labels, **self._labels},
            uid=f"{node.uid}-{count}" if count else node.uid,
        )
        return replace(node, metadata=metadata)
