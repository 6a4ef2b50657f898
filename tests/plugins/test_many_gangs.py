"""Many gangs that wait on Permit: counted work, and the decisions of a complete review."""

from __future__ import annotations

from typing import ClassVar

import pytest
from hypothesis import given

from asched.cycle import decide
from asched.framework.interface import Plugin
from asched.framework.runtime import dry_run
from asched.framework.runtime.dry_run import FilterDryRun
from asched.plugins.gang_scheduling import RELEASED, Gang, GangScheduling
from asched.state import records as r
from tests.cycle.scheduling import Scheduling
from tests.plugins.gangs import (
    INTERLEAVED,
    a_gang,
    check_replay,
    gang_pods,
    kinds,
    member,
    nodes,
    settle,
    waiting,
)
from tests.plugins.test_gang_properties import Run, play, runs
from tests.state.objects import a_pod, bound

GANGS = 70


class Complete(GangScheduling):
    """Reviews all gangs each time."""

    api_version: ClassVar[int] = 1

    def review_waiting_pods(self) -> None:
        self._reviewed = -1
        self.handle.cluster.permit_changes.forget()
        super().review_waiting_pods()


class Holding(GangScheduling):
    """Members wait although another member fits on no node."""

    api_version: ClassVar[int] = 1

    def _cannot_complete(self, gang: Gang) -> bool:
        return False


def held(count: int = GANGS) -> Scheduling:
    """Gangs with a waiting member each, on a node of its own, and an earlier gang without pods."""
    scheduling = Scheduling(*INTERLEAVED[:2], Holding)
    nodes(scheduling, count, cpu="2")
    for number in range(count):
        scheduling.see(bound(a_pod(f"old{number}", {"cpu": "1"}), f"n{number}"))
    scheduling.see(a_gang("first", 2))
    for number in range(count):
        scheduling.see(a_gang(f"g{number}", 2, created_s=10 + number))
        # The last one is tried first: the others are gated until then.
        scheduling.see(member(f"g{number}", f"b{number}", "9"), member(f"g{number}", f"g{number}"))
    scheduling.decide()
    assert len(waiting(scheduling)) == count
    return scheduling


def test_other_decisions_review_no_gang(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduling = held()
    nodes(scheduling, 5, first=GANGS)
    scheduling.next()
    reviewed: list[object] = []
    monkeypatch.setattr(GangScheduling, "_review", lambda self, group: reviewed.append(group))
    for number in range(5):
        scheduling.see(a_pod(f"plain{number}", {"cpu": "1"}))
        assert [name for name, _ in kinds(scheduling.next())] == ["Assigned"]
    assert not reviewed


def test_releases_of_later_gangs_are_tried_together(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduling = held()
    runs: list[int] = []
    original = FilterDryRun.diagnose

    def diagnose(run: FilterDryRun) -> object:
        runs.append(len(run.rows))
        return original(run)

    monkeypatch.setattr(FilterDryRun, "diagnose", diagnose)
    scheduling.see(member("first", "large", "2"), member("first", "other", "2"))
    (decision, *_) = scheduling.next()
    assert isinstance(decision, r.Rejected)
    assert RELEASED not in decision.message
    assert runs == [dry_run._BATCH_ROWS, GANGS - dry_run._BATCH_ROWS]
    assert len(waiting(scheduling)) == GANGS


def test_last_gang_is_released_first() -> None:
    scheduling = held(5)
    scheduling.see(*gang_pods("first", 2))
    (decision, *rejected) = scheduling.next()
    assert isinstance(decision, r.Rejected)
    assert decision.message.endswith(f"{RELEASED}default/g4.")
    assert [each.key for each in rejected if isinstance(each, r.PermitRejected)] == ["default/g4"]


def test_answers_are_decided_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decide, "MAX_ANSWERS", 4)
    scheduling = held(10)
    scheduling.pass_time(61)
    rounds = [len(kinds(scheduling.next())) for _ in range(3)]
    assert rounds == [4, 4, 2]
    assert waiting(scheduling) == []
    messages = {d.message for d in scheduling.records if isinstance(d, r.PermitRejected)}
    assert len(messages) == 1
    assert messages.pop().startswith("rejected due to timeout")


@given(run=runs)
def test_partial_review_decides_as_a_complete_one(run: Run) -> None:
    made = []
    for plugin in (GangScheduling, Complete):
        plugins: tuple[type[Plugin], ...] = (*INTERLEAVED[:2], plugin)
        scheduling = play(run, *plugins, bindings_fail=True)
        settle(scheduling, rounds=4)
        made.append(scheduling.records[2:])
    assert made[0] == made[1]


def test_replay_with_many_gangs() -> None:
    scheduling = Scheduling(*INTERLEAVED)
    nodes(scheduling, 12)
    for number in range(9):
        scheduling.see(a_gang(f"g{number}", 3, created_s=number))
    for position in range(3):
        for number in range(9):
            scheduling.see(member(f"g{number}", f"g{number}-{position}"))
    settle(scheduling)
    check_replay(scheduling, *INTERLEAVED, checkpoint_at=2)
