"""Decisions about pods with claims, and what is in use between Reserve and the watch."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import numpy as np
import pytest

from asched.dra.allocator import SearchLimits
from asched.framework.devices import SharedDevices
from asched.framework.feature_gates import FeatureGates
from asched.framework.pod_info import PodInfo
from asched.framework.status import Code, Status
from asched.plugins.dynamic_resources import DynamicResources
from asched.plugins.dynamic_resources.node_filter import (
    NodeFilter,
    PodDevices,
    StatusColumn,
    extended_columns,
)
from asched.state import records as r
from asched.state.checkpoint import checkpoint_of, restore
from asched.state.cluster import ProfileHandle
from tests.cycle.scheduling import Scheduling, nodes_of, the_one
from tests.plugins.dynamic_resources.decisions import (
    PLUGINS,
    allocation,
    cluster,
    devices,
    in_use,
    reservation,
    shows,
)
from tests.plugins.dynamic_resources.devices import RESOURCE
from tests.plugins.dynamic_resources.objects import (
    a_claim,
    a_class,
    a_device_node,
    a_pod,
    a_request,
    a_slice,
    a_special_claim,
    an_allocation,
    with_allocation,
)
from tests.state.profiles import loader, profile_of


def test_two_pods_never_get_the_same_device() -> None:
    scheduling = cluster("gpu-0", "gpu-1")
    scheduling.see(a_claim("a"), a_claim("b"), a_claim("c"))
    scheduling.see(a_pod("p", "a"), a_pod("q", "b"), a_pod("s", "c"))
    first, second, third = scheduling.decide()
    assert (devices(first), devices(second)) == (["gpu-0"], ["gpu-1"])
    assert isinstance(third, r.Rejected)
    assert "1 cannot allocate all claims" in third.message


def test_device_counts_once_when_the_watch_shows_the_claim() -> None:
    scheduling = cluster("gpu-0", "gpu-1")
    claim = a_claim("a")
    scheduling.see(claim, a_pod("p", "a"))
    decision = the_one(scheduling.decide())
    assert in_use(scheduling.state) == 1
    shows(scheduling, claim, decision)
    assert in_use(scheduling.state) == 1
    scheduling.apply(r.Bound("d/p", "Pod-p", "n0"))
    assert in_use(scheduling.state) == 1


def test_device_stays_reserved_if_the_pod_is_bound_first() -> None:
    scheduling = cluster("gpu-0")
    claim = a_claim("a")
    scheduling.see(claim, a_claim("b"), a_pod("p", "a"))
    decision = the_one(scheduling.decide())
    scheduling.apply(r.Bound("d/p", "Pod-p", "n0"))
    scheduling.see(a_pod("q", "b"))
    assert isinstance(the_one(scheduling.decide()), r.Rejected)
    shows(scheduling, claim, decision)
    scheduling.apply(r.ObjectDeleted("Pod", "d/p", "Pod-p"))
    assert in_use(scheduling.state) == 1
    scheduling.see(claim)
    assert in_use(scheduling.state) == 0
    scheduling.pass_time(60)
    assert isinstance(the_one(scheduling.decide()), r.Assigned)


def test_failed_binding_releases_the_devices() -> None:
    scheduling = cluster("gpu-0")
    scheduling.see(a_claim("a"), a_pod("p", "a"))
    the_one(scheduling.decide())
    scheduling.apply(r.BindFailed("d/p", "Pod-p", "n0", Code.ERROR, "DynamicResources", "no"))
    assert in_use(scheduling.state) == 0


ENDS_OF_A_BINDING: tuple[r.AnyRecord, ...] = (
    r.BindFailed("d/p", "Pod-p", "n0", Code.ERROR, "", "the pod is gone"),
    r.Bound("d/p", "Pod-p", "n0"),
    r.EngineStarted("later", 0),
    r.LeadershipGained(1),
)


@pytest.mark.parametrize("end", ENDS_OF_A_BINDING, ids=lambda end: type(end).__name__)
def test_devices_of_deleted_pod_are_released_when_its_binding_ended(end: r.AnyRecord) -> None:
    scheduling = cluster("gpu-0")
    scheduling.see(a_claim("a"), a_pod("p", "a"))
    the_one(scheduling.decide())
    scheduling.apply(r.ObjectDeleted("Pod", "d/p", "Pod-p"))
    # PreBind may have sent the allocation.
    assert in_use(scheduling.state) == 1
    restored = restore(checkpoint_of(scheduling.state), loader(*PLUGINS))
    assert [*restored.state.reserve_calls.unfinished] == ["Pod-p"]
    scheduling.apply(r.ProfilesLoaded((profile_of(*PLUGINS),)))
    assert in_use(scheduling.state) == 1
    scheduling.apply(end)
    assert in_use(scheduling.state) == 0
    assert not scheduling.state.reserve_calls.unfinished


def test_claim_that_was_recreated_does_not_have_the_devices() -> None:
    scheduling = cluster("gpu-0")
    scheduling.see(a_claim("a"), a_pod("p", "a"))
    the_one(scheduling.decide())
    scheduling.see(a_claim("a", uid="another"))
    assert in_use(scheduling.state) == 0


def test_shared_claim_waits_for_the_pod_that_allocates_it() -> None:
    scheduling = cluster("gpu-0")
    claim = a_claim("a")
    scheduling.see(claim, a_pod("p", "a"), a_pod("q", "a"))
    first, second = scheduling.decide()
    assert isinstance(second, r.Rejected)
    assert "resource claim d/a is in the process of being allocated" in second.message
    shows(scheduling, claim, first)
    scheduling.pass_time(60)
    again = the_one(scheduling.decide())
    assert reservation(again).claims[0].allocation is None


def test_profiles_share_what_is_in_use() -> None:
    other = msgspec.structs.replace(profile_of(*PLUGINS), scheduler_name="other")
    scheduling = Scheduling(*PLUGINS, profiles=(profile_of(*PLUGINS), other))
    scheduling.see(a_class(), a_device_node("n0", allocatable={"cpu": "8", "pods": "9"}))
    scheduling.see(a_slice("n0", "gpu-0"), a_claim("a"), a_claim("b"))
    scheduling.see(a_pod("p", "a"), a_pod("q", "b", schedulerName="other"))
    first, second = scheduling.decide()
    assert isinstance(first, r.Assigned)
    assert isinstance(second, r.Rejected)


def test_reload_keeps_reserved_devices() -> None:
    scheduling = cluster("gpu-0")
    scheduling.see(a_claim("a"), a_pod("p", "a"))
    the_one(scheduling.decide())
    scheduling.apply(r.ProfilesLoaded((profile_of(*PLUGINS),)))
    assert in_use(scheduling.state) == 1


def test_checkpoint_keeps_reserved_devices_and_pending_releases() -> None:
    scheduling = cluster("gpu-0", nodes=2)
    elsewhere = a_claim("b", allocation=an_allocation("n1", "gpu-0"))
    scheduling.see(a_claim("a"), a_pod("p", "a"))
    the_one(scheduling.decide())
    on_n0 = {"kubernetes.io/hostname": "n0"}
    scheduling.see(elsewhere, a_pod("q", "b", nodeSelector=on_n0))
    released = the_one(scheduling.decide())
    assert isinstance(released, r.Assigned)  # the node selector is no filter of this profile
    restored = restore(checkpoint_of(scheduling.state), loader(*PLUGINS))
    handle = ProfileHandle(restored.state, "")
    usage = handle.shared(SharedDevices).inventory.usage
    ours = ProfileHandle(scheduling.state, "").shared(SharedDevices).inventory.usage
    assert usage.snapshot() == ours.snapshot()


# -- PostFilter -----------------------------------------------------------------------------------


def unavailable(**status: Any) -> Scheduling:
    """A pod with a claim that is allocated on a node that is gone."""
    scheduling = cluster("gpu-0")
    scheduling.see(a_claim("a", allocation=an_allocation("gone", "gpu-0"), status=status))
    scheduling.see(a_pod("p", "a"))
    return scheduling


def test_claim_that_is_not_available_is_deallocated() -> None:
    scheduling = unavailable()
    decision = the_one(scheduling.decide())
    assert isinstance(decision, r.Rejected)
    assert "deallocation of ResourceClaim completed" in decision.message
    assert decision.released_claim is not None
    assert decision.released_claim.claim.key == "d/a"
    assert not decision.released_claim.delete
    assert [*scheduling.state.claim_releases] == ["ResourceClaim-a"]
    restored = restore(checkpoint_of(scheduling.state), loader(*PLUGINS)).state
    assert dict(restored.claim_releases) == dict(scheduling.state.claim_releases)
    scheduling.apply(r.ClaimReleaseEnded("d/p", "Pod-p", "ResourceClaim-a"))
    assert not scheduling.state.claim_releases


def test_claim_in_use_by_another_pod_is_kept() -> None:
    scheduling = unavailable(reservedFor=[{"resource": "pods", "name": "x", "uid": "x"}])
    decision = the_one(scheduling.decide())
    assert isinstance(decision, r.Rejected)
    assert "still not schedulable" in decision.message
    assert decision.released_claim is None


def test_deallocated_claim_is_allocated_again() -> None:
    scheduling = unavailable()
    the_one(scheduling.decide())
    scheduling.pass_time(60)
    scheduling.see(a_claim("a"))
    assert devices(the_one(scheduling.decide())) == ["gpu-0"]


def test_left_over_special_claim_is_deleted() -> None:
    scheduling = cluster("gpu-0")
    owner = {"kind": "Pod", "name": "p", "uid": "Pod-p", "controller": True, "apiVersion": "v1"}
    left_over = a_claim(
        "old",
        annotations={"resource.kubernetes.io/extended-resource-claim": "true"},
        ownerReferences=[owner],
    )
    scheduling.see(a_class(extendedResourceName=RESOURCE), left_over)
    scheduling.see(a_pod("p", resources=[{RESOURCE: "1"}]))
    decision = the_one(scheduling.decide())
    assert isinstance(decision, r.Rejected)
    assert decision.released_claim is not None
    assert decision.released_claim.delete
    scheduling.pass_time(60)
    scheduling.apply(r.ObjectDeleted("ResourceClaim", "d/old", "ResourceClaim-old"))
    # As in kube-scheduler, no hint listens to deletions of claims.
    scheduling.pass_time(600)
    assert nodes_of(scheduling.decide()) == {"d/p": "n0"}


# -- filter ----------------------------------------------------------------------------------------


def test_filter_of_single_nodes_keeps_one_answer_for_all() -> None:
    scheduling = cluster("gpu-0", nodes=3)
    nodes, claim = scheduling.state.nodes, a_claim("c")
    scheduling.see(claim)
    shared = ProfileHandle(scheduling.state, "").shared(SharedDevices)
    node_filter = NodeFilter(scheduling.state, shared, SearchLimits(), timedelta(minutes=1))
    data = PodDevices(a_pod("p", "c"), (claim,))
    for row in (0, 2, 0, 2):
        result = node_filter.run(data, nodes.take(np.array([row], np.intp)))
        assert not result.codes.any()
    assert len(data.answers) == 1
    for row in (0, 2):
        found = data.allocation(row)
        assert found is not None
        (allocated,) = found.solution.results("", str)
        assert allocated.devices.results[0].pool == f"n{row}"


def test_more_statuses_than_a_small_number_can_count() -> None:
    statuses = [Status.unresolvable(str(number)) for number in range(40_000)]
    column = StatusColumn(len(statuses))
    for row, status in enumerate(statuses):
        column.reject(row, status)
    assert column.result().status(39_999) == statuses[-1]


def test_taints_do_not_concern_claims_that_are_allocated() -> None:
    scheduling = cluster("gpu-0")
    taint = {"key": "broken", "effect": "NoExecute"}
    scheduling.see(a_slice("n0", {"name": "gpu-0", "taints": [taint]}, "gpu-1"))
    scheduling.see(a_claim("a", allocation=an_allocation("n0", "gpu-0")), a_claim("b"))
    scheduling.see(a_pod("p", "a"), a_pod("q", "b"))
    first, second = scheduling.decide()
    assert nodes_of([first]) == {"d/p": "n0"}
    assert devices(second) == ["gpu-1"]


def test_request_of_a_later_version_of_kubernetes_is_not_allocated() -> None:
    scheduling = cluster("gpu-0")
    scheduling.see(a_claim("c", {"name": "r", "later": {}}), a_pod("p", "c"))
    rejected = the_one(scheduling.decide())
    assert isinstance(rejected, r.Rejected)
    assert "resource claim d/c, request r: unknown request type" in rejected.message


# -- extended resources ---------------------------------------------------------------------------


def test_pods_of_one_shape_see_a_new_class() -> None:
    scheduling = cluster("gpu-0", "gpu-1")
    scheduling.see(a_pod("p", resources=[{RESOURCE: "1"}]))
    first = the_one(scheduling.decide())
    assert isinstance(first, r.Rejected)
    assert f"Insufficient {RESOURCE}" in first.message
    scheduling.pass_time(60)
    scheduling.see(a_class(extendedResourceName=RESOURCE))
    assigned = the_one(scheduling.decide())
    special = reservation(assigned).special
    assert special is not None
    assert special.allocation is not None
    assert [each.device for each in special.allocation.devices.results] == ["gpu-0"]
    scheduling.see(a_class())
    scheduling.see(a_pod("q", resources=[{RESOURCE: "1"}]))
    assert isinstance(the_one(scheduling.decide()), r.Rejected)


def test_deletion_of_allocated_claim_requeues_pods_that_wait_for_devices() -> None:
    scheduling = cluster("gpu-0")
    used = a_claim("a", allocation=an_allocation("n0", "gpu-0"))
    scheduling.see(used, a_claim("b"), a_pod("p", "b"))
    assert isinstance(the_one(scheduling.decide()), r.Rejected)
    scheduling.apply(r.ObjectDeleted("ResourceClaim", "d/a", used.uid))
    scheduling.pass_time(60)
    assert isinstance(the_one(scheduling.decide()), r.Assigned)


def test_special_claim_counts_once() -> None:
    scheduling = cluster("gpu-0", "gpu-1")
    scheduling.see(a_class(extendedResourceName=RESOURCE))
    scheduling.see(a_pod("p", resources=[{RESOURCE: "1"}]))
    special = reservation(the_one(scheduling.decide())).special
    assert special is not None
    assert in_use(scheduling.state) == 1
    created = a_special_claim("p")
    scheduling.see(created)
    assert in_use(scheduling.state) == 1
    scheduling.see(with_allocation(created, special.allocation))
    assert in_use(scheduling.state) == 1


def test_special_claim_that_gets_another_owner() -> None:
    scheduling = cluster("gpu-0", "gpu-1")
    scheduling.see(a_class(extendedResourceName=RESOURCE), a_pod("p", resources=[{RESOURCE: "1"}]))
    special = reservation(the_one(scheduling.decide())).special
    assert special is not None
    for pod, result in (("p", special.allocation), ("q", None)):
        claim = a_special_claim(pod)
        scheduling.see(claim if result is None else with_allocation(claim, result))
        assert in_use(scheduling.state) == 1


def test_pod_without_devices_does_not_concern_the_plugin() -> None:
    scheduling = cluster("gpu-0")
    plugin = scheduling.state.profiles[profile_of(*PLUGINS).scheduler_name].plugins
    own = plugin[DynamicResources.name]
    plain = PodInfo(a_pod("p", resources=[{"cpu": "1", RESOURCE: "1"}]))
    assert not own.applies_to(plain)
    scheduling.see(a_class("other", extendedResourceName=RESOURCE))
    assert own.applies_to(plain)
    assert not own.applies_to(PodInfo(a_pod("q", resources=[{"cpu": "1"}])))


def test_share_ids_are_new_uuids_that_a_replay_repeats() -> None:
    shared = {
        "name": "nic",
        "allowMultipleAllocations": True,
        "capacity": {"bandwidth": {"value": "10"}},
    }
    found = []
    for _ in range(2):
        scheduling = Scheduling(*PLUGINS)
        scheduling.see(a_class(), a_device_node("n0", allocatable={"cpu": "8", "pods": "9"}))
        scheduling.see(a_slice("n0", shared))
        request = a_request(capacity={"requests": {"bandwidth": "4"}})
        scheduling.see(a_claim("a", request), a_claim("b", request), a_claim("c", request))
        scheduling.see(a_pod("p", "a"), a_pod("q", "b"), a_pod("s", "c"))
        *placed, rejected = scheduling.decide()
        assert isinstance(rejected, r.Rejected)
        found.append([allocation(each).devices.results[0].share_id for each in placed])
    first, second = found
    assert first == second
    assert len({*first}) == 2
    for share_id in first:
        assert share_id is not None
        assert [len(part) for part in share_id.split("-")] == [8, 4, 4, 4, 12]
        assert share_id[14] == "4"
        assert share_id[19] in "89ab"


def test_missing_extended_resource_is_not_hidden_by_a_later_one() -> None:
    served, missing, empty = RESOURCE, "a.example.com/missing", "b.example.com/empty"
    scheduling = Scheduling(*PLUGINS)
    scheduling.see(a_class(extendedResourceName=served))
    scheduling.see(a_device_node("n0", allocatable={"cpu": "8", empty: "0"}))
    extended = ProfileHandle(scheduling.state, "").shared(SharedDevices).extended
    resources = {missing: 1, empty: 1, served: 1}
    assert extended_columns(resources, extended, scheduling.state.nodes).unfit[0]
    resources.pop(missing)
    assert not extended_columns(resources, extended, scheduling.state.nodes).unfit[0]


# -- feature gates --------------------------------------------------------------------------------


def test_extended_resources_can_be_turned_off() -> None:
    scheduling = cluster("gpu-0")
    scheduling.see(a_class(extendedResourceName=RESOURCE))
    gates = FeatureGates(dra_extended_resource=False)
    scheduling.apply(r.ProfilesLoaded((profile_of(*PLUGINS),), feature_gates=gates))
    scheduling.see(a_pod("p", resources=[{RESOURCE: "1"}]))
    decision = the_one(scheduling.decide())
    assert isinstance(decision, r.Rejected)
    assert f"Insufficient {RESOURCE}" in decision.message


def test_prioritized_lists_can_be_turned_off() -> None:
    scheduling = cluster("gpu-0")
    gates = FeatureGates(dra_prioritized_list=False)
    scheduling.apply(r.ProfilesLoaded((profile_of(*PLUGINS),), feature_gates=gates))
    alternatives = {"name": "a", "firstAvailable": [{"name": "x", "deviceClassName": "gpu"}]}
    scheduling.see(a_claim("c", alternatives), a_pod("p", "c"))
    decision = the_one(scheduling.decide())
    assert isinstance(decision, r.Rejected)
    text = "resource claim d/c, request a: has subrequests, but the DRAPrioritizedList feature is"
    assert f"{text} disabled" in decision.message
