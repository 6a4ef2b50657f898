"""Estimated start times on recorded histories with known lifetimes."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from asched.audit.lookup import AuditError
from asched.audit.whatif.scenarios import scenario_trace
from asched.cli.main import app
from asched.cli.simulation import JournalWriter
from asched.fit.answer import FitQuery, fit
from asched.fit.calibration import (
    Calibration,
    Examined,
    PodOutcomeAfter,
    StartStatement,
    calibrate,
    summarized,
)
from asched.fit.forecast import ForecastSettings, interval, quantile
from asched.fit.forms import StartEstimate
from asched.fit.manifest import object_of
from asched.journal.memory import MemoryStore
from asched.journal.opening import open_journal
from asched.journal.store import JournalStore
from asched.planning.workloads import default_scheduler
from asched.simulator.loop import Simulation
from tests.audit.recording import BEGIN_NS, REGISTRY
from tests.fit.test_copies import one_pod

STEADY = """
apiVersion: asched.dev/v1
kind: Scenario
duration: {duration}
nodes: [{{name: node, allocatable: {{cpu: "4", memory: 16Gi, pods: "110"}}}}]
pods:
  - name: batch
    count: 200
    arrival: {{every: {every}}}
    lifetime: {lifetime}
    template:
      spec: {{containers: [{{name: c, image: a, resources: {{requests: {{cpu: "1"}}}}}}]}}
"""


def scenario(duration: str = "15m", every: str = "25s", lifetime: str = "{fixed: 100s}") -> str:
    return STEADY.format(duration=duration, every=every, lifetime=lifetime)


async def write(text: str, store: JournalStore) -> None:
    trace = scenario_trace(text, "s", "default-scheduler")
    writer = await JournalWriter.claim(store, trace.begin_ns)
    for turn in Simulation(trace, default_scheduler(REGISTRY), REGISTRY.load).turns():
        await writer.add(turn)
        await writer.flush()


async def recorded(text: str) -> MemoryStore:
    store = MemoryStore()
    await write(text, store)
    return store


async def estimated(store: MemoryStore, cpu: str, at_s: float, **settings: Any) -> StartEstimate:
    query = FitQuery(
        object_of(one_pod(cpu), "m"), unblock=False, forecast=ForecastSettings(20, **settings)
    )
    at_ns = BEGIN_NS + round(at_s * 1e9)
    answer = await fit(store, query, REGISTRY.load, at_ns=at_ns)
    assert not answer.fits
    assert answer.estimate is not None
    return answer.estimate


async def test_known_lifetimes_give_the_exact_time() -> None:
    """Pods of 100 s start every 25 s; four run at 700 s, for 0, 25, 50 and 75 s so far."""
    store = await recorded(scenario())
    for cpu, seconds in (("1", 25.0), ("2", 50.0), ("4", 100.0)):
        found = await estimated(store, cpu, 700, arrivals=False)
        assert (found.low_s, found.median_s, found.high_s) == (seconds,) * 3, cpu
        assert found.started == found.samples == 20
        assert found.notes == ("lifetimes of 29 recorded pods",)


async def test_arrivals_delay_a_large_pod() -> None:
    store = await recorded(scenario())
    found = await estimated(store, "4", 700, arrivals=True, horizon_s=600.0)
    assert found.started == 0
    assert (found.low_s, found.median_s) == (None, None)


async def test_too_many_arrivals_are_an_error() -> None:
    store = await recorded(scenario())
    with pytest.raises(AuditError, match="1,200,000 pods in each sample: 28 arrived in 700 s"):
        await estimated(store, "4", 700, horizon_s=30e6)


async def test_same_seed_gives_the_same_estimate() -> None:
    store = await recorded(scenario(lifetime="{exponential: 100s}", every="24s"))
    first = await estimated(store, "3", 700, arrivals=False, horizon_s=1200.0)
    assert first == await estimated(store, "3", 700, arrivals=False, horizon_s=1200.0)
    other = await estimated(store, "3", 700, arrivals=False, horizon_s=1200.0, seed=1)
    assert (first.low_s, first.median_s, first.started) != (
        other.low_s, other.median_s, other.started,
    )  # fmt: skip


async def test_parts_of_the_horizon_change_no_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    store = await recorded(scenario(lifetime="{exponential: 100s}", every="38s"))
    settings = {"arrivals": True, "horizon_s": 3200.0}
    found = await estimated(store, "2", 700, **settings)
    assert found.median_s is not None
    assert found.median_s < 3200 / 4, "most samples end in an early part"
    monkeypatch.setattr("asched.fit.forecast._PARTS", (1,))
    assert found == await estimated(store, "2", 700, **settings)


async def test_later_records_change_no_estimate() -> None:
    short, long = await recorded(scenario("705s")), await recorded(scenario("15m"))
    settings = {"arrivals": True, "horizon_s": 600.0}
    assert await estimated(short, "4", 700, **settings) == await estimated(
        long, "4", 700, **settings
    )


async def test_fitting_pod_has_no_estimate() -> None:
    store = await recorded(scenario(every="50s"))
    query = FitQuery(object_of(one_pod("1"), "m"), forecast=ForecastSettings(5))
    answer = await fit(store, query, REGISTRY.load, at_ns=BEGIN_NS + 700 * 10**9)
    assert (answer.fits, answer.estimate) == (True, None)


@given(st.lists(st.integers(0, 50), max_size=30), st.integers(0, 20), st.floats(0.05, 0.95))
def test_quantile_counts_samples_that_did_not_start(
    values: list[int], missing: int, share: float
) -> None:
    samples = len(values) + missing
    if not samples:
        return
    found = quantile(values, samples, share)
    if found is None:
        assert len(values) < share * samples + 1
    else:
        assert sum(value <= found for value in values) >= share * samples - 0.01
        assert sum(value < found for value in values) <= share * samples + 0.01


async def test_calibration_of_known_lifetimes_is_exact() -> None:
    """A backlog of equal pods with known lifetimes: what is stated happens."""
    store = await recorded(scenario("45m", every="20s"))
    settings = ForecastSettings(4, horizon_s=900.0, arrivals=False)
    found = await calibrate(store, REGISTRY.load, settings, 8)
    assert found.moments == 8
    assert found.pods > 8
    assert found.base_brier is not None
    assert found.brier == 0 < found.base_brier
    assert found.covered == 1.0
    low, *between, high = found.rows
    assert not any(row.statements for row in between)
    assert low.statements > 0
    assert high.statements > 0
    assert (low.observed, high.observed) == (0.0, 1.0)


async def test_calibration_needs_waiting_pods() -> None:
    with pytest.raises(AuditError, match="no pod waits"):
        await calibrate(
            await recorded(scenario(every="50s")), REGISTRY.load, ForecastSettings(2), 4
        )


STATEMENTS = st.builds(
    StartStatement, st.sampled_from([300.0, 900.0]), st.floats(0, 1), st.booleans()
)


@given(st.lists(STATEMENTS, max_size=60), st.lists(st.booleans(), max_size=9))
def test_table_counts_every_statement_once(
    found: list[StartStatement], covered: list[bool]
) -> None:
    table: Calibration = summarized(found, covered, Examined(1, 1, ForecastSettings()))
    assert sum(row.statements for row in table.rows) == len(found)
    assert all(before.high == after.low for before, after in pairwise(table.rows))
    for row in table.rows:
        if row.stated is not None:
            assert row.low - 1e-9 <= row.stated <= row.high + 1e-9
    happened = sum((row.observed or 0) * row.statements for row in table.rows)
    assert happened == pytest.approx(sum(one.happened for one in found))
    assert table.intervals == len(covered)


def test_unknown_outcomes_are_no_statements() -> None:
    deleted = PodOutcomeAfter(None, 600.0, 3600.0)
    assert deleted.started_within(300.0) is False
    assert deleted.started_within(900.0) is None
    assert PodOutcomeAfter(400.0, 0.0, 3600.0).started_within(300.0) is False
    assert PodOutcomeAfter(400.0, 0.0, 3600.0).started_within(900.0) is True
    # The history ends before: a late start could not be seen.
    assert PodOutcomeAfter(400.0, 0.0, 600.0).started_within(900.0) is None


@given(st.integers(1, 120))
def test_interval_holds_another_draw_with_the_stated_probability(samples: int) -> None:
    """By symmetry, each of the n + 1 ranks of another draw among n samples is equally probable."""
    ranks = [float(rank) for rank in range(1, samples + 1)]
    low, high = interval(ranks, samples)
    assert low is not None
    end = samples + 1 if high is None else high
    assert (end - low) / (samples + 1) >= 0.8 - 1e-9
    assert (end - low) / (samples + 1) <= 0.8 + 2 / (samples + 1)
    # Samples that did not start are after all others.
    started = ranks[: samples // 2]
    assert interval(started, samples)[0] == (low if low <= len(started) else None)
    assert interval(started, samples)[1] is None


def run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["fit", *arguments], prog_name="asched")
    return result.exit_code, result.stdout, result.stderr


async def test_commands(tmp_path: Path) -> None:
    journal, file = tmp_path / "journal.db", tmp_path / "pod.yaml"
    file.write_text(json.dumps(one_pod("4")))
    async with open_journal(str(journal)) as store:
        await write(scenario("700s"), store)

    async def command(*arguments: str) -> tuple[int, str, str]:
        return await anyio.to_thread.run_sync(run, *arguments)

    at = ("--journal", str(journal))
    code, out, err = await command(str(file), *at, "--estimate", "--samples", "20", "--no-arrivals")
    assert (code, err) == (1, "")
    assert "would run after 1m40s (median), 80 % interval 1m40s to 1m40s; 20 of 20 samples" in out
    code, _, err = await command("--calibrate", *at)
    assert code == 2
    assert "no pod waits" in err
    for wrong, message in (
        (("--copies", "many"), "--copies many: expected a number"),
        (("--estimate", "--horizon", "soon"), "--horizon: "),
        (("--seq", "1", "--at", "1h"), "give one of --at and --seq"),
        (("--seq", "100000"), "no record 100000: the journal ends with record"),
        (("--calibrate",), "--calibrate takes no manifest"),
    ):
        code, out, err = await command(str(file), *at, *wrong)
        assert (code, out) == (2, ""), wrong
        assert message in err
        assert err.count("\n") == 1
