"""The outcome on a node: allocations as they are written, or why there are none; scores."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from asched.dra.ledger import TakenDevice
from asched.dra.pools import DeviceCandidate
from asched.dra.requests import ClaimError, RequestedDevices
from asched.model.resource_claims import (
    AllocationResult,
    DeviceAllocationConfiguration,
    DeviceAllocationResult,
    DeviceRequestAllocationResult,
    ResourceClaimSpec,
)
from asched.model.selectors import (
    NODE_NAME_FIELD,
    NodeSelector,
    NodeSelectorRequirement,
    NodeSelectorTerm,
)

FROM_CLASS = "FromClass"
FROM_CLAIM = "FromClaim"

ShareIds = Callable[[], str]
"""Returns a new share ID at each call."""


def allocation_result(
    spec: ResourceClaimSpec,
    requests: Sequence[RequestedDevices],
    taken: Sequence[TakenDevice],
    node_selector: NodeSelector | None,
    share_ids: ShareIds,
) -> AllocationResult:
    """The allocation of a claim. ``requests`` are its requests, or the chosen alternatives."""
    return AllocationResult(
        devices=DeviceAllocationResult(
            results=tuple(_device(device, share_ids) for device in taken),
            config=(*_class_configs(requests), *_claim_configs(spec, requests)),
        ),
        node_selector=node_selector,
    )


def _device(taken: TakenDevice, share_ids: ShareIds) -> DeviceRequestAllocationResult:
    pooled, wanted = taken.candidate.device, taken.option.wanted
    shared = taken.consumption is not None
    return DeviceRequestAllocationResult(
        request=wanted.reference,
        driver=pooled.pool_id.driver,
        pool=pooled.pool_id.pool,
        device=pooled.name,
        admin_access=True if wanted.admin_access else None,
        tolerations=wanted.tolerations,
        binding_conditions=pooled.device.binding_conditions,
        binding_failure_conditions=pooled.device.binding_failure_conditions,
        share_id=share_ids() if shared else None,
        consumed_capacity=dict(taken.consumption.notation) if taken.consumption else {},
    )


def _class_configs(
    requests: Sequence[RequestedDevices],
) -> Iterator[DeviceAllocationConfiguration]:
    by_class: dict[str, list[RequestedDevices]] = {}
    for request in requests:
        by_class.setdefault(request.device_class.name, []).append(request)
    for same_class in by_class.values():
        names = tuple(request.reference for request in same_class)
        for config in same_class[0].device_class.spec.config:
            yield DeviceAllocationConfiguration(
                source=FROM_CLASS, requests=names, opaque=config.opaque
            )


def _claim_configs(
    spec: ResourceClaimSpec, requests: Sequence[RequestedDevices]
) -> Iterator[DeviceAllocationConfiguration]:
    for config in spec.devices.config:
        allocated = DeviceAllocationConfiguration(
            source=FROM_CLAIM, requests=config.requests, opaque=config.opaque
        )
        if not config.requests:
            yield allocated
            continue
        for request in requests:
            if request.name in config.requests or request.reference in config.requests:
                yield allocated


def node_selector(taken: Sequence[TakenDevice], node_name: str) -> NodeSelector | None:
    """The nodes on which the devices can be used; None for all nodes. Raises ClaimError."""
    fields: list[NodeSelectorRequirement] = []
    expressions: list[NodeSelectorRequirement] = []
    for device in taken:
        pooled = device.candidate.device
        if pooled.node_source.node_name or pooled.device.binds_to_node:
            return _only_node(node_name)
        terms = pooled.selector_terms
        if len(terms) > 1:
            raise ClaimError(
                f": unsupported ResourceSlice.NodeSelector with {len(terms)} terms",
                device.option.wanted.claim,
                action="create NodeSelector",
            )
        for term in terms:
            _add_new(fields, term.match_fields)
            _add_new(expressions, term.match_expressions)
    if not fields and not expressions:
        return None
    term = NodeSelectorTerm(match_fields=tuple(fields), match_expressions=tuple(expressions))
    return NodeSelector(node_selector_terms=(term,))


def _only_node(node_name: str) -> NodeSelector:
    field = NodeSelectorRequirement(key=NODE_NAME_FIELD, operator="In", values=(node_name,))
    return NodeSelector(node_selector_terms=(NodeSelectorTerm(match_fields=(field,)),))


def _add_new(
    requirements: list[NodeSelectorRequirement], more: Sequence[NodeSelectorRequirement]
) -> None:
    for requirement in more:
        if not any(
            (known.key, known.operator, set(known.values))
            == (requirement.key, requirement.operator, set(requirement.values))
            for known in requirements
        ):
            requirements.append(requirement)


CANNOT_ALLOCATE: Final = "cannot allocate all claims"
INVALID_POOLS: Final = "invalid resource pools were encountered"
TOO_EXPENSIVE: Final = "search for devices stopped: too many combinations"

MAX_ALTERNATIVES: Final = 8


@dataclass(frozen=True, slots=True)
class ClaimSolution:
    """The devices of one claim."""

    spec: ResourceClaimSpec
    requests: tuple[RequestedDevices, ...]
    """Its requests, or the chosen alternatives."""
    devices: tuple[TakenDevice, ...]

    @property
    def score(self) -> int:
        """The raw score: earlier alternatives of requests are better."""
        used = {device.option.wanted for device in self.devices}
        return sum(
            MAX_ALTERNATIVES - request.alternative
            for request in self.requests
            if request.alternative_name and request in used
        )

    def on(self, candidates: Sequence[DeviceCandidate]) -> ClaimSolution:
        """The same with the devices of another site, at the same positions."""
        devices = tuple(
            replace(device, candidate=candidates[device.position]) for device in self.devices
        )
        return replace(self, devices=devices)


@dataclass(frozen=True, slots=True)
class Allocated:
    """The devices of all claims on a node."""

    claims: tuple[ClaimSolution, ...]

    @property
    def score(self) -> int:
        """The raw score of the claims."""
        return sum(claim.score for claim in self.claims)

    def on(self, candidates: Sequence[DeviceCandidate]) -> Allocated:
        """The same with the devices of another site, at the same positions."""
        return Allocated(tuple(claim.on(candidates) for claim in self.claims))

    def results(self, node_name: str, share_ids: ShareIds) -> tuple[AllocationResult, ...]:
        """The allocations as they are written."""
        return tuple(
            allocation_result(
                claim.spec,
                claim.requests,
                claim.devices,
                node_selector(claim.devices, node_name),
                share_ids,
            )
            for claim in self.claims
        )


@dataclass(frozen=True, slots=True)
class NotAllocated:
    """Why not all claims can be allocated on a node."""

    reason: str


@dataclass(frozen=True, slots=True)
class AllocationFailed:
    """An error in the claims or classes, which ends the pod's attempt on every node."""

    error: str


class AllocationError(Exception):
    """Raised instead of returning :class:`AllocationFailed` if a single node is searched."""


def allocation_score(spec: ResourceClaimSpec, allocation: AllocationResult) -> int:
    """The raw score of a claim that is allocated."""
    used = {result.request for result in allocation.devices.results}
    return sum(
        MAX_ALTERNATIVES - index
        for request in spec.devices.requests
        for index, alternative in enumerate(request.first_available)
        if f"{request.name}/{alternative.name}" in used
    )
