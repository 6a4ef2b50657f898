"""Columns of server-side tables, and the cells that several tables share.

Durations are formatted as in k8s.io/apimachinery/pkg/util/duration.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from asched.apiserver.errors import Object

_MINUTE, _HOUR, _DAY, _YEAR = 60, 3600, 86400, 365 * 86400


def human_duration(seconds: float) -> str:
    """``HumanDuration``: 45s, 3m20s, 5h12m, 3d4h, 200d, 2y30d."""
    whole = int(seconds)
    if whole < -1:
        return "<invalid>"
    whole = max(whole, 0)
    if whole < 2 * _MINUTE:
        return f"{whole}s"
    for limit, unit, suffix, small, small_suffix in _DURATION_FORMATS:
        if whole < limit:
            rest = whole % unit // small if small else 0
            return f"{whole // unit}{suffix}" + (f"{rest}{small_suffix}" if rest else "")
    return f"{whole // _YEAR}y"


_DURATION_FORMATS = (
    # Below the limit: unit and its suffix, smaller unit (0 for none) and its suffix.
    (10 * _MINUTE, _MINUTE, "m", 1, "s"),
    (3 * _HOUR, _MINUTE, "m", 0, ""),
    (8 * _HOUR, _HOUR, "h", _MINUTE, "m"),
    (2 * _DAY, _HOUR, "h", 0, ""),
    (8 * _DAY, _DAY, "d", _HOUR, "h"),
    (2 * _YEAR, _DAY, "d", 0, ""),
    (8 * _YEAR, _YEAR, "y", _DAY, "d"),
)


def seconds_of(timestamp: Any) -> float | None:
    """Seconds since the epoch of an API timestamp; None without one."""
    if not isinstance(timestamp, str) or not timestamp:
        return None
    try:
        return datetime.fromisoformat(timestamp).timestamp()
    except ValueError:
        return None


def age(timestamp: Any, now_s: float) -> str:
    """The time since ``timestamp``, or ``<unknown>``."""
    then = seconds_of(timestamp)
    return "<unknown>" if then is None else human_duration(now_s - then)


Cell = Callable[[Object, float], Any]
"""Returns the cell of an object at a time (seconds since the epoch)."""

NONE, UNKNOWN, UNSET = "<none>", "<unknown>", "<unset>"


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its definition and its cell function."""

    name: str
    cell: Cell
    type: str = "string"
    priority: int = 0
    format: str = ""
    description: str = ""

    def definition(self) -> Object:
        return {
            "name": self.name,
            "type": self.type,
            "format": self.format,
            "description": self.description,
            "priority": self.priority,
        }


def name_of(obj: Object, _: float) -> Any:
    return obj["metadata"]["name"]


def age_of(obj: Object, now_s: float) -> Any:
    return age(obj["metadata"].get("creationTimestamp"), now_s)


def value_at(obj: Object, path: str) -> Any:
    """The value at a dotted path; None if there is none."""
    value: Any = obj
    for part in path.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def at(path: str, default: Any = "") -> Cell:
    """A cell with the value at a dotted path, or ``default``."""

    def cell(obj: Object, _: float) -> Any:
        value = value_at(obj, path)
        return default if value is None else value

    return cell


def at_or(path: str, default: str) -> Cell:
    """A cell with the value at a dotted path, or ``default`` if it is empty."""
    return lambda obj, _: value_at(obj, path) or default


def text_at(path: str, default: str) -> Cell:
    inner = at(path, default)
    return lambda obj, now_s: str(inner(obj, now_s))


def length(*paths: str) -> Cell:
    """A cell with the total number of elements at some paths."""
    return lambda obj, _: sum(len(value_at(obj, path) or ()) for path in paths)


NAME = Column("Name", name_of, format="name")
AGE = Column("Age", age_of)


def joined(values: Any, empty: str = NONE) -> str:
    return ",".join(str(value) for value in values) or empty


def label_text(labels: Any) -> str:
    return joined(f"{key}={value}" for key, value in sorted((labels or {}).items()))


def _template_containers(field: str) -> Cell:
    def cell(obj: Object, _: float) -> Any:
        containers = value_at(obj, "spec.template.spec.containers") or ()
        return joined((c.get(field, "") for c in containers), "")

    return cell


def _selector(obj: Object, _: float) -> Any:
    selector = value_at(obj, "spec.selector") or {}
    if "matchLabels" not in selector and "matchExpressions" not in selector:
        return label_text(selector)
    parts = [f"{k}={v}" for k, v in sorted((selector.get("matchLabels") or {}).items())]
    for term in selector.get("matchExpressions") or ():
        operator, values = term["operator"], ",".join(sorted(term.get("values") or ()))
        if operator in ("In", "NotIn"):
            parts.append(f"{term['key']} {operator.lower()} ({values})")
        else:
            parts.append(term["key"] if operator == "Exists" else f"!{term['key']}")
    return joined(parts)


TEMPLATE = (
    Column("Containers", _template_containers("name"), priority=1),
    Column("Images", _template_containers("image"), priority=1),
)
SELECTOR = Column("Selector", _selector, priority=1)


def count(name: str, path: str) -> Column:
    return Column(name, at(path, 0), "integer")


_STEP = re.compile(
    r"\.(?P<key>[A-Za-z0-9_-]+|\\.[^.\[]+)"
    r"|\[(?P<index>\d+)\]"
    r"|\[\?\(@\.(?P<field>\w+)\s*==\s*[\"'](?P<value>[^\"']*)[\"']\)\]"
)


def _json_path(path: str) -> Callable[[Object], Any]:
    """The subset of JSONPath in printer columns: keys, indexes and one equality filter."""
    steps = list(_STEP.finditer(path))

    def get(obj: Object) -> Any:
        value: Any = obj
        for step in steps:
            if step["key"] is not None:
                value = value.get(step["key"]) if isinstance(value, dict) else None
            elif not isinstance(value, list):
                return None
            elif step["index"] is not None:
                index = int(step["index"])
                value = value[index] if index < len(value) else None
            else:
                matching = (i for i in value if i.get(step["field"]) == step["value"])
                value = next(matching, None)
        return value

    return get


def custom_columns(declared: list[Object]) -> tuple[Column, ...]:
    """Columns of a custom resource: its additionalPrinterColumns, or NAME and AGE."""
    if not declared:
        return (NAME, AGE)
    return (NAME, *map(_custom_column, declared))


def _custom_column(entry: Object) -> Column:
    get, kind = _json_path(entry.get("jsonPath", "")), entry.get("type", "string")

    def date(obj: Object, now_s: float) -> Any:
        return age(get(obj), now_s)

    return Column(
        entry["name"],
        date if kind == "date" else lambda obj, _: get(obj),
        "string" if kind == "date" else kind,
        entry.get("priority", 0),
        description=entry.get("description", ""),
    )
