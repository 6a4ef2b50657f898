"""What the node table contains, in forms outside of it: for checkpoints, which number the
pods, and the order of pods on rows."""

from __future__ import annotations

from typing import NamedTuple

from asched.framework.pod_info import PodInfo
from asched.state.stored_form import StoredForm
from asched.state.unoffered_requests import UnofferedRequests


class UnknownNodeSnapshot(StoredForm):
    node: str
    pods: tuple[PodInfo, ...]


class PodsOnRows(tuple[PodInfo, ...]):
    """A type of its own: its pods are read from a checkpoint at once."""

    __slots__ = ()


class NodeTableSnapshot(StoredForm):
    names: tuple[str, ...]
    """Node name by row; empty for a free row."""
    row_ends: tuple[int, ...]
    """The pods of row ``n`` are ``pods[row_ends[n - 1]:row_ends[n]]``."""
    pods: PodsOnRows
    unknown_nodes: tuple[UnknownNodeSnapshot, ...]
    allocatable: tuple[str, ...]
    """Every resource that a node offers, in order: sessions use the order and the names."""
    unoffered: tuple[str, ...]
    """Every other resource that a pod on a node requests, in order."""


class PodOrder(NamedTuple):
    """In which order pods arrived on rows, and names of resources in the table."""

    by_row: dict[int, list[str]]
    unoffered: UnofferedRequests
