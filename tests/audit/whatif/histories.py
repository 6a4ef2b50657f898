"""Journals as a daemon writes them, and simulations of their histories."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from asched.audit.history import ALWAYS, Period
from asched.audit.whatif.recorded_history import RecordedHistory, recorded_history
from asched.journal.memory import MemoryStore
from asched.journal.store import JournalStore
from asched.model.meta import OwnerReference
from asched.model.pod import Pod
from asched.model.quantity import NS_PER_S
from asched.simulator.loop import simulate
from asched.simulator.trace import PodRun, WorkloadRun
from asched.state.records import AnyRecord, TurnStarted
from tests.audit.recording import BEGIN_NS, REGISTRY, Recording


def period(since_s: float, until_s: float | None = None) -> Period:
    until_ns = None if until_s is None else BEGIN_NS + round(until_s * NS_PER_S)
    return Period(BEGIN_NS + round(since_s * NS_PER_S), until_ns)


async def store_by_turns(records: Iterable[AnyRecord], store: JournalStore) -> None:
    """Writes one batch per turn, at the turn's time."""
    await store.claim("test", claimed_at_ns=BEGIN_NS)
    batch: list[AnyRecord] = []
    at_ns = BEGIN_NS
    for record in records:
        if isinstance(record, TurnStarted) and batch:
            await store.append(batch, written_at_ns=at_ns)
            batch = []
        if isinstance(record, TurnStarted):
            at_ns = record.now_ns
        batch.append(record)
    await store.append(batch, written_at_ns=at_ns)


async def history_of(recording: Recording, when: Period = ALWAYS) -> RecordedHistory:
    store = MemoryStore()
    await store_by_turns(recording.records, store)
    return await recorded_history(store, REGISTRY.load, when)


def simulated(history: RecordedHistory) -> WorkloadRun:
    return simulate(history.trace, history.scheduler, REGISTRY.load)


def placements(run: WorkloadRun) -> dict[str, list[tuple[str, float, float | None]]]:
    """By pod name: node, start and end in seconds since the beginning of the journal."""

    def seconds(ns: int) -> float:
        return (ns - BEGIN_NS) / NS_PER_S

    def of(pod: PodRun) -> list[tuple[str, float, float | None]]:
        return [
            (s.node, seconds(s.assigned_ns), None if s.ended_ns is None else seconds(s.ended_ns))
            for s in pod.placements
        ]

    return {pod.pod.name: of(pod) for pod in run.pods}


def owned(pod: Pod, uid: str, kind: str = "ReplicaSet") -> Pod:
    """The pod with that controller as owner."""
    owner = OwnerReference(kind=kind, name="owner", uid=uid, controller=True)
    metadata = msgspec.structs.replace(pod.metadata, owner_references=(owner,))
    return msgspec.structs.replace(pod, metadata=metadata)
