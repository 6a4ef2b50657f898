"""The stored form of every record kind and version, recorded in ``tests/journal/forms.json``.

``python -m tests.journal.record_forms`` adds new forms. It refuses to overwrite a form that
journals may already use.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from asched.journal.codec import CODEC, KINDS

Schema = dict[str, Any]
Form = dict[str, Schema]
"""The JSON Schemas of a record type and of the types in its fields, by name."""
Forms = dict[str, dict[str, Form]]
"""Forms by kind and version (as text, as keys are in JSON)."""

STORED = Path(__file__).with_name("forms.json")
COMMAND = "python -m tests.journal.record_forms"
_REFERENCE = "#/"


def current_forms(
    kinds: Mapping[str, type[msgspec.Struct]] = KINDS, versions: Mapping[str, int] | None = None
) -> Forms:
    """The current form of each kind."""
    versions = CODEC.versions if versions is None else versions
    _, types = msgspec.json.schema_components(kinds.values(), ref_template=_REFERENCE + "{name}")
    plain = {name: _without_texts(schema) for name, schema in types.items()}
    return {kind: {str(versions[kind]): _reachable(kind, plain)} for kind in sorted(kinds)}


def _without_texts(schema: Any) -> Any:
    """The schema without titles and descriptions."""
    if isinstance(schema, dict):
        return {
            k: _without_texts(v) for k, v in schema.items() if k not in ("title", "description")
        }
    if isinstance(schema, list | tuple):  # an empty tuple as a default is an empty list in JSON
        return [_without_texts(item) for item in schema]
    return schema


def _reachable(kind: str, types: Mapping[str, Schema]) -> Form:
    found: Form = {}
    open_names = [kind]
    while open_names:
        name = open_names.pop()
        if name not in found:
            found[name] = types[name]
            open_names += _references(types[name])
    return dict(sorted(found.items()))


def _references(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        for key, value in schema.items():
            if key == "$ref":
                yield value.removeprefix(_REFERENCE)
            else:
                yield from _references(value)
    elif isinstance(schema, list):
        for item in schema:
            yield from _references(item)


def stored_forms() -> Forms:
    forms: Forms = json.loads(STORED.read_text())
    return forms


def incompatibilities(old: Form, new: Form) -> list[str]:
    """Why records of the ``old`` form may be misread in the ``new`` one, a line each.

    New types and new fields with a default are compatible.
    """
    found = [f"{name} was removed" for name in old.keys() - new.keys()]
    for name in old.keys() & new.keys():
        found += [f"{name}{line}" for line in _type_incompatibilities(old[name], new[name])]
    return sorted(found)


def _type_incompatibilities(old: Schema, new: Schema) -> Iterator[str]:
    before, after = old.get("properties", {}), new.get("properties", {})
    for field in before.keys() - after.keys():
        yield f".{field} was removed"
    for field in before.keys() & after.keys():
        if not _is_compatible(before[field], after[field]):
            yield f".{field} was {json.dumps(before[field])}, is {json.dumps(after[field])}"
    for field in set(new.get("required", ())) - set(old.get("required", ())):
        yield f".{field} has no default"
    # A required field may get a default: no record without it was written.
    rest = ("properties", "required")
    if not _is_compatible(_without(old, rest), _without(new, rest)):
        yield f" was {json.dumps(_without(old, rest))}, is {json.dumps(_without(new, rest))}"


def _without(schema: Schema, omitted: tuple[str, ...]) -> Schema:
    return {key: value for key, value in schema.items() if key not in omitted}


def _is_compatible(old: Any, new: Any) -> bool:
    """Whether both are equal, except for added enum values and union members."""
    if not (isinstance(old, dict) and isinstance(new, dict) and old.keys() == new.keys()):
        return bool(old == new)
    return all(
        all(item in new[key] for item in old[key])
        if key in ("enum", "anyOf")
        else _is_compatible(old[key], new[key])
        for key in old
        if key != "discriminator"
    )


def problems(stored: Forms, current: Forms) -> list[str]:
    """What has to be done before journals may use the current forms, a line each."""
    found = []
    for kind, versions in current.items():
        for version, form in versions.items():
            known = stored.get(kind, {}).get(version)
            if known is None:
                found.append(f"{kind} v{version} is new: record its form with `{COMMAND}`")
                continue
            found += [
                f"{kind} v{version} has an incompatible form: {change}. Give the record a new"
                f" version with an upcaster from v{version} in asched/journal/codec.py"
                for change in incompatibilities(known, form)
            ]
            if known != form and not incompatibilities(known, form):
                found.append(f"{kind} v{version} was extended: record its form with `{COMMAND}`")
    found += [
        f"{kind} was removed, but journals contain such records: keep it"
        for kind in stored.keys() - current.keys()
    ]
    return found


def merged(stored: Forms, current: Forms) -> Forms:
    """The stored forms with the new ones. Raises ValueError for an incompatible form."""
    incompatible = [line for line in problems(stored, current) if f"`{COMMAND}`" not in line]
    if incompatible:
        raise ValueError("\n".join(incompatible))
    return {
        kind: {**stored.get(kind, {}), **current.get(kind, {})}
        for kind in sorted({*stored, *current})
    }


def main() -> None:
    stored = stored_forms() if STORED.exists() else {}
    try:
        forms = merged(stored, current_forms())
    except ValueError as error:
        sys.exit(str(error))
    STORED.write_text(json.dumps(forms, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
