"""How commands say that they cannot do what was asked.

What ends a long-running command before its time, as a line for its user.
"""

from __future__ import annotations

from collections.abc import Iterable

from asched.framework.runtime.profile import ProfileError
from asched.journal.errors import (
    JournalError,
    JournalOpenError,
    JournalSchemaError,
    JournalUrlError,
)
from asched.kube.errors import ApiError, KubeConfigError, NoResponseError

EXIT_FAILURE = 1
EXIT_BAD_INPUT = 2
EXIT_INTERRUPTED = 130


class CommandError(Exception):
    """Ends the command: each line goes to stderr, without a traceback."""

    exit_code = EXIT_FAILURE

    def __init__(self, lines: str | Iterable[str]) -> None:
        self.lines = (lines,) if isinstance(lines, str) else tuple(lines)
        super().__init__("\n".join(self.lines))


class BadInput(CommandError):  # noqa: N818  (reads as what it is: raise BadInput("..."))
    """What the user gave cannot be used: a file, an argument, a name."""

    exit_code = EXIT_BAD_INPUT


_WRONG_INPUT = (KubeConfigError, JournalOpenError, JournalSchemaError, JournalUrlError)
_FAILURES = (JournalError, ApiError, NoResponseError, ProfileError)


def as_command_error(error: BaseException) -> BaseException:
    """The CommandError to raise for ``error``; ``error`` itself where it is a bug's.

    Of what a task group gathered, the first that a user can do something about speaks for all.
    """
    leaves = _leaves(error)
    for leaf in leaves:
        if isinstance(leaf, CommandError):
            return leaf
        if isinstance(leaf, _WRONG_INPUT):
            return BadInput(f"asched: {leaf}")
        if isinstance(leaf, _FAILURES):
            return CommandError(f"asched: {leaf}")
    return leaves[0]


def _leaves(error: BaseException) -> list[BaseException]:
    if not isinstance(error, BaseExceptionGroup):
        return [error]
    return [leaf for inner in error.exceptions for leaf in _leaves(inner)]
