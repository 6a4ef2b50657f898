"""PreBind reserves claims, whatever the watch shows, and the undo of a binding releases them."""

from __future__ import annotations

from asched.framework.binding import ClaimRef, Permission, Unavailable
from asched.model.resource_claims import ResourceClaim
from asched.plugins.dynamic_resources import DynamicResources
from asched.plugins.dynamic_resources.pre_bind import ClaimBinding, WrittenClaims, undo_binding
from asched.state.cluster import ProfileHandle
from asched.testing.harness import FakeBindingClient
from tests.cycle.scheduling import the_one
from tests.plugins.dynamic_resources.decisions import cluster, reservation
from tests.plugins.dynamic_resources.objects import a_claim, a_pod, an_allocation


async def test_claim_that_the_watch_shows_as_reserved_is_reserved_again() -> None:
    # The undo of an earlier attempt may have removed the reservation, and the watch be late.
    consumer = {"resource": "pods", "name": "p", "uid": "Pod-p"}
    scheduling = cluster("gpu-0")
    claim = a_claim(
        "a", allocation=an_allocation("n0", "gpu-0"), status={"reservedFor": [consumer]}
    )
    scheduling.see(claim, a_pod("p", "a"))
    found = reservation(the_one(scheduling.decide()))
    client = FakeBindingClient(DynamicResources)
    state = scheduling.state
    pod = state.pods["d/p"].info
    binding = ClaimBinding(ProfileHandle(state, "").cluster, client, pod, found)
    assert (await binding.bind()).is_success
    assert [each.permission for each in client.requests] == [Permission.ALLOCATE_CLAIM]


class UnreadableOnce(FakeBindingClient):
    """The first read of a claim fails."""

    reads = 0

    async def read_resource_claim(self, claim: ClaimRef) -> ResourceClaim | None:
        self.reads += 1
        if self.reads == 1:
            raise Unavailable("connection refused")
        return await super().read_resource_claim(claim)


async def test_undo_reads_a_claim_again_until_its_state_is_known() -> None:
    scheduling = cluster("gpu-0")
    claim = a_claim("a")
    scheduling.see(claim, a_pod("p", "a"))
    state = scheduling.state
    client = UnreadableOnce(DynamicResources, [claim])
    written = WrittenClaims({ClaimRef("d", "a", claim.uid): None})
    await undo_binding(
        ProfileHandle(state, "").cluster, None, client, state.pods["d/p"].info, written
    )
    assert client.reads == 2, "the claim is not allocated: nothing else to wait for"
