"""Writes of claims in the binding cycle are reported only with a definite outcome."""

from __future__ import annotations

from typing import Any, ClassVar

import anyio.lowlevel
import msgspec

from asched.daemon.plugin_host.binding_calls import (
    BindingPluginClient,
    CallScope,
    CancelReason,
    LimitedCall,
    UnlimitedCall,
)
from asched.framework.binding import ClaimRef, Permission
from asched.framework.interface import PreBindPlugin
from asched.framework.pod_info import PodInfo
from asched.framework.status import SUCCESS, Status
from asched.kube.claim_bodies import FINALIZER
from asched.kube.errors import NoResponseError
from asched.kube.transport import ApiRequest, Credentials, HttpResponse
from asched.model.resource_claims import (
    AllocationResult,
    DeviceAllocationResult,
    DeviceRequestAllocationResult,
)
from tests.daemon.scripted_api import POD, Answer, ScriptedApi, no_response
from tests.daemon.scripted_api import status as answered

CLAIM = ClaimRef("d", "c", "u")
RESULT = {"request": "r", "driver": "d.example.com", "pool": "n", "device": "x"}
ALLOCATION = AllocationResult(
    devices=DeviceAllocationResult(
        results=(
            DeviceRequestAllocationResult(
                request="r", driver="d.example.com", pool="n", device="x"
            ),
        )
    )
)


class Allocates(PreBindPlugin):
    name: ClassVar[str] = "Allocates"
    api_version: ClassVar[int] = 1
    needs: ClassVar[frozenset[Permission]] = frozenset({Permission.ALLOCATE_CLAIM})

    async def pre_bind(self, client: Any, pod: PodInfo, node_name: str) -> Status:
        return SUCCESS


def claim(*consumers: str, device: str = "") -> Answer:
    status: dict[str, Any] = {}
    if device:
        status["allocation"] = {"devices": {"results": [RESULT | {"device": device}]}}
        status["reservedFor"] = [{"resource": "pods", "name": c, "uid": c} for c in consumers]
    metadata = {"name": "c", "namespace": "d", "uid": "u", "finalizers": [FINALIZER]}
    body = {"kind": "ResourceClaim", "metadata": metadata, "status": status}
    return lambda: HttpResponse(200, msgspec.json.encode(body), None, reusable=True)


def refused() -> HttpResponse:
    raise NoResponseError("connection refused", sent=False)


async def allocate(api: ScriptedApi, call: CallScope | None = None) -> Status:
    plugin = Allocates(None, None)  # type: ignore[arg-type]
    client = BindingPluginClient(plugin, "PreBind", api.binder(), call or UnlimitedCall())
    return await client.allocate_claim(CLAIM, ALLOCATION, POD)


async def test_answer_of_the_first_request_is_returned() -> None:
    api = ScriptedApi(claim(), answered(403, "no"))
    found = await allocate(api)
    assert found.message == "add allocation and reservation to claim d/c: no"
    assert api.requests == ["PATCH", "PUT"]


async def test_unreachable_server_is_an_error() -> None:
    found = await allocate(ScriptedApi(refused, refused, reads=refused))
    assert found.message == "get claim d/c: connection refused"


async def test_lost_response_is_read_back() -> None:
    lost = [no_response, no_response]
    unreachable = [refused, refused]
    api = ScriptedApi(claim(), *lost, *unreachable, claim("pod-p", device="x"))
    assert (await allocate(api)).is_success
    assert api.requests == ["PATCH", "PUT", "PUT", "PATCH", "PATCH", "GET"]


async def test_claim_that_others_allocated_meanwhile_is_an_error() -> None:
    api = ScriptedApi(claim(), no_response, no_response, claim("other", device="y"))
    found = await allocate(api)
    assert found.message == "claim d/c got allocated elsewhere in the meantime"


class CancelsAtPut(ScriptedApi):
    """The call is cancelled after the API server received the allocation."""

    def __init__(self, call: LimitedCall, *answers: Answer) -> None:
        super().__init__(*answers)
        self.call = call
        self.answered: list[str] = []

    async def exchange(self, credentials: Credentials, request: ApiRequest) -> HttpResponse:
        if request.method == "PUT":
            self.call.cancel(CancelReason.POD_GONE)
        await anyio.lowlevel.checkpoint()
        response = await super().exchange(credentials, request)
        self.answered.append(request.method)
        return response


async def test_answer_to_an_allocation_is_awaited_although_the_pod_is_gone() -> None:
    # Otherwise the undo might read the claim before the API server has written the allocation.
    call = LimitedCall(60)
    api = CancelsAtPut(call, claim(), claim("pod-p", device="x"))
    with call.scope:
        await allocate(api, call)
    assert api.answered == ["PATCH", "PUT"]
