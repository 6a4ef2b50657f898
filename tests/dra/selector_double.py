"""A small language of selectors, in place of CEL.

``any``, ``none``, ``driver=x``, ``id=value`` (an error for devices that lack the attribute),
``id?=value`` (false for those); each after ``device ``.
"""

from __future__ import annotations

from asched.dra.selectors import SelectorError
from asched.model.resource_claims import Device


class TextSelector:
    """One expression."""

    def __init__(self, expression: str) -> None:
        self._expression = expression.removeprefix("device ")
        if self._expression not in ("any", "none") and "=" not in expression:
            raise SelectorError(f"CEL compile error: {expression}")

    def matches(self, driver: str, device: Device) -> bool:
        if self._expression in ("any", "none"):
            return self._expression == "any"
        name, _, wanted = self._expression.partition("=")
        if name == "driver":
            return driver == wanted
        attribute = device.attributes.get(name.rstrip("?"))
        if attribute is None:
            if name.endswith("?"):
                return False
            raise SelectorError(f"CEL runtime error: no such key: {name}")
        return attribute.string == wanted
