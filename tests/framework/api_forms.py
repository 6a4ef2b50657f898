"""Records the public plugin API, so that a test can detect breaking changes.

    python -m tests.framework.api_forms

records additions in ``api_v<version>.json``. Breaking changes are rejected: they need another
``API_VERSION``.
"""

from __future__ import annotations

import enum
import inspect
import json
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import msgspec

import asched.framework
import asched.model
from asched.framework import API_VERSION

FILE: Final = Path(__file__).parent / f"api_v{API_VERSION}.json"

Form = dict[str, str]
"""The public names, each with its kind and parameters."""


def present() -> Form:
    """The current API."""
    found: Form = {}
    for face in (asched.framework, asched.model):
        for name in face.__all__:
            found |= _name(face, name)
    return dict(sorted(found.items()))


def written() -> Form:
    """The recorded API."""
    form: Form = json.loads(FILE.read_text())
    return form


def breaches(before: Form, now: Form) -> list[str]:
    """The breaking changes between two forms.

    Additions are allowed, and a function may get parameters with defaults.
    """
    gone = [f"{entry} is gone" for entry in before if entry not in now]
    changed = [
        f"{entry} was {before[entry]}, is {now[entry]}"
        for entry in before
        if entry in now and not _holds(before[entry], now[entry])
    ]
    required = [
        f"{entry} has to be implemented"
        for entry in now
        if entry not in before
        and now[entry].startswith("abstract ")
        and entry.rpartition(".")[0] in before
    ]
    return [*gone, *changed, *required]


def _holds(before: str, now: str) -> bool:
    if before == now:
        return True
    head, _, old_parameters = before.partition("(")
    new_head, _, new_parameters = now.partition("(")
    if head != new_head or not old_parameters:
        return False
    old = old_parameters.rstrip(")").split(", ")
    new = new_parameters.rstrip(")").split(", ")
    added = new[len(old) :] if new[: len(old)] == old else [""]
    return all("=" in parameter for parameter in added)


def _name(face: ModuleType, name: str) -> Form:
    value, full = getattr(face, name), f"{face.__name__}.{name}"
    if inspect.isclass(value):
        return {full: "class", **_class(full, value)}
    if inspect.isfunction(inspect.unwrap(value)):
        return {full: _function(value)}
    return {full: repr(value) if isinstance(value, str | int | float) else "value"}


def _class(full: str, cls: type) -> Form:
    if issubclass(cls, enum.Enum):
        return {f"{full}.{member.name}": repr(member.value) for member in cls}
    found: Form = {}
    if issubclass(cls, msgspec.Struct):
        for field in msgspec.structs.fields(cls):
            found[f"{full}.{field.name}"] = "required" if field.required else "field"
    for base in reversed(cls.__mro__):
        if not base.__module__.startswith("asched."):
            continue
        for name, value in vars(base).items():
            if name.startswith("_") or (f"{full}.{name}" in found and base is not cls):
                continue
            form = _member(value)
            if form:
                found[f"{full}.{name}"] = form
    return found


def _member(value: Any) -> str:
    if isinstance(value, classmethod | staticmethod):
        return _function(value.__func__)
    if inspect.isfunction(inspect.unwrap(value)):
        abstract = "abstract " if getattr(value, "__isabstractmethod__", False) else ""
        return abstract + _function(value)
    if isinstance(value, property):
        return "property"
    return ""


def _function(value: Any) -> str:
    """Kind and parameters. mypy checks types."""
    word = "async" if inspect.iscoroutinefunction(value) else "function"
    parameters = [
        f"{'*' if each.kind is each.KEYWORD_ONLY else ''}{each.name}"
        f"{'' if each.default is each.empty else '='}"
        for each in inspect.signature(value).parameters.values()
    ]
    return f"{word}({', '.join(parameters)})"


def main() -> None:
    now = present()
    if FILE.exists():
        found = breaches(written(), now)
        if found:
            raise SystemExit("api_version has to go up:\n" + "\n".join(found))
    FILE.write_text(json.dumps(now, indent=1) + "\n")


if __name__ == "__main__":
    main()
