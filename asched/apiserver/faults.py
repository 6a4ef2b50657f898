"""Fault injection: failures of kube-apiserver, a load balancer or the network, on request."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum


class FaultKind(StrEnum):
    """The effect of a fault on a request."""

    STATUS = "status"
    """An error status; the request is not executed."""
    DROP_BEFORE = "drop-before"
    """The connection breaks before the request is executed."""
    DROP_AFTER = "drop-after"
    """The request is executed, then the connection breaks before the response."""
    DELAY = "delay"
    """The request is executed late."""


@dataclass(slots=True)
class Fault:
    """One rule: the requests it matches, its effect, and how often it applies."""

    kind: FaultKind
    remaining: int = 1
    verb: str = ""
    """``create``, ``list``, ``watch`` ...; empty for any."""
    resource: str = ""
    """``pods`` or ``pods/binding``; empty for any."""
    code: int = 500
    retry_after_s: int = 1
    delay_s: float = 0.0

    def matches(self, verb: str, resource: str) -> bool:
        return self.remaining > 0 and self.verb in ("", verb) and self.resource in ("", resource)


class Faults:
    """The faults that an API server injects; may be changed while it runs."""

    def __init__(self) -> None:
        self._rules: list[Fault] = []
        self.watch_closes_after_events: int | None = None
        """Every watch stream ends after this many events; None disables this."""
        self._malformed_lines = 0
        self.injected = 0
        """Number of injected faults."""

    def add(self, fault: Fault) -> None:
        self._rules.append(fault)

    def respond(
        self,
        code: int,
        *,
        count: int = 1,
        verb: str = "",
        resource: str = "",
        retry_after_s: int = 1,
    ) -> None:
        """Respond to the next ``count`` matching requests with ``code``, such as 429 or 500."""
        self.add(Fault(FaultKind.STATUS, count, verb, resource, code, retry_after_s))

    def drop(
        self, *, count: int = 1, verb: str = "", resource: str = "", after_effect: bool = False
    ) -> None:
        """Break the connection of the next ``count`` matching requests."""
        kind = FaultKind.DROP_AFTER if after_effect else FaultKind.DROP_BEFORE
        self.add(Fault(kind, count, verb, resource))

    def delay(self, delay_s: float, *, count: int = 1, verb: str = "", resource: str = "") -> None:
        """Delay the next ``count`` matching requests by ``delay_s``."""
        self.add(Fault(FaultKind.DELAY, count, verb, resource, delay_s=delay_s))

    def malform_watch_lines(self, count: int = 1) -> None:
        """Send an invalid JSON line before each of the next ``count`` watch events."""
        self._malformed_lines += count

    def clear(self) -> None:
        """Remove all faults."""
        self._rules.clear()
        self.watch_closes_after_events = None
        self._malformed_lines = 0

    def take(self, verb: str, resource: str) -> Fault | None:
        """The fault for this request, if any; counts as one of its uses."""
        for fault in self._rules:
            if fault.matches(verb, resource):
                fault.remaining -= 1
                self.injected += 1
                if fault.remaining == 0:
                    self._rules.remove(fault)
                return fault
        return None

    def take_malformed_line(self) -> bool:
        if not self._malformed_lines:
            return False
        self._malformed_lines -= 1
        self.injected += 1
        return True

    @classmethod
    def parse(cls, text: str) -> Faults:
        """Faults from a comma-separated list, the form of ``asched apiserver --faults``.

        ``429*3@pods/binding`` (three bindings get 429), ``drop*2``, ``drop-after@pods/binding``,
        ``delay=0.5*10@nodes``, ``malformed*2``, ``watch-close=5``.

        Raises ValueError with the invalid part.
        """
        faults = cls()
        for part in filter(None, (piece.strip() for piece in text.split(","))):
            head, _, resource = part.partition("@")
            head, _, count_text = head.partition("*")
            name, _, amount = head.partition("=")
            try:
                count = _number(count_text or "1")
                if name in ("drop", "drop-after"):
                    faults.drop(count=count, resource=resource, after_effect=name != "drop")
                elif name == "delay":
                    faults.delay(_seconds(amount), count=count, resource=resource)
                elif name == "malformed":
                    faults.malform_watch_lines(count)
                elif name == "watch-close":
                    faults.watch_closes_after_events = _number(amount)
                else:
                    code = _number(name, 400, 599)
                    faults.respond(code, count=count, resource=resource)
            except ValueError as error:
                raise ValueError(
                    f"{part!r} is not a fault: expected CODE, drop, drop-after, delay=SECONDS, "
                    "malformed or watch-close=EVENTS, then optionally *COUNT and @RESOURCE"
                ) from error
        return faults


def _number(text: str, least: int = 1, most: int = 1 << 31) -> int:
    """Raises ValueError."""
    number = int(text)
    if not least <= number <= most:
        raise ValueError(f"{number} is not between {least} and {most}")
    return number


def _seconds(text: str) -> float:
    """Raises ValueError."""
    seconds = float(text)
    if not 0 <= seconds < math.inf:
        raise ValueError(f"{seconds} is not a duration")
    return seconds
