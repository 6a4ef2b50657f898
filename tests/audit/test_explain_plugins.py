"""Explanations with failing plugins and open circuits."""

from __future__ import annotations

from typing import ClassVar

from asched.audit.explain import explain
from asched.audit.explanation import Explanation
from asched.audit.lookup import PodName
from asched.framework.interface import Plugin, PreEnqueuePlugin
from asched.framework.pod_info import PodInfo
from asched.framework.status import SUCCESS, Status
from asched.journal.memory import MemoryStore
from tests.cycle.scheduling import Scheduling, pod_of
from tests.cycle.test_circuits import CIRCUIT_OPEN, Moody, scheduling
from tests.state.objects import a_node, a_pod
from tests.state.profiles import loader


async def explained(made: Scheduling, name: str, *plugins: type[Plugin]) -> Explanation:
    store = MemoryStore()
    await store.claim("test", claimed_at_ns=0)
    await store.append(made.records, written_at_ns=0)
    return await explain(store, PodName.parse(name), loader(*plugins))


class Gatekeeper(PreEnqueuePlugin):
    """Fails for a pod named ``bad``, and returns an invalid result for ``odd``."""

    name: ClassVar[str] = "Gatekeeper"
    api_version: ClassVar[int] = 1

    def pre_enqueue(self, pod: PodInfo) -> Status:
        if pod.name == "bad":
            raise ValueError("no such ticket")
        return "come in" if pod.name == "odd" else SUCCESS  # type: ignore[return-value]


async def test_failing_pre_enqueue_plugin_is_explained() -> None:
    made = Scheduling(Gatekeeper)
    made.see(a_node("n0"), a_pod("bad"), a_pod("odd"), a_pod("good"))
    assert [pod_of(decision) for decision in made.decide()] == ["default/good"]
    found = await explained(made, "bad", Gatekeeper)
    text = (
        "plugin Gatekeeper at PreEnqueue: ValueError: no such ticket"
        " (audit/test_explain_plugins.py:35)"
    )
    assert (found.outcome, found.message) == ("gated", text)
    [refusal] = found.pre_filter
    assert (refusal.plugin, refusal.code, refusal.reasons) == ("Gatekeeper", "Error", (text,))
    odd = await explained(made, "odd", Gatekeeper)
    assert odd.outcome == "gated"
    assert "Gatekeeper at PreEnqueue" in odd.message


async def test_plugin_with_open_circuit_is_skipped() -> None:
    made = scheduling(optional=True)
    made.see(a_pod("a"), a_pod("b"), a_pod("c"))
    assert pod_of(made.decide()[2]) == "default/c"
    # It would reject n0, on which the pod may be.
    Moody.in_the_mood = False
    found = await explained(made, "c", Moody)
    assert (found.reproduced, found.outcome, found.feasible) == (True, "scheduled", 2)
    assert found.notes == ("plugin Moody was skipped: its circuit was open",)


async def test_pod_blocked_by_open_circuit_has_no_feasible_node() -> None:
    made = scheduling(optional=False)
    made.see(a_pod("a"), a_pod("b"), a_pod("c"))
    made.decide()
    Moody.in_the_mood = False
    found = await explained(made, "c", Moody)
    assert (found.reproduced, found.outcome, found.feasible) == (True, "unschedulable", 0)
    assert found.message == found.decision.message == CIRCUIT_OPEN
    assert [(refusal.plugin, refusal.reasons) for refusal in found.pre_filter] == [
        ("Moody", (CIRCUIT_OPEN,))
    ]
    assert (found.nodes, found.nodes_total) == ((), 2)
