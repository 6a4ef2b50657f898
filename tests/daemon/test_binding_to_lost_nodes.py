"""A node that goes while a pod is on its way there is not bound to any more; and a pod that may be bound, or
may yet be, keeps its place."""

from __future__ import annotations

from asched.daemon.effects.reconciler import MAX_REQUEST_AGE_S
from asched.framework.status import Code
from tests.daemon.scripted_api import POD, NodeThatGoes, NodeThatStays, pod_on, silence, status

GONE = "node n was removed after the pod was assigned"


async def test_before_the_first_try() -> None:
    network = NodeThatGoes()
    network.nodes.clear()
    answer = await network.binder().bind(POD, "n")
    assert (answer.code, answer.message) == (Code.ERROR, GONE)
    assert not network.asked


async def test_when_the_server_has_put_it_off() -> None:
    network = NodeThatGoes(status(429))
    answer = await network.binder().bind(POD, "n")
    assert answer.code is Code.ERROR
    assert network.asked == ["POST"]


async def test_while_its_fate_is_unknown() -> None:
    """It is read until it is known, and not tried again."""
    network = NodeThatGoes(silence, silence, silence, silence, silence, pod_on("n"))
    assert (await network.binder().bind(POD, "n")).is_success
    assert network.asked == ["POST", *["GET"] * 5]

    network = NodeThatGoes(*[silence] * 3, *[pod_on("")] * 1000)
    binder = network.binder()
    begin_s = network.clock.monotonic_s()
    answer = await binder.bind(POD, "n")
    assert (answer.code, answer.message) == (Code.ERROR, GONE)
    assert {*network.asked[1:]} == {"GET"}
    # Not sooner than the API server gives a request up.
    assert network.clock.monotonic_s() - begin_s >= MAX_REQUEST_AGE_S


async def test_what_was_sent_may_arrive_when_the_node_is_gone_already() -> None:
    network = NodeThatGoes(*[silence] * 3, *[pod_on("")] * 5, pod_on("n"))
    assert (await network.binder().bind(POD, "n")).is_success
    assert network.asked.count("POST") == 1


async def test_what_a_process_before_may_have_sent() -> None:
    network = NodeThatGoes(*[pod_on("")] * 3, pod_on("n"))
    network.nodes.clear()
    binder = network.binder(possibly_sent_at_s=network.clock.monotonic_s())
    assert (await binder.bind(POD, "n")).is_success
    assert network.asked == ["GET"] * 4


async def test_a_server_that_puts_off_says_nothing_of_the_try_before() -> None:
    unread = [silence] * 3
    network = NodeThatStays(*unread, status(429), status(429), status(201))
    assert (await network.binder().bind(POD, "n")).is_success
    assert network.asked == ["POST", "GET", "GET", "POST", "POST", "POST"]


async def test_what_was_not_answered_may_come_after_it_was_looked_for() -> None:
    network = NodeThatStays(silence, pod_on(""), status(500), pod_on(""), status(201))
    assert (await network.binder().bind(POD, "n")).is_success
    assert network.asked == ["POST", "GET", "POST", "GET", "POST"]
