"""Hints about members of a group where only some profiles schedule whole groups."""

from __future__ import annotations

from collections import Counter

import pytest

from asched.framework.events import QueueingHint
from asched.model.meta import Object
from asched.model.pod import Pod
from asched.plugins.gang_scheduling import GangScheduling
from asched.plugins.node_resources.fit import NodeResourcesFit
from tests.cycle.scheduling import Scheduling
from tests.plugins.gangs import a_gang, gang_pods
from tests.state.profiles import profile_of

PLUGINS = (NodeResourcesFit, GangScheduling)
MEMBERS = 30


def mixed() -> Scheduling:
    """One profile schedules whole groups, the other one pod by pod."""
    arguments = {GangScheduling.name: {"groupCycle": True}}
    whole = profile_of(*PLUGINS, name="whole", arguments=arguments)
    return Scheduling(*PLUGINS, profiles=[profile_of(*PLUGINS), whole])


@pytest.mark.parametrize("scheduler", ["default-scheduler", "whole"])
def test_new_member_evaluates_no_hints_for_each_waiting_one(
    scheduler: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: Counter[str] = Counter()
    for name in ("_reaches_min_count", "_may_complete"):
        original = getattr(GangScheduling, name)

        def counted(
            self: GangScheduling,
            pod: Pod,
            old: Object | None,
            new: Object | None,
            hint: object = original,
        ) -> QueueingHint:
            calls["hints"] += 1
            found: QueueingHint = hint(self, pod, old, new)  # type: ignore[operator]
            return found

        monkeypatch.setattr(GangScheduling, name, counted)
    scheduling = mixed()
    scheduling.see(a_gang("a", MEMBERS))
    pods = gang_pods("a", MEMBERS, scheduler=scheduler)
    scheduling.see(*pods[:-1])
    assert calls["hints"] <= 2 * MEMBERS
    assert len(scheduling.state.queue.gated) == MEMBERS - 1
    scheduling.see(pods[-1])
    assert not scheduling.state.queue.gated
    assert len(scheduling.state.queue.active) == MEMBERS
