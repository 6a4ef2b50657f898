"""The latest attempt of each CompositePodGroup, and the pods that were placed after it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from asched.model.groups import CompositePodGroup
from asched.state.cluster import ClusterState
from asched.state.group_records import PodGroupAttempted
from asched.state.records import AnyRecord, Assigned


class TreeAttempt(NamedTuple):
    """The latest attempt of a tree."""

    at_ns: int
    placed_since: set[str]
    """Uids of the pods outside of the tree that were assigned later."""
    nominated: Mapping[str, str] = {}
    """The nodes to which pods were nominated before the attempt, by uid."""


class TreeAttempts:
    """Follows the records of one journal."""

    def __init__(self) -> None:
        self.by_uid: dict[str, TreeAttempt] = {}
        """By the uid of the root."""
        self._roots: dict[str, str] = {}
        """Uid of the root by its key."""
        self._current = ""
        """Uid of the root of the latest cycle; empty if that was no tree."""

    def note(self, record: AnyRecord, state: ClusterState) -> None:
        """The record is durable, and folded into the state."""
        if isinstance(record, PodGroupAttempted):
            if record.kind == CompositePodGroup.__name__ and not record.root:
                self._roots[record.group] = self._current = record.uid
                self.by_uid[record.uid] = TreeAttempt(state.now_ns, set(), _nominated(state))
            else:
                self._current = self._roots.get(record.root, "")
        elif isinstance(record, Assigned):
            own = self._current if record.grouped else ""
            for uid, attempt in self.by_uid.items():
                if uid != own:
                    attempt.placed_since.add(record.uid)


def _nominated(state: ClusterState) -> dict[str, str]:
    nodes = state.nominator.by_node.items()
    return {pod.uid: node for node, pods in nodes for pod in pods.values()}
