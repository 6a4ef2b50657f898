"""The fake client for plugins of the binding cycle."""

from __future__ import annotations

from typing import ClassVar

import pytest

from asched.framework import (
    SUCCESS,
    BindingClient,
    ClaimRef,
    NotPermitted,
    Permission,
    PodInfo,
    PreBindPlugin,
    Status,
)
from asched.testing import FakeBindingClient, RecordedRequest, claim, instance, pod, volume


class Waits(PreBindPlugin):
    """Waits until the pod's claim has a volume, and annotates the pod."""

    name: ClassVar[str] = "Waits"
    api_version: ClassVar[int] = 1
    needs: ClassVar[frozenset[Permission]] = frozenset({
        Permission.READ_CLAIM, Permission.ANNOTATE, Permission.READ_VOLUME,
    })  # fmt: skip

    async def pre_bind(self, client: BindingClient, pod: PodInfo, node_name: str) -> Status:
        ref = ClaimRef(pod.namespace, "data", f"{pod.namespace}/data")
        found = ""

        async def bound() -> Status | None:
            nonlocal found
            now = await client.read_claim(ref)
            found = "" if now is None else now.spec.volume_name
            return SUCCESS if found else None

        if await client.wait_until(bound, client.context.remaining_s) is None:
            return Status.error("no volume in time")
        assert await client.read_volume(found) is not None
        if pod.name == "greedy":
            await client.bind(pod, node_name)
        return await client.annotate(pod, {"volume": found})


CLUSTER = [claim("data", volume="v"), volume("v")]


async def test_client_records_requests() -> None:
    client = FakeBindingClient(Waits, CLUSTER)
    assert await instance(Waits).pre_bind(client, PodInfo(pod("p")), "n") is SUCCESS
    assert client.requests == [
        RecordedRequest(Permission.READ_CLAIM, "default/data"),
        RecordedRequest(Permission.READ_VOLUME, "v"),
        RecordedRequest(Permission.ANNOTATE, "default/p", {"volume": "v"}),
    ]


async def test_client_returns_given_responses() -> None:
    gone = Status.error("the pod is gone")
    client = FakeBindingClient(Waits, CLUSTER, {Permission.ANNOTATE: gone})
    assert await instance(Waits).pre_bind(client, PodInfo(pod("p")), "n") is gone
    nothing = await instance(Waits).pre_bind(FakeBindingClient(Waits), PodInfo(pod("p")), "n")
    assert nothing.message == "no volume in time"


async def test_undeclared_request_is_rejected() -> None:
    with pytest.raises(NotPermitted, match="Waits requests bind, which its needs do not include"):
        await instance(Waits).pre_bind(
            FakeBindingClient(Waits, CLUSTER), PodInfo(pod("greedy")), "n"
        )
