"""``asched config``: check a configuration file, print the defaults, convert a legacy policy."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from asched.cli.errors import BadInput, CommandError
from asched.cli.main import command_app
from asched.cli.options import read_configuration
from asched.cli.output import (
    DocumentFormat,
    TableOrDocument,
    print_json,
    print_table,
    print_yaml,
    to_plain,
)
from asched.config.file import ConfigFileError, Configuration
from asched.config.policy_file import convert_policy
from asched.config.registry import PluginRegistry
from asched.config.resolve import default_plugins
from asched.framework.interface import ExtensionPoint
from asched.framework.runtime.profile import ProfileSpec
from asched.framework.sessions import SessionSpec

app = command_app("Check a configuration, or print the defaults.")


@app.callback()
def config() -> None:
    """Check a configuration, or print the defaults. Convert a legacy scheduler policy."""


@app.command()
def check(
    file: Annotated[
        Path, typer.Argument(help="KubeSchedulerConfiguration and/or AschedConfiguration, in YAML.")
    ],
    output: Annotated[
        TableOrDocument, typer.Option("--output", "-o", help="How to print the result.")
    ] = TableOrDocument.TABLE,
) -> None:
    """Check a file and print the profiles that it makes, with every default and merge applied.

    Exits with 2 if anything is wrong, after one line for each mistake. What the file says in vain
    is told on stderr and is no mistake.
    """
    configuration = read_configuration(file, PluginRegistry.discover())
    if configuration.faults:
        raise BadInput(configuration.faults)
    for line in configuration.warnings:
        typer.echo(line, err=True)
    match output:
        case TableOrDocument.TABLE:
            for profile in configuration.profiles:
                _print_profile(profile)
            for session in configuration.sessions:
                _print_session(session)
        case TableOrDocument.JSON:
            print_json(_resolved(configuration))
        case TableOrDocument.YAML:
            print_yaml(_resolved(configuration))


@app.command()
def defaults(
    output: Annotated[
        DocumentFormat, typer.Option("--output", "-o", help="How to print.")
    ] = DocumentFormat.YAML,
) -> None:
    """Print a complete configuration file that says what holds without one."""
    registry = PluginRegistry.discover()
    configuration = read_configuration(None, registry)
    documents = [_default_scheduler(configuration, registry), to_plain(configuration.settings)]
    if output is DocumentFormat.JSON:
        print_json(documents)
    else:
        print_yaml(*documents)


@app.command()
def convert(
    policy_file: Annotated[
        Path, typer.Argument(help="Legacy scheduler policy (kind: Policy), in JSON or YAML.")
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Where to write. Default: stdout.")
    ] = None,
) -> None:
    """Convert a legacy scheduler policy into a configuration file.

    What the policy says that has no counterpart is told on stderr, and in comments of the result.
    Exits with 2 if the policy cannot be read, after one line for each mistake.
    """
    try:
        converted = convert_policy(policy_file, PluginRegistry.discover())
    except ConfigFileError as error:
        raise BadInput(error.lines) from None
    for line in converted.notices:
        typer.echo(line, err=True)
    if output is None:
        typer.echo(converted.text, nl=False)
        return
    try:
        output.write_text(converted.text, encoding="utf-8")
    except OSError as error:
        raise CommandError(f"{output}: cannot be written: {error.strerror or error}") from None


def _resolved(configuration: Configuration) -> dict[str, Any]:
    return {
        "profiles": to_plain(configuration.profiles),
        "sessions": to_plain(configuration.sessions),
        "scheduler": to_plain(configuration.scheduler),
        "settings": to_plain(configuration.settings),
    }


def _print_session(session: SessionSpec) -> None:
    rows = [
        (
            str(number),
            option.name,
            ", ".join(option.disabled),
            ", ".join(f"{key}={value}" for key, value in option.arguments.items()),
        )
        for number, tier in enumerate(session.tiers, 1)
        for option in tier
    ]
    title = (
        f"Sessions for {session.scheduler_name}, every {session.period_s:g} s:"
        f" {', '.join(session.actions)}"
    )
    print_table(("TIER", "PLUGIN", "OFF", "ARGUMENTS"), rows, title=title)


def _default_scheduler(configuration: Configuration, registry: PluginRegistry) -> dict[str, Any]:
    """The scheduler's document with its one profile written out."""
    (profile,) = configuration.profiles
    document: dict[str, Any] = to_plain(configuration.scheduler)
    document["profiles"] = [
        {
            "schedulerName": profile.scheduler_name,
            "plugins": {
                "multiPoint": {
                    "enabled": [
                        {"name": ref.name, **({"weight": ref.weight} if ref.weight else {})}
                        for ref in default_plugins(registry)
                    ]
                }
            },
            "pluginConfig": [
                {"name": name, "args": args} for name, args in profile.arguments.items()
            ],
        }
    ]
    return document


def _print_profile(profile: ProfileSpec) -> None:
    rows = [(point.field, _plugins_at(profile, point)) for point in ExtensionPoint]
    print_table(
        ("EXTENSION POINT", "PLUGINS (WEIGHT)"), rows, title=f"Profile {profile.scheduler_name}"
    )
    if profile.arguments:
        arguments = [(name, _inline(args)) for name, args in sorted(profile.arguments.items())]
        print_table(("PLUGIN", "ARGUMENTS"), arguments)
    share = profile.percentage_of_nodes_to_score
    typer.echo(f"Nodes looked at for a pod: {f'{share}% found feasible' if share else 'all'}\n")


def _plugins_at(profile: ProfileSpec, point: ExtensionPoint) -> str:
    plugins = profile.plugins_at(point)
    if point is ExtensionPoint.SCORE:
        return ", ".join(f"{plugin.name} ({plugin.weight})" for plugin in plugins)
    return ", ".join(plugin.name for plugin in plugins)


def _inline(args: dict[str, Any]) -> str:
    import json

    return json.dumps(args, ensure_ascii=False)
