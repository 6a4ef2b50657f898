"""Static types of expressions."""

from __future__ import annotations

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
