"""Selectors of classes and claims, which are CEL expressions."""

from __future__ import annotations

from collections.abc import Mapping

from asched.cel import (
    AttributeValue,
    CompileError,
    DeviceView,
    EvaluationError,
    SelectorProgram,
    Version,
    compile_selector,
)
from asched.dra.selectors import CompiledSelector, SelectorAnswer, SelectorError
from asched.model.resource_claims import Device, DeviceAttribute


class CelSelector:
    """A compiled expression."""

    def __init__(self, selector: SelectorProgram) -> None:
        self._selector = selector

    def evaluate(self, driver: str, device: Device) -> SelectorAnswer:
        """Whether the device is selected."""
        try:
            result = self._selector.evaluate(device_view(driver, device))
        except (EvaluationError, SelectorError) as error:
            return SelectorAnswer(False, error=f"CEL runtime error: {error}")
        text = f"CEL runtime error: {result.error}" if result.error else ""
        return SelectorAnswer(result.match, max(result.cost, result.steps), text)


def cel_selector(expression: str) -> CompiledSelector:
    """The compiled form of an expression. Raises SelectorError."""
    try:
        return CelSelector(compile_selector(expression))
    except CompileError as error:
        raise SelectorError(f"CEL compile error: {error}") from None


def device_view(driver: str, device: Device) -> DeviceView:
    """What an expression sees of a device. Raises SelectorError for an invalid attribute."""
    return DeviceView(
        driver=driver,
        attributes=_attributes(device.attributes),
        capacity={name: str(capacity.value) for name, capacity in device.capacity.items()},
        allow_multiple_allocations=device.allow_multiple_allocations,
    )


def _attributes(attributes: Mapping[str, DeviceAttribute]) -> dict[str, AttributeValue]:
    return {name: _value(name, attribute) for name, attribute in attributes.items()}


def _value(name: str, attribute: DeviceAttribute) -> AttributeValue:
    if attribute.version is not None:
        try:
            return Version.parse(attribute.version)
        except ValueError as error:
            raise SelectorError(f"attribute {name}: parse semantic version: {error}") from None
    for value in (attribute.integer, attribute.boolean, attribute.string):
        if value is not None:
            return value
    raise SelectorError(f"attribute {name}: unsupported attribute value")
