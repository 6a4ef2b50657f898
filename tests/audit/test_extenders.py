"""Extender replies in timelines and explanations."""

from __future__ import annotations

import numpy as np
import pytest

from asched.audit.entries import (
    AssignmentEntry,
    ExtenderCallEntry,
    ExtenderReplyEntry,
    QueueMoveEntry,
)
from asched.audit.explain import explain
from asched.audit.history import timelines
from asched.audit.lookup import PodName
from asched.framework.runtime.extenders import EXTENDER, ExtenderSpec, ExtenderVerb
from asched.state.pending_evaluations import pack_mask
from asched.state.records import (
    Assigned,
    ExtenderCallFailed,
    ExtenderCallRequested,
    ExtenderFailedNodes,
    ExtenderFiltered,
    ExtenderPrioritized,
)
from tests.audit.recording import REGISTRY, Recording, node, pod

SPEC = ExtenderSpec(
    "http://extender.example", filter_verb="filter", prioritize_verb="prioritize", weight=2
)


def mask(*answers: int) -> bytes:
    return pack_mask(np.array(answers, np.bool_))


def asked() -> Recording:
    """The extender rejects ``a`` and prefers ``c`` to ``b``."""
    recording = Recording(SPEC)
    recording.see(node("a", "8"), node("b", "8"), node("c", "8"), pod("p"))
    [question] = recording.decide()
    assert isinstance(question, ExtenderCallRequested)
    refusal = ExtenderFailedNodes("no licence here", mask(1, 0, 0))
    recording.add(
        ExtenderFiltered("default/p", "uid-p", 1, 0, mask(0, 1, 1), failed_nodes=(refusal,))
    )
    [question] = recording.decide()
    assert isinstance(question, ExtenderCallRequested)
    recording.add(ExtenderPrioritized("default/p", "uid-p", 1, 0, (0, 10)))
    return recording


async def test_explanation_includes_extender_replies() -> None:
    recording = asked()
    [decision] = recording.decide()
    assert isinstance(decision, Assigned)
    assert decision.node == "c"
    found = await explain(await recording.journal(), PodName.parse("p"), REGISTRY.load)
    assert found.reproduced is True
    assert found.notes == ()
    nodes = {n.name: n for n in found.nodes}
    assert [(r.plugin, r.reasons) for r in nodes["a"].rejected_by] == [
        (EXTENDER, ("no licence here",))
    ]
    assert nodes["c"].total == decision.score
    by_extender = {
        name: [s.weighted for s in nodes[name].scores if s.plugin == EXTENDER] for name in "bc"
    }
    assert by_extender == {"b": [0], "c": [200]}
    assert nodes["c"].total == sum(s.weighted for s in nodes["c"].scores)


async def test_missing_reply_is_noted() -> None:
    recording = Recording(SPEC)
    recording.see(node("a"), pod("p"), pod("first", priority=10))
    recording.decide()
    found = await explain(await recording.journal(), PodName.parse("p"), REGISTRY.load)
    assert found.decision.kind == "none"
    assert "an extender had not answered yet" in found.notes[0]


async def test_calls_and_replies_are_in_the_timeline() -> None:
    recording = asked()
    recording.decide()
    [timeline] = await timelines(await recording.journal(), PodName.parse("p"), REGISTRY.load)
    entries = [e for e in timeline.entries if not isinstance(e, QueueMoveEntry)][1:]
    first, answered, second, scored, assigned = entries
    assert isinstance(first, ExtenderCallEntry)
    assert (first.verb, first.extenders) == ("filter", ("http://extender.example",))
    assert isinstance(answered, ExtenderReplyEntry)
    assert (answered.verb, answered.failure) == ("filter", "")
    assert isinstance(second, ExtenderCallEntry)
    assert second.verb == "prioritize"
    assert isinstance(scored, ExtenderReplyEntry)
    assert isinstance(assigned, AssignmentEntry)
    causes = {e.cause for e in timeline.entries if isinstance(e, QueueMoveEntry)}
    assert "all called extenders have replied" in causes


@pytest.mark.parametrize("ignorable", [False, True])
async def test_failed_extender_call(ignorable: bool) -> None:
    spec = ExtenderSpec("http://down.example", filter_verb="filter", ignorable=ignorable)
    recording = Recording(spec)
    recording.see(node("a"), pod("p"))
    recording.decide()
    failed = ExtenderCallFailed("default/p", "uid-p", 1, 0, ExtenderVerb.FILTER, "timed out")
    recording.add(failed)
    recording.decide()
    journal = await recording.journal()
    found = await explain(journal, PodName.parse("p"), REGISTRY.load)
    assert found.reproduced is True
    assert found.decision.kind == ("assigned" if ignorable else "failed")
    assert found.outcome == ("scheduled" if ignorable else "error")
    [timeline] = await timelines(journal, PodName.parse("p"), REGISTRY.load)
    [reply] = [e for e in timeline.entries if isinstance(e, ExtenderReplyEntry)]
    assert (reply.extender, reply.failure) == ("http://down.example", "timed out")
