"""A node that goes while a pod is on its way there is not bound to any more; and a pod that may be bound, or
may yet be, keeps its place."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import msgspec

from asched.daemon.patient_binder import LATEST_ARRIVAL_S, PatientBinder
from asched.daemon.pauses import Pauses
from asched.framework.pod_info import PodInfo
from asched.framework.status import Code
from asched.kube.client import ApiClient
from asched.kube.credentials import Credentials, FixedCredentials
from asched.kube.errors import NoAnswerError
from asched.kube.http1 import HttpAnswer
from asched.kube.timing import Backoff, RetryPolicy
from asched.kube.transport import ApiRequest, OpenAnswer
from asched.kube.volume_writers import VolumeWriter
from asched.kube.writers import PodWriter
from asched.model.meta import ObjectMeta
from asched.model.pod import Pod
from tests.kube.harness import ManualClock

POD = PodInfo(Pod(metadata=ObjectMeta(name="p", namespace="d", uid="u")))
GONE = "node n is gone since the pod was assigned"


class NodeThatGoes:
    """A transport that answers as told, at whose first request the node goes."""

    stays = False

    def __init__(self, *answers: Callable[[], HttpAnswer]) -> None:
        self.nodes = {"n"}
        self.clock = ManualClock()
        self.asked: list[str] = []
        self._answers = [*answers]

    async def exchange(self, credentials: Credentials, request: ApiRequest) -> HttpAnswer:
        if not self.stays:
            self.nodes.clear()
        self.asked.append(request.method)
        return self._answers.pop(0)()

    async def open(self, credentials: Credentials, request: ApiRequest) -> OpenAnswer:
        raise NotImplementedError("nothing is watched")

    def binder(self, perhaps_begun_s: float | None = None) -> PatientBinder:
        clock, random = self.clock, Random(1)
        credentials = Credentials("http://127.0.0.1")
        client = ApiClient(
            self, FixedCredentials(credentials), credentials, clock=clock, random=random,
            budget=None, retry=RetryPolicy(attempts=2),
        )  # fmt: skip
        return PatientBinder(
            PodWriter(client), VolumeWriter(client), Pauses(clock), clock,
            Backoff(RetryPolicy(), random), self.nodes.__contains__, perhaps_begun_s,
        )  # fmt: skip


class NodeThatStays(NodeThatGoes):
    stays = True


def status(code: int) -> Callable[[], HttpAnswer]:
    return lambda: HttpAnswer(code, b"{}", None, reusable=True)


def pod_on(node: str) -> Callable[[], HttpAnswer]:
    body = msgspec.json.encode({"metadata": {"uid": "u"}, "spec": {"nodeName": node}})
    return lambda: HttpAnswer(200, body, None, reusable=True)


def silence() -> HttpAnswer:
    raise NoAnswerError("connection reset by peer", sent=True)


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
    assert network.clock.monotonic_s() - begin_s >= LATEST_ARRIVAL_S


async def test_what_was_sent_may_arrive_when_the_node_is_gone_already() -> None:
    network = NodeThatGoes(*[silence] * 3, *[pod_on("")] * 5, pod_on("n"))
    assert (await network.binder().bind(POD, "n")).is_success
    assert network.asked.count("POST") == 1


async def test_what_a_process_before_may_have_sent() -> None:
    network = NodeThatGoes(*[pod_on("")] * 3, pod_on("n"))
    network.nodes.clear()
    binder = network.binder(perhaps_begun_s=network.clock.monotonic_s())
    assert (await binder.bind(POD, "n")).is_success
    assert network.asked == ["GET"] * 4


async def test_a_server_that_puts_off_says_nothing_of_the_try_before() -> None:
    unread = [silence] * 3
    network = NodeThatStays(*unread, status(429), status(429), status(201))
    assert (await network.binder().bind(POD, "n")).is_success
    assert network.asked == ["POST", "GET", "GET", "POST", "POST", "POST"]


async def test_what_was_not_answered_may_come_after_it_was_looked_for() -> None:
    network = NodeThatStays(silence, pod_on(""), status(504), pod_on(""), status(201))
    assert (await network.binder().bind(POD, "n")).is_success
    assert network.asked == ["POST", "GET", "POST", "GET", "POST"]


async def test_a_failure_that_was_answered_leaves_no_doubt() -> None:
    network = NodeThatStays(status(504), pod_on(""))
    answer = await network.binder().bind(POD, "n")
    assert answer.code is Code.ERROR
    assert network.asked == ["POST", "GET"]


async def test_who_is_refused_at_last_looks_whether_it_was_bound_before() -> None:
    network = NodeThatStays(silence, silence, silence, status(403), pod_on("n"))
    assert (await network.binder().bind(POD, "n")).is_success
    assert network.asked == ["POST", "GET", "GET", "POST", "GET"]
