"""What ends a long-running command before its time, as a line for its user."""

from __future__ import annotations

from asched.cli.errors import BadInput, CommandError
from asched.framework.errors import ProfileError
from asched.journal.errors import (
    JournalError,
    JournalOpenError,
    JournalSchemaError,
    JournalUrlError,
)
from asched.kube.errors import ApiError, KubeConfigError, NoAnswerError

_WRONG_INPUT = (KubeConfigError, JournalOpenError, JournalSchemaError, JournalUrlError)
_FAILURES = (JournalError, ApiError, NoAnswerError, ProfileError)


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
