"""What the conditions of nodes say about placing pods there."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from asched.framework.nodes import BoolColumn, Nodes
from asched.model.node import Node

READY = "Ready"


def condition(node: Node, condition_type: str) -> str:
    """The status of a condition; empty where the node does not have it."""
    return next((c.status for c in node.status.conditions if c.type == condition_type), "")


def is_usable(node: Node, refused: Sequence[str] = ()) -> bool:
    """Ready and its network available, as far as it says; none of the ``refused`` conditions
    (``CheckNodeCondition`` of Kubernetes 1.16)."""
    return (
        condition(node, READY) in ("", "True")
        and condition(node, "NetworkUnavailable") in ("", "False")
        and not any(condition(node, pressure) == "True" for pressure in refused)
    )


def where(nodes: Nodes, holds: Callable[[Node], bool]) -> BoolColumn:
    """The rows whose node is so."""
    column = np.zeros(nodes.size, np.bool_)
    for row in np.flatnonzero(nodes.alive).tolist():
        column[row] = holds(nodes.node(row))
    return column
