"""A core with a small cluster, the default profile, and a hostile tenant."""

from __future__ import annotations

import json

import msgspec

from asched.audit.replay import ReplayVerifier
from asched.config.kube_scheduler import KubeSchedulerConfiguration
from asched.config.registry import PluginRegistry
from asched.config.resolve import resolve
from asched.core.inputs import Deleted, Upserted
from asched.core.scheduler import Budget, SchedulerCore
from asched.framework.sessions import SessionSpec
from asched.journal.codec import CODEC
from asched.model.quantity import NS_PER_S
from asched.model.resources import Resource, WatchedResource, decode
from asched.state.attempt_budget import NS_PER_STEP
from asched.state.checkpoint import checkpoint_of, restore
from asched.state.cluster import ClusterState
from asched.state.fold import Fold
from asched.state.records import AnyRecord, Decision, EngineStarted, ProfilesLoaded
from asched.state.session_records import SessionsLoaded
from tests.security.hostile_objects import Json, a_pod

START_NS = 1_790_000_000 * NS_PER_S
REGISTRY = PluginRegistry.discover()


def a_node(number: int, **allocatable: str) -> Json:
    name = f"n{number}"
    return {
        "metadata": {
            "name": name,
            "uid": f"u-{name}",
            "labels": {
                "kubernetes.io/hostname": name,
                "topology.kubernetes.io/zone": f"z{number % 3}",
            },
        },
        "status": {"allocatable": {"cpu": "64", "memory": "256Gi", "pods": "250", **allocatable}},
    }


class HostileCore:
    """Observes raw JSON as the daemon does, decides, and keeps all records."""

    def __init__(
        self,
        nodes: int = 10,
        *,
        session: SessionSpec | None = None,
        step_ns: int = NS_PER_STEP,
    ) -> None:
        self.records: list[AnyRecord] = []
        self.core = SchedulerCore(Fold(ClusterState(), REGISTRY.load))
        self.now_ns = START_NS
        self.begin()
        self.core.apply(EngineStarted("test", 7, step_ns=step_ns))
        self.core.apply(ProfilesLoaded(resolve(KubeSchedulerConfiguration(), REGISTRY)))
        if session is not None:
            self.core.apply(SessionsLoaded((session,)))
        for number in range(nodes):
            self.see(Resource.NODES, a_node(number))
        for name in ("innocent", "evil"):
            self.see(Resource.NAMESPACES, {"metadata": {"name": name, "uid": f"u-{name}"}})

    @property
    def state(self) -> ClusterState:
        return self.core.state

    def begin(self, after_s: float = 0.05) -> None:
        self.records += self.core.take_records()
        self.now_ns += round(after_s * NS_PER_S)
        self.core.begin_turn(self.now_ns)
        self.core.record_turn()

    def see(self, resource: WatchedResource, made: Json | bytes) -> list[AnyRecord]:
        """The records of an object that a watch shows."""
        raw = made if isinstance(made, bytes) else json.dumps(made).encode()
        before = len(self.taken())
        # Every resource's type is in AnyObject, which mypy cannot infer.
        self.core.observe(Upserted(resource, decode(resource, raw)))  # type: ignore[arg-type]
        return self.taken()[before:]

    def delete(self, resource: WatchedResource, made: Json | bytes) -> None:
        raw = made if isinstance(made, bytes) else json.dumps(made).encode()
        self.core.observe(Deleted(resource, decode(resource, raw)))  # type: ignore[arg-type]

    def innocent(self, number: int) -> None:
        pod = a_pod("innocent", number)
        pod["metadata"]["namespace"] = "innocent"
        self.see(Resource.PODS, pod)

    def decide(self, decisions: int = 1000) -> list[Decision]:
        return self.core.decide(Budget(decisions))

    def taken(self) -> list[AnyRecord]:
        """All records so far."""
        self.records += self.core.take_records()
        return self.records

    def verify_replay(self) -> None:
        """A replay of the journal decides the same, from the start and from a checkpoint."""
        verifier = ReplayVerifier(Fold(ClusterState(), REGISTRY.load), complete=True)
        for seq, record in enumerate(self.taken(), start=1):
            stored = CODEC.encode(record)
            read = CODEC.decode(seq, stored.kind, stored.version, stored.subject, stored.payload)
            assert verifier.verify(seq, read) is None
        assert verifier.end(len(self.records) + 1) is None
        blob = checkpoint_of(self.state)
        assert checkpoint_of(restore(blob, REGISTRY.load).state) == blob


def stored_bytes(records: list[AnyRecord]) -> int:
    """The size of the records in a journal."""
    return sum(len(msgspec.json.encode(record)) for record in records)
