"""Tables as CSV: every row is a struct."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from typing import Any, Final

import msgspec

_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")
"""A cell that begins so would be a formula in a spreadsheet."""


def csv_of(rows: Iterable[msgspec.Struct]) -> str:
    """The rows with a header; nested values have columns such as ``used.cpu``."""
    flat = [dict(_flat("", msgspec.to_builtins(row, str_keys=True))) for row in rows]
    columns = dict.fromkeys(column for row in flat for column in row)
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, restval="", lineterminator="\r\n")
    writer.writeheader()
    writer.writerows(flat)
    return out.getvalue()


def _flat(prefix: str, value: Any) -> Iterable[tuple[str, object]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _flat(f"{prefix}.{key}" if prefix else str(key), inner)
    elif isinstance(value, list | tuple):
        yield prefix, _cell("; ".join(map(_text, value)))
    else:
        yield prefix, value if isinstance(value, int | float | None) else _cell(str(value))


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_text(inner)}" for key, inner in value.items())
    if isinstance(value, list | tuple):
        return " | ".join(map(_text, value))
    return str(value)


def _cell(text: str) -> str:
    return f"'{text}" if text.startswith(_FORMULA) else text
