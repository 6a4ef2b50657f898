"""Opening a journal to ask it something.

Reading the configuration that a command is given.

Points in time, as users write them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Final, TypeVar

import anyio
import typer

from asched.audit.history import Period
from asched.audit.lookup import AuditError, PodName
from asched.cli.errors import BadInput, as_command_error
from asched.cli.main import JOURNAL_ENV
from asched.config.file import ConfigFileError, Configuration, load
from asched.config.registry import PluginRegistry
from asched.config.settings import JournalSettings, LogLevel, LogSettings
from asched.daemon.telemetry.logs import configure_logs
from asched.journal.opening import open_journal
from asched.journal.store import JournalStore
from asched.model.quantity import parse_duration

T = TypeVar("T")

DEFAULT_URL: Final = JournalSettings().url

JournalOption = Annotated[
    str,
    typer.Option(
        "--journal", envvar=JOURNAL_ENV, help="The journal: a file, or a URL (docs/journal.md)."
    ),
]

Question = Callable[[JournalStore, PodName, PluginRegistry], Awaitable[T]]


def keep_stdout_for_answers() -> None:
    """What is met on the way, such as a checkpoint of another release, is a line on stderr: structlog's
    own default is stdout, where it would make JSON unreadable."""
    configure_logs(LogSettings(level=LogLevel.WARNING))


def ask(url: str, pod: str, question: Question[T]) -> T:
    """Put a question about a pod to the journal at ``url``, which is opened for reading only.

    Raises CommandError for what cannot be answered.
    """
    return ask_journal(url, lambda store, registry: question(store, PodName.parse(pod), registry))


def ask_journal(url: str, question: Callable[[JournalStore, PluginRegistry], Awaitable[T]]) -> T:
    """Put a question to the journal at ``url``, which is opened for reading only.

    Raises CommandError for what cannot be answered.
    """

    async def answer() -> T:
        async with open_journal(url, read_only=True) as journal:
            return await question(journal, PluginRegistry.discover())

    keep_stdout_for_answers()
    try:
        return anyio.run(answer)
    except AuditError as error:
        raise BadInput(f"asched: {error}") from None
    except Exception as error:  # noqa: BLE001  whatever it is is raised again
        raise as_command_error(error) from None


def read_configuration(file: Path | None, registry: PluginRegistry) -> Configuration:
    """The configuration in ``file``; for None, what holds without one. Raises BadInput with a line for
    each mistake."""
    try:
        return load(file, registry)
    except ConfigFileError as error:
        raise BadInput(error.lines) from None


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
