"""``asched config`` and ``asched crds``: configurations and CustomResourceDefinitions."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from asched.cli.errors import BadInput, CommandError, InvalidFile
from asched.cli.options import (
    FeatureGatesOption,
    command_group,
    installed_plugins,
    read_configuration,
)
from asched.cli.output import (
    DocumentFormat,
    TableOrDocument,
    print_json,
    print_table,
    print_yaml,
    to_plain,
)

if TYPE_CHECKING:
    from asched.config.file import Configuration
    from asched.config.registry import PluginRegistry
    from asched.framework.interface import ExtensionPoint
    from asched.framework.runtime.profile import ProfileSpec
    from asched.framework.sessions import SessionSpec

CRD_GROUPS: Final = (
    "scheduling.incubator.k8s.io",
    "scheduling.sigs.dev",
    "scheduling.volcano.sh",
)
"""The API groups of PodGroups and Queues, each with a manifest of that name."""

app = command_group("Check and convert configurations, print the defaults.")


@app.command()
def check(
    file: Annotated[
        Path, typer.Argument(help="KubeSchedulerConfiguration and/or AschedConfiguration, in YAML.")
    ],
    output: Annotated[
        TableOrDocument, typer.Option("--output", "-o", help="Output format.")
    ] = TableOrDocument.TABLE,
    feature_gates: FeatureGatesOption = None,
) -> None:
    """Check a file and print its profiles with all defaults and merges applied.

    Prints warnings about settings without effect to stderr. Exits with 2 after one line for each
    mistake.
    """
    configuration = read_configuration(file, installed_plugins(), feature_gates)
    if configuration.faults:
        raise InvalidFile(configuration.faults)
    for line in configuration.warnings:
        typer.echo(line, err=True)
    resolved = {
        part: getattr(configuration, part)
        for part in ("profiles", "sessions", "scheduler", "settings")
    }
    match output:
        case TableOrDocument.TABLE:
            for profile in configuration.profiles:
                _print_profile(profile)
            for session in configuration.sessions:
                _print_session(session)
        case TableOrDocument.JSON:
            print_json(resolved)
        case TableOrDocument.YAML:
            print_yaml(resolved)


@app.command()
def defaults(
    output: Annotated[
        DocumentFormat, typer.Option("--output", "-o", help="Output format.")
    ] = DocumentFormat.YAML,
) -> None:
    """Print a complete configuration file with the default values."""
    registry = installed_plugins()
    configuration = read_configuration(None, registry)
    documents = [_default_scheduler(configuration, registry), to_plain(configuration.settings)]
    if output is DocumentFormat.JSON:
        print_json(documents)
    else:
        print_yaml(*documents)


@app.command()
def schema() -> None:
    """Print the JSON schema of configuration files, for editors."""
    from asched.config.schema import configuration_schema

    print_json(configuration_schema(installed_plugins()))


@app.command()
def convert(
    policy_file: Annotated[
        Path, typer.Argument(help="Legacy scheduler policy (kind: Policy), in JSON or YAML.")
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Output file. Default: stdout.")
    ] = None,
) -> None:
    """Convert a legacy scheduler policy to a configuration file.

    Reports parts of the policy without an equivalent on stderr and in comments of the result. Exits
    with 2 if the policy is invalid, and prints one line for each mistake.
    """
    from asched.config.policy_conversion import convert_policy

    converted = convert_policy(policy_file, installed_plugins())
    for line in converted.notices:
        typer.echo(line, err=True)
    if output is None:
        typer.echo(converted.text, nl=False)
        return
    try:
        output.write_text(converted.text, encoding="utf-8")
    except OSError as error:
        raise CommandError(f"{output}: cannot be written: {error.strerror or error}") from None


def crds(
    group: Annotated[
        list[str] | None,
        typer.Option(metavar="GROUP", help="Only this API group; may be repeated."),
    ] = None,
) -> None:
    """Print the CustomResourceDefinitions of PodGroups and Queues.

    For kubectl: asched crds | kubectl apply -f -
    """
    unknown = [name for name in group or () if name not in CRD_GROUPS]
    if unknown:
        raise BadInput(f"no API group {unknown[0]!r}; known are {', '.join(CRD_GROUPS)}")
    typer.echo("---\n".join(crd_manifest(name) for name in group or CRD_GROUPS), nl=False)


def crd_manifest(group: str) -> str:
    """The YAML of an API group's definitions."""
    return (files("asched") / "manifests" / f"{group}.yaml").read_text(encoding="utf-8")


def _default_scheduler(configuration: Configuration, registry: PluginRegistry) -> dict[str, Any]:
    """The scheduler's document with its default profile written out."""
    from asched.config.resolve import default_plugins

    (profile,) = configuration.profiles
    enabled = [
        {"name": ref.name, **({"weight": ref.weight} if ref.weight else {})}
        for ref in default_plugins(registry)
    ]
    document: dict[str, Any] = to_plain(configuration.scheduler)
    document["profiles"] = [
        {
            "schedulerName": profile.scheduler_name,
            "plugins": {"multiPoint": {"enabled": enabled}},
            "pluginConfig": [
                {"name": name, "args": args} for name, args in profile.arguments.items()
            ],
        }
    ]
    return document


def _print_profile(profile: ProfileSpec) -> None:
    from asched.framework.interface import ExtensionPoint

    rows = [(point.field, _plugins_at(profile, point)) for point in ExtensionPoint]
    print_table(
        ("EXTENSION POINT", "PLUGINS (WEIGHT)"), rows, title=f"Profile {profile.scheduler_name}"
    )
    if profile.arguments:
        arguments = [
            (name, json.dumps(args, ensure_ascii=False))
            for name, args in sorted(profile.arguments.items())
        ]
        print_table(("PLUGIN", "ARGUMENTS"), arguments)
    share = profile.percentage_of_nodes_to_score
    typer.echo(f"Filtering stops after: {f'{share}% feasible nodes' if share else 'all nodes'}\n")


def _plugins_at(profile: ProfileSpec, point: ExtensionPoint) -> str:
    plugins = profile.plugins_at(point)
    if point.field == "score":
        return ", ".join(f"{plugin.name} ({plugin.weight})" for plugin in plugins)
    return ", ".join(plugin.name for plugin in plugins)


def _print_session(session: SessionSpec) -> None:
    rows = [
        (
            number,
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
