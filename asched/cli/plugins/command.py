"""The commands: list, show, check and new."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple, TypeVar

import typer

from asched.batch.registry import SessionRegistry, SessionRegistryError
from asched.cli.errors import EXIT_FAILURE, BadInput, CommandError
from asched.cli.main import command_app
from asched.cli.options import read_configuration
from asched.cli.output import OutputOption, TableOrData, print_json, print_table, to_plain
from asched.cli.plugins.description import (
    PartKind,
    PluginDescription,
    PluginUse,
    SessionPartDescription,
    describe,
    describe_all,
    describe_named,
)
from asched.config.registry import PluginRegistry, RegistryError
from asched.framework.runtime.profile import ProfileSpec
from asched.framework.sessions import SessionSpec

D = TypeVar("D", PluginDescription, SessionPartDescription)

app = command_app("Look at the plugins that are installed, check them, or begin one.")

ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="Tell where this configuration enables them."),
]


@app.callback()
def plugins() -> None:
    """Look at the plugins that are installed, check them, or begin one."""


@app.command(name="list")
def list_plugins(config: ConfigOption = None, output: OutputOption = TableOrData.TABLE) -> None:
    """List all plugins: where they come from, which extension points they serve, their arguments;
    and the actions and plugins of batch sessions.

    Exits with 1 if one of them cannot be loaded; the others are listed all the same.
    """
    registry = PluginRegistry.discover()
    uses = _uses(config, registry)
    found: list[PluginDescription] = []
    broken: list[str] = []
    for name in registry.names:
        try:
            found.append(describe(registry, name, uses.profiles))
        except RegistryError as error:
            broken.append(str(error))
    parts = describe_all(SessionRegistry.discover(), uses.sessions)
    broken += parts.broken
    if output is TableOrData.JSON:
        print_json([*found, *parts.found])
    else:
        _print_plugins(found, with_uses=config is not None)
        _print_parts(parts.found, with_uses=config is not None)
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
    """Show one plugin: what it serves and declares, its arguments, where it is enabled. Or an action,
    or a plugin, of batch sessions."""
    registry = PluginRegistry.discover()
    uses = _uses(config, registry)
    try:
        if name in registry:
            _show(describe(registry, name, uses.profiles), output, _print_plugin)
            return
        parts = describe_named(SessionRegistry.discover(), name, uses.sessions)
    except (RegistryError, SessionRegistryError) as error:
        raise CommandError(f"asched: {error}") from None
    if not parts:
        raise BadInput(f"asched: {_unknown(name, registry)}")
    for part in parts:
        _show(part, output, _print_part)


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
    from asched.testing.checks import CheckOutcome, Finding, check_plugin

    registry = PluginRegistry.discover()
    found: list[Finding] = []
    for name in _names_of(distribution, registry):
        try:
            with warnings.catch_warnings(record=True, category=DeprecationWarning) as warned:
                warnings.simplefilter("always", DeprecationWarning)
                plugin = registry.load(name)
        except RegistryError as error:
            found.append(Finding(name, "loading", CheckOutcome.FAILED, str(error)))
            continue
        found.append(Finding(name, "loading", CheckOutcome.PASSED))
        found += [Finding(name, "loading", CheckOutcome.NOTE, str(each.message)) for each in warned]
        found += check_plugin(plugin)
    if output is TableOrData.JSON:
        print_json(found)
    else:
        for finding in found:
            message = f": {finding.message}" if finding.message else ""
            typer.echo(f"{finding.outcome.value:6}  {finding.plugin}: {finding.check}{message}")
    if any(finding.outcome is CheckOutcome.FAILED for finding in found):
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
        names = Names.of(name, PluginRegistry.discover())
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


class _Uses(NamedTuple):
    """What a configuration makes use of; None where none was given."""

    profiles: tuple[ProfileSpec, ...] | None
    sessions: tuple[SessionSpec, ...] | None


def _uses(config: Path | None, registry: PluginRegistry) -> _Uses:
    if config is None:
        return _Uses(None, None)
    configuration = read_configuration(config, registry)
    return _Uses(configuration.profiles, configuration.sessions)


def _unknown(name: str, registry: PluginRegistry) -> str:
    try:
        registry.load(name)
    except RegistryError as error:
        return str(error)
    return f'unknown plugin "{name}"'


def _names_of(distribution: str, registry: PluginRegistry) -> list[str]:
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


def _show(what: D, output: TableOrData, as_table: Callable[[D], None]) -> None:
    if output is TableOrData.JSON:
        print_json(what)
    else:
        as_table(what)


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


def _enabled(uses: Iterable[PluginUse]) -> str:
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


def _print_parts(found: Sequence[SessionPartDescription], *, with_uses: bool) -> None:
    columns = ["NAME", "KIND", "DISTRIBUTION", "VERSION", "CALLBACKS", "LOAD"]
    columns += ["ENABLED"] if with_uses else []
    print_table(columns, [[*_part_row(part)] for part in found], title="In batch sessions")


def _part_row(part: SessionPartDescription) -> Iterator[str]:
    yield from (part.name, part.kind.value, part.distribution, part.version)
    yield ", ".join(part.callbacks)
    yield f"{part.load_milliseconds:g} ms"
    if part.enabled is not None:
        yield _named(part)


def _named(part: SessionPartDescription) -> str:
    word = "step" if part.kind is PartKind.ACTION else "tier"
    return "; ".join(f"{use.profile}: {word} {use.place}" for use in part.enabled or ())


def _print_part(part: SessionPartDescription) -> None:
    rows = [
        ("what it does", part.summary),
        ("from", f"{part.distribution} {part.version}, {part.source}"),
        ("callbacks", ", ".join(part.callbacks)),
        ("loaded in", f"{part.load_milliseconds:g} ms"),
    ]
    if part.enabled is not None:
        rows.append(("enabled", _named(part) or "nowhere"))
    title = f"{part.kind.value.capitalize()} {part.name}"
    print_table(("", ""), [row for row in rows if row[1]], title=title)


def _inline(value: object) -> str:
    import json

    return json.dumps(to_plain(value), ensure_ascii=False)
