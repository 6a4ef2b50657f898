"""Answers of CEL selectors, remembered for each expression and distinct content of a device."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from asched.dra.devices import PooledDevice
from asched.dra.selector_fields import selector_fields
from asched.model.quantity import QuantityText
from asched.model.resource_claims import Device, DeviceAttribute


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
        self._by_content: dict[int, SelectorAnswer] = {}
        self._by_fields: dict[_Content, SelectorAnswer] = {}
        self._compiled: CompiledSelector | SelectorAnswer
        try:
            self._compiled = compile_selector(expression)
        except SelectorError as error:
            self._compiled = SelectorAnswer(False, error=str(error))

    def answer(self, device: PooledDevice) -> SelectorAnswer:
        known = self._by_content.get(device.content)
        if known is None:
            known = self._by_content[device.content] = self._shared_answer(device)
        return known

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

    def answer(self, expression: str, device: PooledDevice) -> SelectorAnswer:
        """Whether a device matches."""
        selector = self._selectors.get(expression)
        if selector is None:
            selector = self._selectors[expression] = _Selector(expression, self._compile)
        return selector.answer(device)

    def clear(self) -> None:
        """Forget all answers."""
        self._selectors.clear()
