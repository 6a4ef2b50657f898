"""Writes to pods with the embedded API server, with and without faults."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import pytest

from asched.apiserver.auth import SCHEDULER
from asched.apiserver.cluster import EmbeddedCluster
from asched.apiserver.http import ApiServer
from asched.kube.client import ApiClient
from asched.kube.pod_writer import PodTarget, PodWriter
from asched.kube.timing import RetryPolicy
from asched.kube.write_outcomes import (
    BoundElsewhere,
    ObjectGone,
    OutcomeUnknown,
    WriteRejected,
    WriteSucceeded,
)
from tests.kube.harness import (
    Answer,
    ManualClock,
    ScriptedServer,
    client_for,
    in_turn,
    json_bytes,
    refusal,
)

WHEN = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
STAMP = "2026-01-02T03:04:05Z"


class World:
    """An API server, a client with the scheduler's permissions, and a writer."""

    def __init__(self, server: ApiServer, client: ApiClient, clock: ManualClock) -> None:
        self.cluster = server.cluster
        self.faults = server.faults
        self.client = client
        self.clock = clock
        self.writer = PodWriter(client)

    def pod(self, name: str = "p", **spec: Any) -> PodTarget:
        body = {"metadata": {"name": name}, "spec": pod_spec() | spec}
        created = self.cluster.create("pods", body)
        return PodTarget("default", name, created["metadata"]["uid"])

    def stored(self, name: str = "p") -> dict[str, Any]:
        return self.cluster.get("pods", name, namespace="default")

    def condition(self, kind: str, name: str = "p") -> dict[str, Any]:
        (found,) = [c for c in self.stored(name)["status"]["conditions"] if c["type"] == kind]
        return dict(found)


def pod_spec() -> dict[str, Any]:
    return {"containers": [{"name": "c", "image": "x"}]}


@asynccontextmanager
async def world() -> AsyncIterator[World]:
    clock = ManualClock()
    server = ApiServer(EmbeddedCluster(seed=1), tokens={"t": SCHEDULER})
    async with (
        server.run(),
        client_for(server.url, clock, token="t", retry=RetryPolicy(attempts=3)) as client,
    ):
        yield World(server, client, clock)


async def test_binding() -> None:
    async with world() as w:
        assert await w.writer.bind(w.pod(), "n1") == WriteSucceeded()
        assert w.stored()["spec"]["nodeName"] == "n1"
        assert w.clock.sleeps_s == []


async def test_binding_again_to_the_same_node_is_a_success() -> None:
    async with world() as w:
        pod = w.pod()
        assert await w.writer.bind(pod, "n1") == WriteSucceeded()
        assert await w.writer.bind(pod, "n1") == WriteSucceeded()


async def test_pod_bound_elsewhere_names_node() -> None:
    async with world() as w:
        pod = w.pod()
        w.cluster.bind("default", "p", "theirs")
        outcome = await w.writer.bind(pod, "ours")
        assert outcome == BoundElsewhere("theirs")
        assert w.stored()["spec"]["nodeName"] == "theirs"


async def test_missing_or_replaced_pod_is_gone() -> None:
    async with world() as w:
        assert isinstance(await w.writer.bind(PodTarget("default", "none", "u"), "n"), ObjectGone)
        w.pod()
        assert isinstance(
            await w.writer.bind(PodTarget("default", "p", "old-uid"), "n"), ObjectGone
        )
        assert "nodeName" not in w.stored()["spec"]


async def test_gated_pod_is_rejected_with_servers_message() -> None:
    async with world() as w:
        outcome = await w.writer.bind(w.pod(schedulingGates=[{"name": "g"}]), "n")
        assert isinstance(outcome, WriteRejected)
        assert outcome.status == 409
        assert "non-empty .spec.schedulingGates" in outcome.message


async def test_lost_response_is_read_back_as_success() -> None:
    async with world() as w:
        w.faults.drop(resource="pods/binding", after_effect=True)
        assert await w.writer.bind(w.pod(), "n1") == WriteSucceeded()
        assert w.faults.injected == 1


async def test_lost_request_has_unknown_outcome() -> None:
    """The pod is not bound, but the request may still arrive."""
    async with world() as w:
        pod = w.pod()
        w.faults.drop(resource="pods/binding")
        outcome = await w.writer.bind(pod, "n1")
        assert isinstance(outcome, OutcomeUnknown)
        assert "nodeName" not in w.stored()["spec"]
        assert await w.writer.bind(pod, "n1") == WriteSucceeded()


@pytest.mark.parametrize("code", [500, 503])
async def test_server_error_is_read_back(code: int) -> None:
    async with world() as w:
        w.faults.respond(code, resource="pods/binding")
        outcome = await w.writer.bind(w.pod(), "n1")
        assert isinstance(outcome, WriteRejected)
        assert outcome.status == code


async def test_gateway_timeout_has_unknown_outcome() -> None:
    """As the timeout filter of kube-apiserver while the handler continues."""
    async with world() as w:
        pod = w.pod()
        w.faults.respond(504, resource="pods/binding")
        assert isinstance(await w.writer.bind(pod, "n1"), OutcomeUnknown)
        w.cluster.bind("default", "p", "n1")
        w.faults.respond(504, resource="pods/binding")
        assert await w.writer.bind(pod, "n1") == WriteSucceeded()


@pytest.mark.parametrize("code", [500, 409])
async def test_etcd_timeout_has_unknown_outcome(code: int) -> None:
    """etcd may apply the write later. For a Binding kube-apiserver reports a conflict."""
    why = 'Operation cannot be fulfilled on pods/binding "p": etcdserver: request timed out'
    unbound = Answer(200, json_bytes({"metadata": {"uid": "u"}, "spec": {}}))
    async with (
        ScriptedServer(in_turn(refusal(code, "", why), unbound)).run() as server,
        client_for(server.url, ManualClock(), retry=RetryPolicy(attempts=2)) as client,
    ):
        outcome = await PodWriter(client).bind(PodTarget("a", "p", "u"), "n")
    assert isinstance(outcome, OutcomeUnknown)


async def test_failed_read_back_has_unknown_outcome() -> None:
    async with world() as w:
        w.faults.drop(resource="pods/binding", after_effect=True)
        w.faults.respond(500, count=3, verb="get", resource="pods")
        outcome = await w.writer.bind(w.pod(), "n1")
        assert isinstance(outcome, OutcomeUnknown)
        assert len(w.clock.sleeps_s) == 2


async def test_throttled_binding_is_retried() -> None:
    async with world() as w:
        w.faults.respond(429, resource="pods/binding", retry_after_s=4)
        assert await w.writer.bind(w.pod(), "n1") == WriteSucceeded()
        assert w.clock.now_s >= 4


async def test_unreachable_server_rejects_binding() -> None:
    async with ScriptedServer(in_turn(refusal(500, ""))).run() as server:
        url = server.url
    async with client_for(url, ManualClock(), retry=RetryPolicy(attempts=2)) as client:
        outcome = await PodWriter(client).bind(PodTarget("a", "p", "u"), "n")
    assert isinstance(outcome, WriteRejected)
    assert outcome.status == 0


async def test_unschedulable_condition() -> None:
    async with world() as w:
        pod = w.pod()
        outcome = await w.writer.patch_unschedulable(
            pod,
            message="0/3 nodes are available: 3 Insufficient cpu.",
            reason="Unschedulable",
            last_transition=WHEN,
            nominated_node="n2",
        )
        assert outcome == WriteSucceeded()
        condition = w.condition("PodScheduled")
        assert condition["status"] == "False"
        assert condition["reason"] == "Unschedulable"
        assert condition["message"] == "0/3 nodes are available: 3 Insufficient cpu."
        assert condition["lastTransitionTime"] == STAMP
        assert w.stored()["status"]["nominatedNodeName"] == "n2"


async def test_nomination_is_kept_set_and_cleared() -> None:
    async with world() as w:
        pod = w.pod()
        assert await w.writer.nominate(pod, "n1") == WriteSucceeded()
        await w.writer.patch_unschedulable(
            pod, message="m", reason="SchedulerError", last_transition=WHEN
        )
        assert w.stored()["status"]["nominatedNodeName"] == "n1"
        assert await w.writer.nominate(pod, "") == WriteSucceeded()
        assert "nominatedNodeName" not in w.stored()["status"]
        assert w.condition("PodScheduled")["reason"] == "SchedulerError"


async def test_patch_of_missing_or_replaced_pod() -> None:
    async with world() as w:
        assert isinstance(
            await w.writer.nominate(PodTarget("default", "none", "u"), "n"), ObjectGone
        )
        w.pod()
        assert isinstance(
            await w.writer.nominate(PodTarget("default", "p", "old"), "n"), ObjectGone
        )
        assert "nominatedNodeName" not in w.stored()["status"]


async def test_patch_is_retried() -> None:
    async with world() as w:
        w.faults.drop(resource="pods/status", after_effect=True)
        w.faults.respond(500, resource="pods/status")
        assert await w.writer.nominate(w.pod(), "n1") == WriteSucceeded()
        assert len(w.clock.sleeps_s) == 2


async def test_eviction_sets_condition_then_deletes() -> None:
    async with world() as w:
        victim = w.pod()
        await w.writer.bind(victim, "n1")
        assert await w.writer.evict(victim, now=WHEN, scheduler_name="mine") == WriteSucceeded()
        condition = w.condition("DisruptionTarget")
        assert condition["status"] == "True"
        assert condition["reason"] == "PreemptionByScheduler"
        assert condition["message"] == "mine: preempting to accommodate a higher priority pod"
        assert condition["lastTransitionTime"] == STAMP
        assert "deletionTimestamp" in w.stored()["metadata"]


async def test_eviction_of_missing_victim_succeeds() -> None:
    async with world() as w:
        assert await w.writer.evict(PodTarget("default", "none", "u"), now=WHEN) == WriteSucceeded()


async def test_eviction_does_not_delete_replacement_pod() -> None:
    async with world() as w:
        w.pod()
        assert (
            await w.writer.evict(PodTarget("default", "p", "old-uid"), now=WHEN) == WriteSucceeded()
        )
        assert "deletionTimestamp" not in w.stored()["metadata"]
        assert "DisruptionTarget" not in str(w.stored()["status"])


async def test_victim_without_condition_is_not_deleted() -> None:
    async with world() as w:
        victim = w.pod()
        w.faults.respond(500, count=3, resource="pods/status")
        assert isinstance(await w.writer.evict(victim, now=WHEN), OutcomeUnknown)
        assert "deletionTimestamp" not in w.stored()["metadata"]


async def test_deletion_with_lost_response_is_retried() -> None:
    async with world() as w:
        victim = w.pod()
        w.faults.drop(verb="delete", after_effect=True)
        assert await w.writer.evict(victim, now=WHEN) == WriteSucceeded()
        assert w.cluster.count("pods") == 0


async def test_longest_pod_name() -> None:
    async with world() as w:
        name = ".".join(["p" * 62] * 4)[:253]
        assert await w.writer.bind(w.pod(name), "n" * 253) == WriteSucceeded()
        assert w.stored(name)["spec"]["nodeName"] == "n" * 253


def test_pod_ref_from_key() -> None:
    assert PodTarget.of("ns/name", "u") == PodTarget("ns", "name", "u")
    assert PodTarget.of("ns/name", "u").key == "ns/name"
