"""The verdict of a soak, on figures that are made up."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from benchmarks.soak import _pod
from benchmarks.soak_report import Sample, by_minute, judge

QUIET = Sample(
    at_s=0.0, rss_mib=200.0, cpu_s=0.0, open_fds=170, connections=148, tasks=100,
    journal_mib=0.0, pods=4000, pending=40, bound=0, lag_s=0.01,
)  # fmt: skip


def half_an_hour(change: Callable[[Sample, float], Sample]) -> list[Sample]:
    """A sample every five seconds, 200 pods/s, and something that changes with the minutes."""
    samples = []
    for number in range(1, 361):
        at_s = number * 5.0
        steady = msgspec.structs.replace(
            QUIET, at_s=at_s, cpu_s=at_s * 0.25, bound=round(at_s * 200), journal_mib=at_s * 0.4
        )
        samples.append(change(steady, at_s / 60))
    return samples


def test_rows_are_medians_and_rates_of_whole_minutes() -> None:
    rows = by_minute(half_an_hour(lambda sample, minute: sample))
    assert [row.minute for row in rows] == [*range(1, 31)]
    assert {row.bound_per_s for row in rows} == {200.0}
    assert {row.cpu_percent for row in rows} == {25.0}
    assert rows[1].rss_mib == 200.0
    assert rows[1].lag_ms == 10.0
    assert rows[1].journal_mib == 46.0


def test_what_stays_as_it_is_is_passed() -> None:
    verdict = judge(by_minute(half_an_hour(lambda sample, minute: sample)), 200.0)
    assert verdict.passed
    assert verdict.memory_growth == 0.0


def test_growth_at_the_beginning_is_none() -> None:
    def warming(sample: Sample, minute: float) -> Sample:
        return msgspec.structs.replace(sample, rss_mib=100 + 20 * min(minute, 5))

    assert judge(by_minute(half_an_hour(warming)), 200.0).passed


def test_what_grows_is_told() -> None:
    def leaking(sample: Sample, minute: float) -> Sample:
        return msgspec.structs.replace(
            sample, rss_mib=200 + minute, tasks=100 + round(12 * minute), connections=148
        )

    verdict = judge(by_minute(half_an_hour(leaking)), 200.0)
    assert not verdict.passed
    assert [trouble.partition(" grew")[0] for trouble in verdict.troubles] == ["memory", "tasks"]


def test_a_machine_that_is_too_slow_proves_nothing() -> None:
    verdict = judge(by_minute(half_an_hour(lambda sample, minute: sample)), 250.0)
    assert verdict.troubles == ("only 200 pods/s of 250 were bound",)
    assert not judge(by_minute(half_an_hour(lambda s, m: s)[:70]), 200.0).passed


def test_pods_are_of_templates_that_change() -> None:
    hashes = {_pod(n)["metadata"]["labels"]["pod-template-hash"] for n in range(0, 5000, 100)}
    assert len(hashes) == 10
    asked = [_pod(n)["spec"]["containers"][0]["resources"]["requests"]["cpu"] for n in range(200)]
    assert asked.count("100") == 2
