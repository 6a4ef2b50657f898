"""Nodes that a plugin's score cannot tell apart, so that one of them can stand for all.

A score that follows from a few numbers (pods on the host, pods in the zone) is the same for thousands of
nodes. Whoever says which nodes those are need not be asked about each, and a placement, which changes one
node, costs the same whatever the number of nodes.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Protocol

from asched.framework.change_log import ChangeLog
from asched.framework.cycle_state import CycleState
from asched.framework.interface import NormalizeScore, ScoreAllPlugin
from asched.framework.nodes import Int64Column


class NodeClasses(Protocol):
    """A class for each row of the table, from which alone the raw score of its node follows."""

    @property
    def of_row(self) -> Int64Column:
        """The class by row. To be read only."""

    @property
    def moved(self) -> ChangeLog[int]:
        """Rows that came to be of another class."""

    def __hash__(self) -> int: ...

    def raw_of(self, classes: Int64Column) -> Int64Column:
        """The raw scores of nodes of these classes, as of now. The array does not change afterwards, so it
        can be recognised."""


class ScoresByClass(ScoreAllPlugin, NormalizeScore):
    """A plugin that can tell which nodes it scores alike, and whose normalised scores follow from the raw
    score of a node and the lowest and the highest of all. For built-in plugins: no part of the API."""

    @abstractmethod
    def node_classes(self, state: CycleState) -> NodeClasses | None:
        """The classes that scores of this attempt go by, the same object as long as they are kept up; None
        where all nodes have to be gone through. After PreScore."""
