"""GANG_PENDING members follow from the state: replays decide the same, also from a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from asched.audit.replay import ReplayVerifier
from asched.framework.events import ActionType, ClusterEvent, ClusterEventWithHint, EventResource
from asched.framework.interface import EnqueueExtensions, Plugin, PreEnqueuePlugin
from asched.framework.pod_info import PodInfo
from asched.framework.status import SUCCESS, Status
from asched.state.checkpoint import checkpoint_of, restore
from tests.cycle.scheduling import Scheduling
from tests.plugins.gangs import INTERLEAVED, a_gang, check_replay, member, nodes
from tests.state.objects import a_node, labelled
from tests.state.profiles import loader


class Doorkeeper(PreEnqueuePlugin, EnqueueExtensions):
    """Gates pods with a label until an object exists."""

    name: ClassVar[str] = "Doorkeeper"
    api_version: ClassVar[int] = 1

    def pre_enqueue(self, pod: PodInfo) -> Status:
        there = self.handle.cluster.nodes.row_of("door") is not None
        return SUCCESS if there or "door" not in pod.labels else Status.unresolvable("closed")

    def events_to_register(self) -> Sequence[ClusterEventWithHint]:
        return (ClusterEventWithHint(ClusterEvent(EventResource.NODE, ActionType.ADD)),)


def _two_asleep(*plugins: type[Plugin], too_big: str) -> Scheduling:
    """a and b are pending because c is rejected; e waits on Permit and activates them early."""
    scheduling = Scheduling(*plugins)
    nodes(scheduling, 4)
    scheduling.pass_time(1)
    scheduling.see(a_gang("g", 3), member("g", "a"), member("g", "b"), member("g", "c", too_big))
    scheduling.decide()
    scheduling.pass_time(0.3)
    scheduling.see(member("g", "e"))
    scheduling.next()
    return scheduling


def test_checkpoint_restores_gang_pending_members() -> None:
    scheduling = _two_asleep(*INTERLEAVED, too_big="4")
    scheduling.next()
    scheduling.see(a_gang("g", 5))  # too few: b is gated, what is held is given back
    scheduling.decide()
    scheduling.see(a_gang("g", 3))  # enough: b stays pending
    count, blob = len(scheduling.records), checkpoint_of(scheduling.state)
    scheduling.see(member("g", "d"))
    scheduling.next()
    again = ReplayVerifier(restore(blob, loader(*INTERLEAVED)), complete=False)
    for number, record in enumerate(scheduling.records[count:], count):
        assert again.verify(number, record) is None


def test_inspection_does_not_change_member_statuses() -> None:
    plugins: tuple[type[Plugin], ...] = (*INTERLEAVED, Doorkeeper)
    scheduling = _two_asleep(*plugins, too_big="6")
    for name in ("a", "b"):
        scheduling.see(labelled(member("g", name), door="1"))
    assert scheduling.next() == ()
    scheduling.see(a_node("door"))
    scheduling.see(member("g", "d"))
    scheduling.decide()
    check_replay(scheduling, *plugins)
