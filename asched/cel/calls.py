"""Code of calls: choice of the overload, costs and errors of arguments."""

from __future__ import annotations

from asched.cel.attributes import Code, EvaluationFrame
from asched.cel.costs import (
    COST_OF_RESULT,
    FAILED,
    CallCost,
    call_cost,
    equality,
    smaller,
)
from asched.cel.errors import SubexpressionError, no_overload
from asched.cel.functions import Function, Implementation, Overload
from asched.cel.instants import Duration, Timestamp
from asched.cel.values import Meter, Value, equal, type_name

# Values that answer a call without an implementation themselves, with a shorter error.
_RECEIVERS = frozenset({str, Timestamp, Duration})


def call_code(
    function: Function, identifiers: tuple[str, ...], codes: list[Code], *, is_regex: bool = False
) -> Code:
    """Code of a call with the overloads that the checker found."""
    identifier = identifiers[0] if len(identifiers) == 1 else ""
    run, dispatches = _implementation(function, identifier, is_regex=is_regex)
    cost = call_cost(function.name, identifier)
    charged_after = function.name in COST_OF_RESULT
    # cel-go stops at the first argument that fails if it passes a list of arguments.
    is_lazy = dispatches or is_regex or len(codes) > 2 or function.name == "format"
    if cost is None and len(codes) == 1:
        return _unary(run, codes[0])
    if cost is None and len(codes) == 2 and not is_lazy:
        return _binary(run, codes[0], codes[1])
    return _general(run, codes, cost, (is_lazy, charged_after))


def _implementation(
    function: Function, identifier: str, *, is_regex: bool
) -> tuple[Implementation, bool]:
    if is_regex:
        return _regex_implementation(function), False
    if function.common is not None:
        return _with_operands(function, function.common), False
    chosen = [each for each in function.overloads if each.identifier == identifier]
    if not chosen and len(function.overloads) == 1:
        chosen = function.overloads
    if chosen:
        return _guarded(function, chosen[0]), False
    return _dispatcher(function), True


def _no_such_overload(name: str, values: tuple[Value, ...]) -> SubexpressionError:
    types = ", ".join(map(type_name, values))
    return SubexpressionError(f"no such overload: {name}({types})")


def _guarded(function: Function, overload: Overload) -> Implementation:
    run = overload.implementation or _unimplemented
    if not function.is_guarded or not overload.arguments:
        return run
    accepted = overload.python_types()
    if accepted is None or len(accepted) > 2:
        return _guarded_by_overload(function.name, overload, run)
    if len(accepted) == 1:
        return _guarded_unary(function.name, accepted[0], run)
    return _guarded_binary(function.name, (accepted[0], accepted[1]), run)


def _guarded_by_overload(name: str, overload: Overload, run: Implementation) -> Implementation:
    def guarded(meter: Meter, *values: Value) -> Value:
        if not overload.accepts(values):
            raise _no_such_overload(name, values)
        return run(meter, *values)

    return guarded


def _guarded_unary(name: str, accepted: frozenset[type], run: Implementation) -> Implementation:
    def guarded(meter: Meter, value: Value) -> Value:
        if type(value) not in accepted:
            raise _no_such_overload(name, (value,))
        return run(meter, value)

    return guarded


def _guarded_binary(
    name: str, accepted: tuple[frozenset[type], frozenset[type]], run: Implementation
) -> Implementation:
    first_accepted, second_accepted = accepted

    def guarded(meter: Meter, first: Value, second: Value) -> Value:
        if type(first) not in first_accepted or type(second) not in second_accepted:
            raise _no_such_overload(name, (first, second))
        return run(meter, first, second)

    return guarded


def _unimplemented(_: Meter, *__: Value) -> Value:
    raise no_overload()


def _dispatcher(function: Function) -> Implementation:
    def dispatch(meter: Meter, *values: Value) -> Value:
        for overload in function.overloads:
            run = overload.implementation
            if run is not None and overload.accepts(values):
                return run(meter, *values)
        raise _no_such_overload(function.name, values)

    return dispatch


def _with_operands(function: Function, run: Implementation) -> Implementation:
    operands, name = function.operands, function.name
    if operands is None:
        return run

    def checked(meter: Meter, *values: Value) -> Value:
        if type(values[0]) not in operands:
            if type(values[0]) in _RECEIVERS:
                raise no_overload()
            raise SubexpressionError(f"no such overload: {name}")
        return run(meter, *values)

    return checked


def _regex_implementation(function: Function) -> Implementation:
    def evaluate(meter: Meter, *values: Value) -> Value:
        if not isinstance(values[0], str):
            raise no_overload()
        if function.common is not None:
            return function.common(meter, *values)
        for overload in function.overloads:
            run = overload.implementation
            if run is not None and overload.accepts(values):
                return run(meter, *values)
        raise no_overload()

    return evaluate


def _unary(run: Implementation, operand: Code) -> Code:
    def evaluate(frame: EvaluationFrame) -> Value:
        meter = frame.meter
        meter.cost += 1
        return run(meter, operand(frame))

    return evaluate


def _binary(run: Implementation, left: Code, right: Code) -> Code:
    def evaluate(frame: EvaluationFrame) -> Value:
        meter = frame.meter
        meter.cost += 1
        try:
            first = left(frame)
        except SubexpressionError:
            _value_or_failed(frame, right)
            raise
        return run(meter, first, right(frame))

    return evaluate


def _evaluated(
    frame: EvaluationFrame, codes: list[Code], *, is_lazy: bool
) -> tuple[list[Value], str | None]:
    """Values of arguments, and the first error. Fewer values than codes if it stopped there."""
    values: list[Value] = []
    message: str | None = None
    for code in codes:
        try:
            values.append(code(frame))
        except SubexpressionError as failure:
            values.append(FAILED)
            message = failure.message if message is None else message
            if is_lazy:
                break
    return values, message


def _general(
    run: Implementation, codes: list[Code], cost: CallCost | None, order: tuple[bool, bool]
) -> Code:
    is_lazy, charged_after = order

    def evaluate(frame: EvaluationFrame) -> Value:
        meter = frame.meter
        found, message = _evaluated(frame, codes, is_lazy=is_lazy)
        values = tuple(found)
        is_complete = len(values) == len(codes)
        if is_complete and not charged_after:
            meter.spend(1 if cost is None else cost(meter, values, None))
        if message is None:
            try:
                result = run(meter, *values)
            except SubexpressionError:
                if charged_after:
                    meter.spend(1 if cost is None else cost(meter, values, FAILED))
                raise
        else:
            result = FAILED
        if is_complete and charged_after:
            meter.spend(1 if cost is None else cost(meter, values, result))
        if message is not None:
            raise SubexpressionError(message)
        return result

    return evaluate


def equality_code(left: Code, right: Code, *, negated: bool) -> Code:
    """Code of ``==`` or ``!=``."""
    cost = smaller if negated else equality

    def evaluate(frame: EvaluationFrame) -> Value:
        meter = frame.meter
        try:
            first = left(frame)
        except SubexpressionError:
            other = _value_or_failed(frame, right)
            meter.spend(cost(meter, (FAILED, other), None))
            raise
        try:
            second = right(frame)
        except SubexpressionError:
            meter.spend(cost(meter, (first, FAILED), None))
            raise
        meter.spend(cost(meter, (first, second), None))
        if not negated:
            return equal(meter, first, second)
        try:
            return not equal(meter, first, second)
        except SubexpressionError:
            return True

    return evaluate


def _value_or_failed(frame: EvaluationFrame, code: Code) -> Value:
    try:
        return code(frame)
    except SubexpressionError:
        return FAILED
