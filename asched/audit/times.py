"""Times that users write."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

TIMES: Final = "2026-01-31T12:00:00Z, or a duration before now such as 5d or 2h30m"

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class TimeTextError(ValueError):
    """A text that is not a time. Its text is one line for the user."""


def parse_time_ns(text: str, now: datetime | None = None) -> int:
    """Nanoseconds since the epoch of an RFC 3339 time, or of a duration before ``now``.

    A time without an offset is in UTC. Raises :class:`TimeTextError`.

    >>> parse_time_ns("1970-01-01T00:00:01Z")
    1000000000
    >>> parse_time_ns("1d12h", datetime(1970, 1, 3, tzinfo=UTC)) // 10**9
    43200
    >>> parse_time_ns("500ms", datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC))
    500000000
    """
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        at = _before(text, now or datetime.now(UTC))
    if at.tzinfo is None:
        at = at.replace(tzinfo=UTC)
    try:
        at = at.astimezone(UTC)
    except OverflowError:  # its year in UTC is 0 or 10000
        raise _not_a_time(text) from None
    return (at - _EPOCH) // timedelta(microseconds=1) * 1000


def _before(text: str, now: datetime) -> datetime:
    from asched.model.quantity import parse_duration

    # Days, which Go's notation of durations does not have, stand in front.
    days, has_days, rest = text.partition("d")
    try:
        if has_days and days.isdecimal():
            return now - timedelta(days=int(days)) - parse_duration(rest or "0")
        return now - parse_duration(text)
    except (ValueError, OverflowError):
        raise _not_a_time(text) from None


def _not_a_time(text: str) -> TimeTextError:
    return TimeTextError(f'"{text}" is not a time; write {TIMES}')
