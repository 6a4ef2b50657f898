"""No object of any shape ends decoding, folding, deciding or replay, or affects other pods."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from asched.batch.registry import SessionRegistry
from asched.config.batch import DEFAULT_CONF, parse_conf
from asched.config.kube_scheduler import KubeSchedulerConfiguration
from asched.config.resolve import resolve
from asched.core.inputs import Change
from asched.core.scheduler import Budget, SchedulerCore
from asched.framework.sessions import SessionSpec
from asched.journal.codec import CODEC
from asched.kube.decoding import MalformedResponseError, ObjectDecoder, parse_event
from asched.model.quantity import NS_PER_S
from asched.model.resources import Resource, WatchedResource
from asched.state.cluster import ClusterState
from asched.state.fold import Fold
from asched.state.records import AnyRecord, Assigned, EngineStarted, ProfilesLoaded
from asched.state.session_records import SessionsLoaded
from asched.testing.invariants import check
from tests.cycle.default_profile import installed
from tests.hostile_objects.examples import examples
from tests.hostile_objects.mutations import mutated

EXAMPLES = examples()
REGISTRY = SessionRegistry.discover()
START_NS = 1_790_000_000 * NS_PER_S
NODES, HOSTILE = 12, 6
INNOCENT = {f"innocent/p{number}" for number in range(3)}


def _profiles() -> ProfilesLoaded:
    configuration = msgspec.convert(
        {"profiles": [{"plugins": {"multiPoint": {"enabled": [{"name": "GangScheduling"}]}}}]},
        KubeSchedulerConfiguration,
    )
    return ProfilesLoaded(resolve(configuration, installed()))


def _sessions() -> SessionsLoaded:
    conf = parse_conf(DEFAULT_CONF, REGISTRY.action_names)
    return SessionsLoaded((SessionSpec("kube-batch", conf.actions, conf.tiers),))


PROFILES, SESSIONS = _profiles(), _sessions()


def innocent_nodes() -> list[dict[str, Any]]:
    allocatable = {"cpu": "4", "memory": "8Gi", "pods": "110"}
    return [
        {
            "metadata": {"name": f"n{number}", "uid": f"uid-n{number}", "labels": {"zone": "5"}},
            "status": {"allocatable": allocatable},
        }
        for number in range(NODES)
    ]


def innocent_pods() -> list[dict[str, Any]]:
    container = {"name": "c", "resources": {"requests": {"cpu": "1m", "memory": "1Ki"}}}
    spec = {"schedulerName": "default-scheduler", "containers": [container]}
    return [
        {"metadata": {"name": key[9:], "namespace": key[:8], "uid": f"uid-{key}"}, "spec": spec}
        for key in sorted(INNOCENT)
    ]


class SmallCluster:
    """A core with decoders. Each record is encoded and replayed."""

    def __init__(self) -> None:
        self.core = SchedulerCore(Fold(ClusterState(), installed().load), sessions=REGISTRY)
        self.replayed = Fold(ClusterState(), installed().load)
        self.decoders = {resource: ObjectDecoder(resource) for resource in EXAMPLES}
        self.records: list[AnyRecord] = []
        self._turns = 0
        self.begin()
        for record in (EngineStarted("test", 7), PROFILES, SESSIONS):
            self.core.apply(record)

    def begin(self) -> None:
        self._turns += 1
        self.core.begin_turn(START_NS + self._turns * NS_PER_S)
        self.core.fire_timers(may_decide=True)

    def list(self, resource: WatchedResource, raws: list[bytes]) -> None:
        body = b'{"metadata":{"resourceVersion":"9"},"items":[' + b",".join(raws) + b"]}"
        try:
            self._observe(self.decoders[resource].listed(body))
        except MalformedResponseError:
            # Only invalid JSON may cost the page.
            assert any(b"[}" in raw or b"\\ud800" in raw for raw in raws)

    def watch(self, resource: WatchedResource, kind: str, raw: bytes) -> None:
        try:
            event = parse_event(b'{"type":"' + kind.encode() + b'","object":' + raw + b"}")
        except MalformedResponseError:
            return
        change = self.decoders[resource].change(event)
        if change is not None:
            self._observe(change)

    def _observe(self, change: Change) -> None:
        self.core.observe(change)
        while self.core.listing:
            self.core.continue_list()

    def end(self) -> None:
        """Decide, check the state, and replay what was recorded."""
        self.core.decide(Budget(decisions=100))
        check(self.core.state)
        records = self.core.take_records()
        for seq, record in enumerate(records, start=len(self.records) + 1):
            stored = CODEC.encode(record)
            decoded = CODEC.decode(seq, stored.kind, stored.version, stored.subject, stored.payload)
            self.replayed.apply(decoded)
        self.records += records
        assert self.replayed.state.pods.keys() == self.core.state.pods.keys()

    @property
    def placed(self) -> set[str]:
        return {record.key for record in self.records if isinstance(record, Assigned)}


@given(st.data())
def test_any_object_leaves_innocent_pods_schedulable(data: st.DataObject) -> None:
    cluster = SmallCluster()
    cluster.list(Resource.NODES, [msgspec.json.encode(node) for node in innocent_nodes()])
    for _ in range(data.draw(st.integers(1, 3))):
        cluster.begin()
        for _ in range(data.draw(st.integers(1, HOSTILE // 3))):
            resource = data.draw(st.sampled_from([*EXAMPLES, Resource.PODS, Resource.NODES]))
            raw = data.draw(mutated(EXAMPLES[resource]))
            kind = data.draw(st.sampled_from(["LISTED", "ADDED", "MODIFIED", "DELETED"]))
            if kind != "LISTED" or resource is Resource.NODES:
                cluster.watch(resource, "ADDED" if kind == "LISTED" else kind, raw)
            else:
                cluster.list(resource, [raw, raw] if data.draw(st.booleans()) else [raw])
        cluster.end()
    cluster.begin()
    for pod in innocent_pods():
        cluster.watch(Resource.PODS, "ADDED", msgspec.json.encode(pod))
    cluster.end()
    assert cluster.placed >= INNOCENT
