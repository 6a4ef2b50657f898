"""An API server that answers a binder as told, on a clock that is driven by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

import msgspec

from asched.daemon.effects.reconciler import BindingIO, BindReconciler
from asched.daemon.engine.runtime import StoppableSleep
from asched.framework.pod_info import PodInfo
from asched.kube.client import ApiClient, FixedCredentials, RenewingCredentials
from asched.kube.errors import NoResponseError
from asched.kube.pod_writer import PodWriter
from asched.kube.timing import Backoff, RetryPolicy
from asched.kube.transport import (
    ApiRequest,
    Credentials,
    HttpResponse,
    StreamingResponse,
    exchange_sequentially,
)
from asched.kube.volume_writer import VolumeWriter
from asched.model.meta import ObjectMeta
from asched.model.pod import Pod
from tests.kube.harness import ManualClock

POD = PodInfo(Pod(metadata=ObjectMeta(name="p", namespace="d", uid="pod-p")))
Answer = Callable[[], HttpResponse]


class NodeThatStays:
    """A transport that answers as told."""

    stays = True

    def __init__(
        self, *answers: Answer, reads: Answer | None = None, writes: Answer | None = None
    ) -> None:
        """``reads`` and ``writes`` are the answers to all of those that come after the ``answers``."""
        self.nodes = {"n"}
        self.clock = ManualClock()
        self.asked: list[str] = []
        self.asked_at_s: list[float] = []
        self.pauses = StoppableSleep(self.clock)
        self._answers = [*answers]
        self._reads = reads
        self._writes = writes

    async def exchange(self, credentials: Credentials, request: ApiRequest) -> HttpResponse:
        if not self.stays:
            self.nodes.clear()
        self.asked.append(request.method)
        self.asked_at_s.append(self.clock.monotonic_s())
        later = self._reads if request.method == "GET" else self._writes
        answer = later if later is not None and not self._answers else self._answers.pop(0)
        return answer()

    async def exchange_pipelined(
        self, credentials: Credentials, requests: Sequence[ApiRequest]
    ) -> list[HttpResponse]:
        return await exchange_sequentially(self, credentials, requests)

    async def open(self, credentials: Credentials, request: ApiRequest) -> StreamingResponse:
        raise NotImplementedError("nothing is watched")

    def client(self) -> ApiClient:
        credentials = Credentials("http://127.0.0.1")
        return ApiClient(
            self,
            RenewingCredentials(FixedCredentials(credentials), credentials, self.clock),
            clock=self.clock,
            random=Random(1),
            retry=RetryPolicy(attempts=2),
        )

    def binder(
        self,
        possibly_sent_at_s: float | None = None,
        waiting: Callable[[int], None] = lambda change: None,
    ) -> BindReconciler:
        client = self.client()
        io = BindingIO(
            PodWriter(client), VolumeWriter(client), self.pauses, self.clock,
            self.nodes.__contains__,
        )  # fmt: skip
        return BindReconciler(
            io, Backoff(RetryPolicy(), client.random), possibly_sent_at_s, waiting
        )


class NodeThatGoes(NodeThatStays):
    """At the first request the node goes."""

    stays = False


def status(code: int, message: str = "") -> Answer:
    body = msgspec.json.encode({"message": message}) if message else b"{}"
    return lambda: HttpResponse(code, body, None, reusable=True)


def pod_on(node: str) -> Answer:
    body = msgspec.json.encode({"metadata": {"uid": "pod-p"}, "spec": {"nodeName": node}})
    return lambda: HttpResponse(200, body, None, reusable=True)


def silence() -> HttpResponse:
    raise NoResponseError("connection reset by peer", sent=True)
