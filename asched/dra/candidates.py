"""Which devices of a site a request can have, as far as that does not depend on what is in use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from asched.dra.capacity import Consumption, consumption
from asched.dra.devices import PooledDevice
from asched.dra.pools import PoolView
from asched.dra.requests import ClaimError, RequestedDevices
from asched.dra.selectors import SelectorAnswers
from asched.dra.sites import Bits, Candidate, Site
from asched.dra.steps import StepMeter, selector_steps


class MatchAnswer(NamedTuple):
    """Whether a request can have devices with some content."""

    match: bool
    evaluations: Mapping[int, int]
    """The steps of expensive evaluations, by identity."""
    error: ClaimError | None = None


class RequestMatcher:
    """Answers for one request, or one alternative of a request, by content of devices."""

    __slots__ = ("_answers", "_consumption", "_failing", "_selectors", "wanted")

    def __init__(self, wanted: RequestedDevices, selectors: SelectorAnswers) -> None:
        self.wanted = wanted
        self._selectors = selectors
        self._answers: dict[int, MatchAnswer] = {}
        self._consumption: dict[int, Consumption | None] = {}
        self._failing: dict[int, Bits] = {}

    def answer(self, device: PooledDevice) -> MatchAnswer:
        """Whether selectors and policies allow the device."""
        known = self._answers.get(device.content)
        if known is None:
            known = self._answers[device.content] = self._evaluate(device)
        return known

    def consumption(self, device: PooledDevice) -> Consumption | None:
        """What the request consumes of the device; None if it cannot have it."""
        content = device.capacity_content
        if content not in self._consumption:
            self._consumption[content] = consumption(self.wanted.capacity, device.device.capacity)
        return self._consumption[content]

    def failing(self, pool: PoolView) -> Bits:
        """The devices of a pool for which selectors have errors or are expensive."""
        failing = self._failing.get(pool.base)
        if failing is None:
            answers = (self.answer(device) for device in pool.devices)
            failing = self._failing[pool.base] = sum(
                1 << position
                for position, answer in enumerate(answers)
                if answer.error is not None or answer.evaluations
            )
        return failing

    def refused_by(self, device: PooledDevice) -> str:
        """Which selector does not match a device; empty if none of them."""
        wanted = self.wanted
        for origin, selectors in (
            (f"class {wanted.device_class.name}", wanted.device_class.spec.selectors),
            ("the request", wanted.selectors),
        ):
            for index, selector in enumerate(selectors):
                expression = selector.cel.expression if selector.cel is not None else ""
                if not self._selectors.answer(expression, device).match:
                    return f"not selected by selector #{index} of {origin}"
        return ""

    def _evaluate(self, device: PooledDevice) -> MatchAnswer:
        wanted = self.wanted
        evaluations: dict[int, int] = {}
        origins = (
            (f"class {wanted.device_class.name}", None, wanted.device_class.spec.selectors),
            ("", wanted.claim, wanted.selectors),
        )
        for origin, claim, selectors in origins:
            for index, selector in enumerate(selectors):
                expression = selector.cel.expression if selector.cel is not None else ""
                answer = self._selectors.answer(expression, device)
                steps = selector_steps(answer.cost)
                if steps:
                    evaluations[id(answer)] = steps
                if answer.error:
                    text = f"{origin}: selector #{index}: {answer.error}"
                    return MatchAnswer(False, evaluations, ClaimError(text, claim))
                if not answer.match:
                    return MatchAnswer(False, evaluations)
        return MatchAnswer(self.consumption(device) is not None, evaluations)


class RequestCandidates:
    """A request, or an alternative of one, on one site during one search.

    Selectors are evaluated when the search comes to a device, because an error counts only then.
    """

    __slots__ = ("_matcher", "_meter", "known", "matching", "site", "wanted")

    def __init__(self, matcher: RequestMatcher, site: Site, meter: StepMeter) -> None:
        self._matcher = matcher
        self._meter = meter
        self.wanted = matcher.wanted
        self.site = site
        self.known: Bits = self._certainly_elsewhere()
        """The candidates that were compared with the request."""
        self.matching: Bits = 0
        """Those of them that the request can have."""

    def _certainly_elsewhere(self) -> Bits:
        """Candidates for other nodes. Those with errors are left out, because errors count."""
        bits = self.site.elsewhere
        if bits:
            for offset, pool in self.site.offsets():
                if pool.elsewhere:
                    bits &= ~(self._matcher.failing(pool) << offset)
        return bits

    def selects(self, position: int) -> bool:
        """Whether selectors, nodes and policies allow the device. Raises ClaimError."""
        bit = 1 << position
        if not self.known & bit:
            if self._selects(self.site.candidates[position]) and not self.site.elsewhere & bit:
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

    def count_steps(self, steps: int) -> None:
        """Raises SearchBudgetExceededError if the search takes too many steps."""
        self._meter.add(steps)

    def consumption(self, device: PooledDevice) -> Consumption | None:
        """What the request consumes of the device; None if it cannot have it."""
        return self._matcher.consumption(device)

    def _selects(self, candidate: Candidate) -> bool:
        device = candidate.device
        answer = self._matcher.answer(device)
        if answer.evaluations:
            self._meter.add_evaluations(answer.evaluations)
        if answer.error is not None:
            raise answer.error.with_traceback(None)
        return answer.match
