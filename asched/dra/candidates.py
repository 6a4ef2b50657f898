"""The devices that a node offers, and which of them a request can have."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from asched.dra.capacity import Consumption, consumption, fits
from asched.dra.devices import PooledDevice
from asched.dra.pools import PoolView
from asched.dra.requests import ClaimError, RequestedDevices
from asched.dra.selectors import SelectorAnswers, SelectorError
from asched.dra.usage import Usage
from asched.model.resource_claims import ALL_DEVICES, EXACT_COUNT, DeviceSelector


class Candidate(NamedTuple):
    """A device of a pool that a node sees."""

    device: PooledDevice
    pool: PoolView


CandidateList = Sequence[Candidate]


def candidates_of(pools: Iterable[PoolView]) -> list[Candidate]:
    """The devices of complete and valid pools, in the order in which they are tried."""
    return [Candidate(device, pool) for pool in pools if pool.usable for device in pool.devices]


class RequestCandidates:
    """A request, or an alternative of one, together with what one node offers for it."""

    def __init__(self, wanted: RequestedDevices, selectors: SelectorAnswers) -> None:
        self.wanted = wanted
        self.all_devices: list[Candidate] | None = None
        """The devices of a request for all devices; None for an exact count."""
        self.count = wanted.count
        self._selectors = selectors
        self._selected: dict[PooledDevice, bool] = {}
        self._consumption: dict[int, Consumption | None] = {}

    def selects(self, candidate: Candidate) -> bool:
        """Whether the selectors and the node allow the device. Raises ClaimError."""
        device = candidate.device
        known = self._selected.get(device)
        if known is None:
            known = self._selected[device] = (
                self._matches(device) and device not in candidate.pool.elsewhere
            )
        return known

    def consumption(self, device: PooledDevice) -> Consumption | None:
        """What the request consumes of the device; None if it cannot have it."""
        if device.content not in self._consumption:
            self._consumption[device.content] = consumption(
                self.wanted.capacity, device.device.capacity
            )
        return self._consumption[device.content]

    def prepare(self, pools: Iterable[PoolView], usage: Usage) -> None:
        """Determine the devices of a request for all devices. Raises ClaimError."""
        wanted = self.wanted
        if wanted.mode == EXACT_COUNT:
            return
        if wanted.mode != ALL_DEVICES:
            raise ClaimError(
                f", request {wanted.own_name}: unsupported count mode {wanted.mode}", wanted.claim
            )
        self.all_devices = []
        for pool in pools:
            if not pool.usable:
                state = "being updated" if pool.incomplete else "invalid"
                raise ClaimError(
                    f", request {wanted.own_name}: asks for all devices, but resource pool"
                    f" {pool.pool_id} is currently {state}",
                    wanted.claim,
                )
            offered = (Candidate(device, pool) for device in pool.devices)
            self.all_devices += [
                candidate
                for candidate in offered
                if self.selects(candidate) and self._fits_alone(candidate.device, usage)
            ]
        self.count = len(self.all_devices)

    def _fits_alone(self, device: PooledDevice, usage: Usage) -> bool:
        needed = self.consumption(device)
        consumed = usage.of(device.pool_id, device.name).consumed
        return needed is not None and fits(needed.amounts, device.device.capacity, consumed)

    def _matches(self, device: PooledDevice) -> bool:
        wanted = self.wanted
        name = wanted.device_class.name
        return self._all_match(
            device, wanted.device_class.spec.selectors, ClaimError(f"class {name}")
        ) and self._all_match(device, wanted.selectors, ClaimError("", wanted.claim))

    def _all_match(
        self, device: PooledDevice, selectors: tuple[DeviceSelector, ...], origin: ClaimError
    ) -> bool:
        for index, selector in enumerate(selectors):
            expression = selector.cel.expression if selector.cel is not None else ""
            try:
                if not self._selectors.matches(expression, device):
                    return False
            except SelectorError as error:
                text = f"{origin.text}: selector #{index}: {error}"
                raise ClaimError(text, origin.claim) from None
        return True
