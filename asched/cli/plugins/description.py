"""What there is to say of an installed plugin."""

from __future__ import annotations

import inspect
import time
from collections.abc import Iterable
from typing import Any

import msgspec

from asched.framework.interface import ExtensionPoint, Plugin
from asched.framework.profile import ProfileSpec
from asched.framework.registry import Registry


class ArgumentDescription(msgspec.Struct, frozen=True):
    name: str
    required: bool
    default: Any = None


class Use(msgspec.Struct, frozen=True, rename="camel"):
    """One place at which a configuration enables a plugin."""

    profile: str
    extension_point: str
    weight: int | None = None
    """At score only."""


class PluginDescription(msgspec.Struct, frozen=True, rename="camel"):
    """A plugin, as ``-o json`` prints it."""

    name: str
    distribution: str
    version: str
    extension_points: tuple[str, ...]
    arguments: tuple[ArgumentDescription, ...]
    scope: str
    api_version: int = 1
    summary: str = ""
    """The first paragraph of its docstring."""
    source: str = ""
    """Module and class."""
    pure: bool = True
    runs_in: str = ""
    needs: tuple[str, ...] = ()
    """What it asks of the API server."""
    custom_resources: tuple[str, ...] = ()
    reads_annotations: tuple[str, ...] = ()
    arguments_schema: dict[str, Any] | None = None
    """JSON Schema of ``args`` in ``pluginConfig``; None where it takes none."""
    load_milliseconds: float = 0.0
    """What importing it took here; whoever is loaded first pays for what others need as well."""
    enabled: tuple[Use, ...] | None = None
    """Where the configuration enables it; None where none was given."""
    kind: str = "plugin"
    """Beside actions and session plugins, which are of kinds of their own."""


def describe(
    registry: Registry, name: str, profiles: Iterable[ProfileSpec] | None = None
) -> PluginDescription:
    """What there is to say of a plugin. Raises RegistryError if it cannot be loaded."""
    began_s = time.perf_counter()
    plugin = registry.load(name)
    load_s = time.perf_counter() - began_s
    origin = registry.origin(name)
    return PluginDescription(
        name=name,
        distribution=origin.distribution,
        version=origin.version,
        extension_points=tuple(p.field for p in ExtensionPoint if p.served_by(plugin)),
        arguments=_arguments(plugin),
        scope=plugin.scope.value,
        api_version=plugin.api_version,
        summary=" ".join((inspect.getdoc(plugin) or "").partition("\n\n")[0].split()),
        source=f"{plugin.__module__}:{plugin.__qualname__}",
        pure=plugin.pure,
        runs_in=plugin.runs_in.value,
        needs=tuple(sorted(permission.value for permission in plugin.needs)),
        custom_resources=tuple(kind.definition.name for kind in plugin.custom_resources),
        reads_annotations=plugin.reads_annotations,
        arguments_schema=_schema(plugin),
        load_milliseconds=round(load_s * 1000, 1),
        enabled=None if profiles is None else tuple(_uses(name, profiles)),
    )


def _uses(name: str, profiles: Iterable[ProfileSpec]) -> Iterable[Use]:
    for profile in profiles:
        for point in ExtensionPoint:
            for entry in profile.plugins_at(point):
                if entry.name == name:
                    weight = entry.weight if point is ExtensionPoint.SCORE else None
                    yield Use(profile.scheduler_name, point.field, weight)


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


def _schema(plugin: type[Plugin]) -> dict[str, Any] | None:
    """The JSON Schema of the arguments, empty where their types have none."""
    if plugin.arguments is None:
        return None
    try:
        return msgspec.json.schema(plugin.arguments)
    except TypeError:
        return {}
