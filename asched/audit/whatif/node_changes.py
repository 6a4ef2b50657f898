"""Adds nodes to a workload trace, or removes them from the beginning on."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple, TypeVar

import msgspec

from asched.audit.lookup import AuditError
from asched.audit.whatif.node_devices import HOSTNAME, NodeDevices
from asched.framework.runtime.strict import nearest
from asched.model.node import Node
from asched.model.storage import CSINode
from asched.simulator.trace import (
    NodeDrained,
    ObjectRemoved,
    ObjectSet,
    PodCreated,
    TraceEvent,
    WorkloadTrace,
)

MAX_ADDED: Final = 10_000
"""Nodes that can be added in all."""
CopiedT = TypeVar("CopiedT", Node, CSINode)

_ADDED: Final = re.compile(r"(?P<template>[^\s=]+)=(?P<count>[0-9]{1,9})")


class AddedNodes(NamedTuple):
    """Copies of a node."""

    template: str
    """The name of the node."""
    number: int


class NodeChanges(NamedTuple):
    """Which nodes a cluster has more or less than the recorded one."""

    added: tuple[AddedNodes, ...] = ()
    removed: tuple[str, ...] = ()

    def __str__(self) -> str:
        added = [f"{one.number} more like {one.template}" for one in self.added]
        return ", ".join([*added, *(f"without {name}" for name in self.removed)])


NO_NODE_CHANGES: Final = NodeChanges()


def parse_node_changes(added: str, removed: str) -> NodeChanges:
    """Parses ``TEMPLATE=COUNT`` and ``NAME``, each comma-separated; empty texts change nothing.

    Raises :class:`AuditError` for other text.

    >>> str(parse_node_changes("gpu-1=2", "old-1, old-2"))
    '2 more like gpu-1, without old-1, without old-2'
    """
    changes = NodeChanges(
        tuple(_added(item) for item in _items(added)), tuple(dict.fromkeys(_items(removed)))
    )
    if sum(one.number for one in changes.added) > MAX_ADDED:
        raise AuditError(f"--add-nodes: at most {MAX_ADDED:,} nodes can be added")
    return changes


def _items(text: str) -> list[str]:
    return [item.strip() for item in text.split(",")] if text.strip() else []


def _added(item: str) -> AddedNodes:
    match = _ADDED.fullmatch(item)
    if match is None or int(match["count"]) < 1:
        raise AuditError(
            f'--add-nodes: invalid item "{item}"; expected NODE=COUNT with the node to copy,'
            " separated by commas"
        )
    return AddedNodes(match["template"], int(match["count"]))


class ChangedTrace(NamedTuple):
    """A trace with node changes, and notes for the reader."""

    trace: WorkloadTrace
    notes: tuple[str, ...] = ()


def with_node_changes(trace: WorkloadTrace, changes: NodeChanges) -> ChangedTrace:
    """The trace with other nodes from its beginning on.

    Added nodes have the form of their template when it is first in the trace, with a name, uid and
    host name of their own, and copies of its devices. Removed nodes disappear at the beginning, so
    pods on them end there and their controllers create others. Pods that were created on a removed
    node are left out.

    Raises :class:`AuditError` for a node that is not in the trace.
    """
    if changes == NO_NODE_CHANGES:
        return ChangedTrace(trace)
    nodes = _first_forms(trace.events)
    for option, name in _named(changes):
        if name not in nodes:
            raise AuditError(f"{option}: {_unknown(name, nodes)}")
    initial, later = _split(trace)
    removed = frozenset(changes.removed)
    begin_ns = trace.begin_ns
    devices = NodeDevices(trace.events, frozenset(one.template for one in changes.added))
    present = {e.object.name: e.object for e in initial if _is_node(e)}  # type: ignore[union-attr]
    events = (
        *_in_front_of_pods(initial, [*_copies(trace, nodes, devices, changes.added)]),
        *(
            ObjectRemoved(begin_ns, "Node", name, present[name].uid)
            for name in changes.removed
            if name in present
        ),
        *(event for event in later if not _concerns(event, removed)),
    )
    return ChangedTrace(msgspec.structs.replace(trace, events=events), tuple(_notes(devices)))


def with_only_nodes(trace: WorkloadTrace, patterns: str) -> WorkloadTrace:
    """The trace without the nodes with names that match none of the comma-separated shell patterns;
    empty text keeps all. Pods on the others go as with :func:`with_node_changes`.

    Raises :class:`AuditError` if no node matches a pattern.
    """
    names = [*_first_forms(trace.events)]
    kept: set[str] = set()
    for pattern in _items(patterns):
        matching = fnmatch.filter(names, pattern)
        if not matching:
            raise AuditError(f"--only-nodes: {pattern}: no node has such a name")
        kept.update(matching)
    others = tuple(name for name in names if kept and name not in kept)
    return with_node_changes(trace, NodeChanges(removed=others)).trace


def with_new_nodes(trace: WorkloadTrace, nodes: Iterable[Node]) -> WorkloadTrace:
    """The trace with more nodes from its beginning on. Their names and uids must be new."""
    initial, later = _split(trace)
    added = [ObjectSet(trace.begin_ns, node) for node in nodes]
    events = (*_in_front_of_pods(initial, added), *later)
    return msgspec.structs.replace(trace, events=events)


def _named(changes: NodeChanges) -> Iterator[tuple[str, str]]:
    for added in changes.added:
        yield "--add-nodes", added.template
    for name in changes.removed:
        yield "--remove-nodes", name


def _unknown(name: str, nodes: Iterable[str]) -> str:
    guess = nearest(name, nodes)
    hint = f"; did you mean {guess}?" if guess else ""
    return f'the history has no node "{name}"{hint}'


def _is_node(event: TraceEvent) -> bool:
    return isinstance(event, ObjectSet) and isinstance(event.object, Node)


def _first_forms(events: Iterable[TraceEvent]) -> dict[str, Node]:
    found: dict[str, Node] = {}
    for event in events:
        if isinstance(event, ObjectSet) and isinstance(event.object, Node):
            found.setdefault(event.object.name, event.object)
    return found


def _split(trace: WorkloadTrace) -> tuple[Sequence[TraceEvent], Sequence[TraceEvent]]:
    """The events at the beginning, and the later ones."""
    events = trace.events
    count = next((i for i, e in enumerate(events) if e.at_ns > trace.begin_ns), len(events))
    return events[:count], events[count:]


def _in_front_of_pods(
    initial: Sequence[TraceEvent], added: Sequence[TraceEvent]
) -> list[TraceEvent]:
    pods = (i for i, event in enumerate(initial) if isinstance(event, PodCreated))
    index = next(pods, len(initial))
    return [*initial[:index], *added, *initial[index:]]


def _copies(
    trace: WorkloadTrace,
    nodes: dict[str, Node],
    devices: NodeDevices,
    added: Iterable[AddedNodes],
) -> Iterator[ObjectSet]:
    taken = set(nodes)
    drivers: dict[str, CSINode] = {}
    for event in trace.events:
        if isinstance(event, ObjectSet) and isinstance(event.object, CSINode):
            drivers.setdefault(event.object.name, event.object)
    for one in added:
        for _ in range(one.number):
            name = _free_name(one.template, taken)
            taken.add(name)
            yield ObjectSet(trace.begin_ns, _copy(nodes[one.template], name))
            if one.template in drivers:
                yield ObjectSet(trace.begin_ns, _copy(drivers[one.template], name))
            for item in devices.copies(one.template, name):
                yield ObjectSet(trace.begin_ns, item)


def _free_name(template: str, taken: set[str]) -> str:
    number = 1
    while f"{template}-added-{number}" in taken:
        number += 1
    return f"{template}-added-{number}"


def _copy(item: CopiedT, name: str) -> CopiedT:
    replace, metadata = msgspec.structs.replace, item.metadata
    labels = dict(metadata.labels)
    if labels.get(HOSTNAME) == item.name:
        labels[HOSTNAME] = name
    return replace(item, metadata=replace(metadata, name=name, uid=f"{name}-uid", labels=labels))


def _concerns(event: TraceEvent, removed: frozenset[str]) -> bool:
    match event:
        case ObjectSet(object=Node() as node):
            return node.name in removed
        case ObjectRemoved(kind="Node", key=name) | NodeDrained(node=name):
            return name in removed
        case PodCreated(pod=pod):
            return pod.spec.node_name in removed
        case _:
            return False


def _notes(devices: NodeDevices) -> Iterator[str]:
    for name in sorted(devices.shared):
        yield f"nodes added like {name} have no devices of pools that several nodes share"
