"""Points in time, as users write them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated, Final

import typer

from asched.audit.history import Period
from asched.cli.errors import BadInput
from asched.framework.duration import parse_duration

TIMES: Final = "2026-01-31T12:00:00Z, or so long ago as 2h30m"
"""What can be written, for a help text."""

SinceOption = Annotated[str | None, typer.Option(metavar="TIME", help=f"From then on: {TIMES}.")]
UntilOption = Annotated[str | None, typer.Option(metavar="TIME", help="Up to then.")]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def time_ns(text: str, now: datetime | None = None) -> int:
    """Nanoseconds since the epoch of an RFC 3339 time, or of one so long before ``now``.

    A time without an offset is meant in UTC. Raises BadInput for anything else.

    >>> time_ns("1970-01-01T00:00:01Z")
    1000000000
    >>> time_ns("500ms", datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC))
    500000000
    """
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        at = _ago(text, now or datetime.now(UTC))
    if at.tzinfo is None:
        at = at.replace(tzinfo=UTC)
    return (at - _EPOCH) // timedelta(microseconds=1) * 1000


def period(since: str | None, until: str | None) -> Period:
    """What lies between the two; None for no bound.

    Raises BadInput for what is no time, and where the end lies before the beginning.
    """
    now = datetime.now(UTC)
    asked = Period(
        0 if since is None else time_ns(since, now), None if until is None else time_ns(until, now)
    )
    if asked.until_ns is not None and asked.until_ns < asked.since_ns:
        raise BadInput(f"asched: --until {until} lies before --since {since}")
    return asked


def _ago(text: str, now: datetime) -> datetime:
    try:
        return now - parse_duration(text)
    except (ValueError, OverflowError):
        raise BadInput(
            f'asched: "{text}" is no time; write one like 2026-01-31T12:00:00Z, or 2h30m for so long'
            " ago"
        ) from None
