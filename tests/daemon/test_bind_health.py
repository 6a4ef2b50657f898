"""Readiness depends on bindings that the API server carries out."""

from __future__ import annotations

import pytest

from asched.daemon.effects.reconciler import BindHealth
from asched.kube.write_outcomes import (
    BindOutcome,
    BoundElsewhere,
    ObjectGone,
    OutcomeUnknown,
    WriteRejected,
    WriteSucceeded,
)
from tests.daemon.scripted_api import POD, ScriptedApi, pod_on, status
from tests.kube.harness import ManualClock

FAILURES: list[BindOutcome] = [
    OutcomeUnknown("no response"),
    WriteRejected("connection refused"),
    WriteRejected("unauthorized", 401),
    WriteRejected("busy", 429),
    WriteRejected("unavailable", 503),
]
ANSWERS: list[BindOutcome] = [
    WriteSucceeded(),
    BoundElsewhere("other"),
    ObjectGone(),
    WriteRejected("invalid", 422),
]


@pytest.mark.parametrize("failure", FAILURES, ids=str)
def test_failing_bindings_are_a_problem_after_eight_seconds(failure: BindOutcome) -> None:
    clock = ManualClock()
    health = BindHealth(clock)
    for _ in range(8):
        health.requested()
        health.answered(failure)
        assert not health.problem()
        clock.now_s += 1.0
    assert health.problem() == "no binding has succeeded for 8 s"


@pytest.mark.parametrize("answer", ANSWERS, ids=str)
def test_answer_about_the_pod_ends_the_problem(answer: BindOutcome) -> None:
    clock = ManualClock()
    health = BindHealth(clock)
    health.requested()
    health.answered(OutcomeUnknown("no response"))
    clock.now_s += 20.0
    assert health.problem()
    health.requested()
    health.answered(answer)
    assert not health.problem()


def test_silence_without_bindings_is_no_problem() -> None:
    clock = ManualClock()
    health = BindHealth(clock)
    assert not health.problem()
    health.requested()
    health.answered(WriteRejected("unavailable", 503))
    clock.now_s += 61.0
    assert not health.problem()


def test_binding_without_an_answer_is_a_problem() -> None:
    clock = ManualClock()
    health = BindHealth(clock)
    health.requested()
    clock.now_s += 12.0
    assert health.problem() == "no binding has succeeded for 12 s"


async def test_reconciler_reports_its_requests() -> None:
    busy = status(503, "busy")
    api = ScriptedApi(busy, busy, reads=pod_on(""), writes=status(201))
    assert not (await api.binder().bind(POD, "n")).is_success
    api.clock.now_s += 20.0
    assert api.health.problem()
    assert (await api.binder().bind(POD, "n")).is_success
    assert not api.health.problem()
