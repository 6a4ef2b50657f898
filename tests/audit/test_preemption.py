"""The explanation of a preemption: its candidates, their victims and what decided."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asched.audit.explain import explain
from asched.audit.explanation import Explanation
from asched.audit.lookup import PodName
from asched.audit.preemption import PreemptionCriterion, PreemptionNode
from asched.journal.memory import MemoryStore
from asched.state.records import Assigned, Rejected
from tests.audit.recording import REGISTRY, Recording, node, pod

HIGH = 1_000

Victims = tuple[tuple[str, int], ...]
"""The request in cpu and the priority of each pod of a node."""


async def preempted(*nodes: Victims) -> tuple[Recording, Explanation]:
    """Nodes ``n0``, ``n1`` with 4 cpu and these pods, and a pod that needs 3."""
    recording = Recording()
    for index, pods in enumerate(nodes):
        recording.see(node(f"n{index}", "4"))
        for number, (cpu, priority) in enumerate(pods):
            recording.see(pod(f"v{index}-{number}", cpu, priority=priority))
            recording.bind(recording.decide())
    recording.turn(5.0)
    recording.see(pod("high", "3", priority=HIGH))
    recording.decide()
    store = MemoryStore()
    await recording.store_in(store)
    return recording, await explain(store, PodName.parse("default/high"), REGISTRY.load)


def victims(candidate: PreemptionNode) -> list[tuple[str, int]]:
    return [(victim.pod, victim.priority) for victim in candidate.victims]


@pytest.mark.parametrize(
    ("nodes", "chosen", "criterion"),
    [
        ([(("3", 1),)], "n0", PreemptionCriterion.ONLY),
        ([(("3", 5),), (("3", 1),)], "n1", PreemptionCriterion.HIGHEST_PRIORITY),
        ([(("2", 5), ("2", 5)), (("2", 5), ("2", 1))], "n1", PreemptionCriterion.PRIORITIES),
    ],
)
async def test_criterion_that_decided(
    nodes: list[Victims], chosen: str, criterion: PreemptionCriterion
) -> None:
    recording, found = await preempted(*nodes)
    assert found.reproduced
    recorded = recording.records[-1]
    assert isinstance(recorded, Rejected)
    preemption = found.preemption
    assert preemption is not None
    assert (preemption.node, preemption.criterion) == (chosen, criterion)
    assert preemption.examined == len(nodes)
    first = preemption.candidates[0]
    assert first.node == chosen
    assert [name for name, _ in victims(first)] == [victim.key for victim in recorded.victims]
    assert len(preemption.candidates) == len(nodes)


async def test_only_attempts_that_preempt_have_one() -> None:
    _, found = await preempted((("3", HIGH),))
    assert found.preemption is None
    assert found.decision.kind == "rejected"


POD = st.tuples(st.sampled_from(["1", "2", "3"]), st.sampled_from([1, 5, 9, HIGH]))


@given(st.lists(st.lists(POD, max_size=3), min_size=1, max_size=4))
async def test_first_candidate_is_the_recorded_one(
    pods: list[list[tuple[str, int]]],
) -> None:
    recording, found = await preempted(*map(tuple, pods))
    decisions = [r for r in recording.records if isinstance(r, Rejected | Assigned)]
    recorded = [each for each in decisions if each.key == "default/high"][-1]
    nominated = recorded.nominated_node if isinstance(recorded, Rejected) else None
    assert (found.preemption is not None) == bool(nominated)
    if found.preemption is None:
        return
    first, *others = found.preemption.candidates
    assert first.node == found.preemption.node == nominated
    assert isinstance(recorded, Rejected)
    # Of earlier preemptions that are in progress, the record does not name the victims again.
    assert {victim.key for victim in recorded.victims} <= {name for name, _ in victims(first)}
    highest = [victims(candidate)[0][1] for candidate in (first, *others)]
    assert highest == sorted(highest)
