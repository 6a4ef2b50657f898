"""Step functions and percentiles, against simple implementations."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asched.audit.whatif.measures import Times
from asched.audit.whatif.occupancy import Steps, percentile
from asched.model.quantity import NS_PER_S

NUMBERS = st.integers(0, 50)


@st.composite
def step_functions(draw: st.DrawFn) -> Steps:
    at_ns = sorted(draw(st.lists(NUMBERS, min_size=1, max_size=20)))
    values = draw(st.lists(NUMBERS, min_size=len(at_ns), max_size=len(at_ns)))
    return Steps(at_ns, values, at_ns[-1] + draw(NUMBERS))


def every_ns(steps: Steps) -> list[float]:
    """The value in each nanosecond of the window."""
    return [
        next(v for at, v in reversed([*zip(steps.at_ns, steps.values, strict=True)]) if at <= ns)
        for ns in range(steps.start_ns, steps.end_ns)
    ]


@given(step_functions())
def test_mean_and_peak(steps: Steps) -> None:
    values = every_ns(steps)
    last = float(steps.values[-1])
    assert steps.mean == pytest.approx(sum(values) / len(values) if values else last)
    assert steps.peak == max([*values, last])


@given(step_functions(), st.integers(1, 12))
def test_thinned_steps_have_the_same_mean(steps: Steps, most: int) -> None:
    thin = steps.thinned(most)
    assert len(thin.values) <= max(most, 1) or steps.end_ns - steps.start_ns < most
    assert thin.mean == pytest.approx(steps.mean)
    assert (thin.start_ns, thin.end_ns) == (steps.start_ns, steps.end_ns)
    low, high = steps.values.min(), steps.values.max()
    assert (thin.values >= low - 1e-9).all()
    assert (thin.values <= high + 1e-9).all()


@given(step_functions())
def test_integral(steps: Steps) -> None:
    values = every_ns(steps)
    untils = np.arange(steps.start_ns, steps.end_ns + 1)
    sums = [sum(values[: int(until) - steps.start_ns]) for until in untils]
    assert steps.integral(untils).tolist() == pytest.approx(sums)


def test_last_value_at_the_same_time_counts() -> None:
    steps = Steps([0, 5, 5, 5], [1, 9, 8, 2], 10)
    assert steps.at_ns.tolist() == [0, 5]
    assert (steps.mean, steps.peak) == (1.5, 2)


@pytest.mark.parametrize(
    ("at_ns", "values", "end_ns"),
    [([], [], 1), ([1], [1, 2], 3), ([2, 1], [0, 0], 3), ([4], [1], 3)],
)
def test_invalid_steps_are_rejected(at_ns: list[int], values: list[float], end_ns: int) -> None:
    with pytest.raises(ValueError, match="time"):
        Steps(at_ns, values, end_ns)


@given(st.lists(NUMBERS), st.integers(0, 100))
def test_percentile_is_nearest_rank(values: list[int], percent: int) -> None:
    found = percentile(sorted(values), percent)
    fitting = [
        value
        for value in values
        if sum(other <= value for other in values) * 100 >= percent * len(values)
    ]
    assert found == min(fitting, default=None)


def test_mean_without_values_is_none() -> None:
    assert Times.of([]).mean_seconds is None
    assert Times.of([NS_PER_S, 2 * NS_PER_S]).mean_seconds == 1.5
