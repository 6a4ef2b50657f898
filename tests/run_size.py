"""How many examples, pages and parts of recordings a run reads: a third in ``make test``, all in
``make test-thorough``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final, TypeVar

T = TypeVar("T")

PROFILE: Final = os.environ.get("HYPOTHESIS_PROFILE", "fast")
"""``fast``, ``thorough``, or ``fuzz`` for new random examples."""
EXAMPLES: Final = 60
"""Examples of a property test in a thorough run, unless it has a number of its own."""
_FAST_SHARE: Final = 3
_FUZZ_FACTOR: Final = 5


def examples(thorough: int = EXAMPLES) -> int:
    """The number of examples in this run of a test that has ``thorough`` in a thorough run."""
    if PROFILE == "fuzz":
        return thorough * _FUZZ_FACTOR
    return thorough if PROFILE == "thorough" else -(-thorough // _FAST_SHARE)


def run_share(thorough: int) -> int:
    """How much of a recording this run reads: a third in a fast run."""
    return -(-thorough // _FAST_SHARE) if PROFILE == "fast" else thorough


def sample(cases: Sequence[T], one_in: int = _FAST_SHARE) -> list[T]:
    """The cases of this run: every ``one_in``-th with the first, all unless the run is fast."""
    return [*cases[::one_in]] if PROFILE == "fast" else [*cases]
