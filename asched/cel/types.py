"""Static types of expressions, their assignability, and what is known of type variables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from asched.cel.errors import CompileError

MAX_TYPE_SIZE = 1000


class Kind(Enum):
    """General category of a type."""

    BOOL = auto()
    INT = auto()
    UINT = auto()
    DOUBLE = auto()
    STRING = auto()
    BYTES = auto()
    NULL = auto()
    TIMESTAMP = auto()
    DURATION = auto()
    LIST = auto()
    MAP = auto()
    OPAQUE = auto()
    STRUCT = auto()
    TYPE = auto()
    PARAMETER = auto()
    DYN = auto()
    ANY = auto()
    ERROR = auto()


@dataclass(frozen=True, slots=True)
class CelType:
    """A type; ``name`` is the one that values report at run time."""

    kind: Kind
    name: str
    parameters: tuple[CelType, ...] = ()
    size: int = field(init=False, compare=False, repr=False)
    is_open: bool = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        size = 1 + sum(parameter.size for parameter in self.parameters)
        if size > MAX_TYPE_SIZE:
            raise CompileError("compilation failed: a type of the expression is too complex")
        is_open = self.kind is Kind.PARAMETER or any(p.is_open for p in self.parameters)
        object.__setattr__(self, "size", size)
        object.__setattr__(self, "is_open", is_open)

    def __str__(self) -> str:
        if self.kind is Kind.ANY:
            return "any"
        if self.kind is Kind.TYPE and not self.parameters:
            return "type"
        if self.parameters:
            return f"{self.name}({', '.join(map(str, self.parameters))})"
        return self.name


BOOL = CelType(Kind.BOOL, "bool")
INT = CelType(Kind.INT, "int")
UINT = CelType(Kind.UINT, "uint")
DOUBLE = CelType(Kind.DOUBLE, "double")
STRING = CelType(Kind.STRING, "string")
BYTES = CelType(Kind.BYTES, "bytes")
NULL = CelType(Kind.NULL, "null_type")
TIMESTAMP = CelType(Kind.TIMESTAMP, "google.protobuf.Timestamp")
DURATION = CelType(Kind.DURATION, "google.protobuf.Duration")
DYN = CelType(Kind.DYN, "dyn")
ANY = CelType(Kind.ANY, "google.protobuf.Any")
ERROR = CelType(Kind.ERROR, "*error*")
TYPE = CelType(Kind.TYPE, "type")
QUANTITY = CelType(Kind.STRUCT, "kubernetes.Quantity")
SEMVER = CelType(Kind.STRUCT, "kubernetes.Semver")
URL = CelType(Kind.STRUCT, "kubernetes.URL")
NAMED_FORMAT = CelType(Kind.STRUCT, "kubernetes.NamedFormat")
DEVICE = CelType(Kind.STRUCT, "kubernetes.DRADevice")
IP = CelType(Kind.OPAQUE, "net.IP")
CIDR = CelType(Kind.OPAQUE, "net.CIDR")
OPTIONAL_NAME = "optional_type"

_NULLABLE = frozenset({Kind.OPAQUE, Kind.STRUCT, Kind.ANY, Kind.DURATION, Kind.TIMESTAMP})


def list_of(element: CelType) -> CelType:
    """The type of lists of ``element``."""
    return CelType(Kind.LIST, "list", (element,))


def map_of(key: CelType, value: CelType) -> CelType:
    """The type of maps from ``key`` to ``value``."""
    return CelType(Kind.MAP, "map", (key, value))


def optional_of(value: CelType) -> CelType:
    """The type of values that may be absent."""
    return CelType(Kind.OPAQUE, OPTIONAL_NAME, (value,))


def type_of(instance: CelType) -> CelType:
    """The type of the name of a type."""
    return CelType(Kind.TYPE, "type", (instance,))


def parameter(name: str) -> CelType:
    """A type parameter."""
    return CelType(Kind.PARAMETER, name)


def is_dynamic(checked: CelType) -> bool:
    """Whether only the run time knows the type."""
    return checked.kind is Kind.DYN or checked.kind is Kind.ANY


def is_dynamic_or_error(checked: CelType) -> bool:
    """Whether nothing can be said of the type before run time."""
    return is_dynamic(checked) or checked.kind is Kind.ERROR


def is_optional(checked: CelType) -> bool:
    """Whether values of the type may be absent."""
    return checked.kind is Kind.OPAQUE and checked.name == OPTIONAL_NAME


def unwrap_optional(checked: CelType) -> tuple[CelType, bool]:
    """The type without its optional wrapper, and whether there was one."""
    if is_optional(checked):
        return checked.parameters[0], True
    return checked, False


def is_nullable(checked: CelType) -> bool:
    """Whether ``null`` may stand for a value of the type."""
    return checked.kind in _NULLABLE or checked.kind in (Kind.NULL, Kind.DYN)


def is_equivalent(left: CelType, right: CelType) -> bool:
    """Whether two types are equal if names of type parameters do not count."""
    if left.kind is not right.kind or len(left.parameters) != len(right.parameters):
        return False
    if left.kind is not Kind.PARAMETER and left.name != right.name:
        return False
    return all(map(is_equivalent, left.parameters, right.parameters))


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

    def unify(self, target: CelType, source: CelType) -> bool:
        """Whether the types agree; binds the variables that this needs."""
        return self.unify_all((target,), (source,))

    def unify_all(self, targets: Sequence[CelType], sources: Sequence[CelType]) -> bool:
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
