"""The latest attempt of each CompositePodGroup, and the pods that were placed after it."""

from __future__ import annotations

from typing import NamedTuple

from asched.model.groups import CompositePodGroup
from asched.state.group_records import PodGroupAttempted
from asched.state.records import AnyRecord, Assigned


class TreeAttempt(NamedTuple):
    """The latest attempt of a tree."""

    at_ns: int
    placed_since: set[str]
    """Uids of the pods outside of the tree that were assigned later."""


class TreeAttempts:
    """Follows the records of one journal."""

    def __init__(self) -> None:
        self.by_uid: dict[str, TreeAttempt] = {}
        """By the uid of the root."""
        self._roots: dict[str, str] = {}
        """Uid of the root by its key."""
        self._current = ""
        """Uid of the root of the latest cycle; empty if that was no tree."""

    def note(self, record: AnyRecord, now_ns: int) -> None:
        """The record is durable."""
        if isinstance(record, PodGroupAttempted):
            if record.kind == CompositePodGroup.__name__ and not record.root:
                self._roots[record.group] = self._current = record.uid
                self.by_uid[record.uid] = TreeAttempt(now_ns, set())
            else:
                self._current = self._roots.get(record.root, "")
        elif isinstance(record, Assigned):
            own = self._current if record.grouped else ""
            for uid, attempt in self.by_uid.items():
                if uid != own:
                    attempt.placed_since.add(record.uid)
