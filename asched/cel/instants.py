"""Durations and timestamps."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from asched.cel.errors import SubexpressionError

SECOND_NS = 1_000_000_000
MIN_UNIX_S = -62135596800
MAX_UNIX_S = 253402300799
_MAX_NS = 2**63 - 1
_UNITS_NS = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,
    "μs": 1_000,
    "ms": 1_000_000,
    "s": SECOND_NS,
    "m": 60 * SECOND_NS,
    "h": 3600 * SECOND_NS,
}
_PART = re.compile(r"([0-9]*)(?:\.([0-9]*))?(ns|us|µs|μs|ms|s|m|h)", re.ASCII)
_RFC3339 = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)(?:[.,](\d+))?(Z|[+-]\d\d:\d\d)", re.ASCII
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, order=True)
class Duration:
    """A span of time."""

    ns: int

    def __str__(self) -> str:
        sign = "-" if self.ns < 0 else ""
        seconds, rest = divmod(abs(self.ns), SECOND_NS)
        fraction = f".{rest:09d}".rstrip("0") if rest else ""
        return f"{sign}{seconds}{fraction}s"


@dataclass(frozen=True, slots=True, order=True)
class Timestamp:
    """A point in time; the offset only matters for its text."""

    ns: int
    offset_s: int = field(default=0, compare=False)

    def at(self, zone: tzinfo) -> datetime:
        """The date and time of day in a zone."""
        return (_EPOCH + timedelta(seconds=self.ns // SECOND_NS)).astimezone(zone)

    def __str__(self) -> str:
        local = _EPOCH + timedelta(seconds=self.ns // SECOND_NS + self.offset_s)
        rest = self.ns % SECOND_NS
        fraction = f".{rest:09d}".rstrip("0") if rest else ""
        if self.offset_s == 0:
            return f"{local:%Y-%m-%dT%H:%M:%S}{fraction}Z".rjust(20, "0")
        sign, minutes = ("-" if self.offset_s < 0 else "+"), abs(self.offset_s) // 60
        return f"{local:%Y-%m-%dT%H:%M:%S}{fraction}{sign}{minutes // 60:02d}:{minutes % 60:02d}"


def duration(ns: int) -> Duration:
    """Raises SubexpressionError for a duration that does not fit."""
    if not -_MAX_NS - 1 <= ns <= _MAX_NS:
        raise SubexpressionError("integer overflow")
    return Duration(ns)


def timestamp(ns: int, offset_s: int = 0) -> Timestamp:
    """Raises SubexpressionError outside the years 1 to 9999."""
    if not MIN_UNIX_S <= ns // SECOND_NS <= MAX_UNIX_S:
        raise SubexpressionError("timestamp overflow")
    return Timestamp(ns, offset_s)


def parse_duration(text: str) -> Duration | None:
    """Reads a duration such as ``1h30m``; None if it is none."""
    rest = text[1:] if text[:1] in ("+", "-") else text
    if rest == "0":
        return Duration(0)
    total, position = 0, 0
    if not rest or len(rest) > 1000:
        return None
    while position < len(rest):
        found = _PART.match(rest, position)
        if found is None or not (found[1] or found[2]):
            return None
        unit = _UNITS_NS[found[3]]
        total += int(found[1] or "0") * unit
        if found[2]:
            total += int(found[2]) * unit // 10 ** len(found[2])
        position = found.end()
    total = -total if text[0] == "-" else total
    return Duration(total) if -_MAX_NS - 1 <= total <= _MAX_NS else None


def parse_timestamp(text: str) -> Timestamp | None:
    """Reads a time of RFC 3339; None if it is none. Raises SubexpressionError out of range."""
    found = _RFC3339.fullmatch(text)
    if found is None:
        return None
    year, month, day, hour, minute, second = (int(part) for part in found.groups()[:6])
    zone = found[8]
    offset_s = 0
    if zone != "Z":
        hours, minutes = int(zone[1:3]), int(zone[4:6])
        if hours > 24 or minutes > 60:
            return None
        offset_s = (hours * 60 + minutes) * (-60 if zone[0] == "-" else 60)
    try:
        since = datetime(max(year, 1), month, day, hour, minute, second, tzinfo=UTC) - _EPOCH
    except ValueError:
        return None
    seconds = since.days * 86400 + since.seconds - offset_s
    if year == 0:
        seconds -= 366 * 86400
    fraction_ns = int((found[7] or "0")[:9].ljust(9, "0"))
    return timestamp(seconds * SECOND_NS + fraction_ns, offset_s)


def time_zone(name: str) -> tzinfo:
    """The zone of an IANA name or of an offset such as ``-08:00``.

    Raises SubexpressionError for an unknown zone.
    """
    if ":" in name:
        hours, _, minutes = name.partition(":")
        for part in (hours, minutes):
            if not _is_number(part):
                raise SubexpressionError(f'strconv.Atoi: parsing "{part}": invalid syntax')
        offset = int(hours) * 60 + (-int(minutes) if name[0] == "-" else int(minutes))
        if abs(offset) >= 24 * 60:
            raise SubexpressionError(f"unknown time zone {name}")
        return timezone(timedelta(minutes=offset))
    if name in ("", "UTC"):
        return UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise SubexpressionError(f"unknown time zone {name}") from None


def _is_number(text: str) -> bool:
    digits = text[1:] if text[:1] in ("+", "-") else text
    return digits.isascii() and digits.isdigit() and len(digits) < 10
