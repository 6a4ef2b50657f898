"""How commands say that they cannot do what was asked."""

from __future__ import annotations

from collections.abc import Iterable

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
