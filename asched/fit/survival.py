"""The Kaplan-Meier estimator: how long things last, if some of them have not ended yet.

Source: Kaplan and Meier, Nonparametric Estimation from Incomplete Observations (1958); with delayed
entry, things count from the age at which they were first observed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Observed(NamedTuple):
    """What was observed of one thing."""

    entry_s: float
    """The age at which its observation began."""
    exit_s: float
    """The age at which it ended, or at which its observation did; at least ``entry_s``."""
    ended: bool
    """False if it had not ended yet (right-censored)."""


class SurvivalCurve:
    """The share of things that reach an age: a step function that starts at 1."""

    def __init__(self, ages_s: Sequence[float], shares: Sequence[float], observed: int) -> None:
        """``shares`` after each of the ages, at which things ended. Both are sorted."""
        self.ages_s = list(ages_s)
        self.observed = observed
        """The number of things behind it."""
        self._shares = list(shares)
        self._lost = [1.0 - share for share in shares]
        """Ascending, for bisection."""

    def share(self, age_s: float) -> float:
        """The share that lasts longer than this age."""
        steps = bisect_right(self.ages_s, age_s)
        return self._shares[steps - 1] if steps else 1.0

    def remaining_s(self, age_s: float, drawn: float) -> float | None:
        """The remaining time of something of this age, for a number drawn from [0, 1).

        None if it does not end at an age that was observed: the curve does not reach so far down,
        or nothing of this age has been observed.
        """
        here = self.share(age_s)
        if here <= 0.0:
            return None
        # P(T > t) is share(t) / here: the first age with a share below the drawn one.
        step = bisect_right(self._lost, 1.0 - here * (1.0 - drawn))
        step = max(step, bisect_right(self.ages_s, age_s))
        return self.ages_s[step] - age_s if step < len(self.ages_s) else None


def kaplan_meier(observed: Sequence[Observed]) -> SurvivalCurve:
    """The curve of these observations. Things at risk at an age entered before it, or at their
    beginning, and left at it or later."""
    if not observed:
        return SurvivalCurve((), (), 0)
    entries, exits, ended = (np.array(column) for column in zip(*observed, strict=True))
    entries = np.sort(np.where(entries <= 0.0, -1.0, entries))
    exits = exits.astype(float)
    ages, ends = np.unique(exits[ended.astype(bool)], return_counts=True)
    left = np.sort(exits)
    at_risk = np.searchsorted(entries, ages, "left") - np.searchsorted(left, ages, "left")
    # Something that ends at the age at which it was first observed was never at risk.
    at_risk = np.maximum(at_risk, ends)
    shares = np.cumprod(1.0 - ends / at_risk)
    return SurvivalCurve(ages.tolist(), shares.tolist(), len(observed))
