"""Code of comprehensions and of the variables that they declare."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from asched.cel.attributes import Code, EvaluationFrame
from asched.cel.errors import CostLimitError, SubexpressionError
from asched.cel.values import MAX_ITEMS, CelMap, GrowingList, Value, go_type_name, is_list


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
class Fold:
    """Parts of a loop over elements; the accumulator is in ``slot``, the variables follow."""

    items: Code
    condition: Code | None
    step: Code
    result: Code
    slot: int

    def advance(self, frame: EvaluationFrame) -> bool:
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


def fold(parts: Fold) -> Code:
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


def fold_pairs(parts: Fold) -> Code:
    """Folds indexes and elements of a list or keys and values of a map."""

    slot, advance = parts.slot, parts.advance
    items, result = parts.items, parts.result

    def evaluate(frame: EvaluationFrame) -> Value:
        value = items(frame)
        pairs: list[tuple[Value, Value]]
        if isinstance(value, CelMap):
            pairs = list(value.items())
        elif isinstance(value, tuple | GrowingList):
            pairs = list(enumerate(value))
        else:
            raise SubexpressionError(f"unsupported comprehension range type: {go_type_name(value)}")
        if len(pairs) > MAX_ITEMS:
            raise CostLimitError
        slots = frame.slots
        slots[slot] = _UNSET
        for slots[slot + 1], slots[slot + 2] in pairs:
            if not advance(frame):
                break
        return _finished(result(frame))

    return evaluate
