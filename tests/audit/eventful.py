"""A small scripted history with every record type.

It uses neither a clock nor random numbers: the same code records the same journal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, cast

import msgspec
import numpy as np

from asched.config.file import parse
from asched.cycle.decide import Decider
from asched.framework.runtime.extenders import ExtenderSpec, ExtenderVerb
from asched.framework.status import Code
from asched.journal.store import JournalStore
from asched.model.quantity import NS_PER_S
from asched.model.resources import AnyObject, Resource, decode
from asched.state import records as r
from asched.state.cluster import ClusterState
from asched.state.fold import Fold
from asched.state.observe import observe_deletion, observe_object
from asched.state.pending_evaluations import pack_mask
from tests.cycle.plugins import Doorman
from tests.daemon.world import KUBE, registry_with

Object = dict[str, Any]

BEGIN_NS = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp()) * NS_PER_S
ZONE = "topology.kubernetes.io/zone"
HOST = "kubernetes.io/hostname"
WITH_DOORMAN = KUBE + "profiles: [{plugins: {permit: {enabled: [{name: Doorman}]}}}]\n"
EXTENDERS = (
    ExtenderSpec(
        "http://licences.example/v1",
        filter_verb="filter",
        prioritize_verb="prioritize",
        preempt_verb="preempt",
        managed_resources=("example.com/licence",),
    ),
    ExtenderSpec("http://advice.example/v1", filter_verb="filter", ignorable=True,
                 managed_resources=("example.com/licence",)),
)  # fmt: skip


class Past:
    """Appends records to a journal turn by turn, as a daemon does."""

    def __init__(self, journal: JournalStore) -> None:
        self.state = ClusterState()
        registry = registry_with(Doorman)
        self._profiles = parse(WITH_DOORMAN, "test", registry, empty_is_defaults=True).profiles
        self._journal = journal
        self._fold = Fold(self.state, registry.load)
        self._decider = Decider(self.state)
        self._objects: dict[tuple[Resource, str], Object] = {}
        self._batch: list[r.AnyRecord] = []
        self._now_ns = BEGIN_NS

    # -- the daemon's part --------------------------------------------------------------------

    async def start(self, *extenders: ExtenderSpec, seed: int = 7) -> None:
        """A daemon claims the journal."""
        epoch = await self._journal.claim("history", claimed_at_ns=self._now_ns)
        self.add(r.TurnStarted(self._now_ns))
        self.add(r.EngineStarted("0.1.0", seed))
        self.add(r.LeadershipGained(epoch))
        self.add(r.ProfilesLoaded(self._profiles, r.QueueSettings(1.0, 8.0, 60.0), extenders))

    def add(self, record: r.AnyRecord) -> None:
        self._fold.apply(record)
        self._batch.append(record)

    async def turn(self, after_s: float) -> None:
        """Appends the current turn and begins another one after that time."""
        await self._journal.append(self._batch, written_at_ns=self._now_ns)
        self._batch = []
        self._now_ns += round(after_s * 1e9)
        self.add(r.TurnStarted(self._now_ns))

    def decide(self) -> list[r.Decision]:
        """Decides for all active pods."""
        made: list[r.Decision] = []
        while decisions := self._decider.next():
            for decision in decisions:
                self.add(decision)
            made += decisions
        return made

    def bind(self, decisions: Sequence[r.Decision] | None = None) -> None:
        """Decides; the API server confirms the bindings of pods that do not wait on Permit."""
        for decision in self.decide() if decisions is None else decisions:
            if isinstance(decision, r.Assigned) and not decision.permit_waits:
                self.confirm(decision.key, decision.uid, decision.node)

    def confirm(self, key: str, uid: str, node: str) -> None:
        self.add(r.Bound(key, uid, node))
        raw = self._objects[Resource.PODS, key]
        raw["spec"]["nodeName"] = node
        self.show(Resource.PODS, raw)

    # -- the cluster's part -------------------------------------------------------------------

    def show(self, resource: Resource, raw: Object) -> None:
        """The watch reports the object."""
        meta = raw["metadata"]
        meta.setdefault("uid", f"uid-{meta['name']}")
        seen = cast(AnyObject, decode(resource, msgspec.json.encode(raw)))
        self._objects[resource, seen.key] = raw
        news = observe_object(self.state, seen)
        if news is not None:
            self.add(news)

    def lose(self, resource: Resource, key: str) -> None:
        """The watch reports the deletion."""
        gone = decode(resource, msgspec.json.encode(self._objects.pop((resource, key))))
        news = observe_deletion(self.state, gone)
        assert news is not None
        self.add(news)

    def change(self, name: str, change: Callable[[Object], object]) -> None:
        """The watch reports a changed pod."""
        raw = self._objects[Resource.PODS, f"default/{name}"]
        change(raw)
        self.show(Resource.PODS, raw)

    def node(self, name: str, zone: str, cpu: str = "4", taint: str = "", **labels: str) -> None:
        taints = [{"key": taint, "effect": "NoSchedule"}] if taint else []
        size = {"cpu": cpu, "memory": "16Gi", "pods": "20", "example.com/licence": "8"}
        image = {"names": ["app:v1"], "sizeBytes": 90_000_000}
        self.show(Resource.NODES, {
            "metadata": {"name": name, "labels": {ZONE: zone, HOST: name, **labels}},
            "spec": {"taints": taints},
            "status": {"allocatable": size, "capacity": size, "images": [image],
                       "conditions": [{"type": "Ready", "status": "True"}]},
        })  # fmt: skip

    def pod(self, name: str, cpu: str = "250m", labels: Object | None = None, **spec: Any) -> None:
        requests = {"cpu": cpu, "memory": "128Mi", **spec.pop("requests", {})}
        self.show(Resource.PODS, {
            "metadata": {"name": name, "namespace": "default", "labels": labels or {}},
            "spec": {
                "schedulerName": "default-scheduler",
                "containers": [{"name": "c", "image": "app:v1",
                                "resources": {"requests": requests}}],
                **spec,
            },
            "status": {"phase": "Pending"},
        })  # fmt: skip

    def pods(self, count: int, prefix: str, cpu: str = "250m", **spec: Any) -> None:
        """Pods of a Deployment, which differ only by name."""
        for number in range(count):
            self.pod(f"{prefix}-{number}", cpu, {"app": prefix}, **spec)


def _selecting(app: str) -> Object:
    return {"matchLabels": {"app": app}}


def _affinity(kind: str, app: str, topology: str) -> Object:
    term = {"labelSelector": _selecting(app), "topologyKey": topology}
    return {"affinity": {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}


def _spread(app: str) -> Object:
    return {"topologySpreadConstraints": [{
        "maxSkew": 1, "topologyKey": ZONE, "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": _selecting(app),
    }]}  # fmt: skip


async def record_eventful(journal: JournalStore) -> None:
    """Writes the history to an empty journal."""
    past = Past(journal)
    await past.start()
    for number in range(7):
        past.node(f"n{number}", f"zone-{'abc'[number % 3]}", disk="ssd" if number < 2 else "hdd")
    past.node("n7", "zone-a", taint="dedicated")
    await _placing(past)
    await _waiting(past)
    await _volumes(past)
    await _failing_to_bind(past)
    await _preempting(past)
    past.add(r.LeadershipLost(1))
    await past.turn(2.0)
    await past.start(*EXTENDERS, seed=8)
    await _asking_extenders(past)
    await _changing_cluster(past)
    await past.turn(0.0)


async def _placing(past: Past) -> None:
    past.pods(12, "web", **_spread("web"))
    past.pods(3, "db", "500m", **_affinity("podAntiAffinity", "db", HOST))
    past.pods(3, "cache", **_affinity("podAffinity", "web", ZONE))
    past.bind()
    await past.turn(0.5)
    past.pods(4, "fast", nodeSelector={"disk": "ssd"})
    past.pod("tolerant", tolerations=[{"key": "dedicated", "operator": "Exists"}])
    past.pod("huge", "64")
    past.pod("tape", nodeSelector={"disk": "tape"})
    past.bind()
    for number in range(4):
        past.change(f"web-{number}", lambda raw: raw["status"].update(phase="Running"))
    await past.turn(0.5)


async def _waiting(past: Past) -> None:
    past.pods(2, "gated", schedulingGates=[{"name": "example.com/quota"}])
    for name, labels in (
        ("held", {"hold": "60"}),
        ("late", {"hold": "5"}),
        ("shy", {"hold": "60"}),
    ):
        past.pod(name, labels=labels)
    past.bind()
    await past.turn(1.0)
    past.change("gated-0", lambda raw: raw["spec"].update(schedulingGates=[]))
    past.pod("opener", labels={"open": "held"})
    past.pod("closer", labels={"shut": "shy"})
    decisions = past.decide()
    past.bind(decisions)
    held = past.state.pods["default/held"]
    past.confirm("default/held", held.info.uid, held.node)
    await past.turn(6.0)  # the permit timeout of ``late`` expires
    past.bind()
    await past.turn(3.0)


async def _volumes(past: Past) -> None:
    past.show(Resource.STORAGE_CLASSES, {
        "metadata": {"name": "late"}, "provisioner": "kubernetes.io/no-provisioner",
        "volumeBindingMode": "WaitForFirstConsumer",
    })  # fmt: skip
    for name in ("n3", "n4"):
        terms = [{"matchExpressions": [{"key": HOST, "operator": "In", "values": [name]}]}]
        past.show(Resource.PERSISTENT_VOLUMES, {
            "metadata": {"name": f"pv-{name}"},
            "spec": {
                "capacity": {"storage": "5Gi"}, "accessModes": ["ReadWriteOnce"],
                "storageClassName": "late",
                "nodeAffinity": {"required": {"nodeSelectorTerms": terms}},
            },
            "status": {"phase": "Available"},
        })  # fmt: skip
    for number in range(3):
        past.show(Resource.PERSISTENT_VOLUME_CLAIMS, {
            "metadata": {"name": f"data-{number}", "namespace": "default"},
            "spec": {
                "accessModes": ["ReadWriteOnce"], "storageClassName": "late",
                "resources": {"requests": {"storage": "1Gi"}},
            },
            "status": {"phase": "Pending"},
        })  # fmt: skip
        claim = {"claimName": f"data-{number}"}
        past.pod(f"store-{number}", volumes=[{"name": "v", "persistentVolumeClaim": claim}])
    past.bind()
    await past.turn(0.5)


async def _failing_to_bind(past: Past) -> None:
    past.pods(3, "unlucky")
    for decision in past.decide():
        assert isinstance(decision, r.Assigned)
        where = (decision.key, decision.uid, decision.node)
        if decision.key.endswith("-0"):
            past.add(r.BindFailed(*where, Code.ERROR, "DefaultBinder", "the server said 500"))
        else:
            past.confirm(*where)
    await past.turn(1.5)
    past.bind()
    await past.turn(0.5)


async def _preempting(past: Past) -> None:
    past.pods(40, "batch", "1")  # does not fit
    past.bind()
    await past.turn(2.0)
    past.pods(3, "urgent", "1500m", priority=1000)
    rejected = [d for d in past.decide() if isinstance(d, r.Rejected) and d.victims]
    assert len(rejected) == 3
    refused = rejected[-1].victims[0]
    past.add(r.EvictionFailed(refused.key, refused.uid, "too many requests"))
    await past.turn(0.2)
    for decision in rejected:
        for victim in decision.victims:
            past.add(r.EvictionSucceeded(victim.key, victim.uid))
            past.lose(Resource.PODS, victim.key)
    await past.turn(1.5)
    past.bind()
    await past.turn(0.5)


async def _asking_extenders(past: Past) -> None:
    for number, outcome in enumerate(("placed", "refused", "failed")):
        past.pod(outcome, "100m", requests={"example.com/licence": "1"}, priority=10 * (3 - number))
    past.decide()
    await past.turn(0.1)
    for outcome in ("placed", "refused", "failed"):
        _answer_filter(past, outcome)
    past.decide()
    await past.turn(0.1)
    for key, evaluation in past.state.pending_evaluations.items():
        scores = tuple(number % 11 for number in range(len(evaluation.rows)))
        past.add(r.ExtenderPrioritized(key, evaluation.uid, evaluation.attempt, 0, scores))
        break
    past.bind()
    past.pod("licensed", "3", requests={"example.com/licence": "1"}, priority=2000)
    past.decide()
    await past.turn(0.1)
    _review(past, "licensed")
    past.bind()
    await past.turn(0.5)


def _answer_filter(past: Past, name: str) -> None:
    key = f"default/{name}"
    evaluation = past.state.pending_evaluations[key]
    asked, attempt = evaluation.uid, evaluation.attempt
    if name == "failed":
        past.add(r.ExtenderCallFailed(key, asked, attempt, 0, ExtenderVerb.FILTER, "timed out"))
    else:
        passes = np.array([name != "refused"] * len(evaluation.rows), np.bool_)
        passes[0] = False
        words = (r.ExtenderFailedNodes("no licence here", pack_mask(~passes)),)
        past.add(r.ExtenderFiltered(key, asked, attempt, 0, pack_mask(passes), words))
    if 1 in evaluation.pending:
        past.add(r.ExtenderCallFailed(key, asked, attempt, 1, ExtenderVerb.FILTER, "no route"))


def _review(past: Past, name: str) -> None:
    key = f"default/{name}"
    evaluation = past.state.pending_evaluations[key]
    assert evaluation.verb is ExtenderVerb.PREEMPT
    accepted = evaluation.candidates[:1]
    past.add(r.ExtenderPreemptionProcessed(key, evaluation.uid, evaluation.attempt, 0, accepted))


async def _changing_cluster(past: Past) -> None:
    past.lose(Resource.NODES, "n6")
    past.node("n8", "zone-b", cpu="16")
    past.node("n9", "zone-c", cpu="16")
    past.bind()
    await past.turn(9.0)
    past.bind()
    for number in range(4):
        past.lose(Resource.PODS, f"default/web-{number}")
    past.change("gated-1", lambda raw: raw["spec"].update(schedulingGates=[]))
    past.change("huge", lambda raw: raw["metadata"]["labels"].update(size="huge"))
    past.bind()
    await past.turn(61.0)  # only the clock requeues waiting pods
    past.bind()
