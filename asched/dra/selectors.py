"""Answers of CEL selectors, remembered for each expression and distinct content of a device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from asched.dra.devices import PooledDevice
from asched.model.resource_claims import Device


class SelectorError(Exception):
    """A selector has no answer. The text continues ``selector #0: ``."""


class CompiledSelector(Protocol):
    """One expression."""

    def matches(self, driver: str, device: Device) -> bool:
        """Raises SelectorError."""
        ...


SelectorCompiler = Callable[[str], CompiledSelector]
"""Compiles an expression. Raises SelectorError."""


class SelectorAnswers:
    """Which devices match which expressions."""

    def __init__(self, compile_selector: SelectorCompiler) -> None:
        self._compile = compile_selector
        self._compiled: dict[str, CompiledSelector | SelectorError] = {}
        self._answers: dict[str, dict[int, bool | SelectorError]] = {}

    def matches(self, expression: str, device: PooledDevice) -> bool:
        """Whether a device matches. Raises SelectorError."""
        answers = self._answers.get(expression)
        if answers is None:
            answers = self._answers[expression] = {}
        answer = answers.get(device.content)
        if answer is None:
            answer = answers[device.content] = self._evaluate(expression, device)
        if isinstance(answer, SelectorError):
            raise answer
        return answer

    def clear(self) -> None:
        """Forget all answers."""
        self._answers.clear()
        self._compiled.clear()

    def _evaluate(self, expression: str, device: PooledDevice) -> bool | SelectorError:
        compiled = self._compiled.get(expression)
        try:
            if compiled is None:
                compiled = self._compiled[expression] = self._compile(expression)
            if isinstance(compiled, SelectorError):
                return compiled
            return compiled.matches(device.driver, device.device)
        except SelectorError as error:
            return error
