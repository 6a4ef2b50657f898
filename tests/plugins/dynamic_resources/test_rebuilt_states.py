"""States rebuilt from records, and restored from checkpoints, know the same devices in use."""

from __future__ import annotations

from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from asched.audit.replay import ReplayVerifier
from asched.framework.devices import SharedDevices
from asched.framework.status import Code
from asched.model.resource_claims import ResourceClaim
from asched.state import records as r
from asched.state.checkpoint import checkpoint_of, restore
from asched.state.cluster import ClusterState, ProfileHandle
from asched.state.fold import Fold
from tests.cycle.scheduling import Scheduling
from tests.plugins.dynamic_resources.decisions import PLUGINS, allocation, reservation
from tests.plugins.dynamic_resources.objects import (
    a_claim,
    a_class,
    a_device_node,
    a_pod,
    a_request,
    a_slice,
    an_allocation,
    with_allocation,
)
from tests.run_size import examples
from tests.state.description import describe
from tests.state.profiles import loader

SHARED: dict[str, Any] = {
    "name": "nic",
    "allowMultipleAllocations": True,
    "capacity": {"bandwidth": {"value": "10"}},
}
NODES = ("n0", "n1")


class DrawnHistory:
    """Pods with claims come, are bound or not, and go. Claims show their allocations late."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._number = 0
        self._unshown: list[tuple[ResourceClaim, r.Assigned]] = []
        self._unbound: list[r.Assigned] = []
        self.scheduling = Scheduling(*PLUGINS)
        self.scheduling.pass_time(1_767_225_600)
        self.scheduling.see(a_class())
        for name in NODES:
            self.scheduling.see(a_device_node(name, allocatable={"cpu": "9", "pods": "99"}))
            self.scheduling.see(a_slice(name, "gpu", SHARED))
        for _ in range(12):
            random.choice((self._add, self._add, self._conflict, self._show, self._end))()
            self._decide()

    def _decide(self) -> None:
        self.scheduling.pass_time(self._random.choice((1, 60)))
        claims = self.scheduling.state.objects(ResourceClaim)
        for decision in self.scheduling.decide():
            if isinstance(decision, r.Assigned):
                self._unbound.append(decision)
                claim = claims[f"d/{reservation(decision).claims[0].name}"]
                if claim.status.allocation is None:
                    self._unshown.append((claim, decision))

    def _new(self) -> str:
        self._number += 1
        return f"x{self._number}"

    def _add(self) -> None:
        name, capacity = self._new(), {"requests": {"bandwidth": "4"}}
        request = self._random.choice((a_request(), a_request(capacity=capacity)))
        self.scheduling.see(a_claim(name, request), a_pod(name, name))

    def _conflict(self) -> None:
        """The claims of a pod are allocated on different nodes: one of them is deallocated."""
        names = [self._new() for _ in NODES]
        for name, node in zip(names, NODES, strict=True):
            self.scheduling.see(a_claim(name, allocation=an_allocation(node, f"gpu-of-{name}")))
        self.scheduling.see(a_pod(names[0], *names))

    def _show(self) -> None:
        if self._unshown:
            claim, decision = self._unshown.pop(self._random.randrange(len(self._unshown)))
            self.scheduling.see(with_allocation(claim, allocation(decision)))

    def _end(self) -> None:
        if not self._unbound:
            return
        decision = self._unbound.pop(self._random.randrange(len(self._unbound)))
        key, uid, node = decision.key, decision.uid, decision.node
        failed = r.BindFailed(key, uid, node, Code.ERROR, "DynamicResources", "no")
        self.scheduling.apply(self._random.choice((failed, r.Bound(key, uid, node))))
        if self._random.random() < 0.5:
            self.scheduling.apply(r.ObjectDeleted("Pod", key, uid))


def in_use(state: ClusterState) -> Any:
    return ProfileHandle(state, "").shared(SharedDevices).inventory.usage.snapshot()


@settings(max_examples=examples(75))
@given(st.integers(0, 2**32))
def test_rebuilt_and_restored_states_are_equal_and_decisions_are_repeated(seed: int) -> None:
    live = DrawnHistory(Random(seed)).scheduling
    fold = Fold(ClusterState(), loader(*PLUGINS))
    verifier = ReplayVerifier(fold, complete=True)
    for number, record in enumerate(live.records, start=1):
        assert verifier.verify(number, record) is None
    restored = restore(checkpoint_of(live.state), loader(*PLUGINS)).state
    for state in (fold.state, restored):
        assert in_use(state) == in_use(live.state)
        assert describe(state) == describe(live.state)
