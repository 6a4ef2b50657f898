"""Answers of CEL selectors, remembered for each expression and distinct content of a device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from asched.dra.devices import PooledDevice
from asched.dra.selector_fields import selector_fields
from asched.model.quantity import QuantityText
from asched.model.resource_claims import Device, DeviceAttribute

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
        """The answer for a device whose content is new."""
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
