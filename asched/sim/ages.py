"""Durations as kubectl prints them (k8s.io/apimachinery/pkg/util/duration)."""

from __future__ import annotations

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
