"""A node table of one's own: for what may happen to the cluster and not yet has."""

from __future__ import annotations

import copy

import numpy as np

from asched.framework.change_log import ChangeLog
from asched.state.node_columns import FullnessNumbers
from asched.state.node_table import LOGGED, NodeTable


def fork(table: NodeTable) -> NodeTable:
    """A table with the same contents. Pods may come to it and go without the other knowing; nodes
    are to stay as they are. Costs as much as copying the columns."""
    twin = copy.copy(table)
    for name, held in vars(table).items():
        if isinstance(held, np.ndarray):
            setattr(twin, name, held.copy())
    twin._allocatable = {name: column.copy() for name, column in table._allocatable.items()}
    twin._requested = {name: column.copy() for name, column in table._requested.items()}
    # The columns of the two need not stay the same, and so the numbers have to be others.
    twin._fullness, twin._fullness_numbers = [None] * table.size, FullnessNumbers()
    twin._pods = [dict(pods) for pods in table._pods]
    twin._strays = {name: dict(pods) for name, pods in table._strays.items()}
    twin._ports = copy.deepcopy(table._ports)
    twin._views, twin._capacities, twin._amount_columns, twin._sweep = {}, {}, [], None
    twin._row_log = ChangeLog(LOGGED)
    twin._pod_log = ChangeLog(LOGGED)
    return twin
