"""Reservations of one claim for several pods at once."""

from __future__ import annotations

import anyio
import pytest

from asched.kube.pod_writer import PodTarget
from asched.kube.write_outcomes import OutcomeUnknown, WriteOutcome, WriteRejected, WriteSucceeded
from tests.kube.claims import Claims, allocation, claims

PATCH = "patch resourceclaims/status"


async def allocated(c: Claims) -> None:
    """Allocate the claim for its first pod, and show it."""
    assert await c.allocate(allocation()) == WriteSucceeded()
    c.show()
    del c.requests[:]


async def reserve(c: Claims, *pods: PodTarget) -> list[WriteOutcome]:
    """Reserve the claim for all pods at the same time."""
    outcomes: dict[str, WriteOutcome] = {}

    async def one(pod: PodTarget) -> None:
        outcomes[pod.name] = await c.allocate(None, pod)

    async with anyio.create_task_group() as tasks:
        for pod in pods:
            tasks.start_soon(one, pod)
    return [outcomes[pod.name] for pod in pods]


def consumers(c: Claims) -> set[str]:
    return {entry["name"] for entry in c.stored["status"].get("reservedFor", ())}


async def test_pods_that_are_bound_at_once_share_a_request() -> None:
    async with claims() as c:
        await allocated(c)
        pods = [c.add_pod(f"q{number}") for number in range(4)]
        del c.requests[:]
        assert await reserve(c, *pods) == [WriteSucceeded()] * 4
        assert c.requests == [PATCH]
        assert consumers(c) == {"p", "q0", "q1", "q2", "q3"}


async def test_pods_that_come_during_a_request_share_the_next() -> None:
    async with claims() as c:
        await allocated(c)
        first, *others = [c.add_pod(f"q{number}") for number in range(4)]
        del c.requests[:]
        async with anyio.create_task_group() as tasks:

            def arrived() -> None:
                while others:
                    tasks.start_soon(reserve, c, others.pop())

            c.faults.on_update = arrived
            tasks.start_soon(reserve, c, first)
        assert c.requests == [PATCH, PATCH]
        assert consumers(c) == {"p", "q0", "q1", "q2", "q3"}


@pytest.mark.parametrize("names", [("cancelled", "other"), ("other", "cancelled")])
async def test_cancelled_binding_does_not_affect_others(names: tuple[str, str]) -> None:
    """Whether it would write the next request, or shares it."""
    async with claims() as c:
        await allocated(c)
        pods = [c.add_pod(name) for name in names]
        scope = anyio.CancelScope()

        async def one(pod: PodTarget) -> None:
            with scope if pod.name == "cancelled" else anyio.CancelScope():
                await c.allocate(None, pod)

        async with anyio.create_task_group() as tasks:

            def arrived() -> None:
                while pods:
                    tasks.start_soon(one, pods.pop(0))
                scope.cancel()

            c.faults.on_update = arrived
            tasks.start_soon(reserve, c, c.add_pod("q"))
        assert consumers(c) == {"p", "q", "other"}


async def test_claim_that_is_not_allocated_any_longer() -> None:
    async with claims() as c:
        await allocated(c)
        pods = [c.add_pod("q"), c.add_pod("s")]
        c.set_status(allocation=None, reservedFor=None)
        elsewhere = WriteRejected("claim d/c got deallocated elsewhere in the meantime", 409)
        assert await reserve(c, *pods) == [elsewhere, elsewhere]


async def test_claim_has_room_for_some_of_the_pods() -> None:
    async with claims() as c:
        await allocated(c)
        others = [{"resource": "pods", "name": f"x{n}", "uid": f"x{n}"} for n in range(255)]
        c.set_status(reservedFor=others)
        outcomes = await reserve(c, c.add_pod("q"), c.add_pod("s"))
        assert [type(outcome) for outcome in outcomes] == [WriteSucceeded, WriteRejected]
        assert len(consumers(c)) == 256


async def test_failures_name_the_claim() -> None:
    async with claims() as c:
        await allocated(c)
        pod = c.add_pod("q")
        for _ in range(20):
            c.faults.drop(verb="patch", resource="resourceclaims/status", after_effect=False)
        (outcome,) = await reserve(c, pod)
        assert isinstance(outcome, OutcomeUnknown)
        assert outcome.message.startswith("add reservation to claim d/c: ")


async def test_claim_without_a_timestamp_is_updated() -> None:
    """The update sets it, which kube-scheduler attempts, too."""
    async with claims() as c:
        timeless: dict[str, object] = {"devices": {"results": []}}
        c.set_status(allocation=timeless)
        c.show()
        (outcome,) = await reserve(c, c.pod)
        assert c.requests == ["update resourceclaims/status"]
        assert isinstance(outcome, WriteRejected)
