"""Timelines from a log that follows all pods equal those of a fold."""

from __future__ import annotations

from random import Random

import pytest

from asched.audit.entries import Entry
from asched.audit.history import timelines
from asched.audit.lookup import PodName
from asched.audit.timeline_log import PodPart, TimelineLog, joined
from asched.journal.memory import MemoryStore
from asched.state.cluster import ClusterState
from asched.state.fold import Fold
from asched.state.records import EvictionSucceeded
from tests.audit.recording import REGISTRY, Recording, node, pod, woken_pod
from tests.audit.test_explain import busy_history


def preemption() -> Recording:
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
    "recording", [preemption(), woken_pod(), *(busy_history(Random(seed)) for seed in range(4))]
)
@pytest.mark.parametrize("taken_every", [1, 5, 1000])
async def test_parts_are_the_timelines(recording: Recording, taken_every: int) -> None:
    store = MemoryStore()
    await recording.store_in(store)
    fold = Fold(ClusterState(), REGISTRY.load)
    log, stored = TimelineLog(fold), dict[str, list[PodPart]]()
    for seq, record in enumerate(recording.records, 1):
        log.before(seq, record)
        fold.apply(record)
        log.after(record)
        if seq % taken_every == 0:
            for part in log.take():
                stored.setdefault(part.key, []).extend(part.pods)
    for subject in await store.subjects("pod"):
        key = subject.removeprefix("pod/")
        whole = await timelines(store, PodName.parse(key), REGISTRY.load)
        parts = [*stored.get(key, []), *log.parts(key)]
        for last_seq in (len(recording.records), len(recording.records) // 2):
            expected: dict[str, list[Entry]] = {}
            for one in whole:
                until = [entry for entry in one.entries if entry.seq <= last_seq]
                if until:
                    expected.setdefault(one.uid, []).extend(until)
            found = joined(key, parts, last_seq)
            assert {one.uid: one.entries for one in found} == expected
