"""The stored form of every kind of record, per version: written down, so that no change goes unseen.

``python -m tests.journal.record_forms`` writes down what is new in ``tests/journal/forms.json``. It
refuses to write over a form that journals may have been written in already.
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
"""A record's type and all that it reaches, each by name with its JSON Schema."""
Forms = dict[str, dict[str, Form]]
"""Forms by kind and version (as text, as keys are in JSON)."""

STORED = Path(__file__).with_name("forms.json")
COMMAND = "python -m tests.journal.record_forms"
_REFERENCE = "#/"


def current_forms(
    kinds: Mapping[str, type[msgspec.Struct]] = KINDS, versions: Mapping[str, int] | None = None
) -> Forms:
    """The form in which each kind is written today."""
    versions = CODEC.versions if versions is None else versions
    _, types = msgspec.json.schema_components(kinds.values(), ref_template=_REFERENCE + "{name}")
    plain = {name: _plain(schema) for name, schema in types.items()}
    return {kind: {str(versions[kind]): _reached(kind, plain)} for kind in sorted(kinds)}


def _plain(schema: Any) -> Any:
    """Without what is said to people."""
    if isinstance(schema, dict):
        return {k: _plain(v) for k, v in schema.items() if k not in ("title", "description")}
    if isinstance(schema, list | tuple):  # an empty tuple as a default is an empty list in JSON
        return [_plain(item) for item in schema]
    return schema


def _reached(kind: str, types: Mapping[str, Schema]) -> Form:
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


def breaches(old: Form, new: Form) -> list[str]:
    """Why records of the ``old`` form may not mean the same when they are read in the ``new`` one,
    a line each. A new type, and a new field that has a default, are no breach."""
    found = [f"{name} is gone" for name in old.keys() - new.keys()]
    for name in old.keys() & new.keys():
        found += [f"{name}{line}" for line in _type_breaches(old[name], new[name])]
    return sorted(found)


def _type_breaches(old: Schema, new: Schema) -> Iterator[str]:
    before, after = old.get("properties", {}), new.get("properties", {})
    for field in before.keys() - after.keys():
        yield f".{field} is gone"
    for field in before.keys() & after.keys():
        if not _reads(before[field], after[field]):
            yield f".{field} was {json.dumps(before[field])}, is {json.dumps(after[field])}"
    for field in set(new.get("required", ())) - set(old.get("required", ())):
        yield f".{field} has no default"
    # A field that was required has become one with a default: what is left out was never written.
    rest = ("properties", "required")
    if not _reads(_without(old, rest), _without(new, rest)):
        yield f" was {json.dumps(_without(old, rest))}, is {json.dumps(_without(new, rest))}"


def _without(schema: Schema, left_out: tuple[str, ...]) -> Schema:
    return {key: value for key, value in schema.items() if key not in left_out}


def _reads(old: Any, new: Any) -> bool:
    """Whether the same, but for more values of an enum and more members of a union."""
    if not (isinstance(old, dict) and isinstance(new, dict) and old.keys() == new.keys()):
        return bool(old == new)
    return all(
        all(item in new[key] for item in old[key])
        if key in ("enum", "anyOf")
        else _reads(old[key], new[key])
        for key in old
        if key != "discriminator"
    )


def complaints(stored: Forms, current: Forms) -> list[str]:
    """What is to be done before the current forms may be written to journals, a line each."""
    found = []
    for kind, versions in current.items():
        for version, form in versions.items():
            known = stored.get(kind, {}).get(version)
            if known is None:
                found.append(f"{kind} v{version} is new: write its form down with `{COMMAND}`")
                continue
            found += [
                f"{kind} v{version} is stored in another form: {breach}. Give the record a new"
                f" version with an upcaster from v{version} in asched/journal/codec.py"
                for breach in breaches(known, form)
            ]
            if known != form and not breaches(known, form):
                found.append(f"{kind} v{version} has grown: write its form down with `{COMMAND}`")
    found += [
        f"{kind} is known no more, but journals hold such records: keep it"
        for kind in stored.keys() - current.keys()
    ]
    return found


def merged(stored: Forms, current: Forms) -> Forms:
    """The stored forms with what is new. Raises ValueError where that would break one."""
    broken = [line for line in complaints(stored, current) if f"`{COMMAND}`" not in line]
    if broken:
        raise ValueError("\n".join(broken))
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
