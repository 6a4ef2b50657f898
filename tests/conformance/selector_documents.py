"""Recorded CEL expressions: what they answer for devices, and what that costs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from asched.cel import CompileError, DeviceView, compile_selector
from asched.config.registry import PluginRegistry
from asched.dra.cel_selectors import device_view
from asched.model.resource_claims import Device
from tests.conformance.differences import plain_differences
from tests.conformance.documents import DocumentError, read_document

MAX_COST_IN_API_SERVER = 1_000_000


def selector_differences(path: Path, _registry: PluginRegistry) -> Iterator[list[str]]:
    """The differences of each expression. Raises :class:`DocumentError`."""
    document = read_document(path)
    try:
        devices = {name: _view(raw) for name, raw in document["devices"].items()}
        cases = document["cases"]
    except (KeyError, TypeError, AttributeError, msgspec.ValidationError) as error:
        raise DocumentError(f"{path.name} is no recorded document: {error!r}") from None
    for case in cases:
        expected = {name: value for name, value in case.items() if name != "expression"}
        yield plain_differences(expected, _answer(case, devices))


def _view(raw: dict[str, Any]) -> DeviceView:
    device = {name: value for name, value in raw.items() if name != "driver"}
    return device_view(raw["driver"], msgspec.convert(device, Device))


def _answer(case: Mapping[str, Any], devices: Mapping[str, DeviceView]) -> dict[str, Any]:
    try:
        selector = compile_selector(case["expression"])
    except CompileError as error:
        # The wording is not reproduced.
        return {"compileError": case.get("compileError", str(error))}
    answer: dict[str, Any] = {
        "outputType": selector.output_type,
        "estimatedCost": str(selector.estimated_cost),
        "results": {},
    }
    if selector.estimated_cost > MAX_COST_IN_API_SERVER:
        answer["tooExpensiveForAPIServer"] = True
    for name, expected in case.get("results", {}).items():
        found = selector.evaluate(devices[name])
        result: dict[str, Any] = {"cost": found.cost} if "cost" in expected else {}
        if not found.error:
            result["match"] = found.match
        elif expected.get("errorVaries"):
            result.update(error=expected.get("error"), errorVaries=True)
        else:
            result["error"] = found.error
        answer["results"][name] = result
    return answer
