"""Deleting a node fails its bindings, unless a request may still take effect."""

from __future__ import annotations

from asched.daemon.effects.reconciler import MAX_REQUEST_AGE_S
from asched.framework.status import Code
from tests.daemon.scripted_api import (
    POD,
    ScriptedApi,
    ScriptedApiWithoutNode,
    no_response,
    pod_on,
    status,
)

NODE_DELETED = "node n was removed after the pod was assigned"


async def test_node_deleted_before_first_request_fails_binding() -> None:
    network = ScriptedApiWithoutNode()
    network.nodes.clear()
    answer = await network.binder().bind(POD, "n")
    assert (answer.code, answer.message) == (Code.ERROR, NODE_DELETED)
    assert not network.requests


async def test_node_deleted_after_rejected_request_fails_binding() -> None:
    network = ScriptedApiWithoutNode(status(429))
    answer = await network.binder().bind(POD, "n")
    assert answer.code is Code.ERROR
    assert network.requests == ["POST"]


async def test_node_deleted_while_outcome_is_unknown_reads_pod_without_retry() -> None:
    network = ScriptedApiWithoutNode(
        no_response, no_response, no_response, no_response, no_response, pod_on("n")
    )
    assert (await network.binder().bind(POD, "n")).is_success
    assert network.requests == ["POST", *["GET"] * 5]

    network = ScriptedApiWithoutNode(*[no_response] * 3, *[pod_on("")] * 1000)
    binder = network.binder()
    begin_s = network.clock.monotonic_s()
    answer = await binder.bind(POD, "n")
    assert (answer.code, answer.message) == (Code.ERROR, NODE_DELETED)
    assert {*network.requests[1:]} == {"GET"}
    # Not before the API server drops the request.
    assert network.clock.monotonic_s() - begin_s >= MAX_REQUEST_AGE_S


async def test_request_may_take_effect_after_node_is_deleted() -> None:
    network = ScriptedApiWithoutNode(*[no_response] * 3, *[pod_on("")] * 5, pod_on("n"))
    assert (await network.binder().bind(POD, "n")).is_success
    assert network.requests.count("POST") == 1


async def test_request_of_previous_process_is_resolved() -> None:
    network = ScriptedApiWithoutNode(*[pod_on("")] * 3, pod_on("n"))
    network.nodes.clear()
    binder = network.binder(possibly_sent_at_s=network.clock.monotonic_s())
    assert (await binder.bind(POD, "n")).is_success
    assert network.requests == ["GET"] * 4


async def test_rejected_retry_does_not_resolve_first_request() -> None:
    unread = [no_response] * 3
    network = ScriptedApi(*unread, status(429), status(429), status(201))
    assert (await network.binder().bind(POD, "n")).is_success
    assert network.requests == ["POST", "GET", "GET", "POST", "POST", "POST"]


async def test_unanswered_request_may_take_effect_after_read() -> None:
    network = ScriptedApi(no_response, pod_on(""), status(500), pod_on(""), status(201))
    assert (await network.binder().bind(POD, "n")).is_success
    assert network.requests == ["POST", "GET", "POST", "GET", "POST"]
