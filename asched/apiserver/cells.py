"""Columns of server-side tables: what a column is, and the cells that many tables share.

Durations as kubectl prints them (k8s.io/apimachinery/pkg/util/duration).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

_MINUTE, _HOUR, _DAY, _YEAR = 60, 3600, 86400, 365 * 86400


def human_duration(seconds: float) -> str:
    """``HumanDuration``: 45s, 3m20s, 5h12m, 3d4h, 200d, 2y30d."""
    whole = int(seconds)
    if whole < -1:
        return "<invalid>"
    whole = max(whole, 0)
    if whole < 2 * _MINUTE:
        return f"{whole}s"
    if whole < 10 * _MINUTE:
        return _two(whole, _MINUTE, "m", 1, "s")
    if whole < 3 * _HOUR:
        return f"{whole // _MINUTE}m"
    if whole < 8 * _HOUR:
        return _two(whole, _HOUR, "h", _MINUTE, "m")
    if whole < 2 * _DAY:
        return f"{whole // _HOUR}h"
    if whole < 8 * _DAY:
        return _two(whole, _DAY, "d", _HOUR, "h")
    if whole < 2 * _YEAR:
        return f"{whole // _DAY}d"
    if whole < 8 * _YEAR:
        return _two(whole, _YEAR, "y", _DAY, "d")
    return f"{whole // _YEAR}y"


def _two(seconds: int, big: int, big_unit: str, small: int, small_unit: str) -> str:
    rest = seconds % big // small
    return f"{seconds // big}{big_unit}" + (f"{rest}{small_unit}" if rest else "")


def seconds_of(timestamp: Any) -> float | None:
    """Seconds since the epoch of an API timestamp; None for an absent one."""
    if not isinstance(timestamp, str) or not timestamp:
        return None
    try:
        return datetime.fromisoformat(timestamp).timestamp()
    except ValueError:
        return None


def age(timestamp: Any, now_s: float) -> str:
    """How long ago, or ``<unknown>``."""
    then = seconds_of(timestamp)
    return "<unknown>" if then is None else human_duration(now_s - then)


Object = dict[str, Any]
Cell = Callable[[Object, float], Any]
"""Makes a cell of an object at a time (seconds since the epoch)."""

NONE, UNKNOWN, UNSET = "<none>", "<unknown>", "<unset>"


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its definition and how its cells are made."""

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


def row_cells(columns: tuple[Column, ...], obj: Object, now_s: float) -> list[Any]:
    return [column.cell(obj, now_s) for column in columns]


def name_of(obj: Object, _: float) -> Any:
    return obj["metadata"]["name"]


def age_of(obj: Object, now_s: float) -> Any:
    return age(obj["metadata"].get("creationTimestamp"), now_s)


def created_at(obj: Object, _: float) -> Any:
    return obj["metadata"].get("creationTimestamp") or UNKNOWN


def at(path: str, default: Any = "") -> Cell:
    """The value at a dotted path, or ``default`` where there is none."""
    parts = path.split(".")

    def cell(obj: Object, _: float) -> Any:
        value: Any = obj
        for part in parts:
            value = value.get(part) if isinstance(value, dict) else None
        return default if value is None else value

    return cell


def shown(path: str, default: str) -> Cell:
    inner = at(path, default)
    return lambda obj, now_s: str(inner(obj, now_s))


NAME = Column("Name", name_of, format="name")
AGE = Column("Age", age_of)


def joined(values: Any, empty: str = NONE) -> str:
    return ",".join(str(value) for value in values) or empty


def label_text(labels: Any) -> str:
    return joined(f"{key}={value}" for key, value in sorted((labels or {}).items()))


def _template_containers(field: str) -> Cell:
    def cell(obj: Object, _: float) -> Any:
        spec = ((obj.get("spec") or {}).get("template") or {}).get("spec") or {}
        return joined((c.get(field, "") for c in spec.get("containers") or ()), "")

    return cell


def _selector(obj: Object, _: float) -> Any:
    selector = (obj.get("spec") or {}).get("selector") or {}
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
