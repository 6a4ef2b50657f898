"""Answers of CEL selectors, remembered for each expression and distinct content of a device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from asched.dra.devices import PooledDevice
from asched.dra.selector_fields import selector_fields
from asched.model.quantity import QuantityText
from asched.model.resource_claims import Device, DeviceAttribute


class SelectorError(Exception):
    """A selector has no answer. The text continues ``selector #0: ``."""


class CompiledSelector(Protocol):
    """One expression."""

    def matches(self, driver: str, device: Device) -> bool:
        """Raises SelectorError."""
        ...


SelectorCompiler = Callable[[str], CompiledSelector]
"""Compiles an expression. Raises SelectorError."""

_Answer = bool | SelectorError
_Content = tuple[
    str, bool, tuple[tuple[str, DeviceAttribute], ...], tuple[tuple[str, QuantityText], ...]
]


class _Selector:
    """One expression with its answers."""

    def __init__(self, expression: str, compile_selector: SelectorCompiler) -> None:
        self._fields = selector_fields(expression)
        self._by_content: dict[int, _Answer] = {}
        self._by_fields: dict[_Content, _Answer] = {}
        self._compiled: CompiledSelector | SelectorError
        try:
            self._compiled = compile_selector(expression)
        except SelectorError as error:
            self._compiled = error

    def answer(self, device: PooledDevice) -> _Answer:
        known = self._by_content.get(device.content)
        if known is None:
            known = self._by_content[device.content] = self._shared_answer(device)
        return known

    def _shared_answer(self, device: PooledDevice) -> _Answer:
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

    def _evaluate(self, driver: str, device: Device) -> _Answer:
        if isinstance(self._compiled, SelectorError):
            return self._compiled
        try:
            return self._compiled.matches(driver, device)
        except SelectorError as error:
            return error


class SelectorAnswers:
    """Which devices match which expressions."""

    def __init__(self, compile_selector: SelectorCompiler) -> None:
        self._compile = compile_selector
        self._selectors: dict[str, _Selector] = {}

    def matches(self, expression: str, device: PooledDevice) -> bool:
        """Whether a device matches. Raises SelectorError."""
        selector = self._selectors.get(expression)
        if selector is None:
            selector = self._selectors[expression] = _Selector(expression, self._compile)
        answer = selector.answer(device)
        if isinstance(answer, SelectorError):
            raise answer.with_traceback(None)
        return answer

    def clear(self) -> None:
        """Forget all answers."""
        self._selectors.clear()
