"""DynamicResources with an API server: allocation, binding, failures and restarts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from asched.apiserver.faults import Fault, FaultKind
from tests.daemon.world import TIMEOUT_S, World, world
from tests.plugins.dynamic_resources.devices import RESOURCE, DeviceWorld

CLAIM_STATUS = "resourceclaims/status"
CONDITIONS = {
    "bindingConditions": ["ready"], "bindingFailureConditions": ["broken"], "bindsToNode": True,
}  # fmt: skip


@asynccontextmanager
async def device_world(
    folder: Path, nodes: int = 1, devices: int = 1
) -> AsyncIterator[tuple[World, DeviceWorld]]:
    async with world(folder, nodes=nodes) as w:
        found = DeviceWorld(w)
        for number in range(nodes):
            found.add_slice(f"n{number}", devices)
        yield w, found


async def test_claim_is_allocated_and_reserved_before_the_pod_is_bound(tmp_path: Path) -> None:
    async with device_world(tmp_path) as (w, d), w.daemon():
        d.add_class()
        d.add_claim("c")
        d.add_pod("p", "c")
        await w.until(lambda: w.node_of("p") == "n0")
        assert d.devices("c") == [("n0", "gpu-0")]
        assert d.consumers("c") == ["p"]
        assert d.claim("c")["metadata"]["finalizers"] == [
            "resource.kubernetes.io/delete-protection"
        ]
        assert d.claim("c")["status"]["allocation"]["allocationTimestamp"]


async def test_pods_that_compete_get_different_devices(tmp_path: Path) -> None:
    async with device_world(tmp_path, nodes=2, devices=4) as (w, d), w.daemon():
        d.add_class()
        for number in range(12):
            d.add_claim(f"c{number}")
            d.add_pod(f"p{number}", f"c{number}")
        await w.until(lambda: len(w.unbound()) == 4 and all(map(w.message, w.unbound())))
        held = [device for claim in d.claims() for device in d.devices(claim["metadata"]["name"])]
        assert len(held) == len(set(held)) == 8
        assert "2 cannot allocate all claims" in w.message(w.unbound()[0])


async def test_pod_waits_for_its_claim(tmp_path: Path) -> None:
    async with device_world(tmp_path) as (w, d), w.daemon():
        d.add_class()
        d.add_pod("p", "c")
        w.add_pod("other")
        await w.until(lambda: w.node_of("other") != "")
        assert not w.node_of("p")
        d.add_claim("c")
        await w.until(lambda: w.node_of("p") == "n0")


async def test_claim_that_no_node_can_use_is_deallocated(tmp_path: Path) -> None:
    async with device_world(tmp_path, nodes=2) as (w, d):
        d.add_class()
        d.add_claim("c")
        d.allocate("c", "n0")
        d.add_pod("p", "c", nodeSelector={"kubernetes.io/hostname": "n1"})
        async with w.daemon():
            await w.until(lambda: w.node_of("p") == "n1")
        assert d.devices("c") == [("n1", "gpu-0")]


async def test_deallocation_that_fails_is_decided_again(tmp_path: Path) -> None:
    async with device_world(tmp_path, nodes=2) as (w, d):
        d.add_class()
        d.add_claim("c")
        d.allocate("c", "n0")
        d.add_pod("p", "c", nodeSelector={"kubernetes.io/hostname": "n1"})
        w.faults.respond(403, verb="update", resource=CLAIM_STATUS)
        async with w.daemon():
            await w.until(lambda: "deallocation of ResourceClaim completed" in w.message("p"))
            with anyio.fail_after(60):
                while not w.faults.injected:  # changes no object
                    await anyio.lowlevel.checkpoint()
            assert d.devices("c") == [("n0", "gpu-0")]
            d.add_slice("n2", 1)  # requeues the pod
            await w.until(lambda: w.node_of("p") == "n1")


async def test_deallocation_is_continued_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("asched.daemon.daemon.DRAIN_S", 0.05)
    async with device_world(tmp_path, nodes=2) as (w, d):
        d.add_class()
        d.add_claim("c")
        d.allocate("c", "n0")
        d.add_pod("p", "c", nodeSelector={"kubernetes.io/hostname": "n1"})
        w.faults.add(Fault(FaultKind.DELAY, 1, "update", CLAIM_STATUS, delay_s=3600.0))
        async with w.daemon():
            await w.until(lambda: "deallocation of ResourceClaim completed" in w.message("p"))
        assert d.devices("c") == [("n0", "gpu-0")]
        async with w.daemon():
            await w.until(lambda: w.node_of("p") == "n1")


async def test_claim_is_released_if_the_binding_fails(tmp_path: Path) -> None:
    async with device_world(tmp_path) as (w, d):
        d.add_class()
        d.add_claim("c")
        d.add_pod("p", "c")
        w.faults.respond(403, verb="create", resource="pods/binding")
        released: list[bool] = []
        w.cluster.listen(
            "resourceclaims.resource.k8s.io",
            lambda _: released.append(bool(d.devices("c")) and not d.consumers("c")),
        )
        async with w.daemon():
            await w.until(lambda: w.node_of("p") == "n0")
        assert any(released)
        assert d.consumers("c") == ["p"]


async def test_extended_resource_is_served_by_a_claim(tmp_path: Path) -> None:
    async with device_world(tmp_path, devices=2) as (w, d), w.daemon():
        d.add_class(RESOURCE)
        w.add_pod(
            "p",
            containers=[
                {"name": "c", "image": "i", "resources": {"limits": {RESOURCE: "2", "cpu": "1"}}}
            ],
        )
        await w.until(lambda: w.node_of("p") == "n0")
        (claim,) = d.claims()
        name = claim["metadata"]["name"]
        assert name.startswith("p-extended-resources-")
        assert d.devices(name) == [("n0", "gpu-0"), ("n0", "gpu-1")]
        status = w.pod("p")["status"]["extendedResourceClaimStatus"]
        assert status["resourceClaimName"] == name
        assert status["requestMappings"] == [
            {"containerName": "c", "resourceName": RESOURCE, "requestName": "container-0-request-1"}
        ]


async def test_special_claim_is_deleted_if_the_binding_fails(tmp_path: Path) -> None:
    async with device_world(tmp_path) as (w, d):
        d.add_class(RESOURCE)
        containers = [{"name": "c", "image": "i", "resources": {"limits": {RESOURCE: "1"}}}]
        w.add_pod("p", containers=containers)
        w.faults.respond(403, verb="create", resource="pods/binding")
        deleted: list[str] = []
        w.cluster.listen("resourceclaims.resource.k8s.io", lambda c: deleted.append(str(c.type)))
        async with w.daemon():
            await w.until(lambda: w.node_of("p") == "n0")
        assert any("DELETED" in each.upper() for each in deleted)
        assert len(d.claims()) == 1


async def test_binding_continues_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("asched.daemon.daemon.DRAIN_S", 0.05)
    # The time in which an earlier binding may still take effect.
    monkeypatch.setattr("asched.daemon.effects.reconciler.MAX_REQUEST_AGE_S", 0.2)
    async with device_world(tmp_path, devices=2) as (w, d):
        d.add_class()
        d.add_claim("c")
        d.add_pod("p", "c")
        w.faults.add(Fault(FaultKind.DELAY, 1, "create", "pods/binding", delay_s=3600.0))
        sent = anyio.Event()
        w.faults.on_request = lambda _, resource: sent.set() if resource == "pods/binding" else None
        async with w.daemon():
            with anyio.fail_after(TIMEOUT_S):
                await sent.wait()
        assert d.consumers("c") == ["p"]
        async with w.daemon():
            d.add_claim("other")
            d.add_pod("q", "other")
            await w.until(lambda: not w.unbound())
        assert d.devices("c") != d.devices("other")
        assert d.consumers("c") == ["p"]


async def test_pod_waits_for_binding_conditions(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=1) as w, w.daemon():
        d = DeviceWorld(w)
        d.add_slice("n0", 1, **CONDITIONS)
        d.add_class()
        d.add_claim("c")
        d.add_pod("p", "c")
        await w.until(lambda: d.consumers("c") == ["p"])
        assert not w.node_of("p")
        d.report("c", "n0", "ready", "Done")
        await w.until(lambda: w.node_of("p") == "n0")


async def test_devices_are_allocated_again_if_their_driver_reports_a_failure(
    tmp_path: Path,
) -> None:
    async with world(tmp_path, nodes=1) as w, w.daemon():
        d = DeviceWorld(w)
        d.add_slice("n0", 1, **CONDITIONS)
        d.add_class()
        d.add_claim("c")
        d.add_pod("p", "c")
        await w.until(lambda: d.consumers("c") == ["p"])
        d.report("c", "n0", "broken", "NoLink", 'cable "7" is loose')
        expected = 'device binding failed: claim=c, reason=NoLink, message="cable \\"7\\" is loose"'
        await w.until(lambda: expected in w.message("p"))
        # The failed allocation is removed, with what the driver reported about it.
        await w.until(
            lambda: d.consumers("c") == ["p"] and not d.claim("c")["status"].get("devices")
        )
        assert not w.node_of("p")
        d.report("c", "n0", "ready", "Done")
        await w.until(lambda: w.node_of("p") == "n0")


async def test_write_without_an_answer_keeps_its_devices(tmp_path: Path) -> None:
    async with device_world(tmp_path) as (w, d):
        d.add_class()
        d.add_claim("c")
        d.add_claim("other")
        d.add_pod("p", "c")
        w.faults.add(Fault(FaultKind.DROP_AFTER, 1, "update", CLAIM_STATUS))
        async with w.daemon():
            await w.until(lambda: d.consumers("c") == ["p"])
            d.add_pod("q", "other")
            await w.until(lambda: w.node_of("p") == "n0" and w.message("q") != "")
        assert not d.devices("other")


@pytest.mark.parametrize("restart", [False, True])
async def test_device_is_free_once_another_client_deallocates_its_claim(
    tmp_path: Path, restart: bool
) -> None:
    async with device_world(tmp_path) as (w, d):
        d.add_class()
        d.add_claim("c")
        d.add_claim("other")
        d.add_pod("p", "c")
        async with w.daemon():
            await w.until(lambda: w.node_of("p") == "n0")
            d.set_status("c", {"allocation": None, "reservedFor": None})
            if not restart:
                d.add_pod("q", "other")
                await w.until(lambda: w.node_of("q") == "n0")
        if restart:
            async with w.daemon():
                d.add_pod("q", "other")
                await w.until(lambda: w.node_of("q") == "n0")
        assert d.devices("other") == [("n0", "gpu-0")]
        assert not d.devices("c")
