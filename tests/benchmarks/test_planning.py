"""The model of larger clusters, and the form of the figures."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.planning import WORKERS, Costs, PlanningFigures, Speed, makespan_s, table

SECONDS = st.floats(0.001, 100)


@given(st.lists(SECONDS, min_size=1, max_size=30), st.floats(0, 10), st.floats(0, 1))
def test_bounds_of_the_model(items_s: list[float], reading_s: float, dispatch_s: float) -> None:
    costs = Costs(items_s, reading_s, dispatch_s)
    alone_s = makespan_s(costs, 1)
    assert alone_s == pytest.approx(sum(items_s) + reading_s + dispatch_s * len(items_s))
    for workers in (2, 7, 1000):
        found_s = makespan_s(costs, workers)
        assert found_s >= max(items_s) + reading_s * (workers >= len(items_s)) - 1e-9
        assert found_s >= sum(items_s) / workers - 1e-9
        assert found_s >= dispatch_s * len(items_s) - 1e-9


def test_scaling_ends_where_the_scheduler_is_busy() -> None:
    speed = Speed(
        items=10,
        one_s=100.0,
        two_s=52.0,
        cpu_s=[100.0, 110.0, 90.0],
        work_cpu_s=[97.0, 110.0, 80.0],
    )
    found = PlanningFigures(1, speed, speed, 1.0, 0.5, 3.0, 2.0, 200.0, 210.0, 0.1)
    model = found.model(1.0)
    assert list(model) == [*WORKERS]
    assert model[1] == 1
    assert model[100] == pytest.approx(100, rel=0.05)
    assert model[3000] < 1.0 / 0.002 + 1, "500 items begin in a second"
    text = "\n".join(table(found))
    assert "| speed-up | 1.92 | 1.92 | at least 1.85 |" in text
    assert "| overhead | 3.0% | 3.0% | below 5% |" in text
