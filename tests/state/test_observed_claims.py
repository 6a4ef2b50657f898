"""ResourceClaims and the claims of pods in records."""

from __future__ import annotations

import msgspec
import pytest

from asched.framework.events import ActionType, ClusterEvent, EventResource
from asched.framework.pod_info import PodInfo
from asched.model.meta import Annotations, ObjectMeta, OwnerReference
from asched.model.pod import Pod, PodResourceClaim, PodResourceClaimStatus
from asched.model.resource_claims import (
    AllocatedDeviceStatus,
    AllocationResult,
    DeviceAllocationResult,
    DeviceCondition,
    DeviceRequestAllocationResult,
    ResourceClaim,
    ResourceClaimStatus,
)
from asched.state import records as r
from asched.state.checkpoint import checkpoint_of, restore
from asched.state.cluster_events import pod_changes
from asched.state.observe import observe_object
from tests.state.description import describe
from tests.state.objects import a_pod
from tests.state.profiles import DEFAULT, a_fold, loader

_replace = msgspec.structs.replace
GENERATED = (PodResourceClaimStatus(name="gpu", resource_claim_name="p-gpu-x2xk4"),)


def with_template(name: str) -> Pod:
    pod = a_pod(name)
    claim = PodResourceClaim(name="gpu", resource_claim_template_name="gpus")
    return _replace(pod, spec=_replace(pod.spec, resource_claims=(claim,)))


def with_claims(pod: Pod, claims: tuple[PodResourceClaimStatus, ...]) -> Pod:
    return _replace(pod, status=_replace(pod.status, resource_claim_statuses=claims))


def test_generated_claim_is_a_small_update() -> None:
    fold = a_fold(*DEFAULT)
    pod = with_template("p")
    fold.apply(r.ObjectObserved(pod, 1))
    record = observe_object(fold.state, with_claims(pod, GENERATED))
    assert record == r.PodUpdated(pod.key, pod.uid, phase="Pending", claims=GENERATED)
    fold.apply(record)
    assert fold.state.pods[pod.key].info.pod == with_claims(pod, GENERATED)
    assert observe_object(fold.state, with_claims(pod, GENERATED)) is None
    record = observe_object(fold.state, pod)
    assert record == r.PodUpdated(pod.key, pod.uid, phase="Pending", claims=())


def test_copies_of_a_template_have_their_own_claims() -> None:
    fold = a_fold(*DEFAULT)
    fold.apply(r.ObjectObserved(with_claims(with_template("first"), GENERATED), 1))
    plain, own = with_template("plain"), with_claims(with_template("own"), GENERATED)
    for pod in (plain, own):
        record = observe_object(fold.state, pod)
        assert isinstance(record, r.PodObserved)
        fold.apply(record)
        assert fold.state.pods[pod.key].info.pod == pod
    restored = restore(checkpoint_of(fold.state), loader(*DEFAULT))
    assert describe(restored.state) == describe(fold.state)


def test_pods_without_claims_take_no_more_bytes() -> None:
    record = msgspec.json.encode(r.PodUpdated("d/p", "u", phase="Pending"))
    assert b"claims" not in record
    assert b"claims" not in msgspec.json.encode(r.PodObserved("d/p", "u", 1))


@pytest.mark.parametrize("resource", [EventResource.TARGET_POD, EventResource.UNSCHEDULED_POD])
def test_generated_claim_is_an_event(resource: EventResource) -> None:
    pod = with_template("p")
    assert pod_changes(PodInfo(pod), PodInfo(with_claims(pod, GENERATED)), resource) == [
        ClusterEvent(resource, ActionType.UPDATE_POD_GENERATED_RESOURCE_CLAIM)
    ]


def a_claim(*conditions: str) -> ResourceClaim:
    result = DeviceRequestAllocationResult(
        request="r",
        driver="d",
        pool="p",
        device="x",
        binding_conditions=("Attached",),
        binding_failure_conditions=("Broken",),
    )
    reported = AllocatedDeviceStatus(
        driver="d",
        pool="p",
        device="x",
        conditions=tuple(DeviceCondition(type=each, status="True") for each in conditions),
    )
    return ResourceClaim(
        metadata=ObjectMeta(name="c", namespace="n", uid="u"),
        status=ResourceClaimStatus(
            allocation=AllocationResult(devices=DeviceAllocationResult(results=(result,))),
            devices=(reported,),
        ),
    )


def test_only_conditions_of_bindings_are_recorded() -> None:
    fold = a_fold(*DEFAULT)
    record = observe_object(fold.state, a_claim("Ready", "Attached"))
    assert record == r.ObjectObserved(a_claim("Attached"))
    fold.apply(record)
    assert observe_object(fold.state, a_claim("Attached", "Heartbeat")) is None
    assert observe_object(fold.state, a_claim("Attached", "Broken")) is not None
    without = observe_object(fold.state, a_claim("Heartbeat"))
    assert isinstance(without, r.ObjectObserved)
    assert isinstance(without.object, ResourceClaim)
    assert without.object.status.devices == ()


def test_pod_is_requeued_after_its_special_claim_is_deleted() -> None:
    fold = a_fold(*DEFAULT)
    pod = a_pod("p")
    owner = OwnerReference(kind="Pod", name="p", uid=pod.uid, controller=True)
    meta = ObjectMeta(
        name="special",
        namespace=pod.namespace,
        uid="claim",
        owner_references=(owner,),
        annotations=Annotations(extended_resource_claim="true"),
    )
    fold.apply(r.ObjectObserved(pod))
    fold.apply(r.ObjectObserved(ResourceClaim(metadata=meta)))
    key, queue = pod.key, fold.state.queue
    assert queue.pop(key) is not None
    queue.reject(key, ["Other"], (), 0)
    assert key in queue.unschedulable
    fold.apply(r.ObjectDeleted("ResourceClaim", f"{pod.namespace}/special", "claim"))
    assert key in queue.active
