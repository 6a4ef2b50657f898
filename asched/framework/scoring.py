"""Arithmetic of scores, as in kube-scheduler (``helper.DefaultNormalizeScore``), and base classes
for plugins that give many nodes the same score."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from hashlib import blake2b
from typing import NamedTuple, Protocol

import numpy as np

from asched.framework.caching import ChangeLog
from asched.framework.cycle_state import CycleState
from asched.framework.interface import NormalizeScore, ScoreAllPlugin
from asched.framework.nodes import MAX_NODE_SCORE, BoolColumn, FilterResult, Int64Column
from asched.framework.pod_info import PodInfo


def truncated_quotient(dividend: Int64Column, divisor: Int64Column) -> Int64Column:
    """``dividend / divisor`` rounded towards zero, as in Go. The divisor must be positive."""
    if len(divisor) > 1 and (divisor == divisor[0]).all():
        # Often all nodes have the same size. Division by one number is several times faster.
        divisor = divisor[:1]
    quotient: Int64Column = dividend // divisor
    # item(argmin()) takes half the time of min().
    if len(quotient) and quotient.item(quotient.argmin()) < 0:
        quotient += (quotient < 0) & (quotient * divisor != dividend)
    return quotient


def quotient(dividend: int, divisor: int) -> int:
    """:func:`truncated_quotient` of two numbers."""
    return dividend // divisor if dividend >= 0 else -(-dividend // divisor)


def wrapped(number: int) -> int:
    """``number`` as a signed 64-bit integer that wraps around, as columns and Go integers do."""
    if -(2**63) <= number < 2**63:
        return number
    return (number + 2**63) % 2**64 - 2**63


def normalize_to_highest(
    scores: Int64Column, *, reverse: bool = False, ceiling: int = MAX_NODE_SCORE
) -> Int64Column:
    """Scale so that the highest score becomes ``ceiling``; with ``reverse`` the lowest is best.

    If no score is above zero, all become ``ceiling`` in reverse and are unchanged otherwise.
    """
    highest = int(scores.max(initial=0))
    if highest == 0:
        return np.full(len(scores), ceiling, np.int64) if reverse else scores.copy()
    scaled = truncated_quotient(scores * ceiling, np.full(1, highest, np.int64))
    return ceiling - scaled if reverse else scaled


def of_each_value(
    formula: Callable[[Int64Column], Int64Column], scores: Int64Column, lowest: int, highest: int
) -> Int64Column:
    """``formula(scores)``, evaluated once per distinct value if the scores are close together.

    All ``scores`` must be between ``lowest`` and ``highest``.
    """
    if highest - lowest >= len(scores):
        return formula(scores)
    by_value = formula(np.arange(lowest, highest + 1))
    # No index is out of range; "clip" is the fastest mode.
    return by_value.take(scores - lowest if lowest else scores, mode="clip")


def stable_random(seed: int, text: str, below: int) -> int:
    """A pseudo-random number from 0 to ``below - 1``, derived from ``seed`` and ``text``."""
    digest = blake2b(f"{seed}/{text}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % below


class NodeClasses(Protocol):
    """Groups nodes by the values that their raw score depends on.

    A score that depends on few numbers, such as the pods of a zone, is equal for thousands of
    nodes. It is then computed once per class, and a placement changes the class of few nodes.
    """

    @property
    def steady(self) -> bool:
        """Whether normalized scores depend on nothing but the classes that are present."""

    @property
    def of_row(self) -> Int64Column:
        """The class by row; read-only."""

    @property
    def moved(self) -> ChangeLog[int]:
        """Rows that changed their class."""

    def __hash__(self) -> int: ...

    def raw_of(self, classes: Int64Column) -> Int64Column:
        """The current raw scores of these classes, in an array that does not change afterwards."""


class CommonAnswer(NamedTuple):
    """The answer of a cluster-scope plugin about many like pods."""

    rejections: FilterResult | None
    """By row of the cluster's nodes; None if it rejects no node. Equal results are one object."""
    classes: NodeClasses | None
    """None if the plugin does not score: PreScore would return Skip."""
    passing: BoolColumn | bool = True
    """By row, whether :attr:`rejections` has no status."""


class ScoresByClass(ScoreAllPlugin, NormalizeScore):
    """A plugin that scores classes of nodes, and normalizes by the lowest and highest score.

    For built-in plugins: not part of the public API.
    """

    @abstractmethod
    def node_classes(self, state: CycleState) -> NodeClasses | None:
        """The node classes of this attempt, after PreScore; None if each node has to be scored.

        The same object as long as it is updated in place.
        """

    def common_answer(self, pod: PodInfo) -> CommonAnswer | None:
        """What the plugin's calls would return for the pod, if pods without rules of their own do
        not change it; None otherwise. Attempts that need only this skip other calls."""
        return None
