"""Errors that end a command with lines on stderr and an exit code.

Exit codes: 0 success; 1 failure, or a check that did not pass; 2 wrong input (arguments, files,
configuration, journal or cluster address); 130 interrupted.
"""

from __future__ import annotations

from collections.abc import Iterable

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
    """The CommandError to report for ``error``, or ``error`` itself if it is a bug.

    Known are the errors of queries, configurations, journals, kubeconfigs and profiles;
    ``bad_input`` and ``failures`` add to them. Of an exception group, the first error that a user
    can act on counts.
    """
    if isinstance(error, CommandError):
        return error
    from asched.audit.lookup import AuditError
    from asched.config.file import ConfigFileError
    from asched.framework.runtime.profile import ProfileError
    from asched.journal import errors as journal
    from asched.kube.errors import CredentialPluginError, KubeConfigError
    from asched.planning.errors import ExecutionError, PlanningError
    from asched.proof import KeyFileError, ProofError
    from asched.proof.anchors import AnchorError
    from asched.simulator.loop import SimulationStuckError

    leaves = _leaves(error)
    for leaf in leaves:
        match leaf:
            case CommandError():
                return leaf
            case ConfigFileError():
                return InvalidFile(leaf.lines)
            case CredentialPluginError() | journal.JournalUnreachableError() | ExecutionError():
                return CommandError(str(leaf))  # may be gone at the next try
            case (
                AnchorError() | AuditError() | KeyFileError() | KubeConfigError() | PlanningError()
            ):
                return BadInput(str(leaf))
            case (
                journal.JournalCorruptError()
                | journal.JournalKindError()
                | journal.JournalOpenError()
                | journal.JournalSchemaError()
                | journal.JournalUrlError()
                | journal.RecordError()
            ):
                return BadInput(str(leaf))
            case journal.JournalError() | ProofError() | ProfileError() | SimulationStuckError():
                return CommandError(str(leaf))
        if isinstance(leaf, bad_input):
            return BadInput(str(leaf))
        if isinstance(leaf, failures):
            return CommandError(str(leaf))
    return leaves[0]


def _leaves(error: BaseException) -> list[BaseException]:
    if not isinstance(error, BaseExceptionGroup):
        return [error]
    return [leaf for inner in error.exceptions for leaf in _leaves(inner)]
