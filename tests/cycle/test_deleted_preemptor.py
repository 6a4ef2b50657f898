"""With the default profile: the room of a deleted preemptor becomes free."""

from __future__ import annotations

from asched.state.records import EvictionSucceeded, Rejected
from tests.cycle.default_profile import default_scheduling
from tests.cycle.scheduling import nodes_of, the_one
from tests.cycle.unrelated_events import a_node, a_pod, gone


def test_room_of_deleted_preemptor_is_free() -> None:
    s = default_scheduling()
    victim = a_pod("victim", cpu="3", nodeName="n", priority=0)
    preemptor = a_pod("preemptor", cpu="3", priority=10)
    s.see(a_node(), victim, preemptor)
    rejection = the_one(s.decide())
    assert isinstance(rejection, Rejected)
    assert rejection.nominated_node == "n"
    # Its attempt is delayed, so that it does not use the room.
    s.see(a_pod("preemptor", cpu="3", priority=10, schedulingGates=[{"name": "example.com/g"}]))
    s.apply(EvictionSucceeded(victim.key, victim.uid))
    gone(s, victim)
    s.see(a_pod("modest", cpu="2", priority=5))
    s.pass_time(20)
    refusal = s.decide()
    assert [type(decision) for decision in refusal] == [Rejected]
    gone(s, preemptor)
    s.pass_time(20)
    assert nodes_of(s.decide()) == {"d/modest": "n"}
