"""Tables of the fields of structs, from the JSON schema that is made of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from tests.docs.docstring_text import as_markdown

Schema = dict[str, Any]
_HEAD: Final = "| field | type | default | meaning |\n|---|---|---|---|"
_REF: Final = "#/$defs/"


def field_table(schema: Schema, definitions: dict[str, Schema]) -> str:
    """One row for each field; types that have a definition with fields link to their section."""
    required = schema.get("required", ())
    rows = [
        f"| `{name}` | {_type(field, definitions)} | {_default(name, field, required)}"
        f" | {_cell(field.get('description', ''))} |"
        for name, field in schema.get("properties", {}).items()
    ]
    return "\n".join([_HEAD, *rows])


def referred(schema: Any) -> Iterator[str]:
    """The names of the definitions that a schema refers to, in order."""
    match schema:
        case {"$ref": str(reference)}:
            yield reference.removeprefix(_REF)
        case dict():
            for inner in schema.values():
                yield from referred(inner)
        case list() | tuple():
            for inner in schema:
                yield from referred(inner)


def has_fields(schema: Schema) -> bool:
    return "properties" in schema


def _type(field: Schema, definitions: dict[str, Schema]) -> str:
    if "$ref" in field:
        name = field["$ref"].removeprefix(_REF)
        inner = definitions[name]
        return f"[{name}](#{name.lower()})" if has_fields(inner) else _type(inner, definitions)
    if "anyOf" in field:
        options = (one for one in field["anyOf"] if one.get("type") != "null")
        return " or ".join(dict.fromkeys(_type(one, definitions) for one in options))
    if "enum" in field:
        return ", ".join(f"`{value}`" for value in field["enum"])
    match field.get("type"):
        case "array":
            inner = field.get("items") or {}
            return f"list of {_type(inner, definitions)}" if inner else "list"
        case "object":
            values = field.get("additionalProperties")
            return f"map to {_type(values, definitions)}" if isinstance(values, dict) else "map"
        case "string" if "pattern" in field and "examples" in field:
            return "duration"
        case str(kind):
            return kind
    return "any"


def _default(name: str, field: Schema, required: Any) -> str:
    if name in required:
        return "required"
    value = field.get("default")
    # A default of a whole section is what its own table shows.
    return "" if value is None or isinstance(value, dict) else f"`{json.dumps(value)}`"


def _cell(text: str) -> str:
    return as_markdown(" ".join(text.split())).replace("|", "\\|")
