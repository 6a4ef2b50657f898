"""Errors that end a command with lines on stderr and an exit code.

Exit codes: 0 success; 1 failure, or a check that did not pass; 2 wrong input (arguments, files,
configuration, journal or cluster address); 130 interrupted.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

EXIT_FAILURE = 1
EXIT_BAD_INPUT = 2
EXIT_INTERRUPTED = 130

ErrorTypes = tuple[type[Exception], ...]


class CommandError(Exception):
    """Ends the command: :attr:`lines` go to stderr, without a traceback."""

    exit_code = EXIT_FAILURE

    @property
    def lines(self) -> list[str]:
        return [f"asched: {self}"]


class BadInput(CommandError):  # noqa: N818  reads well where it is raised
    """An argument, a file or a name given by the user is not usable."""

    exit_code = EXIT_BAD_INPUT


class InvalidFile(BadInput):
    """Mistakes in a file; each line begins with its place, such as ``FILE:LINE:``."""

    def __init__(self, lines: Iterable[str]) -> None:
        super().__init__("\n".join(lines))

    @property
    def lines(self) -> list[str]:
        return str(self).split("\n")


def as_command_error(
    error: BaseException, *, bad_input: ErrorTypes = (), failures: ErrorTypes = ()
) -> BaseException:
    """The CommandError to raise for ``error``, or ``error`` itself if it is a bug.

    Known are the errors of journals, kubeconfigs and profiles; ``bad_input`` and ``failures`` add
    to them. Of an exception group, the first error that a user can act on counts.
    """
    transient, known_bad_input, known_failures = _known_errors()
    leaves = _leaves(error)
    for leaf in leaves:
        if isinstance(leaf, CommandError):
            return leaf
        if isinstance(leaf, transient):
            return CommandError(str(leaf))
        if isinstance(leaf, (*known_bad_input, *bad_input)):
            return BadInput(str(leaf))
        if isinstance(leaf, (*known_failures, *failures)):
            return CommandError(str(leaf))
    return leaves[0]


@cache
def _known_errors() -> tuple[ErrorTypes, ErrorTypes, ErrorTypes]:
    """Errors that may be gone at the next try, errors in the input, other failures."""
    from asched.framework.runtime.profile import ProfileError
    from asched.journal import errors as journal
    from asched.kube.errors import CredentialPluginError, KubeConfigError

    return (
        (CredentialPluginError, journal.JournalUnreachableError),
        (
            KubeConfigError,
            journal.JournalCorruptError,
            journal.JournalOpenError,
            journal.JournalSchemaError,
            journal.JournalUrlError,
            journal.RecordError,
        ),
        (journal.JournalError, ProfileError),
    )


def _leaves(error: BaseException) -> list[BaseException]:
    if not isinstance(error, BaseExceptionGroup):
        return [error]
    return [leaf for inner in error.exceptions for leaf in _leaves(inner)]
