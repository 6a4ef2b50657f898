"""The ``asched`` command.

A new command is a module with a ``typer.Typer`` named ``app``, and one line in :data:`COMMANDS`.
"""

from __future__ import annotations

from typing import Annotated, Final

import typer

from asched import __version__
from asched.cli.root import CommandSource, LazyCommand, RootGroup

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
        "asched.cli.checkpoint", "Keep the state in the journal, so that it is opened quickly."
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
