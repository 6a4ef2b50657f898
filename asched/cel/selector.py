"""Selectors of devices: compiled expressions and the devices that they see."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, NamedTuple, TypeAlias

from asched.cel import types as t
from asched.cel.attributes import Code, EvaluationFrame
from asched.cel.checker import check, validate
from asched.cel.errors import (
    CompileError,
    CostLimitError,
    EvaluationError,
    InternalError,
    SubexpressionError,
)
from asched.cel.estimates import estimate_cost
from asched.cel.kubernetes_scalars import Quantity, Version, parse_quantity
from asched.cel.parser import parse
from asched.cel.program import plan
from asched.cel.syntax import SyntaxNode, walk
from asched.cel.values import COST_LIMIT, CelMap, Meter, Optional, TypeName, Value, type_name

AttributeValue: TypeAlias = bool | int | str | Version

CACHED_SELECTORS: Final = 1024
_SHALLOW: Final = 60
_EXTRA_FRAMES: Final = 12_000
_COST_ERROR: Final = "operation cancelled: actual cost limit exceeded"


@dataclass(frozen=True, slots=True)
class DeviceView:
    """What an expression sees of a device.

    Names of attributes and capacities are those of the ResourceSlice; names without a domain
    belong to the driver. Capacities are quantities as written.
    """

    driver: str
    attributes: Mapping[str, AttributeValue]
    capacity: Mapping[str, str]
    allow_multiple_allocations: bool
    _variable: list[CelMap] = field(default_factory=list, init=False, compare=False, repr=False)

    def variable(self) -> CelMap:
        """The variable ``device``. Raises EvaluationError for an invalid capacity."""
        if not self._variable:
            self._variable.append(_device_variable(self))
        return self._variable[0]


class Evaluation(NamedTuple):
    """The result for a device: whether it matches, or why there is none; and what it cost."""

    match: bool
    error: str
    cost: int
    steps: int = 0
    """Work that has no cost."""


class SelectorProgram:
    """A compiled expression."""

    __slots__ = ("_code", "_estimate", "_is_deep", "_root", "_slots", "expression", "output_type")

    def __init__(self, expression: str, output_type: str, root: SyntaxNode) -> None:
        self.expression = expression
        self.output_type = output_type
        self._root = root
        self._code: Code
        self._code, self._slots = plan(root)
        self._is_deep = max(depth for _, depth in walk(root)) > _SHALLOW
        self._estimate: int | None = None

    @property
    def estimated_cost(self) -> int:
        """The cost in the worst case; the API server refuses more than 1000000."""
        if self._estimate is None:
            with _deep_recursion():
                self._estimate = estimate_cost(self._root)
        return self._estimate

    def matches(self, device: DeviceView) -> bool:
        """Whether the device is selected. Raises EvaluationError."""
        result = self.evaluate(device)
        if result.error:
            raise EvaluationError(result.error)
        return result.match

    def evaluate(self, device: DeviceView) -> Evaluation:
        """The result with the cost spent. Raises EvaluationError for an invalid device."""
        meter = Meter()
        frame = EvaluationFrame(meter, device.variable(), [None] * self._slots)
        try:
            value = self._run(frame)
            if meter.cost > COST_LIMIT:
                raise CostLimitError
        except SubexpressionError as failure:
            if meter.cost > COST_LIMIT:
                return Evaluation(False, _COST_ERROR, COST_LIMIT + 1, meter.steps)
            return Evaluation(
                False, failure.message or "evaluation failed", meter.cost, meter.steps
            )
        except CostLimitError:
            return Evaluation(False, _COST_ERROR, COST_LIMIT + 1, meter.steps)
        except InternalError as failure:
            return Evaluation(False, failure.message, meter.cost, meter.steps)
        return _result(value, meter)

    def _run(self, frame: EvaluationFrame) -> Value:
        if not self._is_deep:
            return self._code(frame)
        with _deep_recursion():
            return self._code(frame)


def compile_selector(expression: str) -> SelectorProgram:
    """The selector of an expression; repeated expressions are compiled once.

    Raises CompileError.
    """
    compiled = _compile(expression)
    if isinstance(compiled, SelectorProgram):
        return compiled
    raise CompileError(compiled)


@lru_cache(maxsize=CACHED_SELECTORS)
def _compile(expression: str) -> SelectorProgram | str:
    """The selector, or why there is none."""
    try:
        with _deep_recursion():
            root = parse(expression)
            output = check(root, expression)
            validate(root, expression)
            if output not in (t.BOOL, t.ANY):
                return f"must evaluate to bool or the unknown type, not {output}"
            return SelectorProgram(expression, output.name, root)
    except CompileError as error:
        return str(error)


@contextmanager
def _deep_recursion() -> Iterator[None]:
    """Room for expressions as deep as the parser accepts, whatever the caller's depth."""
    limit, depth = sys.getrecursionlimit(), _stack_depth()
    if limit >= depth + _EXTRA_FRAMES:
        yield
        return
    sys.setrecursionlimit(depth + _EXTRA_FRAMES)
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)


def _stack_depth() -> int:
    frame, depth = inspect.currentframe(), 0
    while frame is not None:
        frame, depth = frame.f_back, depth + 1
    return depth


def _result(value: Value, meter: Meter) -> Evaluation:
    """The result of an expression; that of an optional value is the value's."""
    name = type_name(value)
    while isinstance(value, Optional) and value.present:
        value = value.value
    if isinstance(value, bool):
        return Evaluation(value, "", meter.cost, meter.steps)
    text = f"CEL result of type {name} could not be converted to bool: {_conversion_error(value)}"
    return Evaluation(False, text, meter.cost, meter.steps)


def _conversion_error(value: Value) -> str:
    name = type_name(value)
    if isinstance(value, Optional):
        return "optional.none() dereference"
    if isinstance(value, TypeName):
        return "type conversion not supported for 'type'"
    if isinstance(value, str):
        return "unsupported native conversion from string to 'bool'"
    if isinstance(value, int):
        return f"unsupported type conversion from '{name}' to bool"
    unquoted = {"double": "Double", "bytes": "Bytes", "list": "list", "map": "map"}.get(name)
    kind = {"kubernetes.NamedFormat": "Format"}.get(name, name.rpartition(".")[2])
    return f"type conversion error from {unquoted or repr(kind)} to 'bool'"


def _domains(driver: str, values: Mapping[str, Value]) -> CelMap:
    domains = CelMap(default=CelMap())
    for name in sorted(values):
        domain, slash, identifier = name.partition("/")
        if not slash:
            domain, identifier = driver, name
        found = domains.entries.get(domain)
        if found is None:
            domains.insert(domain, CelMap())
            found = domains.entries[domain]
        ids = found[1]
        assert isinstance(ids, CelMap)
        ids.insert(identifier, values[name])
    return domains


def _quantity(name: str, text: str) -> Quantity:
    try:
        return parse_quantity(text)
    except ValueError as error:
        raise EvaluationError(f"capacity {name}: {error}") from None


def _device_variable(device: DeviceView) -> CelMap:
    variable = CelMap()
    variable.insert("driver", device.driver)
    variable.insert("allowMultipleAllocations", device.allow_multiple_allocations)
    variable.insert("attributes", _domains(device.driver, device.attributes))
    quantities = {name: _quantity(name, text) for name, text in device.capacity.items()}
    variable.insert("capacity", _domains(device.driver, quantities))
    return variable
