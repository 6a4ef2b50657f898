"""The ``asched`` command.

A new command is a module with a ``typer.Typer`` named ``app``, and one line in :data:`COMMANDS`.

The root of the command line: commands imported when they run, errors in one line.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, Final, NamedTuple, TextIO, cast

import typer
from typer.core import TyperCommand, TyperGroup

from asched import __version__
from asched.cli.errors import EXIT_BAD_INPUT, EXIT_FAILURE, EXIT_INTERRUPTED, CommandError
from asched.daemon.terminal import EscapingStream

DEBUG_ENV = "ASCHED_DEBUG"
JOURNAL_ENV = "ASCHED_JOURNAL"
"""Names the journal where no option does. The URL of a database may hold a password, which command lines
show to everybody."""

# typer does not export the base of its usage errors; BadParameter is its public subclass.
UsageError: type[Exception] = typer.BadParameter.__mro__[1]


def command_app(summary: str) -> typer.Typer:
    """The ``app`` of a command's module.

    Help is plain text: rich's panels would cost more time than all of the rest of a start.
    """
    return typer.Typer(
        help=summary,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )


class CommandSource(NamedTuple):
    """Where a command lives: ``module`` has a ``typer.Typer`` named ``app``.

    ``summary`` is the first line of its help, repeated here so that ``asched --help`` imports none.
    """

    module: str
    summary: str


class LazyCommand(TyperCommand):
    """Stands for a command until it is used, then hands over to it."""

    def __init__(self, name: str, source: CommandSource) -> None:
        super().__init__(name=name, help=source.summary)
        self._source = source

    def get_short_help_str(self, limit: int = 45) -> str:
        """The whole summary: click wraps it, and would otherwise cut it off in a sentence's middle."""
        return self._source.summary

    def load(self) -> Any:
        """The real command. Raises ImportError where its module is broken."""
        module = importlib.import_module(self._source.module)
        return typer.main.get_command(module.app)

    def make_context(
        self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any
    ) -> Any:
        return self.load().make_context(info_name, args, parent=parent, **extra)


class RootGroup(TyperGroup):
    """The top group: turns whatever ends a command into an exit code and a line on stderr."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        if not standalone_mode:
            return super().main(args, prog_name, complete_var, False, windows_expand_args, **extra)
        given = list(sys.argv[1:] if args is None else args)
        with _visible_output():
            code = self._exit_code(given, prog_name, complete_var, windows_expand_args, extra)
        sys.exit(code)

    def _exit_code(
        self,
        args: list[str],
        prog_name: str | None,
        complete_var: str | None,
        windows_expand_args: bool,
        extra: dict[str, Any],
    ) -> int:
        try:
            result = super().main(
                args, prog_name, complete_var, False, windows_expand_args, **extra
            )
        except CommandError as error:
            if wants_traceback(args):
                raise
            _complain(*error.lines)
            return error.exit_code
        except UsageError as error:
            _complain(f"asched: {_usage_message(error)}")
            return EXIT_BAD_INPUT
        except (typer.Abort, KeyboardInterrupt):
            return EXIT_INTERRUPTED
        except BrokenPipeError:
            # Whoever read our output has gone (``asched ... | head``); nothing more to write to.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return EXIT_FAILURE
        except Exception as error:
            if wants_traceback(args):
                raise
            what = " ".join(f"{type(error).__name__}: {error}".split())
            _complain(f"asched: failed: {what} ({DEBUG_ENV}=1 or asched --debug shows where)")
            return EXIT_FAILURE
        return result if isinstance(result, int) else 0


@contextmanager
def _visible_output() -> Iterator[None]:
    """Whatever a command writes within the block, what others gave it to write is only shown."""
    streams = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (cast(TextIO, EscapingStream(stream)) for stream in streams)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = streams


def wants_traceback(args: Sequence[str]) -> bool:
    """Whether the user asked for tracebacks: ``--debug`` before the command, or the variable."""
    for arg in args:
        if arg == "--debug":
            return True
        if not arg.startswith("-"):
            break
    return os.environ.get(DEBUG_ENV, "").lower() not in {"", "0", "false", "no"}


def _usage_message(error: Any) -> str:
    command = error.ctx.command_path if error.ctx is not None else "asched"
    message = " ".join(error.format_message().replace("Value error, ", "").split())
    return f"{message.rstrip('.')}; see {command} --help"


def _complain(*lines: str) -> None:
    for line in lines:
        print(line, file=sys.stderr)


COMMANDS: Final = {
    "run": CommandSource("asched.cli.run", "Schedule a cluster."),
    "shadow": CommandSource(
        "asched.cli.shadow",
        "Compare with the scheduler that owns a cluster, without ever writing to it.",
    ),
    "demo": CommandSource(
        "asched.cli.demo.command",
        "Schedule a simulated cluster, live: API server, kubelets, workload and daemon.",
    ),
    "apiserver": CommandSource(
        "asched.cli.apiserver",
        "Serve an embedded cluster: a Kubernetes API in memory, with simulated kubelets.",
    ),
    "history": CommandSource(
        "asched.cli.history", "Tell what happened to pods or to a node, from the journal alone."
    ),
    "explain": CommandSource(
        "asched.cli.explain",
        "Explain a pod's scheduling attempt: what each plugin said of each node.",
    ),
    "replay": CommandSource(
        "asched.cli.replay", "Decide everything in a journal once more, and compare."
    ),
    "simulate": CommandSource(
        "asched.cli.simulate.command", "Schedule a scenario or a trace on a virtual clock."
    ),
    "diff": CommandSource(
        "asched.cli.diff",
        "Simulate a recorded history under another configuration, and compare.",
    ),
    "journal": CommandSource("asched.cli.journal", "Prove, measure, archive and export a journal."),
    "checkpoint": CommandSource(
        "asched.cli.journal", "Keep the state in the journal, so that it is opened quickly."
    ),
    "plugins": CommandSource(
        "asched.cli.plugins.command",
        "Look at the plugins that are installed, check them, or begin one.",
    ),
    "crds": CommandSource(
        "asched.cli.crds", "Print the CustomResourceDefinitions of PodGroups and Queues."
    ),
    "config": CommandSource("asched.cli.config", "Check a configuration, or print the defaults."),
}


class Asched(RootGroup):
    """The root group with all commands in it, in the order of the table."""

    def list_commands(self, ctx: object) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: object, cmd_name: str) -> LazyCommand | None:
        source = COMMANDS.get(cmd_name)
        return LazyCommand(cmd_name, source) if source else None


app = typer.Typer(
    name="asched",
    cls=Asched,
    help="An event-sourced Kubernetes scheduler: every decision recorded, replayable, explainable.",
    invoke_without_command=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"asched {__version__}")
        raise typer.Exit


@app.callback()
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
    """Run the command line; exits with 0, 1 for a failure, 2 for bad input."""
    app(prog_name="asched")
