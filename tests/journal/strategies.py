"""Hypothesis strategies for msgspec structs, derived from their annotations.

``struct(SomeStruct)`` draws any instance that JSON can carry; ``records()`` any journal record.
"""

from __future__ import annotations

import types
from datetime import UTC, datetime
from enum import Enum
from functools import cache
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec
from hypothesis import strategies as st

from asched.state.records import AnyRecord

S = TypeVar("S", bound=msgspec.Struct)

# A lone surrogate cannot be written as UTF-8, so no API object can contain one.
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
INTEGERS = st.integers(-(2**63), 2**63 - 1)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
JSON_VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | INTEGERS | FLOATS | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)

_SCALARS: dict[Any, st.SearchStrategy[Any]] = {
    str: TEXT,
    int: INTEGERS,
    float: FLOATS,
    bool: st.booleans(),
    bytes: st.binary(max_size=12),
    datetime: st.datetimes(timezones=st.just(UTC)),
    type(None): st.none(),
    Any: JSON_VALUES,
}


def _within(annotation: Any, limits: msgspec.Meta) -> st.SearchStrategy[Any]:
    """Values of a type with limits; those of texts and times apply to all drawn values."""
    if annotation is not int:
        return _of_type(annotation)
    least = -(2**63) if limits.ge is None else int(limits.ge)
    most = 2**63 - 1 if limits.le is None else int(limits.le)
    return st.integers(least, most)


def _of_type(annotation: Any) -> st.SearchStrategy[Any]:
    if annotation in _SCALARS:
        return _SCALARS[annotation]
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _within(*arguments)
    if origin in (Union, types.UnionType):
        return st.one_of([_of_type(argument) for argument in arguments])
    if origin is tuple:
        element, rest = arguments
        assert rest is Ellipsis
        return st.lists(_of_type(element), max_size=2).map(tuple)
    if origin is dict:
        key, value = arguments
        return st.dictionaries(_of_type(key), _of_type(value), max_size=2)
    if issubclass(annotation, Enum):
        return st.sampled_from(annotation)
    if issubclass(annotation, msgspec.Struct):
        return struct(annotation)
    if issubclass(annotation, tuple):  # a NamedTuple
        fields = [_of_type(type_) for type_ in get_type_hints(annotation).values()]
        return st.tuples(*fields).map(lambda values: annotation(*values))
    raise TypeError(f"no strategy for {annotation!r}")


@cache
def struct(struct_type: type[S]) -> st.SearchStrategy[S]:
    """Instances of ``struct_type``: each field with a default is drawn or omitted."""

    def build() -> st.SearchStrategy[S]:
        hints = get_type_hints(struct_type, include_extras=True)
        required: dict[str, st.SearchStrategy[Any]] = {}
        optional: dict[str, st.SearchStrategy[Any]] = {}
        for field in msgspec.structs.fields(struct_type):
            fields = required if field.required else optional
            fields[field.name] = _of_type(hints[field.name])
        return st.fixed_dictionaries(required, optional=optional).map(
            lambda values: struct_type(**values)
        )

    return st.deferred(build)


def records(*kinds: type[AnyRecord]) -> st.SearchStrategy[AnyRecord]:
    """Records of the given kinds, or of any."""
    return st.one_of([struct(kind) for kind in kinds or get_args(AnyRecord)])
