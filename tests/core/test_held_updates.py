"""Updates of a namespace beyond its budget are held back and merged, and none is lost."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asched.core.held_updates import BURST_BYTES, RATE_BYTES_PER_S
from asched.core.inputs import Deleted, Listed, Upserted
from asched.core.scheduler import Budget, SchedulerCore
from asched.model.custom import CustomDefinition, CustomObject, CustomResource
from asched.model.meta import Annotations, ObjectMeta
from asched.model.pod import Pod, PodResourceClaimStatus, Toleration
from asched.model.quantity import NS_PER_S
from asched.model.resources import Resource, custom_resource
from asched.model.storage import PersistentVolumeClaim, PersistentVolumeClaimSpec
from asched.model.workloads import Service, ServiceSpec
from asched.state import records as r
from tests.core.test_scheduler import START_NS, new_fold, started, upserted
from tests.state.objects import a_node, a_pod, bound

encode = msgspec.json.Encoder().encode
MANY = 200


def labels(number: int) -> dict[str, str]:
    """16 KiB that no other number has."""
    return {f"label-{number}-{index}": "x" * 63 for index in range(200)}


def recorded(core: SchedulerCore) -> list[r.AnyRecord]:
    return [record for record in core.take_records() if not isinstance(record, r.TurnStarted)]


def size(records: list[r.AnyRecord]) -> int:
    return sum(len(encode(record)) for record in records)


class Flooded:
    """A core with a running pod that changes its labels ten times a second."""

    def __init__(self) -> None:
        self.core = started(SchedulerCore(new_fold()))
        self.now_ns = START_NS
        self.number = 0
        self.pod = bound(a_pod("loud"), "n0")
        self.core.observe(upserted(a_node("n0")))
        self.core.observe(upserted(self.pod))
        self.before = self.core.take_records()

    def turn(self, *, seconds: float = 0.1) -> None:
        self.now_ns += round(seconds * NS_PER_S)
        self.core.begin_turn(self.now_ns)
        self.core.fire_timers(may_decide=True)

    def patch(self, times: int = 1) -> None:
        for _ in range(times):
            self.number += 1
            self.pod = bound(a_pod("loud", labels=labels(self.number)), "n0")
            self.turn()
            self.core.observe(upserted(self.pod))

    @property
    def stored_labels(self) -> dict[str, str]:
        return self.core.state.pods["default/loud"].info.pod.labels


@pytest.fixture
def flooded() -> Flooded:
    """A namespace above its budget."""
    flooded = Flooded()
    flooded.patch(MANY)
    assert flooded.core.held_updates
    flooded.core.take_records()
    return flooded


def test_bytes_of_a_namespace_are_limited() -> None:
    flooded = Flooded()
    flooded.patch(6000)  # ten minutes
    records = recorded(flooded.core)
    largest = max(len(encode(record)) for record in records)
    assert size(records) <= BURST_BYTES + 600 * RATE_BYTES_PER_S + largest
    assert size(records) > 600 * RATE_BYTES_PER_S
    assert flooded.core.held_updates.deferred > 5000
    assert len(flooded.core.held_updates) == 1


def test_limited_namespace_is_reported_once_an_hour() -> None:
    flooded = Flooded()
    flooded.patch(600)
    assert flooded.core.held_updates.take_newly_limited() == ["default"]
    flooded.turn(seconds=3500)
    flooded.patch(200)
    assert flooded.core.held_updates.take_newly_limited() == []
    flooded.turn(seconds=3600)
    flooded.patch(200)
    assert flooded.core.held_updates.take_newly_limited() == ["default"]


def test_newest_form_is_recorded_once_the_budget_allows(flooded: Flooded) -> None:
    assert flooded.stored_labels != labels(MANY)
    due_ns = flooded.core.next_timer_ns()
    assert due_ns is not None
    assert due_ns > flooded.now_ns
    flooded.turn(seconds=(due_ns - flooded.now_ns) / NS_PER_S)
    assert flooded.stored_labels == labels(MANY)
    assert not flooded.core.held_updates
    assert len(recorded(flooded.core)) == 1
    assert flooded.core.next_timer_ns() is None


def test_reverted_update_leaves_no_record(flooded: Flooded) -> None:
    before = flooded.core.state.pods["default/loud"].info.pod
    flooded.core.observe(upserted(before))
    assert not flooded.core.held_updates
    assert recorded(flooded.core) == []


def test_busy_object_keeps_its_place(flooded: Flooded) -> None:
    """Else it would wait as long as others change, too."""
    other = bound(a_pod("other"), "n0")
    flooded.core.observe(upserted(other))
    for number in range(1000):
        changed = msgspec.structs.replace(other.metadata, labels={"n": str(number)})
        flooded.core.observe(upserted(msgspec.structs.replace(other, metadata=changed)))
        flooded.patch()
    assert flooded.stored_labels != labels(MANY)
    updates = [record for record in recorded(flooded.core) if isinstance(record, r.PodUpdated)]
    counts = Counter(record.key for record in updates)
    assert min(counts["default/loud"], counts["default/other"]) > 10


def test_step_of_a_pods_life_is_not_held_back(flooded: Flooded) -> None:
    status = msgspec.structs.replace(flooded.pod.status, phase="Running")
    flooded.core.observe(upserted(msgspec.structs.replace(flooded.pod, status=status)))
    (update,) = recorded(flooded.core)
    assert isinstance(update, r.PodUpdated)
    assert flooded.stored_labels == labels(MANY)
    assert not flooded.core.held_updates


def test_created_claim_of_a_pod_is_not_held_back(flooded: Flooded) -> None:
    """The pod waits until a controller has created its claims from templates."""
    pod = a_pod("waiting")
    flooded.core.observe(upserted(pod))
    claims = (PodResourceClaimStatus(name="gpu", resource_claim_name="waiting-gpu"),)
    status = msgspec.structs.replace(pod.status, resource_claim_statuses=claims)
    flooded.core.observe(upserted(msgspec.structs.replace(pod, status=status)))
    _, update = recorded(flooded.core)
    assert isinstance(update, r.PodUpdated)
    assert update.claims == claims


def test_deletion_discards_what_is_held(flooded: Flooded) -> None:
    flooded.core.observe(Deleted(Resource.PODS, flooded.pod))
    assert recorded(flooded.core) == [r.ObjectDeleted("Pod", "default/loud", "pod-loud")]
    assert not flooded.core.held_updates


def test_list_replaces_what_is_held(flooded: Flooded) -> None:
    flooded.core.observe(Listed(Resource.PODS, (flooded.pod,)))
    assert not flooded.core.held_updates
    while flooded.core.listing:
        flooded.core.continue_list()
    assert flooded.stored_labels == labels(MANY)


def test_list_of_other_objects_keeps_what_is_held(flooded: Flooded) -> None:
    flooded.core.observe(Listed(Resource.NODES, (a_node("n0"),)))
    assert len(flooded.core.held_updates) == 1


def test_other_namespaces_are_not_affected(flooded: Flooded) -> None:
    other = a_pod("quiet")
    other = msgspec.structs.replace(
        other, metadata=msgspec.structs.replace(other.metadata, namespace="other")
    )
    flooded.core.observe(upserted(other))
    labelled = msgspec.structs.replace(other.metadata, labels={"a": "b"})
    flooded.core.observe(upserted(msgspec.structs.replace(other, metadata=labelled)))
    assert flooded.core.state.pods["other/quiet"].info.pod.labels == {"a": "b"}


def test_pod_is_decided_with_its_newest_labels(flooded: Flooded) -> None:
    flooded.core.observe(upserted(a_pod("pending")))
    newest = a_pod("pending", labels={"app": "web"})
    flooded.core.observe(upserted(newest))
    assert len(flooded.core.held_updates) == 2
    flooded.core.decide(Budget(decisions=1))
    records = recorded(flooded.core)
    assert [type(record) for record in records] == [r.PodObserved, r.PodUpdated, r.Assigned]
    assert flooded.core.state.pods["default/pending"].info.pod.labels == {"app": "web"}
    assert flooded.stored_labels != labels(MANY)


def test_images_and_services_are_held_back(flooded: Flooded) -> None:
    def with_image(image: str) -> Pod:
        (container,) = flooded.pod.spec.containers
        containers = (msgspec.structs.replace(container, image=image),)
        spec = msgspec.structs.replace(flooded.pod.spec, containers=containers)
        return msgspec.structs.replace(flooded.pod, spec=spec)

    def service(app: str) -> Upserted:
        meta = ObjectMeta(name="web", namespace="default", uid="service")
        return Upserted(
            Resource.SERVICES, Service(metadata=meta, spec=ServiceSpec(selector={"app": app}))
        )

    flooded.core.observe(service("first"))
    assert len(recorded(flooded.core)) == 1
    flooded.core.observe(service("second"))
    flooded.core.observe(upserted(with_image("one")))
    flooded.core.observe(upserted(with_image("two")))
    assert recorded(flooded.core) == []
    for _ in range(200):
        flooded.turn(seconds=1)
    images, changed = recorded(flooded.core)
    assert isinstance(images, r.ObjectObserved)
    assert images.object == with_image("two")
    assert isinstance(changed, r.ObjectObserved)
    assert changed.object == service("second").object


def test_resources_and_tolerations_are_held_back(flooded: Flooded) -> None:
    def changed(cpu: str, *keys: str) -> Pod:
        pod = bound(a_pod("loud", {"cpu": cpu}), "n0")
        tolerations = tuple(Toleration(key=key, operator="Exists") for key in keys)
        spec = msgspec.structs.replace(pod.spec, tolerations=tolerations)
        return msgspec.structs.replace(flooded.pod, spec=spec)

    flooded.core.observe(upserted(changed("2")))
    flooded.core.observe(upserted(changed("2", "a")))
    assert recorded(flooded.core) == []
    moved = changed("3")
    on_another_node = msgspec.structs.replace(moved.spec, node_name="n1")
    flooded.core.observe(upserted(msgspec.structs.replace(moved, spec=on_another_node)))
    assert len(recorded(flooded.core)) == 1


def test_open_gate_is_not_held_back(flooded: Flooded) -> None:
    gated = a_pod("gated", gates=("a", "b"))
    flooded.core.observe(upserted(gated))
    flooded.core.observe(upserted(a_pod("gated", gates=("b",))))
    assert [type(record) for record in recorded(flooded.core)] == [r.ObjectObserved] * 2


def test_claims_are_held_back_until_they_are_bound(flooded: Flooded) -> None:
    def claim(node: str, **spec: str) -> Upserted:
        annotations = Annotations(selected_node=node)
        meta = ObjectMeta(name="c", namespace="default", uid="c", annotations=annotations)
        of_claim = PersistentVolumeClaimSpec(**spec)  # type: ignore[arg-type]
        return Upserted(
            Resource.PERSISTENT_VOLUME_CLAIMS, PersistentVolumeClaim(metadata=meta, spec=of_claim)
        )

    flooded.core.observe(claim("n0"))
    assert len(recorded(flooded.core)) == 1
    flooded.core.observe(claim("n1" * 10_000))
    assert recorded(flooded.core) == []
    flooded.core.observe(claim("n1", volume_name="pv"))
    assert len(recorded(flooded.core)) == 1


actions = st.lists(
    st.tuples(st.sampled_from(["label", "delete", "phase", "wait"]), st.integers(0, 3)),
    max_size=60,
)


@given(actions)
def test_state_becomes_equal_to_the_cluster(steps: list[tuple[str, int]]) -> None:
    """Whatever is held back in between: after a pause the state has the newest form of each."""
    flooded = Flooded()
    flooded.patch(MANY // 2)
    pods: dict[str, Pod] = {"loud": flooded.pod}
    for count, (action, index) in enumerate(steps):
        name = f"p{index}"
        pod = pods.get(name, bound(a_pod(name), "n0"))
        if action == "delete":
            if name in pods:
                flooded.core.observe(Deleted(Resource.PODS, pods.pop(name)))
            continue
        if action == "wait":
            flooded.turn(seconds=index)
            continue
        if action == "label":
            changed = msgspec.structs.replace(pod.metadata, labels=labels(count))
            pod = msgspec.structs.replace(pod, metadata=changed)
        else:
            phase = msgspec.structs.replace(pod.status, phase=["Pending", "Running"][index % 2])
            pod = msgspec.structs.replace(pod, status=phase)
        pods[name] = pod
        flooded.core.observe(upserted(pod))
    for _ in range(40):
        flooded.turn(seconds=10)
    stored = flooded.core.state.pods
    assert {key: entry.info.pod for key, entry in stored.items()} == {
        pod.key: pod for pod in pods.values()
    }
    replayed = new_fold()
    for record in [*flooded.before, *flooded.core.take_records()]:
        replayed.apply(record)
    assert {key: entry.info.pod for key, entry in replayed.state.pods.items()} == {
        pod.key: pod for pod in pods.values()
    }


def test_custom_resource_is_held_back_and_recorded_later() -> None:
    flooded = Flooded()
    resource = custom_resource(Tier)
    for number in range(MANY):
        tier = CustomObject(
            metadata=ObjectMeta(name="t", namespace="default", uid="tier-t"),
            resource=Tier.definition.name,
            content={"text": f"{number}-{'x' * 16_000}"},
        )
        flooded.turn()
        flooded.core.observe(Upserted(resource, tier))
    held = flooded.core.held_updates
    assert held.holds(resource, tier.key)
    flooded.turn(seconds=3600)
    assert not held
    assert flooded.core.state.object_store.of_kind(CustomObject)[tier.key] == tier


class Tier(CustomResource):
    definition = CustomDefinition("example.com", "v1", "tiers", "Tier", namespaced=True)
