"""Opening a journal to ask it something."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Final, TypeVar

import anyio
import typer

from asched.audit.pods import AuditError, PodName
from asched.cli.errors import BadInput
from asched.cli.failures import as_command_error
from asched.cli.root import JOURNAL_ENV
from asched.daemon.config_settings import JournalSettings, LogLevel, LogSettings
from asched.daemon.logs import configure_logs
from asched.framework.registry import Registry
from asched.journal.opening import open_journal
from asched.journal.store import JournalStore

T = TypeVar("T")

DEFAULT_URL: Final = JournalSettings().url

JournalOption = Annotated[
    str,
    typer.Option(
        "--journal", envvar=JOURNAL_ENV, help="The journal: a file, or a URL (docs/journal.md)."
    ),
]

Question = Callable[[JournalStore, PodName, Registry], Awaitable[T]]


def keep_stdout_for_answers() -> None:
    """What is met on the way, such as a checkpoint of another release, is a line on stderr: structlog's
    own default is stdout, where it would make JSON unreadable."""
    configure_logs(LogSettings(level=LogLevel.WARNING))


def ask(url: str, pod: str, question: Question[T]) -> T:
    """Put a question about a pod to the journal at ``url``, which is opened for reading only.

    Raises CommandError for what cannot be answered.
    """
    return ask_journal(url, lambda store, registry: question(store, PodName.parse(pod), registry))


def ask_journal(url: str, question: Callable[[JournalStore, Registry], Awaitable[T]]) -> T:
    """Put a question to the journal at ``url``, which is opened for reading only.

    Raises CommandError for what cannot be answered.
    """

    async def answer() -> T:
        async with open_journal(url, read_only=True) as journal:
            return await question(journal, Registry.discover())

    keep_stdout_for_answers()
    try:
        return anyio.run(answer)
    except AuditError as error:
        raise BadInput(f"asched: {error}") from None
    except Exception as error:  # noqa: BLE001  whatever it is is raised again
        raise as_command_error(error) from None
