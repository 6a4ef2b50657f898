"""``asched plugins``: list, show, check and create plugins."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from asched.cli.errors import EXIT_FAILURE, BadInput, CommandError
from asched.cli.options import command_group, installed_plugins, read_configuration
from asched.cli.output import (
    OutputOption,
    TableOrData,
    print_as,
    print_json,
    print_table,
    print_text,
    to_plain,
)

if TYPE_CHECKING:
    from asched.cli.plugin_description import (
        PluginDescription,
        PluginUse,
        SessionPartDescription,
    )
    from asched.config.registry import PluginRegistry
    from asched.framework.runtime.profile import ProfileSpec
    from asched.framework.sessions import SessionSpec
    from asched.testing.checks import Finding

app = command_group("List, check and create plugins.")

ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="Show where this configuration enables them."),
]


@app.command(name="list")
def list_plugins(config: ConfigOption = None, output: OutputOption = TableOrData.TABLE) -> None:
    """List all plugins, and the actions and plugins of batch sessions.

    Shows their distributions, extension points and arguments. Exits with 1 if a plugin cannot be
    loaded; the list contains the others.
    """
    from asched.batch.registry import SessionRegistry, SessionRegistryError
    from asched.cli.plugin_description import describe, describe_part, part_names
    from asched.config.registry import RegistryError

    registry, known = installed_plugins(), SessionRegistry.discover()
    profiles, sessions = _specs(config, registry)
    found: list[PluginDescription] = []
    parts: list[SessionPartDescription] = []
    broken: list[str] = []
    for name in registry.names:
        try:
            found.append(describe(registry, name, profiles))
        except RegistryError as error:
            broken.append(str(error))
    for kind, name in part_names(known):
        try:
            parts.append(describe_part(known, kind, name, sessions))
        except SessionRegistryError as error:
            broken.append(str(error))
    if output is TableOrData.JSON:
        print_json([*found, *parts])
    else:
        _print_plugins(found, with_uses=config is not None)
        _print_parts(parts, with_uses=config is not None)
    for line in broken:
        typer.echo(line, err=True)
    if broken:
        raise typer.Exit(EXIT_FAILURE)


@app.command()
def show(
    name: Annotated[str, typer.Argument(metavar="PLUGIN", help="Name of the plugin or action.")],
    config: ConfigOption = None,
    output: OutputOption = TableOrData.TABLE,
) -> None:
    """Show one plugin, or an action or plugin of batch sessions.

    Shows its extension points, declarations and arguments, and where it is enabled.
    """
    from asched.batch.registry import SessionRegistry, SessionRegistryError
    from asched.cli.plugin_description import describe, describe_part, part_names
    from asched.config.registry import RegistryError

    registry = installed_plugins()
    profiles, sessions = _specs(config, registry)
    try:
        if name in registry:
            print_as(output, describe(registry, name, profiles), _print_plugin)
            return
        known = SessionRegistry.discover()
        kinds = [kind for kind, known_name in part_names(known) if known_name == name]
        parts = [describe_part(known, kind, name, sessions) for kind in kinds]
    except (RegistryError, SessionRegistryError) as error:
        raise CommandError(str(error)) from None
    if not parts:
        try:
            registry.load(name)
        except RegistryError as error:
            raise BadInput(str(error)) from None
    for part in parts:
        print_as(output, part, _print_part)


@app.command()
def check(
    distribution: Annotated[str, typer.Argument(metavar="DIST", help="An installed distribution.")],
    output: OutputOption = TableOrData.TABLE,
) -> None:
    """Check whether the plugins of a distribution follow the plugin contract.

    Runs them on small random clusters. Checks that both forms of a filter agree, that repeated
    decisions are equal, and that plugins do not modify objects. Exits with 1 if a check fails.
    """
    from asched.testing.checks import CheckOutcome

    registry = installed_plugins()
    found = [f for name in _names_of(distribution, registry) for f in _findings(name, registry)]
    print_as(output, found, _print_findings)
    if any(finding.outcome is CheckOutcome.FAILED for finding in found):
        raise typer.Exit(EXIT_FAILURE)


def _print_findings(found: Iterable[Finding]) -> None:
    for finding in found:
        message = f": {finding.message}" if finding.message else ""
        print_text(f"{finding.outcome.value:6}  {finding.plugin}: {finding.check}{message}")


def _findings(name: str, registry: PluginRegistry) -> Iterator[Finding]:
    from asched.config.registry import RegistryError
    from asched.testing.checks import CheckOutcome, Finding, check_plugin

    try:
        with warnings.catch_warnings(record=True, category=DeprecationWarning) as warned:
            warnings.simplefilter("always", DeprecationWarning)
            plugin = registry.load(name)
    except RegistryError as error:
        yield Finding(name, "loading", CheckOutcome.FAILED, str(error))
        return
    yield Finding(name, "loading", CheckOutcome.PASSED)
    for warning in warned:
        yield Finding(name, "loading", CheckOutcome.NOTE, str(warning.message))
    yield from check_plugin(plugin)


@app.command()
def new(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Name of the distribution, such as rack-affinity.")
    ],
    directory: Annotated[
        Path, typer.Option(metavar="DIR", help="Where to create the folder NAME.")
    ] = Path(),
) -> None:
    """Create a distribution with a plugin: a filter, a score, tests and a CI configuration.

    Never overwrites a file.
    """
    from asched.cli.plugin_template import Names, write_distribution

    try:
        names = Names.of(name, installed_plugins())
        files = write_distribution(names, directory / name)
    except FileExistsError as error:
        raise BadInput(f"{error.filename} exists; nothing was written") from None
    except OSError as error:
        raise CommandError(f"{error.filename}: {error.strerror or error}") from None
    folder = directory / name
    typer.echo(f"{folder}: {len(files)} files, with the plugin {names.plugin}. Next:\n")
    for line in (
        f"cd {folder}",
        "pip install -e '.[dev]'",
        "pytest",
        f"asched plugins check {names.distribution}",
        "asched demo --config asched.yaml",
    ):
        typer.echo(f"  {line}")
    typer.echo("\nREADME.md explains each step.")


def _specs(
    config: Path | None, registry: PluginRegistry
) -> tuple[Sequence[ProfileSpec] | None, Sequence[SessionSpec] | None]:
    """The profiles and sessions of a configuration; None without one."""
    if config is None:
        return None, None
    configuration = read_configuration(config, registry)
    return configuration.profiles, configuration.sessions


def _names_of(distribution: str, registry: PluginRegistry) -> list[str]:
    """The plugins of a distribution. Raises BadInput if it has none."""
    wanted, known = _normalize(distribution), set[str]()
    names = []
    for name in registry.names:
        for label in registry.providers(name):
            offered = label.rpartition(" ")[0]
            known.add(offered)
            if _normalize(offered) == wanted:
                names.append(name)
    if not names:
        raise BadInput(
            f'no installed distribution "{distribution}" with plugins; installed are:'
            f" {', '.join(sorted(known)) or 'none'}"
        )
    return names


def _normalize(distribution: str) -> str:
    """The name in the form in which PEP 503 compares names."""
    return re.sub(r"[-_.]+", "-", distribution).lower()


def _print_plugins(found: Sequence[PluginDescription], *, with_uses: bool) -> None:
    columns = ["NAME", "DISTRIBUTION", "VERSION", "EXTENSION POINTS", "ARGUMENTS", "SCOPE"]
    columns += ["PURE", "LOAD", *(["ENABLED"] if with_uses else [])]
    print_table(columns, [[*_row(plugin)] for plugin in found])


def _row(plugin: PluginDescription) -> Iterator[str]:
    yield from (plugin.name, plugin.distribution, plugin.version)
    yield ", ".join(plugin.extension_points)
    yield ", ".join(argument.name for argument in plugin.arguments)
    yield plugin.scope
    yield "yes" if plugin.pure else "no"
    yield f"{plugin.load_milliseconds:g} ms"
    if plugin.enabled is not None:
        yield _enabled_in(plugin.enabled)


def _enabled_in(uses: Iterable[PluginUse]) -> str:
    by_profile: dict[str, list[str]] = {}
    for use in uses:
        weight = "" if use.weight is None else f" ({use.weight})"
        by_profile.setdefault(use.profile, []).append(f"{use.extension_point}{weight}")
    return "; ".join(f"{name}: {', '.join(points)}" for name, points in by_profile.items())


def _print_plugin(plugin: PluginDescription) -> None:
    rows = [
        ("api version", str(plugin.api_version)),
        ("extension points", ", ".join(plugin.extension_points)),
        ("scope", plugin.scope),
        ("pure", "yes" if plugin.pure else "no"),
        ("runs in", plugin.runs_in),
        ("needs", ", ".join(plugin.needs)),
        ("custom resources", ", ".join(plugin.custom_resources)),
        ("reads annotations", ", ".join(plugin.reads_annotations)),
    ]
    enabled = None if plugin.enabled is None else _enabled_in(plugin.enabled)
    _print_details(plugin, f"Plugin {plugin.name}", rows, enabled)
    if plugin.arguments:
        arguments = [
            (each.name, "required" if each.required else _inline(each.default), each.summary)
            for each in plugin.arguments
        ]
        print_text(f"Arguments (args in pluginConfig): {plugin.arguments_summary}")
        print_table(("ARGUMENT", "DEFAULT", ""), arguments)
        print_text(f"asched plugins show {plugin.name} -o json has their JSON Schema.")


def _print_parts(found: Sequence[SessionPartDescription], *, with_uses: bool) -> None:
    columns = ["NAME", "KIND", "DISTRIBUTION", "VERSION", "CALLBACKS", "LOAD"]
    columns += ["ENABLED"] if with_uses else []
    print_table(columns, [[*_part_row(part)] for part in found], title="In batch sessions")


def _part_row(part: SessionPartDescription) -> Iterator[str]:
    yield from (part.name, part.kind.value, part.distribution, part.version)
    yield ", ".join(part.callbacks)
    yield f"{part.load_milliseconds:g} ms"
    if part.enabled is not None:
        yield _part_uses(part)


def _part_uses(part: SessionPartDescription) -> str:
    word = "step" if part.kind.value == "action" else "tier"
    return "; ".join(f"{use.profile}: {word} {use.position}" for use in part.enabled or ())


def _print_part(part: SessionPartDescription) -> None:
    rows = [("callbacks", ", ".join(part.callbacks))]
    enabled = None if part.enabled is None else _part_uses(part)
    _print_details(part, f"{part.kind.value.capitalize()} {part.name}", rows, enabled)


def _print_details(
    found: PluginDescription | SessionPartDescription,
    title: str,
    rows: Iterable[tuple[str, str]],
    enabled: str | None,
) -> None:
    """The non-empty rows, with those that all plugins and parts have."""
    every = [
        ("summary", found.summary),
        ("from", f"{found.distribution} {found.version}, {found.source}"),
        *rows,
        ("loaded in", f"{found.load_milliseconds:g} ms"),
        ("enabled", "" if enabled is None else enabled or "nowhere"),
    ]
    print_table(("", ""), [row for row in every if row[1]], title=title)


def _inline(value: object) -> str:
    return json.dumps(to_plain(value), ensure_ascii=False)
