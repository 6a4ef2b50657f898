"""The ``asched`` command: the root group with all commands, and errors as lines and exit codes.

Each command is a module with its options and a function that imports the implementation. So every
``--help`` and shell completion is quick. A process that runs a command imports only its module.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Annotated, Any, Final, TextIO, cast

import typer
from typer.core import TyperGroup

from asched import __version__
from asched.cli.errors import (
    EXIT_BAD_INPUT,
    EXIT_FAILURE,
    EXIT_INTERRUPTED,
    CommandError,
    as_command_error,
)
from asched.core.heap import infrequent_gc
from asched.daemon.process import EscapingStream, limit_blas_threads

DEBUG_ENV = "ASCHED_DEBUG"

# typer does not export the base of its usage errors; BadParameter is its public subclass.
UsageError: type[Exception] = typer.BadParameter.__mro__[1]


class RootGroup(TyperGroup):
    """The root group: converts errors to a line on stderr and an exit code."""

    def main(  # type: ignore[override]
        self,
        args: Sequence[str] | None = None,
        *,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        given = list(sys.argv[1:] if args is None else args)
        if not standalone_mode:
            return super().main(given, standalone_mode=False, **extra)
        with _escaped_output():
            try:
                result = super().main(given, standalone_mode=False, **extra)
                code = result if isinstance(result, int) else 0
            except Exception as error:
                expected = isinstance(error, (UsageError, typer.Abort, BrokenPipeError))
                if wants_traceback(given) and not expected:
                    raise
                code = _report(error)
            except KeyboardInterrupt:
                code = EXIT_INTERRUPTED
        sys.exit(code)


@contextmanager
def _escaped_output() -> Iterator[None]:
    """Within the block, control characters in what a command prints are escaped."""
    streams = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (cast(TextIO, EscapingStream(stream)) for stream in streams)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = streams


def _report(error: Exception) -> int:
    """Print what ended a command. Returns its exit code."""
    if isinstance(error, typer.Abort):
        return EXIT_INTERRUPTED
    if isinstance(error, BrokenPipeError):
        # The reader of our output is gone (``asched ... | head``).
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILURE
    if isinstance(error, UsageError):
        _print_error(f"asched: {_usage_message(error)}")
        return EXIT_BAD_INPUT
    cause = as_command_error(error)
    if isinstance(cause, CommandError):
        _print_error(*cause.lines)
        return cause.exit_code
    what = " ".join(f"{type(cause).__name__}: {cause}".split())
    _print_error(f"asched: failed: {what} ({DEBUG_ENV}=1 or asched --debug shows where)")
    return EXIT_FAILURE


def wants_traceback(args: Sequence[str]) -> bool:
    """Whether ``--debug`` stands before the command, or the variable is set."""
    for arg in args:
        if arg == "--debug":
            return True
        if not arg.startswith("-"):
            break
    return os.environ.get(DEBUG_ENV, "").lower() not in {"", "0", "false", "no"}


def _usage_message(error: Any) -> str:
    command = error.ctx.command_path if error.ctx is not None else "asched"
    message = " ".join(error.format_message().replace("Value error, ", "").split())
    if message.endswith("?"):  # Did you mean ...?
        return f"{message} See {command} --help"
    return f"{message.rstrip('.')}; see {command} --help"


def _print_error(*lines: str) -> None:
    for line in lines:
        print(line, file=sys.stderr)


COMMANDS: Final = {
    "run": "run:run",
    "shadow": "run:shadow",
    "demo": "demo:demo",
    "apiserver": "apiserver:apiserver",
    "history": "history:history",
    "explain": "explain:explain",
    "fit": "fit:fit",
    "mcp": "mcp:mcp",
    "show": "show:app",
    "replay": "replay:replay",
    "ui": "ui:ui",
    "simulate": "simulate:simulate",
    "diff": "diff:diff",
    "sweep": "sweep:sweep",
    "planning": "sweep:planning",
    "gate": "gate:gate",
    "audit-quality": "audit_quality:audit_quality",
    "consolidate": "consolidate:consolidate",
    "journal": "proof:app",
    "checkpoint": "journal:checkpoint",
    "plugins": "plugins:app",
    "crds": "config:crds",
    "config": "config:app",
}
"""The module and the function or group of each command, in the order of ``asched --help``."""


_HELP = "Event-sourced Kubernetes scheduler: decisions are recorded, replayable and explained."


def command_line(names: Iterable[str]) -> typer.Typer:
    """The ``asched`` command with these subcommands."""
    made = typer.Typer(
        name="asched",
        cls=RootGroup,
        help=_HELP,
        invoke_without_command=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        callback=root,
    )
    for name in names:
        module, _, attribute = COMMANDS[name].partition(":")
        command = getattr(import_module(f"asched.cli.{module}"), attribute)
        if isinstance(command, typer.Typer):
            made.add_typer(command, name=name)
        else:
            made.command(name)(command)
    return made


def _needed(args: Sequence[str]) -> Iterable[str]:
    """The command that ``args`` call; all of them for help, completion and messages."""
    for arg in args:
        if arg in COMMANDS:
            return (arg,)
        if arg != "--debug":
            break
    return COMMANDS


def __getattr__(name: str) -> typer.Typer:
    """``app``: the command with all subcommands."""
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    made = globals()["app"] = command_line(COMMANDS)
    return made


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"asched {__version__}")
        raise typer.Exit


def root(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show tracebacks (as ASCHED_DEBUG=1 does).")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def main() -> None:
    """Run the command line and exit; :mod:`asched.cli.errors` lists the exit codes."""
    limit_blas_threads()
    with infrequent_gc():
        command_line(_needed(sys.argv[1:]))(prog_name="asched")
