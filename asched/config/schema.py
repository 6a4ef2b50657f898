"""The JSON schema of configuration files, for editors: fields, values and their descriptions.

It is generated from the structs. A file that it accepts can still be invalid: ``asched config
check`` knows all rules.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
import threading
from collections.abc import Iterable, Iterator
from datetime import timedelta
from functools import cache
from itertools import pairwise
from typing import Any, Final

import msgspec
from msgspec import inspect as types

from asched.config import kube_scheduler as kube
from asched.config import settings
from asched.config.registry import PluginRegistry
from asched.framework.runtime.profile import ProfileError
from asched.model.quantity import format_duration

_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_REF: Final = "#/$defs/{name}"
_DURATION: Final = {
    "type": "string",
    "pattern": r"^[-+]?([0-9.]+(h|ms|us|µs|ns|m|s))+$|^0$",
    "examples": ["30s", "1m30s", "100ms"],
}

_ISO_DURATION: Final = re.compile(r"-?P(\d+D)?(T[\d.]+S)?(?<!P)")

Schema = dict[str, Any]


def configuration_schema(registry: PluginRegistry) -> Schema:
    """The schema of one document of a configuration file, with the installed plugins."""
    arguments = dict(_plugin_arguments(registry))
    kinds = (kube.KubeSchedulerConfiguration, settings.AschedConfiguration)
    schema = schema_of((*kinds, *arguments.values()))
    definitions = schema["$defs"]
    for kind, module in zip(kinds, (kube, settings), strict=True):
        fields = definitions[kind.__name__]["properties"]
        fields["apiVersion"]["const"], fields["kind"]["const"] = module.API_VERSION, module.KIND
    names = [*registry.names]
    definitions["PluginRef"]["properties"]["name"]["examples"] = names
    configured = definitions["PluginConfig"]
    configured["properties"]["name"]["examples"] = [*arguments]
    configured["allOf"] = [
        {
            "if": {"properties": {"name": {"const": name}}},
            "then": {"properties": {"args": {"$ref": _REF.format(name=cls.__name__)}}},
        }
        for name, cls in arguments.items()
    ]
    schema["oneOf"] = [{"$ref": _REF.format(name=kind.__name__)} for kind in kinds]
    return schema


def schema_of(structs: Iterable[type[msgspec.Struct]]) -> Schema:
    """A schema with these structs and those within them in ``$defs``, by class name."""
    wanted = [*dict.fromkeys(structs)]
    _, definitions = msgspec.json.schema_components(wanted, ref_template=_REF)
    for cls in _with_inner(wanted):
        fields = definitions.get(cls.__name__, {}).get("properties", {})
        for name, text in field_docs(cls):
            field = fields.get(name)
            if field is not None:
                # Siblings of "$ref" are allowed in this dialect.
                field["description"] = text
    return {"$schema": _DIALECT, "$defs": _with_durations(definitions)}


def _plugin_arguments(registry: PluginRegistry) -> Iterator[tuple[str, type[msgspec.Struct]]]:
    for name in registry.names:
        try:
            arguments = registry.load(name).arguments
        except ProfileError:
            continue  # a broken plugin does not prevent editing
        if arguments is not None and _has_schema(arguments):
            yield name, arguments


def _has_schema(cls: type[msgspec.Struct]) -> bool:
    """Whether all types of its fields have a JSON schema."""
    try:
        msgspec.json.schema(cls)
    except TypeError:
        return False
    return True


def _with_inner(structs: Iterable[type[msgspec.Struct]]) -> Iterator[type[msgspec.Struct]]:
    found = dict.fromkeys(structs)
    waiting = [*found]
    while waiting:
        for inner in _inner_structs(types.type_info(waiting.pop())):
            if inner not in found:
                found[inner] = None
                waiting.append(inner)
    yield from found


def _inner_structs(kind: types.Type) -> Iterator[type[msgspec.Struct]]:
    match kind:
        case types.StructType():
            for field in kind.fields:
                if isinstance(field.type, types.StructType):
                    yield field.type.cls
                else:
                    yield from _inner_structs(field.type)
        case types.Metadata():
            yield from _inner_of(kind.type)
        case types.UnionType():
            for one in kind.types:
                yield from _inner_of(one)
        case types.DictType():
            yield from _inner_of(kind.value_type)
        case types.ListType() | types.VarTupleType():
            yield from _inner_of(kind.item_type)


def _inner_of(kind: types.Type) -> Iterator[type[msgspec.Struct]]:
    if isinstance(kind, types.StructType):
        yield kind.cls
    else:
        yield from _inner_structs(kind)


@cache
def field_docs(cls: type[msgspec.Struct]) -> tuple[tuple[str, str], ...]:
    """The name of each field in files, and the text below it in the source."""
    names = dict(zip(cls.__struct_fields__, cls.__struct_encode_fields__, strict=True))
    found = []
    for owner in reversed(cls.__mro__):
        if not issubclass(owner, msgspec.Struct) or owner is msgspec.Struct:
            continue
        body = _body(owner)
        for field, after in pairwise(body):
            text = _text(after)
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and text:
                found.append((names.get(field.target.id, field.target.id), text))
    return tuple(found)


_PARSING: Final = threading.Lock()
"""CPython 3.11 fails if several threads make syntax trees."""


def _body(cls: type[msgspec.Struct]) -> list[ast.stmt]:
    """The statements of a class; none for a plugin without source."""
    with _PARSING:
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
        except (OSError, TypeError, SyntaxError):
            return []
    return getattr(tree.body[0], "body", [])


def _text(statement: ast.stmt) -> str:
    if not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)):
        return ""
    value = statement.value.value
    return " ".join(value.replace("``", "`").split()) if isinstance(value, str) else ""


def _with_durations(value: Any) -> Any:
    """The schema with durations in the notation of Go instead of ISO 8601."""
    match value:
        case {"type": "string", "format": "duration"}:
            kept = {name: _with_durations(inner) for name, inner in value.items()}
            return {**{name: kept[name] for name in kept if name != "format"}, **_DURATION}
        case dict():
            return {name: _with_durations(inner) for name, inner in value.items()}
        case list() | tuple():
            return [_with_durations(inner) for inner in value]
        case str() if _ISO_DURATION.fullmatch(value):
            return format_duration(msgspec.convert(value, timedelta))
    return value
