"""Durations of plugin calls, measured when recorded attempts are decided again."""

from __future__ import annotations

from itertools import count

import pytest

from asched.audit import plugin_times as measured
from asched.audit.plugin_times import plugin_times
from asched.framework.runtime.observation import OBSERVATION
from tests.audit.recording import REGISTRY, Recording, node, pod, woken_pod

TICK_NS = 1_000_000


async def test_each_call_takes_the_time_of_the_clock() -> None:
    journal = await woken_pod().journal()
    seq = (await journal.head()).seq
    ticks = count(0, TICK_NS)
    found = await plugin_times(journal, REGISTRY.load, seq, lambda: next(ticks))
    assert (found.attempts, found.problem, found.seq) == (2, "", seq)
    assert OBSERVATION.calls is None
    [fit] = [
        one
        for one in found.times
        if (one.plugin, one.extension_point) == ("NodeResourcesFit", "Filter")
    ]
    assert fit.calls >= 2
    assert fit.p50_s == fit.longest_s == TICK_NS / 1e9
    assert fit.total_s == pytest.approx(fit.calls * TICK_NS / 1e9)
    totals = [one.total_s for one in found.times]
    assert totals == sorted(totals, reverse=True)


async def test_only_the_last_attempts_are_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured, "ATTEMPTS", 2)
    recording = Recording()
    recording.see(node("n0", "64"))
    for number in range(5):
        recording.see(pod(f"p{number}"))
        recording.bind(recording.decide())
    journal = await recording.journal()
    seq = (await journal.head()).seq
    found = await plugin_times(journal, REGISTRY.load, seq, lambda: 0)
    assert (found.attempts, found.problem) == (2, "")
    assert found.first_seq > 10
    before = await plugin_times(journal, REGISTRY.load, 1, lambda: 0)
    assert (before.first_seq, before.attempts, before.times) == (0, 0, ())
