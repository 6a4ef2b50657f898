"""DynamicResources: devices for the ResourceClaims and the extended resources of pods."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, ClassVar

import numpy as np
from msgspec.structs import replace

from asched.dra.allocator import SearchLimits
from asched.dra.diagnosis import ClaimDiagnoser, NodeDiagnosis
from asched.dra.extended import may_be_extended
from asched.dra.steps import LONG_SEARCH_STEPS, STEP
from asched.framework.binding import BindingClient, Permission
from asched.framework.cluster import Handle
from asched.framework.cycle_state import CycleState, StateKey
from asched.framework.devices import LONG_SEARCH, SharedDevices
from asched.framework.events import ClusterEventWithHint
from asched.framework.interface import (
    Arguments,
    ChangedReservation,
    EnqueueExtensions,
    FilterAllPlugin,
    NodeToStatus,
    NormalizeScore,
    PostFilterPlugin,
    PostFilterResult,
    PreBindPlugin,
    PreEnqueuePlugin,
    PreFilterPlugin,
    PreFilterResult,
    ReserveResult,
    ScoreAllPlugin,
    SettlingReservePlugin,
)
from asched.framework.nodes import FilterResult, Int64Column, Nodes
from asched.framework.pod_info import PodInfo
from asched.framework.scoring import normalize_to_highest
from asched.framework.status import SUCCESS, Status
from asched.model.meta import Object
from asched.model.quantity import parse_duration
from asched.model.resource_claims import DeviceClass, DeviceRequest, ResourceClaim
from asched.plugins.dynamic_resources.node_filter import (
    NodeFilter,
    PodDevices,
    has_alternatives,
    raw_scores,
)
from asched.plugins.dynamic_resources.pod_claims import ClaimHints, UnusableClaimError, user_claims
from asched.plugins.dynamic_resources.post_filter import PostFilterDecision
from asched.plugins.dynamic_resources.pre_bind import ClaimBinding, WrittenClaims, undo_binding
from asched.plugins.dynamic_resources.reservation import (
    DeviceReservation,
    reservation_of,
    share_ids,
)
from asched.plugins.dynamic_resources.special_claim import in_memory_claim
from asched.plugins.shared import PROCEED, SKIP

NOTHING_TO_DEALLOCATE = PostFilterResult(Status.unschedulable("no new claims to deallocate"))
NO_STATE = PostFilterResult(Status.error("not found"))
"""The answer of kube-scheduler's plugin if its PreFilter did not run."""

_PRE_FILTER_RAN: StateKey[bool] = StateKey("DynamicResources/ran")
_DEVICES: StateKey[PodDevices] = StateKey("DynamicResources/prefilter")


class DynamicResourcesArgs(Arguments, frozen=True):
    """Limits of time, as durations such as ``10s``."""

    filter_timeout: str = "10s"
    """How long devices are searched for on one node. Counted in steps of the search, so that a
    replay is exact; 0s means the usual limit, as do times beyond it."""
    binding_timeout: str = "600s"
    """How long devices may take to meet their binding conditions."""

    def __post_init__(self) -> None:
        if _duration("filterTimeout", self.filter_timeout) < timedelta():
            raise ValueError(f"filterTimeout: {self.filter_timeout} is less than 0s")
        if _duration("bindingTimeout", self.binding_timeout) < timedelta(seconds=1):
            raise ValueError(f"bindingTimeout: {self.binding_timeout} is less than 1s")


def _duration(field: str, text: str) -> timedelta:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise ValueError(f"{field}: {error}") from None


def search_limits(filter_timeout: timedelta) -> SearchLimits:
    """The limits of a search for at most this time on a node; 0 means the usual limits, which
    are lower than kube-scheduler's default."""
    usual = SearchLimits()
    if not filter_timeout:
        return usual
    steps = max(1, filter_timeout // STEP)
    return SearchLimits(min(steps, usual.steps_per_node), usual.steps_per_attempt)


class DynamicResources(
    PreEnqueuePlugin,
    PreFilterPlugin,
    FilterAllPlugin,
    PostFilterPlugin,
    ScoreAllPlugin,
    NormalizeScore,
    SettlingReservePlugin,
    PreBindPlugin,
    EnqueueExtensions,
):
    """Filters by the devices that the pod's claims have or can get, and allocates them.

    Extended resources that a device class provides are allocated as a claim of their own.
    """

    name: ClassVar[str] = "DynamicResources"
    api_version: ClassVar[int] = 1
    rejects_like_pods: ClassVar[bool] = True
    arguments: ClassVar[type[DynamicResourcesArgs]] = DynamicResourcesArgs
    applies_per_template: ClassVar[bool] = True
    filters_passing_nodes: ClassVar[bool] = True
    honors_gates: ClassVar[frozenset[str]] = frozenset(
        {"DRAExtendedResource", "DRAPrioritizedList"}
    )
    only_own_reservations: ClassVar[bool] = True
    needs: ClassVar[frozenset[Permission]] = frozenset(
        {
            Permission.ALLOCATE_CLAIM,
            Permission.RELEASE_CLAIM,
            Permission.READ_RESOURCE_CLAIM,
            Permission.CREATE_SPECIAL_CLAIM,
            Permission.DELETE_SPECIAL_CLAIM,
            Permission.PATCH_EXTENDED_RESOURCE_STATUS,
        }
    )

    def __init__(self, args: DynamicResourcesArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        self._binding_timeout = parse_duration(args.binding_timeout)
        self._devices = handle.shared(SharedDevices)
        self.shared_answers_version = self._devices.classes_version
        limits = search_limits(parse_duration(args.filter_timeout))
        self._filter = NodeFilter(handle.cluster, self._devices, limits, self._binding_timeout)
        self._hints = ClaimHints(handle.cluster)
        self._reservations: dict[str, DeviceReservation] = {}
        """By UID of the pod, until it is bound."""
        self._written: dict[str, WrittenClaims] = {}
        """What PreBind wrote for a pod, in case the binding fails."""
        self._unsettled: dict[str, DeviceReservation] = {}
        """By UID of the pod, from then until its claims have shown their allocations."""

    @property
    def _claims(self) -> Mapping[str, ResourceClaim]:
        return self.handle.cluster.objects(ResourceClaim)

    def applies_to(self, pod: PodInfo) -> bool:
        return bool(pod.pod.spec.resource_claims) or bool(self._extended(pod))

    def _extended(self, pod: PodInfo) -> dict[str, int]:
        """The extended resources that the pod requests, if a class provides any of them."""
        extended = self._devices.extended
        if not extended or not self.handle.feature_gates.dra_extended_resource:
            return {}
        asked = {n: q for n, q in pod.shape.requests.items() if q and may_be_extended(n)}
        return asked if any(map(extended.class_of, asked)) else {}

    # -- PreEnqueue and PreFilter -----------------------------------------------------------------

    def pre_enqueue(self, pod: PodInfo) -> Status:
        if not pod.pod.spec.resource_claims:
            return SUCCESS
        try:
            user_claims(pod.pod, self._claims)
        except UnusableClaimError as error:
            return Status.unresolvable(str(error))
        return SUCCESS

    def pre_filter(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> PreFilterResult:
        state.write(_PRE_FILTER_RAN, True)
        try:
            claims = tuple(user_claims(pod.pod, self._claims))
        except UnusableClaimError as error:
            return PreFilterResult(Status.unresolvable(str(error)))
        extended = self._extended(pod)
        special = None
        if extended:
            special = self._devices.special_claim(pod.uid) or in_memory_claim(pod.pod)
        if not claims and special is None:
            return SKIP
        for claim in claims:
            problem = self._problem(claim)
            if problem:
                return PreFilterResult(Status.unresolvable(problem))
        state.write(_DEVICES, PodDevices(pod.pod, claims, special, extended))
        return PROCEED

    def _problem(self, claim: ResourceClaim) -> str:
        """Why an unallocated claim cannot be allocated now; empty if it can."""
        if claim.status.allocation is not None:
            return ""
        if self._devices.is_pending(claim):
            return f"resource claim {claim.key} is in the process of being allocated"
        classes = self.handle.cluster.objects(DeviceClass)
        for request in claim.spec.devices.requests:
            place = f"resource claim {claim.key}, request {request.name}"
            if request.exactly is None and not request.first_available:
                return f"{place}: unknown request type"  # of a later version of Kubernetes
            if request.first_available and not self.handle.feature_gates.dra_prioritized_list:
                return f"{place}: has subrequests, but the DRAPrioritizedList feature is disabled"
            for name, device_class in _classes_of(request):
                if device_class not in classes:
                    return f"request {name}: device class {device_class} does not exist"
        return ""

    # -- Filter and PostFilter --------------------------------------------------------------------

    def filter_all(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> FilterResult:
        data = state.get(_DEVICES)
        if data is None:
            return FilterResult.passing(nodes.size)
        result = self._filter.run(data, nodes)
        if data.longest_search > LONG_SEARCH_STEPS:
            state.write(LONG_SEARCH, data.longest_search)
        return result

    def post_filter(
        self, state: CycleState, pod: PodInfo, statuses: NodeToStatus
    ) -> PostFilterResult:
        data = state.get(_DEVICES)
        if data is not None:
            nodes = self.handle.cluster.nodes
            return PostFilterDecision(self.handle, data, self._filter, statuses).result(nodes)
        pre_filter_ran = state.get(_PRE_FILTER_RAN) or self.name in state.inapplicable
        return NOTHING_TO_DEALLOCATE if pre_filter_ran else NO_STATE

    def deallocation_candidates(
        self, state: CycleState, statuses: NodeToStatus
    ) -> Sequence[ResourceClaim]:
        """The claims that PostFilter chooses from: it deallocates one."""
        data = state.get(_DEVICES)
        if data is None:
            return ()
        decision = PostFilterDecision(self.handle, data, self._filter, statuses)
        return decision.candidates(self.handle.cluster.nodes)

    def diagnoses(self, pod: PodInfo) -> Callable[[str], NodeDiagnosis | None]:
        """For explanations: a function that returns what the pod's unallocated claims find on a
        node. None if it has none there, or if PreFilter rejects it."""
        state, nodes = CycleState(), self.handle.cluster.nodes
        if not self.pre_filter(state, pod, nodes).status.is_success:
            return lambda _: None
        data, diagnoser = state.read(_DEVICES), ClaimDiagnoser(self._devices.inventory)

        def diagnosis(node_name: str) -> NodeDiagnosis | None:
            row = nodes.row_of(node_name)
            return None if row is None else self._filter.diagnosis(data, row, diagnoser)

        return diagnosis

    # -- Score ------------------------------------------------------------------------------------

    def score_all(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> Int64Column:
        data = state.get(_DEVICES)
        prioritized = self.handle.feature_gates.dra_prioritized_list
        if data is None or not prioritized or not has_alternatives(data):
            return np.zeros(nodes.size, np.int64)
        return raw_scores(data, nodes.align(np.arange(self.handle.cluster.nodes.size)))

    def normalize(self, state: CycleState, pod: PodInfo, scores: Int64Column) -> Int64Column:
        return normalize_to_highest(scores)

    # -- Reserve ----------------------------------------------------------------------------------

    def reserve(self, state: CycleState, pod: PodInfo, node_name: str) -> ReserveResult:
        data = state.get(_DEVICES)
        if data is None:
            return ReserveResult()
        nodes = self.handle.cluster.nodes
        row = nodes.row_of(node_name)
        if row is None:
            return ReserveResult(Status.error(f'node "{node_name}" not found'))
        allocation = data.allocation(row)
        if allocation is None:
            return ReserveResult(Status.error("claim allocation not found for node"))
        new_share_id = share_ids(self.handle, pod.uid, node_name)
        reservation = reservation_of(data, allocation, node_name, new_share_id)
        return ReserveResult(reservation=None if reservation is None else reservation.recorded())

    def on_reserved(self, pod: PodInfo, node_name: str, reservation: dict[str, Any] | None) -> None:
        if reservation is not None:
            held = DeviceReservation.from_record(reservation)
            self._reservations[pod.uid] = held
            self._devices.reserve(pod.uid, held.pending(pod.namespace))

    def unreserve(self, pod: PodInfo, node_name: str, reservation: dict[str, Any] | None) -> None:
        self._reservations.pop(pod.uid, None)
        self._written.pop(pod.uid, None)
        self._devices.release(pod.uid)

    def on_bound(self, pod: PodInfo, node_name: str, reservation: dict[str, Any] | None) -> None:
        # The devices stay reserved until the watch has shown the allocations of all claims.
        held = self._reservations.pop(pod.uid, None)
        self._written.pop(pod.uid, None)
        if held is not None:
            self._unsettled[pod.uid] = held

    def settle(self, changed: Object) -> Mapping[str, ChangedReservation]:
        changes: dict[str, ChangedReservation] = {}
        uids = [changed.uid]
        if isinstance(changed, ResourceClaim):
            uids = self._devices.holders(changed)
            changes.update(self._note_shown(changed, uids))
        for uid in uids:
            held = self._unsettled.get(uid)
            if held is not None and self._devices.shows_allocations(uid, held.shown):
                frees = bool(held.shown) and not self._devices.shows_allocations(uid)
                self.give_up(uid)
                changes[uid] = ChangedReservation(None, frees)
        return changes

    def give_up(self, pod_uid: str) -> None:
        self._unsettled.pop(pod_uid, None)
        self._devices.release(pod_uid)

    def _note_shown(
        self, claim: ResourceClaim, uids: Sequence[str]
    ) -> Iterator[tuple[str, ChangedReservation]]:
        """Note that the claim shows what it reserves for these pods."""
        for uid in uids:
            of_pods = self._unsettled if uid in self._unsettled else self._reservations
            held, shown = of_pods.get(uid), self._devices.shown_by(claim, uid)
            if held is not None and shown is not None and shown not in held.shown:
                of_pods[uid] = held = replace(held, shown=(*held.shown, shown))
                yield uid, ChangedReservation(held.recorded())

    # -- PreBind ----------------------------------------------------------------------------------

    @property
    def time_limit_s(self) -> float:
        return self._binding_timeout.total_seconds() + super().time_limit_s

    def pre_bind_pre_flight(self, pod: PodInfo, node_name: str) -> bool:
        return pod.uid in self._reservations

    async def pre_bind(self, client: BindingClient, pod: PodInfo, node_name: str) -> Status:
        reservation = self._reservations.get(pod.uid)
        if reservation is None:
            return SUCCESS
        binding = ClaimBinding(self.handle.cluster, client, pod, reservation)
        self._written[pod.uid] = binding.written
        status = await binding.bind()
        if status.is_success:
            status = await binding.wait_for_devices(self._binding_timeout)
        return status

    async def undo_pre_bind(self, client: BindingClient, pod: PodInfo, node_name: str) -> None:
        written = self._written.get(pod.uid, WrittenClaims())
        left_over = self._devices.special_claim(pod.uid)
        await undo_binding(self.handle.cluster, left_over, client, pod, written)

    def events_to_register(self) -> Sequence[ClusterEventWithHint]:
        return self._hints.events()


def _classes_of(request: DeviceRequest) -> list[tuple[str, str]]:
    """The request, or its alternatives, as errors name them, with the class."""
    if request.exactly is not None:
        return [(request.name, request.exactly.device_class_name)]
    return [(f"{request.name}/{a.name}", a.device_class_name) for a in request.first_available]
