"""Code that reads variables, fields and elements, and code of comprehensions.

A chain of selections is one attribute, as in cel-go: its errors and costs depend on that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from asched.cel.errors import SubexpressionError, no_overload
from asched.cel.values import (
    ABSENT,
    LIST_TYPES,
    CelMap,
    GrowingList,
    Meter,
    Optional,
    Value,
    display,
    go_type_name,
    is_list,
    type_name,
)


@dataclass(slots=True)
class EvaluationFrame:
    """State of one evaluation."""

    meter: Meter
    device: CelMap
    slots: list[Value]


Code: TypeAlias = Callable[[EvaluationFrame], Value]
KEY_TYPES: Final = frozenset(("bool", "int", "uint", "double", "string"))


@dataclass(frozen=True, slots=True)
class Qualifier:
    """A field or index; ``key`` computes one that is not constant."""

    constant: Value = None
    key: Code | None = None
    optional: bool = False
    test_only: bool = False


@dataclass(slots=True)
class Attribute:
    """A variable, an expression, or one of two attributes, with what is selected from it."""

    base: Code
    truthy: Attribute | None = None
    falsy: Attribute | None = None
    qualifiers: list[Qualifier] = field(default_factory=list)
    test_only: bool = False

    def add(self, qualifier: Qualifier) -> None:
        """Select from the attribute."""
        self.test_only = self.test_only or qualifier.test_only
        if self.truthy is not None and self.falsy is not None:
            self.truthy.add(qualifier)
            self.falsy.add(qualifier)
        else:
            self.qualifiers.append(qualifier)

    def resolver(self) -> Code:
        """Code for the value, without the cost of the variable itself."""
        if self.truthy is not None and self.falsy is not None:
            return _conditional(self.base, self.truthy.resolver(), self.falsy.resolver())
        if not self.qualifiers:
            return self.base
        if any(qualifier.optional for qualifier in self.qualifiers):
            return _optional_chain(self.base, self.qualifiers)
        return _chain(self.base, self.qualifiers)

    def code(self) -> Code:
        """Code for the value with its cost."""
        resolve = self.resolver()
        is_conditional = self.truthy is not None
        if self.test_only:
            # A presence test is free: cel-go takes back the cost of a selection, even if it has not
            # added one, as for a conditional.
            return _presence(resolve, -1 if is_conditional else 0)
        if is_conditional:
            return resolve

        def evaluate(frame: EvaluationFrame) -> Value:
            frame.meter.cost += 1
            return resolve(frame)

        return evaluate


def _conditional(condition: Code, truthy: Code, falsy: Code) -> Code:
    def evaluate(frame: EvaluationFrame) -> Value:
        value = condition(frame)
        if value is True:
            return truthy(frame)
        if value is False:
            return falsy(frame)
        raise no_overload()

    return evaluate


def _presence(resolve: Code, cost: int) -> Code:
    def evaluate(frame: EvaluationFrame) -> Value:
        frame.meter.cost += cost
        value = resolve(frame)
        return value.present if isinstance(value, Optional) else value

    return evaluate


def _chain(base: Code, qualifiers: list[Qualifier]) -> Code:
    steps = [_qualify(qualifier) for qualifier in qualifiers]
    select_if_present = _optional_selection(qualifiers)
    first, rest = steps[0], steps[1:]

    def evaluate(frame: EvaluationFrame) -> Value:
        value = base(frame)
        if type(value) is Optional:
            return select_if_present(frame, value)
        value = first(frame, value)
        for step in rest:
            value = step(frame, value)
        return value

    return evaluate


def _optional_chain(base: Code, qualifiers: list[Qualifier]) -> Code:
    select = _optional_selection(qualifiers)
    return lambda frame: select(frame, base(frame))


def _optional_selection(
    qualifiers: list[Qualifier],
) -> Callable[[EvaluationFrame, Value], Value]:
    """Selects from an optional value, or with optional selections."""
    steps = [(_qualify(each), _qualify_if_present(each), each.optional) for each in qualifiers]

    def select(frame: EvaluationFrame, value: Value) -> Value:
        is_optional = isinstance(value, Optional)
        if isinstance(value, Optional):
            if not value.present:
                return value
            value = value.value
        for qualify, qualify_if_present, optional in steps:
            is_optional = is_optional or optional
            if not is_optional:
                value = qualify(frame, value)
                continue
            found = qualify_if_present(frame, value)
            if not found.present:
                return ABSENT
            value = found.value
        return Optional(value) if is_optional else value

    return select


def _missing_key(key: Value) -> SubexpressionError:
    return SubexpressionError(f"no such key: {display(key)}")


def _list_index(key: Value) -> int:
    if isinstance(key, bool) or not isinstance(key, int | float):
        raise SubexpressionError(f"unsupported index type '{type_name(key)}' in list")
    if isinstance(key, float) and not key.is_integer():
        raise SubexpressionError(f"unsupported index value {display(key)} in list")
    return int(key)


def _get(value: Value, key: Value) -> Value:
    if type(value) is CelMap:
        found = value.find(key)
        if found is None:
            raise _missing_key(key)
        return found[1]
    if type(value) in LIST_TYPES:
        index = _list_index(key)
        if not 0 <= index < len(value):  # type: ignore[arg-type]
            raise SubexpressionError(f"index out of bounds: {display(key)}")
        return value[index]  # type: ignore[index]
    raise _missing_key(key)


def _get_if_present(value: Value, key: Value) -> Optional:
    if type(value) is CelMap:
        found = value.find(key)
        return ABSENT if found is None else Optional(found[1])
    if type(value) in LIST_TYPES:
        index = _list_index(key)
        if 0 <= index < len(value):  # type: ignore[arg-type]
            return Optional(value[index])  # type: ignore[index]
    return ABSENT


def _qualify(qualifier: Qualifier) -> Callable[[EvaluationFrame, Value], Value]:
    key = qualifier.key
    if key is not None:
        return _computed(key)
    constant = qualifier.constant
    if qualifier.test_only:

        def test(frame: EvaluationFrame, value: Value) -> Value:
            frame.meter.cost += 1
            return _get_if_present(value, constant).present

        return test

    if type(constant) is str:

        def field_of(frame: EvaluationFrame, value: Value) -> Value:
            frame.meter.cost += 1
            if type(value) is CelMap:
                found = value.entries.get(constant)
                if found is not None:
                    return found[1]
            return _get(value, constant)

        return field_of

    def get(frame: EvaluationFrame, value: Value) -> Value:
        frame.meter.cost += 1
        return _get(value, constant)

    return get


def _computed(key: Code) -> Callable[[EvaluationFrame, Value], Value]:
    def get(frame: EvaluationFrame, value: Value) -> Value:
        frame.meter.cost += 1
        return _get(value, _checked_key(key(frame)))

    return get


def _checked_key(key: Value) -> Value:
    name = type_name(key)
    if name not in KEY_TYPES:
        raise SubexpressionError(f"invalid qualifier type: {go_type_name(key)}")
    return key


def _qualify_if_present(qualifier: Qualifier) -> Callable[[EvaluationFrame, Value], Optional]:
    key, constant = qualifier.key, qualifier.constant

    def get(frame: EvaluationFrame, value: Value) -> Optional:
        wanted = constant if key is None else _checked_key(key(frame))
        found = _get_if_present(value, wanted)
        if found.present:
            frame.meter.cost += 1
        return found

    return get


class _Unset:
    pass


_UNSET: Final = _Unset()


def variable(slot: int) -> Code:
    """Reads an iteration variable."""

    def read(frame: EvaluationFrame) -> Value:
        return frame.slots[slot]

    return read


def lazy_variable(slot: int, initial: Code) -> Code:
    """Reads an accumulator, which is computed when it is needed for the first time."""

    def read(frame: EvaluationFrame) -> Value:
        value = frame.slots[slot]
        if value is _UNSET:
            value = frame.slots[slot] = _initialized(frame, initial)
        if type(value) is SubexpressionError:
            raise SubexpressionError(value.message)
        return value

    return read


def _initialized(frame: EvaluationFrame, initial: Code) -> Value:
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


def binding(slot: int, result: Code) -> Code:
    """Evaluates the result with a variable that is computed when it is needed."""

    def evaluate(frame: EvaluationFrame) -> Value:
        frame.slots[slot] = _UNSET
        return _finished(result(frame))

    return evaluate


@dataclass(frozen=True, slots=True)
class LoopCode:
    """Code of a comprehension. The accumulator is in ``slot``, the variables follow."""

    items: Code
    condition: Code | None
    step: Code
    result: Code
    slot: int

    def advance(self, frame: EvaluationFrame) -> bool:
        """Process one element. Returns whether to continue."""
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


def fold(parts: LoopCode) -> Code:
    """Folds the elements of a list or the keys of a map."""

    slot, advance = parts.slot, parts.advance
    items, result = parts.items, parts.result

    def evaluate(frame: EvaluationFrame) -> Value:
        value = items(frame)
        if isinstance(value, CelMap):
            elements = [key for key, _ in value.items()]
        elif isinstance(value, tuple | GrowingList):
            elements = list(value)
        else:
            raise SubexpressionError(f"got '{go_type_name(value)}', expected iterable type")
        slots = frame.slots
        slots[slot] = _UNSET
        for element in elements:
            slots[slot + 1] = element
            if not advance(frame):
                break
        return _finished(result(frame))

    return evaluate


def fold_pairs(parts: LoopCode) -> Code:
    """Folds indexes and elements of a list or keys and values of a map."""

    slot, advance = parts.slot, parts.advance
    items, result = parts.items, parts.result

    def evaluate(frame: EvaluationFrame) -> Value:
        value = items(frame)
        pairs: Iterable[tuple[Value, Value]]
        if isinstance(value, CelMap):
            pairs = tuple(value.items())
        elif isinstance(value, tuple | GrowingList):
            pairs = enumerate(tuple(value))
        else:
            raise SubexpressionError(f"unsupported comprehension range type: {go_type_name(value)}")
        slots = frame.slots
        slots[slot] = _UNSET
        for first, second in pairs:
            slots[slot + 1], slots[slot + 2] = first, second
            if not advance(frame):
                break
        return _finished(result(frame))

    return evaluate
