"""Timelines that skip records equal those that fold all of them."""

from __future__ import annotations

from random import Random

import pytest

from asched.audit.entries import PreemptionEntry
from asched.audit.history import timelines, timelines_until
from asched.audit.lookup import AuditError, PodName
from asched.journal.checkpoints import write_checkpoints
from asched.journal.memory import MemoryStore
from asched.state.records import EvictionSucceeded, Rejected
from tests.audit.recording import REGISTRY, Recording, node, pod, woken_pod
from tests.audit.test_explain import busy_history


def _preemption() -> Recording:
    """``low`` is evicted for ``high``, comes back under its name, and waits."""
    recording = Recording()
    low, high = pod("low", "3"), pod("high", "3", priority=10)
    recording.see(node("n", "4"), low)
    recording.bind(recording.decide())
    recording.turn(1.0)
    recording.see(pod("other", "1"))
    recording.bind(recording.decide())
    recording.turn(5.0)
    recording.see(high)
    recording.decide()
    recording.turn(6.0)
    recording.add(EvictionSucceeded(low.key, low.metadata.uid))
    recording.lose(low)
    recording.turn(20.0)
    recording.bind(recording.decide())
    recording.see(pod("low", "3"))
    recording.decide()
    return recording


@pytest.mark.parametrize(
    "recording", [_preemption(), woken_pod(), *(busy_history(Random(seed)) for seed in range(2))]
)
async def test_timelines_until_equal_timelines(recording: Recording) -> None:
    store = MemoryStore()
    await recording.store_in(store)
    await write_checkpoints(store, REGISTRY.load, every=3)
    victims: dict[str, list[int]] = {}
    for seq, record in enumerate(recording.records, 1):
        if isinstance(record, Rejected):
            for victim in record.victims:
                victims.setdefault(victim.key, []).append(seq)
    end = len(recording.records)
    for subject in await store.subjects("pod"):
        key = subject.removeprefix("pod/")
        whole = await timelines(store, PodName.parse(key), REGISTRY.load)
        for last_seq in {end, end // 2, end // 3}:
            expected = [
                (one.uid, [entry for entry in one.entries if entry.seq <= last_seq])
                for one in whole
            ]
            mentions = victims.get(key, [])
            expected = [one for one in expected if one[1]]
            if not expected:
                with pytest.raises(AuditError, match="does not exist"):
                    await timelines_until(store, key, REGISTRY.load, last_seq, mentions)
                continue
            found = await timelines_until(store, key, REGISTRY.load, last_seq, mentions)
            assert [(one.uid, one.entries) for one in found] == expected


async def test_eviction_by_another_pod_is_in_the_timeline() -> None:
    recording = _preemption()
    kinds = [record for record in recording.records if isinstance(record, Rejected)]
    assert any(record.victims for record in kinds), "the recording preempts"
    store = MemoryStore()
    await recording.store_in(store)
    seq = next(
        seq
        for seq, record in enumerate(recording.records, 1)
        if isinstance(record, Rejected) and record.victims
    )
    found = await timelines_until(store, "default/low", REGISTRY.load, seq, (seq,))
    assert isinstance(found[0].entries[-1], PreemptionEntry)
