"""Answers of CEL selectors, kept by expression and by what the expression reads of a device.

Most selectors name what they read, as in ``device.attributes["gpu.example.com"].model``. Devices
that differ elsewhere, for example in a serial number, then have the same answer.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from asched.dra.devices import PooledDevice
from asched.model.quantity import QuantityText
from asched.model.resource_claims import Device, DeviceAttribute

MAX_FIELDS: Final = 16
"""Looking up more fields of a device takes longer than its own evaluation."""
_DEVICE: Final = re.compile(r"\bdevice\b")
_FIELD: Final = re.compile(
    r"""\bdevice\s*\.\s*(?:
        (?P<plain>driver|allowMultipleAllocations)\b(?!\s*[.\[(])
        |(?P<map>attributes|capacity)\s*
        \[\s*(?:"(?P<domain>[^"\\]*)"|'(?P<domain2>[^'\\]*)'|device\s*\.\s*driver)\s*\]\s*
        \.\s*(?P<id>[A-Za-z_][A-Za-z0-9_]*)\b(?!\s*\()
    )""",
    re.VERBOSE,
)


class _Field(NamedTuple):
    domain: str | None
    """None for the domain of the driver."""
    identifier: str

    def names(self, driver: str) -> tuple[str, ...]:
        """The names under which a device may have the field."""
        domain = driver if self.domain is None else self.domain
        full = f"{domain}/{self.identifier}"
        return (full, self.identifier) if domain == driver else (full,)


class SelectorFields(NamedTuple):
    """The attributes and capacities that an expression reads."""

    attributes: tuple[_Field, ...]
    capacity: tuple[_Field, ...]

    def project(self, driver: str, device: Device) -> Device:
        """The device with nothing but what the expression reads, and attributes that may be
        invalid: as in kube-scheduler, those are an error for every expression."""
        read = {
            name: device.attributes[name]
            for field in self.attributes
            for name in field.names(driver)
            if name in device.attributes
        }
        unsure = {name: each for name, each in device.attributes.items() if _may_be_invalid(each)}
        return Device(
            attributes=read | unsure,
            capacity={
                name: device.capacity[name]
                for field in self.capacity
                for name in field.names(driver)
                if name in device.capacity
            },
            allow_multiple_allocations=device.allow_multiple_allocations,
        )


def _may_be_invalid(attribute: DeviceAttribute) -> bool:
    """True for a version, which has to be parsed, and for a type that is not supported."""
    return attribute.version is not None or (
        attribute.string is None and attribute.integer is None and attribute.boolean is None
    )


def selector_fields(expression: str) -> SelectorFields | None:
    """What an expression reads; None unless every use of ``device`` names one of a few fields."""
    read: dict[str, dict[_Field, None]] = {"attributes": {}, "capacity": {}}
    covered = 0
    for match in _FIELD.finditer(expression):
        covered += len(_DEVICE.findall(match[0]))
        if match["map"]:
            domain = match["domain"] if match["domain"] is not None else match["domain2"]
            read[match["map"]][_Field(domain, match["id"])] = None
    if covered != len(_DEVICE.findall(expression)):
        return None
    if len(read["attributes"]) + len(read["capacity"]) > MAX_FIELDS:
        return None
    return SelectorFields(tuple(read["attributes"]), tuple(read["capacity"]))


KEPT_ANSWERS: Final = 2_000_000
"""Answers for distinct devices, of all expressions together: 500 MiB at most."""
KEPT_EXPRESSION_BYTES: Final = 1024 * 1024
"""Of all expressions that were compiled. A compiled expression takes up to 200 times as much."""


class SelectorError(Exception):
    """An expression cannot be compiled. The text continues ``selector #0: ``."""


class SelectorAnswer(NamedTuple):
    """What an expression says about a device. Devices that share an evaluation share the object."""

    match: bool
    cost: int = 0
    """The CEL units that the evaluation cost, or the steps without cost if they are more."""
    error: str = ""
    """Why there is no answer. The text continues ``selector #0: ``."""


class CompiledSelector(Protocol):
    """One expression."""

    def evaluate(self, driver: str, device: Device) -> SelectorAnswer: ...


SelectorCompiler = Callable[[str], CompiledSelector]
"""Compiles an expression. Raises SelectorError."""

_Content = tuple[
    str, bool, tuple[tuple[str, DeviceAttribute], ...], tuple[tuple[str, QuantityText], ...]
]


class _Selector:
    """One expression with its answers."""

    def __init__(self, expression: str, compile_selector: SelectorCompiler) -> None:
        self._fields = selector_fields(expression)
        self.known: dict[int, SelectorAnswer] = {}
        """By content of devices."""
        self._by_fields: dict[_Content, SelectorAnswer] = {}
        self._compiled: CompiledSelector | SelectorAnswer
        try:
            self._compiled = compile_selector(expression)
        except SelectorError as error:
            self._compiled = SelectorAnswer(False, error=str(error))

    def answer(self, device: PooledDevice) -> SelectorAnswer:
        """The answer for a device with content that is new."""
        answer = self.known[device.content] = self._shared_answer(device)
        return answer

    def _shared_answer(self, device: PooledDevice) -> SelectorAnswer:
        driver = device.driver
        if self._fields is None:
            return self._evaluate(driver, device.device)
        seen = self._fields.project(driver, device.device)
        content = (
            driver,
            seen.allow_multiple_allocations,
            tuple(seen.attributes.items()),
            tuple((name, capacity.value) for name, capacity in seen.capacity.items()),
        )
        known = self._by_fields.get(content)
        if known is None:
            known = self._by_fields[content] = self._evaluate(driver, seen)
        return known

    def _evaluate(self, driver: str, device: Device) -> SelectorAnswer:
        if isinstance(self._compiled, SelectorAnswer):
            return self._compiled
        return self._compiled.evaluate(driver, device)


class SelectorAnswers:
    """Which devices match which expressions."""

    def __init__(self, compile_selector: SelectorCompiler) -> None:
        self._compile = compile_selector
        self._selectors: dict[str, _Selector] = {}
        self._expression_bytes = 0
        self._devices_answered = 0

    def answer(self, expression: str, device: PooledDevice) -> SelectorAnswer:
        """Whether a device matches."""
        selector = self._selectors.get(expression)
        if selector is None:
            selector = self._selectors[expression] = _Selector(expression, self._compile)
            self._expression_bytes += len(expression)
        known = selector.known.get(device.content)
        if known is not None:
            return known
        self._devices_answered += 1
        return selector.answer(device)

    def clear(self) -> None:
        """Forget all answers."""
        self._selectors.clear()
        self._expression_bytes = self._devices_answered = 0

    @property
    def is_full(self) -> bool:
        """Whether the answers take so much memory that all are to be forgotten."""
        return (
            self._devices_answered > KEPT_ANSWERS or self._expression_bytes > KEPT_EXPRESSION_BYTES
        )
