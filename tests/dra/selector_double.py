"""A small language of selectors, in place of CEL.

``any``, ``none``, ``driver=x``, ``id=value`` (an error for devices that lack the attribute),
``id?=value`` (false for those); each after ``device ``. ``dear`` matches at a cost of 8000 units.
"""

from __future__ import annotations

from asched.dra.selectors import SelectorAnswer, SelectorError
from asched.model.resource_claims import Device


class TextSelector:
    """One expression."""

    def __init__(self, expression: str) -> None:
        self._expression = expression.removeprefix("device ")
        if self._expression not in ("any", "none", "dear") and "=" not in expression:
            raise SelectorError(f"CEL compile error: {expression}")

    def evaluate(self, driver: str, device: Device) -> SelectorAnswer:
        if self._expression in ("any", "none"):
            return SelectorAnswer(self._expression == "any")
        if self._expression == "dear":
            return SelectorAnswer(True, cost=8000)
        name, _, wanted = self._expression.partition("=")
        if name == "driver":
            return SelectorAnswer(driver == wanted)
        attribute = device.attributes.get(name.rstrip("?"))
        if attribute is not None:
            return SelectorAnswer(attribute.string == wanted)
        error = "" if name.endswith("?") else f"CEL runtime error: no such key: {name}"
        return SelectorAnswer(False, error=error)
