"""The interval between turns by the rate of changes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asched.daemon.engine.turn_interval import (
    LARGE_BATCH,
    MAX_INTERVAL_S,
    ArrivalRate,
    turn_interval_s,
)
from asched.model.quantity import NS_PER_S


@given(
    rate_per_s=st.integers(1, 5_000),
    steps_ms=st.lists(st.integers(10, 50), min_size=200, max_size=200),
)
def test_constant_rate_is_measured(rate_per_s: int, steps_ms: list[int]) -> None:
    rate, now_ns, measured = ArrivalRate(0), 0, 0.0
    for step_ms in steps_ms:
        now_ns += step_ms * 1_000_000
        measured = rate.update(now_ns * rate_per_s // NS_PER_S, now_ns)
    # A change counts fully at the end of its step, and whole changes arrive.
    assert measured == pytest.approx(rate_per_s, rel=0.25, abs=8)


@given(received=st.integers(0, 10_000), idle_s=st.floats(0, 100))
def test_rate_decays_without_changes(received: int, idle_s: float) -> None:
    rate = ArrivalRate(0)
    before = rate.update(received, 1)
    after = rate.update(received, 1 + round(idle_s * NS_PER_S))
    assert 0 <= after <= before
    if idle_s > 5:
        assert after < before / 1_000 + 1e-6


@given(st.floats(0, 250))
def test_no_interval_without_load(changes_per_s: float) -> None:
    assert turn_interval_s(changes_per_s) == 0


@given(st.floats(250, 1e6))
def test_interval_and_its_number_of_changes_are_limited(changes_per_s: float) -> None:
    interval_s = turn_interval_s(changes_per_s)
    assert 0 <= interval_s <= MAX_INTERVAL_S
    assert interval_s * changes_per_s <= LARGE_BATCH + 1e-6


@given(st.floats(0, 1e3), st.floats(0, 1e3))
def test_interval_grows_with_the_rate_while_batches_are_small(one: float, other: float) -> None:
    low, high = sorted((one, other))
    assert turn_interval_s(low) <= turn_interval_s(high)
