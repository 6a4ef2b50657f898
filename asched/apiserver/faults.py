"""Faults on demand: make the embedded API server fail as real ones do.

For chaos drills and for testing clients: every fault is something that kube-apiserver, a load
balancer or a network does to a scheduler sooner or later.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class FaultKind(StrEnum):
    """What happens to a request."""

    STATUS = "status"
    """Answered with an error status; nothing is done."""
    DROP_BEFORE = "drop-before"
    """The connection breaks before the request takes effect."""
    DROP_AFTER = "drop-after"
    """The request takes effect, the connection breaks before the answer."""
    DELAY = "delay"
    """The answer comes late."""


@dataclass(slots=True)
class Fault:
    """One rule: which requests, what happens, how often."""

    kind: FaultKind
    remaining: int = 1
    verb: str = ""
    """``create``, ``list``, ``watch`` ...; empty for any."""
    resource: str = ""
    """``pods`` or ``pods/binding``; empty for any."""
    code: int = 500
    retry_after_s: int = 1
    delay_s: float = 0.0

    def concerns(self, verb: str, resource: str) -> bool:
        return self.remaining > 0 and self.verb in ("", verb) and self.resource in ("", resource)


class Faults:
    """The faults that an API server shows from now on; change it while the server runs."""

    def __init__(self) -> None:
        self._rules: list[Fault] = []
        self.watch_closes_after_events: int | None = None
        """Every watch stream ends after this many events; None means none does."""
        self._malformed_lines = 0
        self.shown = 0
        """How many faults have happened."""

    def add(self, fault: Fault) -> None:
        self._rules.append(fault)

    def answer(
        self, code: int, *, count: int = 1, verb: str = "", resource: str = "",
        retry_after_s: int = 1,
    ) -> None:  # fmt: skip
        """The next ``count`` matching requests get ``code``: 429 (with Retry-After), 500, 504 ..."""
        self.add(
            Fault(FaultKind.STATUS, count, verb, resource, code=code, retry_after_s=retry_after_s)
        )

    def drop(
        self, *, count: int = 1, verb: str = "", resource: str = "", after_effect: bool = False
    ) -> None:
        """Break the connection of the next ``count`` matching requests."""
        kind = FaultKind.DROP_AFTER if after_effect else FaultKind.DROP_BEFORE
        self.add(Fault(kind, count, verb, resource))

    def delay(self, delay_s: float, *, count: int = 1, verb: str = "", resource: str = "") -> None:
        """Answer the next ``count`` matching requests ``delay_s`` late."""
        self.add(Fault(FaultKind.DELAY, count, verb, resource, delay_s=delay_s))

    def close_watches_after(self, events: int | None) -> None:
        """End every watch stream after ``events`` events; None stops that."""
        self.watch_closes_after_events = events

    def malform_watch_lines(self, count: int = 1) -> None:
        """Put a line that is not JSON before the next ``count`` watch events."""
        self._malformed_lines += count

    def clear(self) -> None:
        """No faults any more."""
        self._rules.clear()
        self.watch_closes_after_events = None
        self._malformed_lines = 0

    def take(self, verb: str, resource: str) -> Fault | None:
        """The fault that the next request of this class meets, counted as used."""
        for fault in self._rules:
            if fault.concerns(verb, resource):
                fault.remaining -= 1
                self.shown += 1
                if fault.remaining == 0:
                    self._rules.remove(fault)
                return fault
        return None

    def take_malformed_line(self) -> bool:
        if not self._malformed_lines:
            return False
        self._malformed_lines -= 1
        self.shown += 1
        return True

    @classmethod
    def parse(cls, text: str) -> Faults:
        """Faults from a comma-separated description, as ``asched apiserver --faults`` takes it.

        ``429*3@pods/binding`` (three bindings get 429), ``drop*2``, ``drop-after@pods/binding``,
        ``delay=0.5*10@nodes``, ``malformed*2``, ``watch-close=5``.

        Raises ValueError naming the part that is not understood.
        """
        faults = cls()
        for part in filter(None, (piece.strip() for piece in text.split(","))):
            head, _, resource = part.partition("@")
            head, _, count_text = head.partition("*")
            name, _, amount = head.partition("=")
            try:
                count = int(count_text or 1)
                faults._add_named(name, amount, count, resource)
            except ValueError as error:
                raise ValueError(
                    f"{part!r} is no fault: expected CODE, drop, drop-after, delay=SECONDS, "
                    "malformed or watch-close=EVENTS, then *COUNT and @RESOURCE where wanted"
                ) from error
        return faults

    def _add_named(self, name: str, amount: str, count: int, resource: str) -> None:
        if name in ("drop", "drop-after"):
            self.drop(count=count, resource=resource, after_effect=name == "drop-after")
        elif name == "delay":
            self.delay(float(amount), count=count, resource=resource)
        elif name == "malformed":
            self.malform_watch_lines(count)
        elif name == "watch-close":
            self.close_watches_after(int(amount))
        else:
            self.answer(int(name), count=count, resource=resource)
