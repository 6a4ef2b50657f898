"""asched's answers about ResourceClaims: PostFilter, Reserve and PreBind."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar, cast

from asched.cycle.attempt import Attempt
from asched.cycle.feasible_nodes import FeasibleNodes
from asched.cycle.inspect import Inspection
from asched.cycle.post_filter import RejectedNodeStatuses, run_post_filter
from asched.cycle.shape_cache import ShapeCache
from asched.framework.pod_info import PodInfo
from asched.framework.runtime.profile import Profile
from asched.framework.status import Code, Status
from asched.model.resources import Resource
from asched.plugins.dynamic_resources import DynamicResources
from asched.plugins.dynamic_resources.reservation import DeviceReservation, ReservedSpecialClaim
from asched.plugins.dynamic_resources.special_claim import in_memory_claim
from asched.state.cluster import ClusterState
from asched.state.fold import Fold
from tests.conformance.defaulting import default_resource_claim
from tests.conformance.documents import Document
from tests.conformance.stored_claims import RecordingClient, special_metadata, written

Answer = dict[str, Any]
T = TypeVar("T")

NAME = DynamicResources.name


class DeviceLaboratory:
    """Answers of one document."""

    def __init__(self, document: Document, fold: Fold) -> None:
        self._raw_claims = document.raw(Resource.RESOURCE_CLAIMS)
        self._fold = fold

    def post_filter(self, profile: Profile, pod: PodInfo) -> Answer:
        state = self._fold.state
        found = _feasible(state, profile, pod)
        plugin = _plugin(profile)
        own = plugin.post_filter(found.state, pod, RejectedNodeStatuses(state, found))
        outcome = run_post_filter(state, profile, pod, found)
        answer: Answer = {
            "status": outcome.result.status.code.title,
            NAME: [own.status.code.title, [*own.status.reasons]],
        }
        released = outcome.released_claim
        if released is not None and released.delete:
            answer["deletes"] = [released.claim.key]
        elif released is not None:
            candidates = plugin.deallocation_candidates(
                found.state, RejectedNodeStatuses(state, found)
            )
            answer["deallocates"] = sorted(claim.key for claim in candidates)
            assert released.claim.key in answer["deallocates"]
        return answer

    def reserve(self, profile: Profile, pod: PodInfo, inspection: Inspection) -> Answer:
        """By feasible node."""
        found = _feasible(self._fold.state, profile, pod)
        plugin = _plugin(profile)
        skipped = NAME in found.state.skip_filter
        answers: Answer = {}
        for node in inspection.feasible:
            if skipped:
                answers[node] = {"preBind": {"skip": True}}
                continue
            result = plugin.reserve(found.state, pod, node)
            if not result.status.is_success:
                answers[node] = {"status": [result.status.code.title, [*result.status.reasons]]}
                continue
            reservation = None
            if result.reservation is not None:
                reservation = DeviceReservation.from_record(result.reservation)
            answers[node] = _reserved(pod, reservation)
            plugin.on_reserved(pod, node, result.reservation)
            answers[node]["preBind"] = self._pre_bind(plugin, pod, node)
            plugin.unreserve(pod, node, result.reservation)
        return answers

    def _pre_bind(self, plugin: DynamicResources, pod: PodInfo, node: str) -> Answer:
        client = RecordingClient(self._raw_claims, self._fold)
        status = Status()
        if plugin.pre_bind_pre_flight(pod, node):
            status = _run(plugin.pre_bind(client.as_binding_client(), pod, node))
        client.restore()
        answer: Answer = {"apiCalls": client.api_calls, "claims": client.claims()}
        if client.pod_patch is not None:
            answer["podPatch"] = client.pod_patch
        if not status.is_success:
            text = f'running PreBind plugin "{NAME}": {status.message}'
            answer["status"] = [Code.ERROR.title, [text]]
        if client.rejected:
            answer["rejectedByAPIServer"] = True
        if client.waited_s:
            answer["waitedSeconds"] = client.waited_s
        return answer


def _feasible(state: ClusterState, profile: Profile, pod: PodInfo) -> FeasibleNodes:
    return Attempt(state, profile, pod, ShapeCache(state.nodes)).find_feasible_nodes(
        limit_nodes=False
    )


def _plugin(profile: Profile) -> DynamicResources:
    return cast(DynamicResources, profile.plugins[NAME])


def _reserved(pod: PodInfo, reservation: DeviceReservation | None) -> Answer:
    allocations: Answer = {}
    if reservation is None:
        return {}
    for claim in reservation.claims:
        if claim.allocation is not None:
            key = f"{pod.namespace}/{claim.name}"
            allocations.setdefault(key, _without_share_ids(written(claim.allocation)))
    answer: Answer = {"allocations": allocations}
    if reservation.special is not None:
        answer["extendedResources"] = _special(pod, reservation.special)
    return answer


def _special(pod: PodInfo, special: ReservedSpecialClaim) -> Answer:
    claim = in_memory_claim(pod.pod, special.spec)
    stored = default_resource_claim(
        {"metadata": special_metadata(claim), "spec": written(special.spec)}
    )
    return {
        "claim": stored,
        "allocation": _without_share_ids(written(special.allocation)),
        "requestMappings": written(special.mappings),
    }


def _without_share_ids(allocation: Mapping[str, Any]) -> Answer:
    """The allocation with ``NEW`` for new share IDs, which must differ."""
    results = allocation.get("devices", {}).get("results", [])
    ids = [result["shareID"] for result in results if "shareID" in result]
    assert len(ids) == len(set(ids))
    for result in results:
        if "shareID" in result:
            result["shareID"] = "NEW"
    return dict(allocation)


def _run(work: Coroutine[Any, Any, T]) -> T:
    """The result of what never waits: the client here answers at once."""
    try:
        work.send(None)
    except StopIteration as end:
        return cast(T, end.value)
    raise AssertionError("PreBind waits for something")
