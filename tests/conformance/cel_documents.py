"""Compares expressions on devices with recorded answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from asched.cel import (
    AttributeValue,
    CompileError,
    DeviceView,
    Evaluation,
    SelectorProgram,
    Version,
    compile_selector,
)
from asched.cel.parser import parse
from asched.cel.syntax import Comprehension, Identifier, ListLiteral, walk
from tests.conformance.documents import DocumentError

TOPIC = "dra-cel"


def is_cel_document(path: Path) -> bool:
    """Whether a document contains expressions: its topic says so."""
    try:
        return bool(msgspec.json.decode(path.read_bytes()).get("topic") == TOPIC)
    except (ValueError, AttributeError):
        return False


def expression_differences(path: Path) -> Iterator[tuple[str, list[str]]]:
    """(Place, differences) of each expression. Raises DocumentError."""
    try:
        document = msgspec.json.decode(path.read_bytes())
        devices = {name: device_view(device) for name, device in document["devices"].items()}
        cases = document["cases"]
    except (KeyError, ValueError) as error:
        raise DocumentError(f"{path.name} is no recorded document: {error!r}") from error
    for number, case in enumerate(cases):
        yield f"{path.stem} case {number}", list(_differences(case, devices))


def device_view(device: Mapping[str, Any]) -> DeviceView:
    """The view of a device of a ResourceSlice."""
    capacity = {name: each["value"] for name, each in device.get("capacity", {}).items()}
    attributes = {name: _attribute(each) for name, each in device.get("attributes", {}).items()}
    shared = device.get("allowMultipleAllocations", False)
    return DeviceView(device["driver"], attributes, capacity, shared)


def _attribute(attribute: Mapping[str, Any]) -> AttributeValue:
    ((kind, value),) = attribute.items()
    if kind == "version":
        return Version.parse(value)
    assert isinstance(value, bool | int | str)
    return value


def _differences(case: Mapping[str, Any], devices: Mapping[str, DeviceView]) -> Iterator[str]:
    expression = case["expression"]
    try:
        selector = compile_selector(expression)
    except CompileError as error:
        if "compileError" not in case:
            yield f"{expression}: does not compile: {error}"
        return
    if "compileError" in case:
        yield f"{expression}: expected {case['compileError']!r}, got a selector"
        return
    yield from _selector_differences(case, selector)
    is_ordered = not _iterates_over_map(expression)
    common = None if _reads_device(expression) else selector.evaluate(next(iter(devices.values())))
    for name, expected in case["results"].items():
        result = common or selector.evaluate(devices[name])
        varies = bool(case.get("errorVaries"))
        for line in _result_differences(expected, result, text_varies=varies):
            yield f"{expression}: {name}: {line}"
        if is_ordered and expected.get("cost", result.cost) != result.cost:
            yield f"{expression}: {name}: cost: expected {expected['cost']}, got {result.cost}"


def _iterates_over_map(expression: str) -> bool:
    """Whether the cost depends on the order of a map, which is random in Go."""
    loops = (node for node, _ in walk(parse(expression)) if isinstance(node, Comprehension))
    return any(not isinstance(loop.range, ListLiteral) for loop in loops)


def _reads_device(expression: str) -> bool:
    """Whether the result can differ between devices. One at the cost limit takes seconds each."""
    nodes = (node for node, _ in walk(parse(expression)))
    return any(isinstance(node, Identifier) and node.name == "device" for node in nodes)


def _selector_differences(case: Mapping[str, Any], selector: SelectorProgram) -> Iterator[str]:
    if selector.output_type != case["outputType"]:
        yield f"outputType: expected {case['outputType']}, got {selector.output_type}"
    if str(selector.estimated_cost) != case["estimatedCost"]:
        yield f"estimatedCost: expected {case['estimatedCost']}, got {selector.estimated_cost}"


def _result_differences(
    expected: Mapping[str, Any], result: Evaluation, *, text_varies: bool
) -> Iterator[str]:
    if "error" in expected:
        text = result.error if not text_varies or not result.error else expected["error"]
        if text != expected["error"]:
            yield f"error: expected {expected['error']!r}, got {text!r}"
    elif result.error:
        yield f"error: expected match {expected['match']}, got {result.error!r}"
    elif result.match != expected["match"]:
        yield f"match: expected {expected['match']}, got {result.match}"
