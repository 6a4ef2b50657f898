"""Strict decoding of configuration that reports all problems, not only the first.

Values are checked against a msgspec struct for unknown and missing fields, wrong types and values
out of range. The rules are those of Kubernetes' strict decoding: field names are case-sensitive,
``null`` means absent, types are not converted, and durations use Go's notation (``15s``,
``1h30m``).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec import inspect as types

from asched.framework.runtime.profile import ProfileError
from asched.model.quantity import parse_duration

Path = tuple[str | int, ...]
"""A position in a document: field names and list indexes."""

S = TypeVar("S", bound=msgspec.Struct)


class Problem(NamedTuple):
    """A problem with its path and a message of one line."""

    path: Path
    message: str

    def __str__(self) -> str:
        return f"{format_path(self.path)}: {self.message}" if self.path else self.message


class ConfigurationError(ProfileError):
    """A configuration is invalid. ``problems`` lists all problems."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(map(str, self.problems)))


def format_path(path: Path) -> str:
    """A path as Kubernetes prints it.

    >>> format_path(("profiles", 0, "plugins"))
    'profiles[0].plugins'
    """
    parts = [f"[{part}]" if isinstance(part, int) else f".{part}" for part in path]
    return "".join(parts).removeprefix(".")


def quote(value: object) -> str:
    """A value as JSON, cut to 60 characters."""
    text = msgspec.json.encode(value, enc_hook=str).decode()
    return text if len(text) <= 60 else f"{text[:57]}..."


def nearest(word: str, choices: Iterable[str]) -> str | None:
    """The choice most similar to ``word``, ignoring case; None if none is similar."""
    by_fold = {choice.casefold(): choice for choice in choices}
    matches = difflib.get_close_matches(word.casefold(), by_fold, n=1, cutoff=0.7)
    return by_fold[matches[0]] if matches else None


def suggestion(word: str, choices: Sequence[str]) -> str:
    """Which of the choices was probably meant, or all of them."""
    guess = nearest(word, choices)
    return f"did you mean {guess}?" if guess else f"expected one of {', '.join(choices)}"


# Without a cache, it would evaluate the annotations of all inner structs at each call.
_type_info = lru_cache(maxsize=256)(types.type_info)


class _UnusableError(Exception):
    """The problems of a value are recorded, and no value can be returned."""


class StrictDecoder:
    """Decodes plain values (dict, list, str ...) into structs and collects problems.

    If a field is invalid and has a default, decoding continues with the default to find further
    problems. Results are valid only if ``problems`` is empty.
    """

    def __init__(self) -> None:
        self.problems: list[Problem] = []

    def decode(self, value: Any, cls: type[S], path: Path = ()) -> S | None:
        """``value`` as a ``cls``; None if that is not possible."""
        before = len(self.problems)
        try:
            plain = self._walk(value, _type_info(cls), path)
            return msgspec.convert(plain, cls)
        except _UnusableError:
            return None
        except msgspec.ValidationError as error:
            # Usually the walk has recorded the problem.
            if len(self.problems) == before:
                self._record_rejection(error, path)
            return None

    def _note(self, path: Path, message: str) -> None:
        self.problems.append(Problem(path, message))

    def _reject(self, path: Path, message: str) -> _UnusableError:
        self._note(path, message)
        return _UnusableError()

    def _record_rejection(self, error: msgspec.ValidationError, path: Path) -> None:
        message, _, inner = str(error).partition(" - at `$")
        self._note((*path, *_split_path(inner.rstrip("`"))), message)

    def _walk(self, value: Any, kind: types.Type, path: Path) -> Any:
        """The value without nulls and with parsed durations. Raises :class:`_UnusableError`."""
        match kind:
            case types.Metadata():
                return self._walk(value, kind.type, path)
            case types.UnionType():
                return self._union(value, kind, path)
            case types.StructType():
                return self._struct(value, kind, path)
            case types.DictType():
                entries = self._expect(value, dict, "a mapping", path)
                return {k: self._walk(v, kind.value_type, (*path, k)) for k, v in entries.items()}
            case types.ListType() | types.VarTupleType() | types.SetType() | types.FrozenSetType():
                return self._items(value, kind.item_type, path)
            case types.EnumType():
                return self._choice(value, [member.value for member in kind.cls], path)
            case types.LiteralType():
                return self._choice(value, list(kind.values), path)
            case types.TimeDeltaType():
                return self._duration(value, path)
            case _:
                return self._scalar(value, kind, path)

    def _scalar(self, value: Any, kind: types.Type, path: Path) -> Any:
        match kind:
            case types.StrType():
                return self._expect(value, str, "a string", path)
            case types.BoolType():
                return self._expect(value, bool, "true or false", path)
            case types.IntType():
                return self._in_range(self._expect(value, int, "an integer", path), kind, path)
            case types.FloatType():
                number = self._expect(value, (int, float), "a number", path)
                return self._in_range(number, kind, path)
        # msgspec checks all other types.
        return value

    def _expect(self, value: Any, wanted: type | tuple[type, ...], title: str, path: Path) -> Any:
        if not isinstance(value, wanted) or (isinstance(value, bool) and wanted is not bool):
            raise self._reject(path, f"expected {title}, got {_described(value)}")
        return value

    def _struct(self, value: Any, kind: types.StructType, path: Path) -> dict[str, Any]:
        given: Mapping[Any, Any] = self._expect(value, dict, "a mapping", path)
        fields = {field.encode_name: field for field in kind.fields}
        before = len(self.problems)
        plain: dict[str, Any] = {}
        missing = False
        for name in given:
            if name not in fields:
                self._note((*path, name), f"unknown field; {_expected(name, fields)}")
        for name, field in fields.items():
            if given.get(name) is not None:
                try:
                    plain[name] = self._walk(given[name], field.type, (*path, name))
                except _UnusableError:
                    missing |= field.required
            elif field.required:
                self._note((*path, name), "required")
                missing = True
        if missing:
            raise _UnusableError
        if len(self.problems) == before:
            self._convert(plain, kind.cls, path)
        return plain

    def _convert(self, plain: dict[str, Any], cls: type[msgspec.Struct], path: Path) -> None:
        """Check with ``__post_init__`` of the struct and with msgspec's constraints."""
        try:
            msgspec.convert(plain, cls)
        except msgspec.ValidationError as error:
            self._record_rejection(error, path)
            raise _UnusableError from None

    def _items(self, value: Any, item_type: types.Type, path: Path) -> list[Any]:
        items: list[Any] = self._expect(value, list, "a list", path)
        plain = []
        usable = True
        for index, item in enumerate(items):
            try:
                plain.append(self._walk(item, item_type, (*path, index)))
            except _UnusableError:
                usable = False
        if not usable:
            raise _UnusableError
        return plain

    def _union(self, value: Any, kind: types.UnionType, path: Path) -> Any:
        if value is None and kind.includes_none:
            return None
        choices = [choice for choice in kind.types if not isinstance(choice, types.NoneType)]
        return self._walk(value, choices[0], path) if len(choices) == 1 else value

    def _choice(self, value: Any, choices: list[Any], path: Path) -> Any:
        if value in choices and isinstance(value, str | int):
            return value
        listed = ", ".join(str(choice) for choice in choices)
        raise self._reject(path, f"unknown value {quote(value)}; expected one of {listed}")

    def _duration(self, value: Any, path: Path) -> timedelta:
        text = self._expect(value, str, 'a duration such as "15s"', path)
        try:
            return parse_duration(text)
        except ValueError as error:
            raise self._reject(path, str(error)) from None

    def _in_range(self, value: float, kind: types.IntType | types.FloatType, path: Path) -> float:
        bounds = [
            (f"at least {quote(kind.ge)}", kind.ge is not None and value < kind.ge),
            (f"greater than {quote(kind.gt)}", kind.gt is not None and value <= kind.gt),
            (f"at most {quote(kind.le)}", kind.le is not None and value > kind.le),
            (f"less than {quote(kind.lt)}", kind.lt is not None and value >= kind.lt),
        ]
        for title, broken in bounds:
            if broken:
                raise self._reject(path, f"must be {title}, got {quote(value)}")
        return value


def _described(value: object) -> str:
    match value:
        case None:
            return "nothing"
        case dict():
            return "a mapping"
        case list():
            return "a list"
        case str():
            return f"the string {quote(value)}"
        case _:
            return quote(value)


def _expected(name: object, fields: Iterable[str]) -> str:
    names = sorted(fields)
    return suggestion(str(name), names) if names else "no fields are expected here"


def _split_path(text: str) -> Path:
    """Parses msgspec's path notation, such as ``.shape[0].score``."""
    return tuple(
        int(index) if index else name
        for name, index in re.findall(r"\.([^.\[\]]+)|\[(\d+)\]", text)
    )
