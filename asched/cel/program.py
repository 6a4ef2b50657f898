"""Compiles checked trees to closures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from asched.cel.attributes import KEY_TYPES, Attribute, Code, Frame, Qualifier
from asched.cel.calls import call_code, equality_code
from asched.cel.costs import LIST_BASE, MAP_BASE
from asched.cel.environment import DEVICE_VARIABLE, FUNCTIONS
from asched.cel.errors import CompileError, CostLimitError, SubexpressionError, no_overload
from asched.cel.regular_expressions import compile_regex
from asched.cel.syntax import (
    Call,
    Comprehension,
    Identifier,
    ListLiteral,
    Literal,
    MapLiteral,
    Node,
    Select,
)
from asched.cel.values import (
    MAX_ITEMS,
    CelMap,
    GrowingList,
    Meter,
    Optional,
    TypeName,
    Value,
    is_list,
    type_name,
)

_CONVERSIONS: Final = frozenset(
    ["bool", "bytes", "double", "duration", "dyn", "int", "string", "timestamp", "type", "uint"]
)
_REGEX_FUNCTIONS: Final = frozenset({"matches", "find", "findAll"})
_INDEXES: Final = {"_[_]": False, "_[?_]": True, "_?._": True}


class _Unset:
    pass


_UNSET: Final = _Unset()


@dataclass(slots=True)
class Step:
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


def plan(root: Node) -> tuple[Code, int]:
    """Code for a checked tree and the number of its variables. Raises CompileError."""
    planner = _Planner()
    return planner.plan(root).code(), planner.slots


class _Planner:
    def __init__(self) -> None:
        self.slots = 0
        self._scopes: list[tuple[str, Code]] = []

    def plan(self, node: Node) -> Step:
        if isinstance(node, Literal):
            return Step(is_constant=True, constant=node.value)
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

    def _identifier(self, node: Identifier) -> Step:
        if node.type_name:
            return Step(is_constant=True, constant=TypeName(node.type_name))
        name = node.name.removeprefix(".")
        for declared, read in reversed(self._scopes):
            if declared == name:
                return Step(attribute=Attribute(read))
        assert name == DEVICE_VARIABLE
        return Step(attribute=Attribute(lambda frame: frame.device))

    def _select(self, node: Select) -> Step:
        if node.type_name:
            return Step(is_constant=True, constant=TypeName(node.type_name))
        attribute = _as_attribute(self.plan(node.operand))
        attribute.add(Qualifier(node.name, test_only=node.test_only))
        return Step(attribute=attribute)

    def _call(self, node: Call) -> Step:
        steps = [self.plan(child) for child in node.children()]
        function = node.function
        if function in _INDEXES:
            return _index(steps, optional=_INDEXES[function])
        if function == "_?_:_":
            return _conditional(steps)
        codes = [step.code() for step in steps]
        if function == "_&&_" or function == "_||_":
            return Step(_logical(codes, decisive=function == "_||_"))
        if function == "or" or function == "orValue":
            return Step(_either(codes[0], codes[1], unwrap=function == "orValue"))
        if function == "@not_strictly_false":
            return Step(_not_strictly_false(codes[0]))
        if function == "_==_" or function == "_!=_":
            return Step(equality_code(codes[0], codes[1], negated=function == "_!=_"))
        if function == "@in" and node.overloads == ("in_list",) and steps[1].is_constant:
            found = _membership(codes[0], steps[1].constant)
            if found is not None:
                return found
        if function in _CONVERSIONS and len(steps) == 1 and steps[0].is_constant:
            return _folded(call_code(FUNCTIONS[function], node.overloads, codes))
        if function in _REGEX_FUNCTIONS and steps[1].is_constant:
            _check_regex(steps[1].constant)
            return Step(call_code(FUNCTIONS[function], node.overloads, codes, is_regex=True))
        return Step(call_code(FUNCTIONS[function], node.overloads, codes))

    def _list(self, node: ListLiteral) -> Step:
        steps = [self.plan(element) for element in node.elements]
        if not node.optional and all(step.is_constant for step in steps):
            return Step(is_constant=True, constant=tuple(step.constant for step in steps))
        return Step(_list_code([step.code() for step in steps], node.optional))

    def _map(self, node: MapLiteral) -> Step:
        steps = [
            (self.plan(entry.key), self.plan(entry.value), entry.optional) for entry in node.entries
        ]
        code = _map_code([(key.code(), value.code(), opt) for key, value, opt in steps])
        if all(k.is_constant and v.is_constant and not opt for k, v, opt in steps):
            try:
                return Step(is_constant=True, constant=code(_constant_frame()))
            except SubexpressionError:
                return Step(code)
        return Step(code)

    def _comprehension(self, node: Comprehension) -> Step:
        loop = node.loop
        initial = self.plan(node.initial).code()
        items = self.plan(node.range)
        accumulator, first, second = self.slots, self.slots + 1, self.slots + 2
        self.slots += 3
        mark = len(self._scopes)
        self._scopes.append((loop.accumulator, _lazy_variable(accumulator, initial)))
        if items.is_constant and items.constant == ():
            result = self.plan(node.result).code()
            del self._scopes[mark:]
            return Step(_binding(accumulator, result))
        self._scopes.append((loop.variable, _variable(first)))
        if loop.second_variable:
            self._scopes.append((loop.second_variable, _variable(second)))
        planned_condition = self.plan(loop.condition)
        condition = None if planned_condition.is_constant else planned_condition.code()
        step = self.plan(loop.step).code()
        del self._scopes[mark + 1 :]
        result = self.plan(node.result).code()
        del self._scopes[mark:]
        parts = _Fold(items.code(), condition, step, result, accumulator)
        return Step(_fold_pairs(parts) if loop.second_variable else _fold(parts))


def _constant_frame() -> Frame:
    return Frame(Meter(), CelMap(), [])


def _as_attribute(step: Step) -> Attribute:
    return step.attribute if step.attribute is not None else Attribute(step.code())


def _index(steps: list[Step], *, optional: bool) -> Step:
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
    return Step(attribute=attribute)


def _conditional(steps: list[Step]) -> Step:
    condition, truthy, falsy = steps
    return Step(attribute=Attribute(condition.code(), _as_attribute(truthy), _as_attribute(falsy)))


def _logical(terms: list[Code], *, decisive: bool) -> Code:
    other = not decisive

    def evaluate(frame: Frame) -> Value:
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
    def evaluate(frame: Frame) -> Value:
        value = left(frame)
        if not isinstance(value, Optional):
            return value
        if value.present:
            return value.value if unwrap else value
        return right(frame)

    return evaluate


def _not_strictly_false(operand: Code) -> Code:
    def evaluate(frame: Frame) -> Value:
        frame.meter.cost += 1
        try:
            value = operand(frame)
        except SubexpressionError:
            return True
        return value if type(value) is bool else True

    return evaluate


def _membership(needle: Code, items: Value) -> Step | None:
    """A test against a constant list, which has no cost; None if it has to be searched."""
    assert isinstance(items, tuple)
    if not items:
        return Step(is_constant=True, constant=False)
    known = CelMap()
    for item in items:
        if type_name(item) not in KEY_TYPES:
            return None
        known.insert(item, True)

    def evaluate(frame: Frame) -> Value:
        return known.has(needle(frame))

    return Step(evaluate)


def _folded(code: Code) -> Step:
    try:
        return Step(is_constant=True, constant=code(_constant_frame()))
    except SubexpressionError as failure:
        raise CompileError(f"program instantiation failed: {failure.message}") from None


def _check_regex(pattern: Value) -> None:
    if not isinstance(pattern, str):
        return
    try:
        compile_regex(pattern)
    except SubexpressionError as failure:
        raise CompileError(f"program instantiation failed: {failure.message}") from None


def _list_code(elements: list[Code], optional: frozenset[int]) -> Code:
    numbered = list(enumerate(elements))

    def evaluate(frame: Frame) -> Value:
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
    def evaluate(frame: Frame) -> Value:
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


def _variable(slot: int) -> Code:
    def read(frame: Frame) -> Value:
        return frame.slots[slot]

    return read


def _lazy_variable(slot: int, initial: Code) -> Code:
    """Reads an accumulator, which is computed when it is needed for the first time."""

    def read(frame: Frame) -> Value:
        value = frame.slots[slot]
        if value is _UNSET:
            value = frame.slots[slot] = _initialized(frame, initial)
        if type(value) is SubexpressionError:
            raise SubexpressionError(value.message)
        return value

    return read


def _initialized(frame: Frame, initial: Code) -> Value:
    try:
        value = initial(frame)
    except SubexpressionError as failure:
        return failure
    if is_list(value) and not value:
        return GrowingList()
    if isinstance(value, CelMap) and len(value) == 0:
        value = CelMap()
        value.growing = True
    return value


def _finished(value: Value) -> Value:
    """The value of a comprehension, which nothing may change any longer."""
    if type(value) is GrowingList:
        return tuple(value)
    if type(value) is CelMap:
        value.growing = False
    return value


def _binding(slot: int, result: Code) -> Code:
    def evaluate(frame: Frame) -> Value:
        frame.slots[slot] = _UNSET
        return _finished(result(frame))

    return evaluate


@dataclass(frozen=True, slots=True)
class _Fold:
    items: Code
    condition: Code | None
    step: Code
    result: Code
    slot: int

    def advance(self, frame: Frame) -> bool:
        """Fold one element; whether to go on."""
        frame.meter.count()
        if self.condition is not None:
            try:
                if self.condition(frame) is False:
                    return False
            except SubexpressionError:
                pass
        try:
            frame.slots[self.slot] = self.step(frame)
        except SubexpressionError as failure:
            frame.slots[self.slot] = failure
        return True


def _fold(parts: _Fold) -> Code:
    slot, advance = parts.slot, parts.advance
    items, result = parts.items, parts.result

    def evaluate(frame: Frame) -> Value:
        value = items(frame)
        if isinstance(value, CelMap):
            elements = [key for key, _ in value.items()]
        elif isinstance(value, tuple | GrowingList):
            elements = list(value)
        else:
            raise SubexpressionError(f"got '{type_name(value)}', expected iterable type")
        slots = frame.slots
        slots[slot] = _UNSET
        for element in elements:
            slots[slot + 1] = element
            if not advance(frame):
                break
        return _finished(result(frame))

    return evaluate


def _fold_pairs(parts: _Fold) -> Code:
    slot, advance = parts.slot, parts.advance
    items, result = parts.items, parts.result

    def evaluate(frame: Frame) -> Value:
        value = items(frame)
        pairs: list[tuple[Value, Value]]
        if isinstance(value, CelMap):
            pairs = list(value.items())
        elif isinstance(value, tuple | GrowingList):
            pairs = list(enumerate(value))
        else:
            raise SubexpressionError(f"unsupported comprehension range type: {type_name(value)}")
        if len(pairs) > MAX_ITEMS:
            raise CostLimitError
        slots = frame.slots
        slots[slot] = _UNSET
        for slots[slot + 1], slots[slot + 2] in pairs:
            if not advance(frame):
                break
        return _finished(result(frame))

    return evaluate
