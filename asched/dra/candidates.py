"""Which devices of a site a request can have, as far as that does not depend on what is in use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from asched.dra.capacity import Consumption, consumption
from asched.dra.devices import PooledDevice
from asched.dra.pools import PoolView
from asched.dra.requests import ClaimError, RequestedDevices
from asched.dra.selectors import SelectorAnswers
from asched.dra.sites import Bits, Candidate, Site
from asched.dra.steps import CHEAP_SELECTOR_COST, AttemptMeter, StepMeter, selector_steps

MAX_POOL_STEPS: Final = 400_000
"""For the evaluation of all devices of a pool by all requests of a claim."""
DEVICES_PER_STEP: Final = 8
"""Devices with known answers that are looked at in one step."""


class MatchAnswer(NamedTuple):
    """Whether a request can have devices with some content."""

    match: bool
    evaluations: Mapping[int, int]
    """The steps of each evaluation, by identity."""
    expensive_steps: int = 0
    """Of the evaluations that are expensive."""
    error: ClaimError | None = None


class RequestMatcher:
    """Answers for one request, or one alternative of a request, by content of devices."""

    __slots__ = (
        "_answers",
        "_consumption",
        "_failing",
        "_pool_steps",
        "_selectors",
        "_shared",
        "wanted",
    )

    def __init__(
        self,
        wanted: RequestedDevices,
        selectors: SelectorAnswers,
        pool_steps: int = MAX_POOL_STEPS,
    ) -> None:
        """``pool_steps``: limit for :meth:`failing`."""
        self.wanted = wanted
        self._pool_steps = pool_steps
        self._selectors = selectors
        self._answers: dict[int, MatchAnswer] = {}
        self._shared: dict[tuple[bool, tuple[int, ...]], MatchAnswer] = {}
        """By result and evaluations: devices with equal answers share the object."""
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
        """The devices of a pool for which selectors have errors or are expensive; all of them if
        finding out takes too long."""
        failing = self._failing.get(pool.base)
        if failing is None:
            failing = self._failing[pool.base] = self._find_failing(pool)
        return failing

    def _find_failing(self, pool: PoolView) -> Bits:
        meter = AttemptMeter(self._pool_steps)
        meter.add(len(pool.devices) // DEVICES_PER_STEP)
        failing: Bits = 0
        for position, device in enumerate(pool.devices):
            answer = self.answer(device)
            meter.add(0, (answer,))
            if meter.is_exceeded:
                return (1 << len(pool.devices)) - 1
            if answer.error is not None or answer.expensive_steps:
                failing |= 1 << position
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
        expensive_steps = 0
        origins = (
            (f"class {wanted.device_class.name}", None, wanted.device_class.spec.selectors),
            ("", wanted.claim, wanted.selectors),
        )
        for origin, claim, selectors in origins:
            for index, selector in enumerate(selectors):
                expression = selector.cel.expression if selector.cel is not None else ""
                answer = self._selectors.answer(expression, device)
                steps = evaluations[id(answer)] = selector_steps(answer.cost)
                expensive_steps += steps if answer.cost > CHEAP_SELECTOR_COST else 0
                if answer.error:
                    text = f"{origin}: selector #{index}: {answer.error}"
                    error = ClaimError(text, claim)
                    return MatchAnswer(False, evaluations, expensive_steps, error)
                if not answer.match:
                    return self._share(MatchAnswer(False, evaluations, expensive_steps))
        match = self.consumption(device) is not None
        return self._share(MatchAnswer(match, evaluations, expensive_steps))

    def _share(self, answer: MatchAnswer) -> MatchAnswer:
        return self._shared.setdefault((answer.match, tuple(answer.evaluations)), answer)


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
        self._meter.add_evaluated(answer)
        if answer.error is not None:
            raise answer.error.with_traceback(None)
        return answer.match
