"""The elector over HTTP: requests, responses and timing."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from asched.apiserver.cluster import EmbeddedCluster
from asched.apiserver.http import ApiServer
from asched.apiserver.storage import StoreChange
from asched.daemon.ha.election import LeaseTiming
from asched.daemon.ha.lease import LeaderElector, LeaseName
from asched.kube.connection import connect
from asched.kube.errors import NoResponseError
from tests.daemon.world import ObservedFaults, world
from tests.kube.harness import Answer, Asked, Script, json_bytes, refusal
from tests.kube.virtual_time import HANGS, VirtualClock, scripted_client, virtual_clock

LEASE = LeaseName("kube-system", "kube-scheduler")


class Lease:
    """A script of an API server with one lease."""

    def __init__(self, spec: dict[str, Any] | None = None) -> None:
        self.spec = spec
        self.version = 7
        self.asked: list[Asked] = []
        self.labels = {"kept": "yes"}
        self.hangs = False

    def __call__(self, asked: Asked) -> Answer:
        self.asked.append(asked)
        if self.hangs:
            return HANGS
        if asked.method == "GET":
            return refusal(404, "NotFound") if self.spec is None else self._answer(200)
        sent = json.loads(asked.body)
        if asked.method == "POST":
            assert self.spec is None
            return self._written(sent, 201)
        if sent["metadata"]["resourceVersion"] != str(self.version):
            return refusal(409, "Conflict")
        assert sent["metadata"]["labels"] == self.labels, "what is not ours to change was changed"
        return self._written(sent, 200)

    @property
    def methods(self) -> list[str]:
        return [asked.method for asked in self.asked]

    def _written(self, sent: dict[str, Any], status: int) -> Answer:
        self.spec = sent["spec"]
        self.version += 1
        return self._answer(status)

    def _answer(self, status: int) -> Answer:
        metadata = {
            "name": LEASE.name,
            "namespace": LEASE.namespace,
            "resourceVersion": str(self.version),
            "labels": self.labels,
        }
        return Answer(status, json_bytes({"metadata": metadata, "spec": self.spec}))


@asynccontextmanager
async def elector(
    lease: Script, identity: str = "us"
) -> AsyncIterator[tuple[LeaderElector, VirtualClock]]:
    async with virtual_clock() as clock:
        yield LeaderElector(scripted_client(lease, clock), LEASE, identity, LeaseTiming()), clock


async def test_missing_lease_is_created() -> None:
    lease = Lease()
    async with elector(lease) as (ours, _):
        await ours.acquire()
        assert ours.leads()
    assert lease.methods == ["GET", "POST"]
    assert lease.spec == {
        "holderIdentity": "us",
        "leaseDurationSeconds": 15,
        "acquireTime": "2026-01-01T00:00:00.000000Z",
        "renewTime": "2026-01-01T00:00:00.000000Z",
        "leaseTransitions": 0,
    }


async def test_released_lease_is_acquired_immediately() -> None:
    lease = Lease({"holderIdentity": "", "leaseDurationSeconds": 1, "leaseTransitions": 4})
    async with elector(lease) as (ours, clock):
        await ours.acquire()
    assert clock.now_s == 0
    assert lease.spec is not None
    assert lease.spec["leaseTransitions"] == 5


async def test_foreign_lease_expires_from_observation_time() -> None:
    long_ago = "2001-01-01T00:00:00.000000Z"
    lease = Lease({"holderIdentity": "them", "leaseDurationSeconds": 20, "renewTime": long_ago})
    async with elector(lease) as (ours, clock):
        await ours.acquire()
    assert 20 <= clock.now_s < 20.1


async def test_renewal_without_read_keeps_other_fields() -> None:
    lease = Lease()
    async with elector(lease) as (ours, clock), anyio.create_task_group() as tasks:
        await ours.acquire()
        tasks.start_soon(ours.keep)
        await clock.sleep(61)
        assert ours.leads()
        tasks.cancel_scope.cancel()
    assert lease.methods == ["GET", "POST", *["PUT"] * 30]
    assert ours.slow_renewals == 0


async def test_leader_without_responses_leads_until_renew_deadline() -> None:
    lease = Lease()
    async with elector(lease) as (ours, clock):
        await ours.acquire()
        lease.hangs = True
        began_s = clock.now_s
        await ours.keep()
        assert not ours.leads()
        assert clock.now_s == began_s + 10
        assert ours.lease_left_s() == 5


async def test_released_lease_has_no_holder() -> None:
    lease = Lease()
    async with elector(lease) as (ours, _):
        await ours.acquire()
        assert await ours.release()
        assert not ours.leads()
    assert lease.spec is not None
    assert lease.spec["holderIdentity"] == ""
    assert lease.spec["leaseDurationSeconds"] == 1


async def test_lease_is_released_after_renewal_with_unknown_result() -> None:
    lease = Lease()
    async with elector(lease) as (ours, _):
        await ours.acquire()
        lease.version += 1  # carried out, and the response is lost
        assert await ours.release()
    assert lease.methods == ["GET", "POST", "PUT", "GET", "PUT"]


async def test_leader_stops_if_another_holds_lease() -> None:
    lease = Lease()
    async with elector(lease) as (ours, _):
        await ours.acquire()
        lease.spec = {"holderIdentity": "them", "leaseDurationSeconds": 15}
        lease.version += 1
        await ours.keep()
        assert not ours.leads()
        assert ours.election.holder == "them"
        assert not await ours.release()
    assert lease.spec == {"holderIdentity": "them", "leaseDurationSeconds": 15}


async def test_released_lease_is_acquired_over_http(tmp_path: Path) -> None:
    cluster, faults, watched = EmbeddedCluster(seed=1), ObservedFaults(), anyio.Event()
    server = ApiServer(cluster, faults=faults)
    holders: list[str] = []

    def note(change: StoreChange) -> None:
        holder = change.new.obj["spec"]["holderIdentity"]
        if holders[-1:] != [holder]:
            holders.append(holder)

    def on_request(verb: str, resource: str) -> None:
        if verb == "watch":
            watched.set()

    faults.on_request = on_request
    cluster.listen("leases.coordination.k8s.io", note)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(server.run())
        kubeconfig = server.kubeconfig(tmp_path / "kubeconfig")
        client = await stack.enter_async_context(connect(kubeconfig))
        other = await stack.enter_async_context(connect(kubeconfig))
        a = LeaderElector(client, LEASE, "a", LeaseTiming())
        # Without the watch it would read again after ten minutes.
        b = LeaderElector(other, LEASE, "b", LeaseTiming(3600, 1800, 600))
        with anyio.fail_after(60):
            await a.acquire()
            watched = anyio.Event()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(b.acquire)
                await watched.wait()
                assert await a.release()
        assert holders == ["a", "", "b"]
        assert b.leads()


class Permitted:
    """Leads until five seconds before the lease ends."""

    def __init__(self, left_s: float) -> None:
        self.left_s = left_s

    def leads(self) -> bool:
        return self.left_s > 5

    def lease_left_s(self) -> float:
        return self.left_s


async def test_writes_require_leadership_and_end_with_lease() -> None:
    asked: list[str] = []

    def script(request: Asked) -> Answer:
        asked.append(request.method)
        return Answer(hang=True) if request.method == "POST" else Answer(body=b"{}")

    async with virtual_clock() as clock:
        plain, permit = scripted_client(script, clock), Permitted(6.0)
        client = plain.guarded_by(permit)
        await client.request("PUT", "/x")
        assert client.may_write
        with pytest.raises(NoResponseError, match="timed out after 6 s"):
            await client.request("POST", "/x")
        permit.left_s = 5.0
        with pytest.raises(NoResponseError, match="does not lead") as refused:
            await client.request("PUT", "/x")
        assert not refused.value.sent
        assert [client.may_write, plain.may_write] == [False, True]
        await client.request("GET", "/x")
    assert asked == ["PUT", "POST", "GET"]


async def test_requests_match_recorded_server(shared_dir: Path) -> None:
    recorded = json.loads((shared_dir / "apiserver-1.36" / "exchanges.json").read_bytes())
    exchanges = {e["name"]: e for e in recorded if e["name"].startswith("lease-")}
    in_turn = [
        exchanges[name]
        for name in ("lease-get-missing", "lease-create", "lease-update", "lease-update-conflict")
    ]
    asked: list[Asked] = []

    def script(request: Asked) -> Answer:
        asked.append(request)
        if len(asked) > len(in_turn):
            return refusal(404, "NotFound")
        response = in_turn[len(asked) - 1]["response"]
        return Answer(response["status"], json_bytes(response["body"]))

    # the recorded holder
    async with elector(script, "a") as (ours, _):
        await ours.acquire()
        with anyio.fail_after(60):
            await ours.keep()
    for request, exchange in zip(asked, in_turn, strict=False):
        real = exchange["request"]
        assert (request.method, request.path) == (real["method"], real["path"])
        if "body" in real and request.body:
            sent = msgspec.json.decode(request.body)
            assert sent["apiVersion"] == real["body"]["apiVersion"]
            assert sent["kind"] == real["body"]["kind"]
            assert sent["spec"].keys() == real["body"]["spec"].keys()
            assert all(
                type(sent["spec"][key]) is type(real["body"]["spec"][key]) for key in sent["spec"]
            )
    # Other fields are written back unchanged.
    assert (
        msgspec.json.decode(asked[2].body)["metadata"] == in_turn[1]["response"]["body"]["metadata"]
    )
    assert asked[4].method == "GET", "a conflict makes it read"


async def test_unfit_replica_is_no_candidate() -> None:
    lease = Lease({"holderIdentity": "", "leaseDurationSeconds": 1})
    async with elector(lease) as (ours, clock):
        await ours.acquire(lambda: clock.now_s >= 60)
        assert 60 <= clock.now_s < 65
    assert lease.methods == ["GET", "PUT"]


class Ending(Permitted):
    """Leads at the first check, and no longer after the wait for a connection."""

    def __init__(self) -> None:
        super().__init__(6.0)

    def leads(self) -> bool:
        led, self.left_s = super().leads(), 5.0
        return led


async def test_write_is_not_sent_if_leadership_ends_during_wait(
    tmp_path: Path,
) -> None:
    async with world(tmp_path) as w, connect(w.kubeconfig) as client:
        with pytest.raises(NoResponseError, match="does not lead") as refused:
            await client.guarded_by(Ending()).request(
                "PUT", "/api/v1/namespaces/default", body=b"{}"
            )
    assert not refused.value.sent
