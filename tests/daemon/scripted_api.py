"""A scripted API server for the binding, with a manual clock."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import msgspec

from asched.daemon.effects.reconciler import BindHealth, BindingIO, BindReconciler
from asched.framework.pod_info import PodInfo
from asched.kube.claim_writer import ClaimWriter
from asched.kube.client import ApiClient, RenewingCredentials
from asched.kube.errors import NoResponseError
from asched.kube.pod_writer import PodWriter
from asched.kube.timing import Backoff, RetryPolicy, StoppableSleep
from asched.kube.transport import (
    ApiRequest,
    Credentials,
    HttpResponse,
    StreamingResponse,
    Transport,
)
from asched.kube.volume_writer import VolumeWriter
from asched.model.meta import ObjectMeta
from asched.model.pod import Pod
from tests.kube.harness import FixedCredentials, ManualClock

POD = PodInfo(Pod(metadata=ObjectMeta(name="p", namespace="d", uid="pod-p")))
Answer = Callable[[], HttpResponse]


class ScriptedApi(Transport):
    """A transport with scripted answers. Its node exists."""

    node_exists = True

    def __init__(
        self, *answers: Answer, reads: Answer | None = None, writes: Answer | None = None
    ) -> None:
        """``reads`` and ``writes`` answer all GET and other requests after the ``answers``."""
        self.nodes = {"n"}
        self.clock = ManualClock()
        self.requests: list[str] = []
        self.requested_at_s: list[float] = []
        self.sleep = StoppableSleep(self.clock)
        self.health = BindHealth(self.clock)
        self._answers = [*answers]
        self._reads = reads
        self._writes = writes

    async def exchange(self, credentials: Credentials, request: ApiRequest) -> HttpResponse:
        if not self.node_exists:
            self.nodes.clear()
        self.requests.append(request.method)
        self.requested_at_s.append(self.clock.monotonic_s())
        default = self._reads if request.method == "GET" else self._writes
        answer = default if default is not None and not self._answers else self._answers.pop(0)
        return answer()

    async def open(self, credentials: Credentials, request: ApiRequest) -> StreamingResponse:
        raise NotImplementedError("no watches")

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
            writer=PodWriter(client),
            volumes=VolumeWriter(client),
            claims=ClaimWriter(client),
            sleep=self.sleep,
            clock=self.clock,
            node_exists=self.nodes.__contains__,
            health=self.health,
        )
        return BindReconciler(
            io, Backoff(RetryPolicy(), client.random), possibly_sent_at_s, waiting
        )


class ScriptedApiWithoutNode(ScriptedApi):
    """Its node is deleted before the first request."""

    node_exists = False


def status(code: int, message: str = "") -> Answer:
    body = msgspec.json.encode({"message": message}) if message else b"{}"
    return lambda: HttpResponse(code, body, None, reusable=True)


def pod_on(node: str) -> Answer:
    body = msgspec.json.encode({"metadata": {"uid": "pod-p"}, "spec": {"nodeName": node}})
    return lambda: HttpResponse(200, body, None, reusable=True)


def no_response() -> HttpResponse:
    raise NoResponseError("connection reset by peer", sent=True)
