"""Scripted journals without a daemon, with the real fold and decisions."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import msgspec

from asched.config.file import load
from asched.config.registry import PluginRegistry
from asched.cycle.decide import Decider
from asched.framework.feature_gates import FeatureGates
from asched.framework.runtime.extenders import ExtenderSpec
from asched.journal.memory import MemoryStore
from asched.journal.store import JournalStore
from asched.model.node import Node
from asched.model.pod import Pod
from asched.model.quantity import NS_PER_S
from asched.model.resources import AnyObject, Resource, decode
from asched.state.cluster import ClusterState
from asched.state.fold import Fold
from asched.state.records import (
    AnyRecord,
    Assigned,
    Bound,
    Decision,
    EngineStarted,
    ObjectDeleted,
    ObjectObserved,
    ProfilesLoaded,
    TurnStarted,
)

BEGIN_NS = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp()) * NS_PER_S
REGISTRY = PluginRegistry.discover()


def node(name: str, cpu: str = "4", taint: str = "", **labels: str) -> Node:
    taints = [{"key": taint, "effect": "NoSchedule"}] if taint else []
    allocatable = {"cpu": cpu, "memory": "16Gi", "pods": "110"}
    raw = {
        "metadata": {"name": name, "uid": f"uid-{name}", "labels": labels},
        "spec": {"taints": taints},
        "status": {"allocatable": allocatable},
    }
    decoded = decode(Resource.NODES, msgspec.json.encode(raw))
    assert isinstance(decoded, Node)
    return decoded


def pod(
    name: str, cpu: str = "1", *, namespace: str = "default", uid: str = "", **spec: Any
) -> Pod:
    container = {"name": "c", "image": "app", "resources": {"requests": {"cpu": cpu}}}
    raw = {
        "metadata": {"name": name, "namespace": namespace, "uid": uid or f"uid-{name}"},
        "spec": {"schedulerName": "default-scheduler", "containers": [container], **spec},
    }
    decoded = decode(Resource.PODS, msgspec.json.encode(raw))
    assert isinstance(decoded, Pod)
    return decoded


BACKOFF_RESPECTED = FeatureGates(scheduler_pop_from_backoff_q=False)


class Recording:
    """Records as a daemon writes them, with a manual clock."""

    def __init__(self, *extenders: ExtenderSpec, gates: FeatureGates = BACKOFF_RESPECTED) -> None:
        self.records: list[AnyRecord] = []
        self.state = ClusterState()
        self._fold = Fold(self.state, REGISTRY.load)
        self._decider = Decider(self.state)
        self.add(EngineStarted("test", 7))
        profiles = load(None, REGISTRY).profiles
        self.add(ProfilesLoaded(profiles, extenders=extenders, feature_gates=gates))
        self.turn(0.0)

    def add(self, record: AnyRecord) -> int:
        """Folds and keeps a record. Returns its sequence number."""
        self._fold.apply(record)
        self.records.append(record)
        return len(self.records)

    def turn(self, at_s: float) -> None:
        self.add(TurnStarted(BEGIN_NS + round(at_s * 1e9)))

    def see(self, *objects: AnyObject) -> None:
        for seen in objects:
            self.add(ObjectObserved(seen))

    def lose(self, gone: Pod) -> None:
        self.add(ObjectDeleted("Pod", gone.key, gone.metadata.uid))

    def decide(self) -> list[Decision]:
        """Decides for all active pods."""
        made: list[Decision] = []
        while decisions := self._decider.next():
            for decision in decisions:
                self.add(decision)
            made += decisions
        return made

    def bind(self, decisions: Sequence[Decision]) -> None:
        """The API server confirms the bindings."""
        for decision in decisions:
            if isinstance(decision, Assigned):
                self.add(Bound(decision.key, decision.uid, decision.node))

    async def journal(self) -> MemoryStore:
        store = MemoryStore()
        await self.store_in(store)
        return store

    async def store_in(self, store: JournalStore) -> None:
        """Writes one batch per turn, at the turn's time, as a daemon does."""
        await store.claim("test", claimed_at_ns=BEGIN_NS)
        begins = [i for i, record in enumerate(self.records) if isinstance(record, TurnStarted)]
        now_ns = BEGIN_NS
        for begin, end in pairwise([0, *begins, len(self.records)]):
            batch = self.records[begin:end]
            if not batch:
                continue
            if isinstance(batch[0], TurnStarted):
                now_ns = batch[0].now_ns
            await store.append(batch, written_at_ns=now_ns)


def woken_pod() -> Recording:
    """``web`` fits on no node; a node joins; ``web`` runs there and is deleted."""
    recording = Recording()
    web = pod("web", "2")
    recording.see(node("small", "1"), node("tainted", "8", taint="dedicated"), web)
    recording.decide()
    recording.turn(0.5)
    recording.see(node("large", "8"))
    recording.turn(1.25)
    recording.bind(recording.decide())
    recording.turn(9.0)
    recording.lose(web)
    return recording
