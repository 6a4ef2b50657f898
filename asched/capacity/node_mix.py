"""Replaces a share of the nodes by nodes of another shape."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated

import msgspec

from asched.audit.lookup import AuditError
from asched.audit.whatif.node_changes import (
    MAX_ADDED,
    AddedNodes,
    ChangedTrace,
    NodeChanges,
    with_new_nodes,
    with_node_changes,
)
from asched.audit.whatif.node_devices import HOSTNAME
from asched.capacity.node_counts import chosen_nodes
from asched.config.kube_scheduler import Section
from asched.model.node import Node
from asched.model.quantity import QuantityText
from asched.model.requests import amounts
from asched.simulator.trace import ObjectSet, WorkloadTrace


class NodeMix(Section, frozen=True):
    """Nodes that are replaced, and by what: copies of a node, or nodes of a given shape."""

    name: str = ""
    """For the table of results, and in the names of nodes."""
    replace: int | str = 0
    """A number, a percentage of the nodes at the beginning, or names; 0 replaces none."""
    each: Annotated[float, msgspec.Meta(ge=0)] = 1.0
    """New nodes for each replaced one."""
    like: str = ""
    """A node to copy, with its labels, taints, devices and attach limits."""
    allocatable: dict[str, QuantityText] = msgspec.field(default_factory=dict)
    """Otherwise the amounts of the new nodes. ``pods`` is by default that of the replaced node."""
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    """With ``allocatable``: added to the labels of the replaced node, such as its zone."""

    def __post_init__(self) -> None:
        if not self.changes_nodes:
            return
        if not self.name:
            raise ValueError("expected a name")
        if bool(self.like) == bool(self.allocatable):
            raise ValueError("expected exactly one of like and allocatable")
        if self.like and self.labels:
            raise ValueError("labels need allocatable")
        try:
            amounts(self.allocatable)
        except ValueError as error:
            raise ValueError(f"allocatable: {error}") from None

    @property
    def changes_nodes(self) -> bool:
        return self.replace not in (0, "", "0")

    @property
    def label(self) -> str:
        """For tables; empty if nothing changes."""
        return f"{self.replace} {self.name}" if self.changes_nodes else ""


def with_node_mix(trace: WorkloadTrace, mix: NodeMix, seed: int) -> ChangedTrace:
    """The trace with other nodes from its beginning on.

    The replaced nodes are chosen as in :func:`~asched.capacity.node_counts.node_changes`. They
    disappear as with ``asched diff --remove-nodes``. Raises AuditError for unknown nodes.
    """
    if not mix.changes_nodes:
        return ChangedTrace(trace)
    replaced = chosen_nodes(trace, str(mix.replace), "nodeMixes", seed)
    number = round(len(replaced) * mix.each)
    if number > MAX_ADDED:
        raise AuditError(f"nodeMixes: at most {MAX_ADDED:,} nodes can be added")
    if mix.like:
        added = (AddedNodes(mix.like, number),) if number else ()
        return with_node_changes(trace, NodeChanges(added, tuple(replaced)))
    taken = {node.name for node in _nodes(trace)}
    shaped = [*_shaped(trace, mix, replaced, number)]
    for node in shaped:
        if node.name in taken:
            raise AuditError(f"nodeMixes: the workload has a node {node.name}; choose another name")
    removed = with_node_changes(trace, NodeChanges(removed=tuple(replaced)))
    return ChangedTrace(with_new_nodes(removed.trace, shaped), removed.notes)


def _nodes(trace: WorkloadTrace) -> Iterator[Node]:
    for event in trace.events:
        if isinstance(event, ObjectSet) and isinstance(event.object, Node):
            yield event.object


def _shaped(
    trace: WorkloadTrace, mix: NodeMix, replaced: Sequence[str], number: int
) -> Iterator[Node]:
    """The new nodes; each takes the place of one of the replaced ones."""
    wanted, forms = set(replaced), dict[str, Node]()
    for node in _nodes(trace):
        if node.name in wanted:
            forms.setdefault(node.name, node)
    replace = msgspec.structs.replace
    for index in range(number):
        before = forms[replaced[index * len(replaced) // number]]
        name = f"{mix.name}-{index}"
        labels = {**before.metadata.labels, **mix.labels}
        if HOSTNAME in labels:
            labels[HOSTNAME] = name
        allocatable = {
            resource: amount
            for resource, amount in before.status.allocatable.items()
            if resource == "pods"
        }
        yield replace(
            before,
            metadata=replace(before.metadata, name=name, uid=f"{name}-uid", labels=labels),
            status=replace(before.status, allocatable={**allocatable, **mix.allocatable}),
        )
