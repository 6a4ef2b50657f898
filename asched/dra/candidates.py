"""Which devices of a site a request can have, as far as that does not depend on what is in use."""

from __future__ import annotations

from asched.dra.capacity import Consumption, consumption
from asched.dra.devices import PooledDevice
from asched.dra.requests import ClaimError, RequestedDevices
from asched.dra.selectors import SelectorAnswers, SelectorError
from asched.dra.sites import Bits, Candidate, Site
from asched.model.resource_claims import DeviceSelector


class RequestMatcher:
    """Answers for one request, or one alternative of a request, by content of devices."""

    __slots__ = ("_answers", "_consumption", "_selectors", "wanted")

    def __init__(self, wanted: RequestedDevices, selectors: SelectorAnswers) -> None:
        self.wanted = wanted
        self._selectors = selectors
        self._answers: dict[int, bool | ClaimError] = {}
        self._consumption: dict[int, Consumption | None] = {}

    def accepts(self, device: PooledDevice) -> bool:
        """Whether selectors and policies allow the device. Raises ClaimError."""
        answer = self._answers.get(device.content)
        if answer is None:
            try:
                answer = self._matches(device) and self.consumption(device) is not None
            except ClaimError as error:
                answer = error
            self._answers[device.content] = answer
        if isinstance(answer, ClaimError):
            raise answer.with_traceback(None)
        return answer

    def consumption(self, device: PooledDevice) -> Consumption | None:
        """What the request consumes of the device; None if it cannot have it."""
        content = device.capacity_content
        if content not in self._consumption:
            self._consumption[content] = consumption(self.wanted.capacity, device.device.capacity)
        return self._consumption[content]

    def _matches(self, device: PooledDevice) -> bool:
        wanted = self.wanted
        return self._all_match(device, wanted.device_class.spec.selectors, None) and (
            self._all_match(device, wanted.selectors, wanted.claim)
        )

    def _all_match(
        self, device: PooledDevice, selectors: tuple[DeviceSelector, ...], claim: int | None
    ) -> bool:
        for index, selector in enumerate(selectors):
            expression = selector.cel.expression if selector.cel is not None else ""
            try:
                if not self._selectors.matches(expression, device):
                    return False
            except SelectorError as error:
                origin = "" if claim is not None else f"class {self.wanted.device_class.name}"
                raise ClaimError(f"{origin}: selector #{index}: {error}", claim) from None
        return True


class RequestCandidates:
    """A request, or an alternative of one, on one site during one search.

    Selectors are evaluated when the search comes to a device, because an error counts only then.
    """

    __slots__ = ("_matcher", "known", "matching", "site", "wanted")

    def __init__(self, matcher: RequestMatcher, site: Site) -> None:
        self.wanted = matcher.wanted
        self.site = site
        self.known: Bits = 0
        """The candidates that were compared with the request."""
        self.matching: Bits = 0
        """Those of them that the request can have."""
        self._matcher = matcher

    def selects(self, position: int) -> bool:
        """Whether selectors, nodes and policies allow the device. Raises ClaimError."""
        bit = 1 << position
        if not self.known & bit:
            if self._selects(self.site.candidates[position]):
                self.matching |= bit
            self.known |= bit
        return bool(self.matching & bit)

    def evaluate(self, positions: Bits) -> None:
        """Evaluate the selectors of these candidates in their order. Raises ClaimError."""
        unknown = positions & ~self.known
        while unknown:
            lowest = unknown & -unknown
            self.selects(lowest.bit_length() - 1)
            unknown ^= lowest

    def consumption(self, device: PooledDevice) -> Consumption | None:
        """What the request consumes of the device; None if it cannot have it."""
        return self._matcher.consumption(device)

    def _selects(self, candidate: Candidate) -> bool:
        device = candidate.device
        return self._matcher.accepts(device) and device not in candidate.pool.elsewhere
