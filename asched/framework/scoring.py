"""Bringing raw scores into 0 to 100, as ``helper.DefaultNormalizeScore`` of kube-scheduler does.

Chance that a replay repeats: a number drawn by a hash in place of a random one.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b

import numpy as np

from asched.framework.nodes import MAX_NODE_SCORE, Int64Column


def truncated_quotient(dividend: Int64Column, divisor: Int64Column) -> Int64Column:
    """``dividend / divisor`` as Go divides integers: towards zero. The divisor must be positive."""
    if len(divisor) > 1 and (divisor == divisor[0]).all():
        # Most nodes are of one size, and dividing by one number is several times as fast.
        divisor = divisor[:1]
    quotient: Int64Column = dividend // divisor
    if len(quotient) and quotient.min() < 0:
        quotient += (quotient < 0) & (quotient * divisor != dividend)
    return quotient


def quotient(dividend: int, divisor: int) -> int:
    """:func:`truncated_quotient` of two numbers."""
    return dividend // divisor if dividend >= 0 else -(-dividend // divisor)


def wrapped(number: int) -> int:
    """``number`` as 64 bits hold it: columns wrap, as Go does, and single numbers must agree."""
    if -(2**63) <= number < 2**63:
        return number
    return (number + 2**63) % 2**64 - 2**63


def normalize_to_highest(
    scores: Int64Column, *, reverse: bool = False, ceiling: int = MAX_NODE_SCORE
) -> Int64Column:
    """Scale so that the highest score becomes ``ceiling``; with ``reverse`` the lowest is best.

    Where no score is above zero all become ``ceiling`` in reverse, and stay as they are otherwise.
    """
    highest = int(scores.max(initial=0))
    if highest == 0:
        return np.full(len(scores), ceiling, np.int64) if reverse else scores.copy()
    scaled = truncated_quotient(scores * ceiling, np.full(1, highest, np.int64))
    return ceiling - scaled if reverse else scaled


def of_each_value(
    formula: Callable[[Int64Column], Int64Column], scores: Int64Column, lowest: int, highest: int
) -> Int64Column:
    """``formula`` of every score, worked out once per value where scores lie close together.

    ``lowest`` and ``highest`` are those of ``scores``, or beyond.
    """
    if highest - lowest >= len(scores):
        return formula(scores)
    by_value = formula(np.arange(lowest, highest + 1))
    # Every score has its place, so there is nothing to clip, but no time goes into looking for it.
    return by_value.take(scores - lowest if lowest else scores, mode="clip")


def draw(seed: int, words: str, below: int) -> int:
    """A number from 0 to ``below - 1``, the same for the same recorded seed and words."""
    digest = blake2b(f"{seed}/{words}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % below
