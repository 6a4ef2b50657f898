"""The commands: list, show, check and new."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer

from asched.cli.errors import EXIT_FAILURE, BadInput, CommandError
from asched.cli.output import TableOrData, print_json, print_table, to_plain
from asched.cli.plugins.description import PluginDescription, Use, describe
from asched.cli.root import command_app
from asched.daemon.config_file import ConfigFileError, load
from asched.framework.profile import ProfileSpec
from asched.framework.registry import Registry, RegistryError

app = command_app("Look at the plugins that are installed, check them, or begin one.")

OutputOption = Annotated[TableOrData, typer.Option("--output", "-o", help="How to print.")]
ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="Tell where this configuration enables them."),
]


@app.callback()
def plugins() -> None:
    """Look at the plugins that are installed, check them, or begin one."""


@app.command(name="list")
def list_plugins(config: ConfigOption = None, output: OutputOption = TableOrData.TABLE) -> None:
    """List all plugins: where they come from, which extension points they serve, their arguments.

    Exits with 1 if one of them cannot be loaded; the others are listed all the same.
    """
    registry = Registry.discover()
    profiles = _profiles(config, registry)
    found: list[PluginDescription] = []
    broken: list[str] = []
    for name in registry.names:
        try:
            found.append(describe(registry, name, profiles))
        except RegistryError as error:
            broken.append(str(error))
    if output is TableOrData.JSON:
        print_json(found)
    else:
        _print_plugins(found, with_uses=profiles is not None)
    for line in broken:
        typer.echo(line, err=True)
    if broken:
        raise typer.Exit(EXIT_FAILURE)


@app.command()
def show(
    name: Annotated[str, typer.Argument(metavar="PLUGIN", help="The plugin's name.")],
    config: ConfigOption = None,
    output: OutputOption = TableOrData.TABLE,
) -> None:
    """Show one plugin: what it serves and declares, its arguments, where it is enabled."""
    registry = Registry.discover()
    if name not in registry:
        raise BadInput(f"asched: {_unknown(name, registry)}")
    try:
        found = describe(registry, name, _profiles(config, registry))
    except RegistryError as error:
        raise CommandError(f"asched: {error}") from None
    if output is TableOrData.JSON:
        print_json(found)
    else:
        _print_plugin(found)


@app.command()
def check(
    distribution: Annotated[str, typer.Argument(metavar="DIST", help="An installed distribution.")],
    output: OutputOption = TableOrData.TABLE,
) -> None:
    """Check whether the plugins of a distribution keep the contract, by running them.

    They are loaded, and tried on small random clusters: do both forms of a filter agree, are the
    answers the same when everything is decided once more, is nothing changed that is not theirs?
    Exits with 1 if a check fails.
    """
    from asched.testing.checks import Finding, Outcome, check_plugin

    registry = Registry.discover()
    found: list[Finding] = []
    for name in _names_of(distribution, registry):
        try:
            with warnings.catch_warnings(record=True, category=DeprecationWarning) as warned:
                warnings.simplefilter("always", DeprecationWarning)
                plugin = registry.load(name)
        except RegistryError as error:
            found.append(Finding(name, "loading", Outcome.FAILED, str(error)))
            continue
        found.append(Finding(name, "loading", Outcome.PASSED))
        found += [Finding(name, "loading", Outcome.NOTE, str(each.message)) for each in warned]
        found += check_plugin(plugin)
    if output is TableOrData.JSON:
        print_json(found)
    else:
        for finding in found:
            message = f": {finding.message}" if finding.message else ""
            typer.echo(f"{finding.outcome.value:6}  {finding.plugin}: {finding.check}{message}")
    if any(finding.outcome is Outcome.FAILED for finding in found):
        raise typer.Exit(EXIT_FAILURE)


@app.command()
def new(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Of the distribution: rack-affinity.")
    ],
    directory: Annotated[
        Path, typer.Option(metavar="DIR", help="Where the folder NAME is made.")
    ] = Path(),
) -> None:
    """Write a working distribution with a plugin: a filter and a score, tests, and what CI needs.

    Nothing is ever overwritten.
    """
    from asched.cli.plugins.new import NameRefused, Names, write_distribution

    try:
        names = Names.of(name, Registry.discover())
        files = write_distribution(names, directory / name)
    except NameRefused as error:
        raise BadInput(f"asched: {error}") from None
    except FileExistsError as error:
        raise BadInput(f"asched: {error.filename} exists; nothing was written") from None
    except OSError as error:
        raise CommandError(f"asched: {error.filename}: {error.strerror or error}") from None
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


# -- what was asked for ---------------------------------------------------------------------------


def _profiles(config: Path | None, registry: Registry) -> tuple[ProfileSpec, ...] | None:
    if config is None:
        return None
    try:
        return load(config, registry).profiles
    except ConfigFileError as error:
        raise BadInput(error.lines) from None


def _unknown(name: str, registry: Registry) -> str:
    try:
        registry.load(name)
    except RegistryError as error:
        return str(error)
    return f'unknown plugin "{name}"'


def _names_of(distribution: str, registry: Registry) -> list[str]:
    """The plugins of a distribution. Raises BadInput where it offers none."""
    wanted, there = _normalized(distribution), set[str]()
    names = []
    for name in registry.names:
        for label in registry.offered_by(name):
            offered = label.rpartition(" ")[0]
            there.add(offered)
            if _normalized(offered) == wanted:
                names.append(name)
    if not names:
        known = ", ".join(sorted(there)) or "none"
        raise BadInput(
            f'asched: no installed distribution "{distribution}" offers plugins; those that do: {known}'
        )
    return names


def _normalized(distribution: str) -> str:
    """As PEP 503 compares names."""
    return re.sub(r"[-_.]+", "-", distribution).lower()


# -- tables ---------------------------------------------------------------------------------------


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
        yield _enabled(plugin.enabled)


def _enabled(uses: Iterable[Use]) -> str:
    by_profile: dict[str, list[str]] = {}
    for use in uses:
        weight = "" if use.weight is None else f" ({use.weight})"
        by_profile.setdefault(use.profile, []).append(f"{use.extension_point}{weight}")
    return "; ".join(f"{name}: {', '.join(points)}" for name, points in by_profile.items())


def _print_plugin(plugin: PluginDescription) -> None:
    rows = [
        ("what it does", plugin.summary),
        ("from", f"{plugin.distribution} {plugin.version}, {plugin.source}"),
        ("api version", str(plugin.api_version)),
        ("extension points", ", ".join(plugin.extension_points)),
        ("scope", plugin.scope),
        ("pure", "yes" if plugin.pure else "no"),
        ("runs in", plugin.runs_in),
        ("needs", ", ".join(plugin.needs)),
        ("custom resources", ", ".join(plugin.custom_resources)),
        ("reads annotations", ", ".join(plugin.reads_annotations)),
        ("loaded in", f"{plugin.load_milliseconds:g} ms"),
    ]
    if plugin.enabled is not None:
        rows.append(("enabled", _enabled(plugin.enabled) or "nowhere"))
    print_table(("", ""), [row for row in rows if row[1]], title=f"Plugin {plugin.name}")
    if plugin.arguments:
        arguments = [
            (each.name, "required" if each.required else _inline(each.default))
            for each in plugin.arguments
        ]
        print_table(("ARGUMENT", "DEFAULT"), arguments)
        typer.echo(f"Schema: {_inline(plugin.arguments_schema)}")


def _inline(value: object) -> str:
    import json

    return json.dumps(to_plain(value), ensure_ascii=False)
