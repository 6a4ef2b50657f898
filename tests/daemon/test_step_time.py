"""The measured time of a counted step."""

from __future__ import annotations

from itertools import count

import pytest

from asched.daemon import step_time
from asched.daemon.step_time import measured_step_ns
from asched.state.attempt_budget import NS_PER_STEP


def test_this_machine_has_a_step_time() -> None:
    assert NS_PER_STEP <= measured_step_ns() <= 10 * NS_PER_STEP


@pytest.mark.parametrize(
    ("sample_ns", "step_ns"), [(100_000, 40), (328_000, 40), (779_000, 95), (10**9, 400)]
)
def test_fastest_sample_counts(
    sample_ns: int, step_ns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the usual time, which a faster machine has too, and ten times that."""
    slower = count(2 * sample_ns, -sample_ns // 4)
    monkeypatch.setattr(step_time, "_sample_ns", lambda: next(slower))
    assert measured_step_ns() == step_ns
