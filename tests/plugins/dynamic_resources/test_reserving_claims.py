"""PreBind reserves claims, whatever the watch shows."""

from __future__ import annotations

from asched.framework.binding import Permission
from asched.plugins.dynamic_resources import DynamicResources
from asched.plugins.dynamic_resources.pre_bind import ClaimBinding
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
