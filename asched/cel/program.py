"""Compiles checked trees to closures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from asched.cel.attributes import (
    KEY_TYPES,
    Attribute,
    Code,
    EvaluationFrame,
    LoopCode,
    Qualifier,
    binding,
    fold,
    fold_pairs,
    lazy_variable,
    variable,
)
from asched.cel.calls import call_code, equality_code
from asched.cel.costs import LIST_BASE, MAP_BASE
from asched.cel.environment import DEVICE_VARIABLE, FUNCTIONS
from asched.cel.errors import (
    CompileError,
    CostLimitError,
    InternalError,
    SubexpressionError,
    no_overload,
)
from asched.cel.kubernetes_scalars import Version
from asched.cel.regular_expressions import compile_regex
from asched.cel.syntax import (
    Call,
    Comprehension,
    Identifier,
    ListLiteral,
    Literal,
    MapLiteral,
    Select,
    SyntaxNode,
)
from asched.cel.values import (
    CelMap,
    Meter,
    Optional,
    TypeName,
    Value,
    type_name,
)

_CONVERSIONS: Final = frozenset(
    ["bool", "bytes", "double", "duration", "dyn", "int", "string", "timestamp", "type", "uint"]
)
_REGEX_FUNCTIONS: Final = frozenset({"matches", "find", "findAll"})
_PARSERS: Final = frozenset({"quantity", "semver", "ip", "cidr", "url"})
_UNHASHABLE: Final[dict[type, str]] = {Version: "cel.Semver", bytes: "types.Bytes"}
"""Values that kube-scheduler cannot look up in a constant list, with their names in Go."""
_INDEXES: Final = {"_[_]": False, "_[?_]": True, "_?._": True}


@dataclass(slots=True)
class PlannedCode:
    """A planned subexpression: a constant, an attribute that may still grow, or code."""

    run: Code | None = None
    attribute: Attribute | None = None
    is_constant: bool = False
    constant: Value = None

    def code(self) -> Code:
        """Code for the value with its cost."""
        if self.attribute is not None:
            return self.attribute.code()
        if self.run is not None:
            return self.run
        constant = self.constant
        return lambda _: constant


def plan(root: SyntaxNode) -> tuple[Code, int]:
    """Code for a checked tree and the number of its variables. Raises CompileError."""
    planner = _Planner()
    return planner.plan(root).code(), planner.slots


class _Planner:
    def __init__(self) -> None:
        self.slots = 0
        self._scopes: list[tuple[str, Code]] = []

    def plan(self, node: SyntaxNode) -> PlannedCode:
        if isinstance(node, Literal):
            return PlannedCode(is_constant=True, constant=node.value)
        if isinstance(node, Identifier):
            return self._identifier(node)
        if isinstance(node, Select):
            return self._select(node)
        if isinstance(node, Call):
            return self._call(node)
        if isinstance(node, ListLiteral):
            return self._list(node)
        if isinstance(node, MapLiteral):
            return self._map(node)
        assert isinstance(node, Comprehension)
        return self._comprehension(node)

    def _identifier(self, node: Identifier) -> PlannedCode:
        if node.type_name:
            return PlannedCode(is_constant=True, constant=TypeName(node.type_name))
        name = node.name.removeprefix(".")
        for declared, read in reversed(self._scopes):
            if declared == name:
                return PlannedCode(attribute=Attribute(read))
        assert name == DEVICE_VARIABLE
        return PlannedCode(attribute=Attribute(lambda frame: frame.device))

    def _select(self, node: Select) -> PlannedCode:
        if node.type_name:
            return PlannedCode(is_constant=True, constant=TypeName(node.type_name))
        attribute = _as_attribute(self.plan(node.operand))
        attribute.add(Qualifier(node.name, test_only=node.test_only))
        return PlannedCode(attribute=attribute)

    def _call(self, node: Call) -> PlannedCode:
        steps = [self.plan(child) for child in node.children()]
        function = node.function
        if function in _INDEXES:
            return _index(steps, optional=_INDEXES[function])
        if function == "_?_:_":
            return _conditional(steps)
        codes = [step.code() for step in steps]
        if function == "_&&_" or function == "_||_":
            return PlannedCode(_logical(codes, decisive=function == "_||_"))
        if function == "or" or function == "orValue":
            return PlannedCode(_either(codes[0], codes[1], unwrap=function == "orValue"))
        if function == "@not_strictly_false":
            return PlannedCode(_not_strictly_false(codes[0]))
        if function == "_==_" or function == "_!=_":
            return PlannedCode(equality_code(codes[0], codes[1], negated=function == "_!=_"))
        if function == "@in" and node.overloads == ("in_list",) and steps[1].is_constant:
            found = _membership(codes[0], steps[1].constant)
            if found is not None:
                return found
        if function in _CONVERSIONS and len(steps) == 1 and steps[0].is_constant:
            return _folded(call_code(FUNCTIONS[function], node.overloads, codes))
        if function in _REGEX_FUNCTIONS and isinstance(steps[1].constant, str):
            _check_regex(steps[1].constant)
            return PlannedCode(call_code(FUNCTIONS[function], node.overloads, codes, is_regex=True))
        code = call_code(FUNCTIONS[function], node.overloads, codes)
        if function in _PARSERS and all(step.is_constant for step in steps):
            code = _parsed_once(code)
        return PlannedCode(code)

    def _list(self, node: ListLiteral) -> PlannedCode:
        steps = [self.plan(element) for element in node.elements]
        if not node.optional and all(step.is_constant for step in steps):
            return PlannedCode(is_constant=True, constant=tuple(step.constant for step in steps))
        return PlannedCode(_list_code([step.code() for step in steps], node.optional))

    def _map(self, node: MapLiteral) -> PlannedCode:
        steps = [
            (self.plan(entry.key), self.plan(entry.value), entry.optional) for entry in node.entries
        ]
        code = _map_code([(key.code(), value.code(), opt) for key, value, opt in steps])
        if all(k.is_constant and v.is_constant and not opt for k, v, opt in steps):
            try:
                return PlannedCode(is_constant=True, constant=code(_constant_frame()))
            except SubexpressionError:
                return PlannedCode(code)
        return PlannedCode(code)

    def _comprehension(self, node: Comprehension) -> PlannedCode:
        loop = node.loop
        initial = self.plan(node.initial).code()
        items = self.plan(node.range)
        accumulator, first, second = self.slots, self.slots + 1, self.slots + 2
        self.slots += 3
        mark = len(self._scopes)
        self._scopes.append((loop.accumulator, lazy_variable(accumulator, initial)))
        if items.is_constant and items.constant == ():
            result = self.plan(node.result).code()
            del self._scopes[mark:]
            return PlannedCode(binding(accumulator, result))
        self._scopes.append((loop.variable, variable(first)))
        if loop.second_variable:
            self._scopes.append((loop.second_variable, variable(second)))
        planned_condition = self.plan(loop.condition)
        condition = None if planned_condition.is_constant else planned_condition.code()
        step = self.plan(loop.step).code()
        del self._scopes[mark + 1 :]
        result = self.plan(node.result).code()
        del self._scopes[mark:]
        parts = LoopCode(items.code(), condition, step, result, accumulator)
        return PlannedCode(fold_pairs(parts) if loop.second_variable else fold(parts))


def _constant_frame() -> EvaluationFrame:
    return EvaluationFrame(Meter(), CelMap(), [])


def _as_attribute(step: PlannedCode) -> Attribute:
    return step.attribute if step.attribute is not None else Attribute(step.code())


def _index(steps: list[PlannedCode], *, optional: bool) -> PlannedCode:
    attribute, index = _as_attribute(steps[0]), steps[1]
    if index.is_constant:
        if type_name(index.constant) not in KEY_TYPES:
            raise CompileError(
                f"program instantiation failed: invalid qualifier type: {type_name(index.constant)}"
            )
        attribute.add(Qualifier(index.constant, optional=optional))
    else:
        key = index.code() if index.attribute is None else index.attribute.resolver()
        attribute.add(Qualifier(key=key, optional=optional))
    return PlannedCode(attribute=attribute)


def _conditional(steps: list[PlannedCode]) -> PlannedCode:
    condition, truthy, falsy = steps
    return PlannedCode(
        attribute=Attribute(condition.code(), _as_attribute(truthy), _as_attribute(falsy))
    )


def _logical(terms: list[Code], *, decisive: bool) -> Code:
    other = not decisive

    def evaluate(frame: EvaluationFrame) -> Value:
        failure: SubexpressionError | None = None
        for term in terms:
            try:
                value = term(frame)
            except SubexpressionError as error:
                failure = failure or error
                continue
            if value is decisive:
                return decisive
            if value is not other:
                failure = failure or no_overload()
        if failure is not None:
            raise failure
        return other

    return evaluate


def _either(left: Code, right: Code, *, unwrap: bool) -> Code:
    def evaluate(frame: EvaluationFrame) -> Value:
        value = left(frame)
        if not isinstance(value, Optional):
            return value
        if value.present:
            return value.value if unwrap else value
        return right(frame)

    return evaluate


def _not_strictly_false(operand: Code) -> Code:
    def evaluate(frame: EvaluationFrame) -> Value:
        frame.meter.cost += 1
        try:
            value = operand(frame)
        except SubexpressionError:
            return True
        return value if type(value) is bool else True

    return evaluate


def _membership(needle: Code, items: Value) -> PlannedCode | None:
    """A test against a constant list, which has no cost; None if it has to be searched."""
    assert isinstance(items, tuple)
    if not items:
        return PlannedCode(is_constant=True, constant=False)
    known = CelMap()
    for item in items:
        if type_name(item) not in KEY_TYPES:
            return None
        known.insert(item, True)

    def evaluate(frame: EvaluationFrame) -> Value:
        value = needle(frame)
        if type(value) in _UNHASHABLE:
            name = _UNHASHABLE[type(value)]
            raise InternalError(f"internal error: runtime error: hash of unhashable type {name}")
        return known.has(value)

    return PlannedCode(evaluate)


def _folded(code: Code) -> PlannedCode:
    try:
        return PlannedCode(is_constant=True, constant=code(_constant_frame()))
    except SubexpressionError as failure:
        raise CompileError(f"program instantiation failed: {failure.message}") from None


def _parsed_once(code: Code) -> Code:
    """Code that parses a constant now, but costs the same when it is evaluated."""
    frame = _constant_frame()
    try:
        value = code(frame)
    except (SubexpressionError, CostLimitError):
        return code
    cost = frame.meter.cost

    def evaluate(frame: EvaluationFrame) -> Value:
        frame.meter.cost += cost
        return value

    return evaluate


def _check_regex(pattern: str) -> None:
    try:
        compile_regex(pattern)
    except SubexpressionError as failure:
        raise CompileError(f"program instantiation failed: {failure.message}") from None


def _list_code(elements: list[Code], optional: frozenset[int]) -> Code:
    numbered = list(enumerate(elements))

    def evaluate(frame: EvaluationFrame) -> Value:
        values: list[Value] = []
        meter = frame.meter
        meter.cost += LIST_BASE
        for index, element in numbered:
            value = element(frame)
            if index in optional:
                if not isinstance(value, Optional):
                    raise SubexpressionError(
                        f"cannot initialize optional list element from non-optional value {value}"
                    )
                if not value.present:
                    continue
                value = value.value
            values.append(value)
        return tuple(values)

    return evaluate


def _map_code(entries: list[tuple[Code, Code, bool]]) -> Code:
    def evaluate(frame: EvaluationFrame) -> Value:
        built = CelMap()
        frame.meter.cost += MAP_BASE
        for key_code, value_code, is_optional in entries:
            key, value = key_code(frame), value_code(frame)
            if is_optional:
                if not isinstance(value, Optional):
                    raise SubexpressionError(
                        f"cannot initialize optional entry '{key}' from non-optional value {value}"
                    )
                if not value.present:
                    continue
                value = value.value
            built.insert(key, value)
        return built

    return evaluate
