"""When the devices of a bound pod count as its claims show them."""

from __future__ import annotations

from typing import Any

import pytest

from asched.framework.pod_info import PodInfo
from asched.model.resource_claims import AllocationResult, ResourceClaim
from asched.state import records as r
from asched.state.checkpoint import checkpoint_of, restore
from asched.state.fold import Fold
from asched.state.plugins import SETTLE_LIMIT_NS
from tests.cycle.scheduling import Scheduling, the_one
from tests.plugins.dynamic_resources.decisions import (
    PLUGINS,
    allocation,
    cluster,
    in_use,
    reservation,
)
from tests.plugins.dynamic_resources.devices import RESOURCE
from tests.plugins.dynamic_resources.objects import (
    a_claim,
    a_class,
    a_pod,
    a_special_claim,
    with_allocation,
)
from tests.state.profiles import Ledger, loader, profile_of

BOUND = r.Bound("d/p", "Pod-p", "n0")


def assumed(special: bool) -> tuple[Scheduling, ResourceClaim, AllocationResult]:
    """Pod ``p`` has the only device, and ``q`` waits for it. Also the claim of ``p`` and its
    allocation."""
    scheduling = cluster("gpu-0")
    scheduling.see(a_class(extendedResourceName=RESOURCE), a_claim("a"), a_claim("b"))
    if special:
        scheduling.see(a_pod("p", resources=[{RESOURCE: "1"}]))
        found = reservation(the_one(scheduling.decide())).special
        assert found is not None
        assert found.allocation is not None
        claim, allocated = a_special_claim("p"), found.allocation
    else:
        scheduling.see(a_pod("p", "a"))
        claim, allocated = a_claim("a"), allocation(the_one(scheduling.decide()))
    scheduling.see(a_pod("q", "b"))
    assert isinstance(the_one(scheduling.decide()), r.Rejected)
    return scheduling, claim, allocated


def after_restart(scheduling: Scheduling) -> Fold:
    return restore(checkpoint_of(scheduling.state), loader(*PLUGINS))


@pytest.mark.parametrize("special", [False, True])
def test_claim_that_is_deallocated_before_its_pod_is_bound(special: bool) -> None:
    scheduling, claim, allocated = assumed(special)
    scheduling.see(with_allocation(claim, allocated), claim)
    assert in_use(scheduling.state) == 1  # the allocation may be written again
    restored = after_restart(scheduling)
    for fold in (scheduling.fold, restored):
        fold.apply(BOUND)
        assert in_use(fold.state) == 0
        assert not fold.state.reserve_calls.unsettled
    scheduling.pass_time(60)
    assert isinstance(the_one(scheduling.decide()), r.Assigned)


def test_another_allocation_does_not_show_the_reserved_one() -> None:
    scheduling, claim, allocated = assumed(special=False)
    (result,) = allocated.devices.results
    plain = {"driver": result.driver, "pool": "n9", "device": "gpu-9", "request": "r"}
    scheduling.see(with_allocation(claim, {"devices": {"results": [plain]}}), claim)
    scheduling.apply(BOUND)
    assert in_use(scheduling.state) == 1


@pytest.mark.parametrize("special", [False, True])
def test_claim_of_bound_pod_that_is_never_written(special: bool) -> None:
    scheduling, claim, _ = assumed(special)
    scheduling.see(claim)
    scheduling.apply(BOUND)
    assert in_use(scheduling.state) == 1
    restored = after_restart(scheduling)
    due_ns = scheduling.state.now_ns + SETTLE_LIMIT_NS
    for fold in (scheduling.fold, restored):
        assert fold.state.reserve_calls.next_timer_ns() == due_ns
        fold.apply(r.TurnStarted(due_ns - 1))
        assert in_use(fold.state) == 1
        fold.apply(r.TurnStarted(due_ns))
        assert in_use(fold.state) == 0
        assert not fold.state.reserve_calls.unsettled
    assert isinstance(the_one(scheduling.decide()), r.Assigned)


def test_no_time_limit_for_a_settled_pod() -> None:
    scheduling, claim, allocated = assumed(special=False)
    scheduling.apply(BOUND)
    assert scheduling.state.reserve_calls.unsettled
    scheduling.see(with_allocation(claim, allocated))
    assert not scheduling.state.reserve_calls.unsettled


DELETED = r.ObjectDeleted("Pod", "d/p", "Pod-p")


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("end", ["allocated", "deleted", "time"])
def test_devices_of_a_pod_that_is_deleted_before_its_claim_shows_them(
    special: bool, end: str
) -> None:
    scheduling, claim, allocated = assumed(special)
    scheduling.see(claim)
    scheduling.apply(BOUND)
    scheduling.apply(DELETED)
    scheduling.pass_time(60)
    assert not [d for d in scheduling.decide() if isinstance(d, r.Assigned)]
    restored = after_restart(scheduling)
    assert [*restored.state.reserve_calls.deleted_unsettled] == ["Pod-p"]
    gone = r.ObjectDeleted("ResourceClaim", claim.key, claim.uid)
    for fold in (scheduling.fold, restored):
        assert in_use(fold.state) == 1
        if end == "allocated":
            fold.apply(r.ObjectObserved(with_allocation(claim, allocated)))
            assert in_use(fold.state) == 1  # by the claim
            fold.apply(gone)
        elif end == "deleted":
            fold.apply(gone)
        else:
            fold.apply(r.TurnStarted(fold.state.now_ns + SETTLE_LIMIT_NS))
        assert in_use(fold.state) == 0
        assert not fold.state.reserve_calls.deleted_unsettled
        assert not fold.state.reserve_calls.unsettled
    scheduling.pass_time(60)
    assert isinstance(the_one(scheduling.decide()), r.Assigned)


def test_devices_of_a_deleted_pod_whose_claim_is_gone() -> None:
    scheduling, claim, _ = assumed(special=False)
    scheduling.apply(BOUND)
    scheduling.apply(r.ObjectDeleted("ResourceClaim", claim.key, claim.uid))
    scheduling.apply(DELETED)
    assert in_use(scheduling.state) == 0
    assert not scheduling.state.reserve_calls.unsettled


@pytest.mark.parametrize("returns_after_s", [0, 700])
def test_profile_that_is_removed_while_its_pod_is_bound(returns_after_s: int) -> None:
    scheduling, claim, _ = assumed(special=False)
    scheduling.see(claim)
    scheduling.apply(r.ProfilesLoaded(()))
    scheduling.apply(BOUND)
    scheduling.pass_time(returns_after_s)
    scheduling.apply(r.ProfilesLoaded((profile_of(*PLUGINS),)))
    assert in_use(scheduling.state) == 1
    scheduling.apply(DELETED)
    restored = after_restart(scheduling)
    for fold in (scheduling.fold, restored):
        assert in_use(fold.state) == 1
        fold.apply(r.TurnStarted(fold.state.now_ns + SETTLE_LIMIT_NS))
        assert in_use(fold.state) == 0
        assert not fold.state.reserve_calls.unsettled


class Register(Ledger):
    """Also records deletions."""

    name = "Register"

    def on_deleted(self, pod: PodInfo, node_name: str, reservation: dict[str, Any] | None) -> None:
        self.unreserve(pod, node_name, reservation)


def test_other_plugins_hear_of_the_deletion_at_once() -> None:
    plugins = (*PLUGINS, Register)
    scheduling = cluster("gpu-0", plugins=plugins)
    scheduling.see(a_claim("a"), a_pod("p", "a"))
    assert isinstance(the_one(scheduling.decide()), r.Assigned)
    scheduling.apply(BOUND)
    assert [*books(scheduling.fold)] == ["Pod-p"]
    scheduling.apply(DELETED)
    restored = restore(checkpoint_of(scheduling.state), loader(*plugins))
    for fold in (scheduling.fold, restored):
        assert in_use(fold.state) == 1
        assert not books(fold)
        assert not fold.state.reserve_calls.errors


def books(fold: Fold) -> dict[str, object]:
    ledger = fold.state.profiles["default-scheduler"].plugins["Register"]
    assert isinstance(ledger, Register)
    return {**ledger.books}
