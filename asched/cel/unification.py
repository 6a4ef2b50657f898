"""Assignability of types, and what is known of type variables."""

from __future__ import annotations

from collections.abc import Sequence

from asched.cel.types import (
    DYN,
    CelType,
    Kind,
    is_dynamic,
    is_dynamic_or_error,
    is_nullable,
)


class Unifier:
    """Bindings of type variables; a failed comparison leaves none."""

    def __init__(self) -> None:
        self._bindings: dict[str, CelType] = {}
        self._trail: list[tuple[str, CelType | None]] = []
        self._variables = 0

    def new_variable(self) -> CelType:
        """A type variable that is used nowhere else."""
        self._variables += 1
        return CelType(Kind.PARAMETER, f"_var{self._variables - 1}")

    def is_assignable(self, target: CelType, source: CelType) -> bool:
        """Whether the types agree; binds the variables that this needs."""
        return self.all_assignable((target,), (source,))

    def all_assignable(self, targets: Sequence[CelType], sources: Sequence[CelType]) -> bool:
        """Whether both sequences agree element by element."""
        mark = len(self._trail)
        if self._assign_all(targets, sources):
            return True
        while len(self._trail) > mark:
            name, previous = self._trail.pop()
            if previous is None:
                del self._bindings[name]
            else:
                self._bindings[name] = previous
        return False

    def substitute(self, checked: CelType, *, open_to_dyn: bool = False) -> CelType:
        """The type with its bound variables replaced."""
        if not checked.is_open:
            return checked
        if checked.kind is Kind.PARAMETER:
            bound = self._bindings.get(checked.name)
            if bound is not None:
                return self.substitute(bound, open_to_dyn=open_to_dyn)
            return DYN if open_to_dyn else checked
        parameters = tuple(
            self.substitute(each, open_to_dyn=open_to_dyn) for each in checked.parameters
        )
        return CelType(checked.kind, checked.name, parameters)

    def _bind(self, name: str, bound: CelType) -> None:
        self._trail.append((name, self._bindings.get(name)))
        self._bindings[name] = bound

    def _assign_all(self, targets: Sequence[CelType], sources: Sequence[CelType]) -> bool:
        if len(targets) != len(sources):
            return False
        return all(map(self._assign, targets, sources))

    def _assign(self, left: CelType, right: CelType) -> bool:
        if right.kind is Kind.PARAMETER:
            valid, bound = self._is_substitution(left, right)
            if valid or bound:
                return valid
        if left.kind is Kind.PARAMETER:
            return self._is_substitution(right, left)[0]
        if is_dynamic_or_error(left) or is_dynamic_or_error(right):
            return True
        if left.kind is Kind.NULL:
            return is_nullable(right)
        if right.kind is Kind.NULL:
            return is_nullable(left)
        if left.kind is Kind.TYPE:
            return right.kind is Kind.TYPE
        return (
            left.kind is right.kind
            and left.name == right.name
            and self._assign_all(left.parameters, right.parameters)
        )

    def _is_substitution(self, value: CelType, variable: CelType) -> tuple[bool, bool]:
        """Whether ``value`` can stand for ``variable``, and whether that is bound."""
        if value == variable:
            return True, True
        bound = self._bindings.get(variable.name)
        if bound is None:
            if self._is_free_of(variable, value):
                self._bind(variable.name, value)
                return True, False
            return False, False
        if value == bound:
            return True, True
        if not self._assign(value, bound):
            return False, True
        general = most_general(value, bound)
        if self._is_free_of(variable, general):
            self._bind(variable.name, general)
        return True, True

    def _is_free_of(self, variable: CelType, within: CelType) -> bool:
        if not within.is_open:
            return True
        if within == variable:
            return False
        if within.kind is Kind.PARAMETER:
            bound = self._bindings.get(within.name)
            return bound is None or self._is_free_of(variable, bound)
        return all(self._is_free_of(variable, each) for each in within.parameters)


def most_general(left: CelType, right: CelType) -> CelType:
    """The less specific one of two types that agree."""
    return left if _is_less_specific(left, right) else right


def _is_less_specific(left: CelType, right: CelType) -> bool:
    if is_dynamic(left) or left.kind is Kind.PARAMETER:
        return True
    if is_dynamic(right) or right.kind is Kind.PARAMETER or left.kind is not right.kind:
        return False
    if left.kind is Kind.TYPE:
        return True
    if left.kind in (Kind.LIST, Kind.MAP, Kind.OPAQUE):
        if left.name != right.name or len(left.parameters) != len(right.parameters):
            return False
        return all(map(_is_less_specific, left.parameters, right.parameters))
    return left == right
