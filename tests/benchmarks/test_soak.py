"""The evaluation of a soak test, on invented figures."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from benchmarks.soak import _pod
from benchmarks.soak_report import Sample, by_minute, evaluate

QUIET = Sample(
    at_s=0.0,
    rss_mib=200.0,
    cpu_s=0.0,
    open_fds=170,
    connections=148,
    tasks=100,
    journal_mib=0.0,
    pods=4000,
    pending=40,
    bound=0,
    lag_s=0.01,
)


def half_an_hour(change: Callable[[Sample, float], Sample]) -> list[Sample]:
    """A sample every five seconds at 200 pods/s, changed by ``change(sample, minute)``."""
    samples = []
    for number in range(1, 361):
        at_s = number * 5.0
        steady = msgspec.structs.replace(
            QUIET, at_s=at_s, cpu_s=at_s * 0.25, bound=round(at_s * 200), journal_mib=at_s * 0.4
        )
        samples.append(change(steady, at_s / 60))
    return samples


def test_rows_contain_medians_and_rates_of_complete_minutes() -> None:
    rows = by_minute(half_an_hour(lambda sample, minute: sample))
    assert [row.minute for row in rows] == [*range(1, 31)]
    assert {row.bound_per_s for row in rows} == {200.0}
    assert {row.cpu_percent for row in rows} == {25.0}
    assert rows[1].rss_mib == 200.0
    assert rows[1].lag_ms == 10.0
    assert rows[1].journal_mib == 46.0


def test_constant_usage_passes() -> None:
    result = evaluate(by_minute(half_an_hour(lambda sample, minute: sample)), 200.0)
    assert result.passed
    assert result.memory_growth == 0.0


def test_growth_during_warm_up_passes() -> None:
    def warming(sample: Sample, minute: float) -> Sample:
        return msgspec.structs.replace(sample, rss_mib=100 + 20 * min(minute, 5))

    assert evaluate(by_minute(half_an_hour(warming)), 200.0).passed


def test_growth_after_warm_up_fails() -> None:
    def leaking(sample: Sample, minute: float) -> Sample:
        return msgspec.structs.replace(
            sample, rss_mib=200 + minute, tasks=100 + round(12 * minute), connections=148
        )

    result = evaluate(by_minute(half_an_hour(leaking)), 200.0)
    assert not result.passed
    assert [failure.partition(" grew")[0] for failure in result.failures] == ["memory", "tasks"]


def test_low_rate_or_short_run_fails() -> None:
    result = evaluate(by_minute(half_an_hour(lambda sample, minute: sample)), 250.0)
    assert result.failures == ("only 200 pods/s of 250 were bound",)
    assert not evaluate(by_minute(half_an_hour(lambda s, m: s)[:70]), 200.0).passed


def test_rollouts_change_pod_templates() -> None:
    hashes = {_pod(n)["metadata"]["labels"]["pod-template-hash"] for n in range(0, 5000, 100)}
    assert len(hashes) == 10
    cpus = [_pod(n)["spec"]["containers"][0]["resources"]["requests"]["cpu"] for n in range(200)]
    assert cpus.count("100") == 2
