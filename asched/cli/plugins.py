"""``asched plugins``: what is installed."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import typer

from asched.cli.errors import EXIT_FAILURE
from asched.cli.output import TableOrData, print_json, print_table
from asched.cli.root import command_app
from asched.framework.interface import ExtensionPoint, Plugin
from asched.framework.registry import Registry, RegistryError

app = command_app("Look at the plugins that are installed.")


class ArgumentDescription(msgspec.Struct, frozen=True):
    name: str
    required: bool
    default: Any = None


class PluginDescription(msgspec.Struct, frozen=True, rename="camel"):
    """A plugin, as ``-o json`` prints it."""

    name: str
    distribution: str
    version: str
    extension_points: tuple[str, ...]
    arguments: tuple[ArgumentDescription, ...]
    scope: str


@app.callback()
def plugins() -> None:
    """Look at the plugins that are installed."""


@app.command(name="list")
def list_plugins(
    output: Annotated[
        TableOrData, typer.Option("--output", "-o", help="How to print.")
    ] = TableOrData.TABLE,
) -> None:
    """List all plugins: where they come from, which extension points they serve, their arguments.

    Exits with 1 if one of them cannot be loaded; the others are listed all the same.
    """
    registry = Registry.discover()
    found: list[PluginDescription] = []
    broken: list[str] = []
    for name in registry.names:
        try:
            found.append(describe(registry, name))
        except RegistryError as error:
            broken.append(str(error))
    if output is TableOrData.JSON:
        print_json(found)
    else:
        _print_plugins(found)
    for line in broken:
        typer.echo(line, err=True)
    if broken:
        raise typer.Exit(EXIT_FAILURE)


def describe(registry: Registry, name: str) -> PluginDescription:
    """What there is to say of a plugin. Raises RegistryError if it cannot be loaded."""
    plugin = registry.load(name)
    origin = registry.origin(name)
    return PluginDescription(
        name=name,
        distribution=origin.distribution,
        version=origin.version,
        extension_points=tuple(p.field for p in ExtensionPoint if p.served_by(plugin)),
        arguments=_arguments(plugin),
        scope=plugin.scope.value,
    )


def _arguments(plugin: type[Plugin]) -> tuple[ArgumentDescription, ...]:
    if plugin.arguments is None:
        return ()
    return tuple(
        ArgumentDescription(field.encode_name, field.required, _default(field))
        for field in msgspec.structs.fields(plugin.arguments)
    )


def _default(field: msgspec.structs.FieldInfo) -> Any:
    if field.default is not msgspec.NODEFAULT:
        return field.default
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory()
    return None


def _print_plugins(found: list[PluginDescription]) -> None:
    print_table(
        ("NAME", "DISTRIBUTION", "VERSION", "EXTENSION POINTS", "ARGUMENTS", "SCOPE"),
        [
            (
                plugin.name,
                plugin.distribution,
                plugin.version,
                ", ".join(plugin.extension_points),
                ", ".join(argument.name for argument in plugin.arguments),
                plugin.scope,
            )
            for plugin in found
        ],
    )
