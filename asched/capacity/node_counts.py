"""Turns numbers of nodes into changes of a trace's nodes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import Final

from asched.audit.lookup import AuditError
from asched.audit.whatif.node_changes import (
    MAX_ADDED,
    AddedNodes,
    NodeChanges,
    parse_node_changes,
)
from asched.model.node import Node
from asched.simulator.trace import ObjectRemoved, ObjectSet, WorkloadTrace

_COUNT: Final = re.compile(r"(?P<number>[0-9]{1,9})(?P<percent>%?)")


def node_changes(trace: WorkloadTrace, add: str, drop: str, seed: int) -> NodeChanges:
    """The changes that ``add`` and ``drop`` describe: ``8``, ``10%``, or names as for
    :func:`~asched.audit.whatif.node_changes.parse_node_changes`; empty for none.

    Numbers refer to the nodes at the beginning, sorted by size and name. Nodes at equal distances
    in that order are copied or dropped, so that the mix of sizes stays; ``seed`` chooses the first
    one. Raises AuditError for other text, and for more nodes than there are.
    """
    sizes = initial_nodes(trace)
    added, removed = _count(add, "add_nodes", len(sizes)), _count(drop, "drop_nodes", len(sizes))
    named = parse_node_changes(add if added is None else "", drop if removed is None else "")
    return NodeChanges(
        named.added if added is None else tuple(_copies(sizes, added, seed)),
        named.removed if removed is None else tuple(_dropped(sizes, removed, seed)),
    )


def _dropped(sizes: Sequence[str], number: int, seed: int) -> list[str]:
    if number and number >= len(sizes):
        raise AuditError(f"drop_nodes: {number} of {len(sizes)} nodes cannot be dropped")
    return _spaced(sizes, number, seed)


def _copies(sizes: Sequence[str], number: int, seed: int) -> list[AddedNodes]:
    if number > MAX_ADDED:
        raise AuditError(f"add_nodes: at most {MAX_ADDED:,} nodes can be added")
    copies = Counter(_spaced(sizes, number, seed))
    return [AddedNodes(name, count) for name, count in copies.items()]


def _count(text: str, what: str, nodes: int) -> int | None:
    """The number in a text, None if it has names."""
    match = _COUNT.fullmatch(text.strip())
    if match is None:
        return None
    number = int(match["number"])
    if number and not nodes:
        raise AuditError(
            f"{what}: the workload has no nodes at its beginning; let the period begin later"
        )
    if not match["percent"]:
        return number
    if number > 1000:
        raise AuditError(f"{what}: {text} is more than ten times the cluster")
    return round(nodes * number / 100)


def chosen_nodes(trace: WorkloadTrace, text: str, what: str, seed: int) -> list[str]:
    """The nodes that ``8``, ``10%`` or names mean, as in :func:`node_changes`; ``what`` is the
    field in messages.

    Raises AuditError for other text, for more nodes than there are, and for an unknown name.
    """
    sizes = initial_nodes(trace)
    number = _count(text, what, len(sizes))
    if number is None:
        names = [name.strip() for name in text.split(",")]
        for name in names:
            if name not in sizes:
                raise AuditError(f'{what}: the workload has no node "{name}" at its beginning')
        return names
    if number > len(sizes):
        raise AuditError(f"{what}: {number} of {len(sizes)} nodes")
    return _spaced(sizes, number, seed)


def initial_nodes(trace: WorkloadTrace) -> list[str]:
    """The nodes at the beginning, by size and name."""
    found: dict[str, Node] = {}
    for event in trace.events:
        if event.at_ns > trace.begin_ns:
            break
        if isinstance(event, ObjectSet) and isinstance(event.object, Node):
            found[event.object.name] = event.object
        elif isinstance(event, ObjectRemoved) and event.kind == "Node":
            found.pop(event.key, None)
    return sorted(found, key=lambda name: (sorted(_size(found[name])), name))


def _size(node: Node) -> list[tuple[str, str]]:
    return [(name, str(amount)) for name, amount in node.status.allocatable.items()]


def _spaced(names: Sequence[str], number: int, seed: int) -> list[str]:
    """Names at equal distances, with repetitions if ``number`` is larger."""
    if not number:
        return []
    first = Random(seed).randrange(len(names))
    return [names[(first + i * len(names) // number) % len(names)] for i in range(number)]
