"""Descriptions of installed plugins, session plugins and actions."""

from __future__ import annotations

import inspect
import time
from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import Any

import msgspec

from asched.batch.registry import SessionRegistry
from asched.config.registry import PluginRegistry
from asched.config.schema import field_docs
from asched.framework.interface import ExtensionPoint, Plugin
from asched.framework.runtime.profile import ProfileSpec
from asched.framework.session_plugins import Action, SessionPlugin
from asched.framework.sessions import SessionSpec


class ArgumentDescription(msgspec.Struct, frozen=True):
    name: str
    required: bool
    default: Any = None
    summary: str = ""
    """Its docstring."""


class PluginUse(msgspec.Struct, frozen=True, rename="camel"):
    """One place at which a configuration enables a plugin."""

    profile: str
    extension_point: str
    weight: int | None = None
    """At score only."""


class PluginDescription(msgspec.Struct, frozen=True, rename="camel"):
    """A plugin in the JSON form of ``-o json``."""

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
    """Requests to the API server that it may make."""
    custom_resources: tuple[str, ...] = ()
    reads_annotations: tuple[str, ...] = ()
    arguments_summary: str = ""
    """The first paragraph of the docstring of their type."""
    arguments_schema: dict[str, Any] | None = None
    """JSON Schema of ``args`` in ``pluginConfig``; None without arguments."""
    load_milliseconds: float = 0.0
    """Import time. The first plugin that imports a shared module pays for it."""
    enabled: tuple[PluginUse, ...] | None = None
    """Where the configuration enables it; None without a configuration."""
    kind: str = "plugin"
    """Distinguishes it from a :class:`SessionPartDescription`."""


def describe(
    registry: PluginRegistry, name: str, profiles: Iterable[ProfileSpec] | None = None
) -> PluginDescription:
    """The description of a plugin. Raises RegistryError if it cannot be loaded."""
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
        arguments_summary=_summary(plugin.arguments) if plugin.arguments else "",
        scope=plugin.scope.value,
        api_version=plugin.api_version,
        summary=_summary(plugin),
        source=f"{plugin.__module__}:{plugin.__qualname__}",
        pure=plugin.pure,
        runs_in=plugin.execution_mode.value,
        needs=tuple(sorted(permission.value for permission in plugin.needs)),
        custom_resources=tuple(kind.definition.name for kind in plugin.custom_resources),
        reads_annotations=plugin.reads_annotations,
        arguments_schema=_schema(plugin),
        load_milliseconds=round(load_s * 1000, 1),
        enabled=None if profiles is None else tuple(_uses(name, profiles)),
    )


def _summary(described: type) -> str:
    first = (inspect.getdoc(described) or "").partition("\n\n")[0]
    return " ".join(first.replace("``", "`").split())


def _arguments(plugin: type[Plugin]) -> tuple[ArgumentDescription, ...]:
    if plugin.arguments is None:
        return ()
    docs = dict(field_docs(plugin.arguments))
    return tuple(
        ArgumentDescription(
            field.encode_name, field.required, _default(field), docs.get(field.encode_name, "")
        )
        for field in msgspec.structs.fields(plugin.arguments)
    )


def _uses(name: str, profiles: Iterable[ProfileSpec]) -> Iterable[PluginUse]:
    for profile in profiles:
        for point in ExtensionPoint:
            for entry in profile.plugins_at(point):
                if entry.name == name:
                    weight = entry.weight if point is ExtensionPoint.SCORE else None
                    yield PluginUse(profile.scheduler_name, point.field, weight)


def _default(field: msgspec.structs.FieldInfo) -> Any:
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory()
    return None if field.default is msgspec.NODEFAULT else field.default


def _schema(plugin: type[Plugin]) -> dict[str, Any] | None:
    """The JSON Schema of the arguments; empty if their types have none."""
    if plugin.arguments is None:
        return None
    try:
        return msgspec.json.schema(plugin.arguments)
    except TypeError:
        return {}


class PartKind(StrEnum):
    """The kind of a part of batch sessions."""

    ACTION = "action"
    PLUGIN = "session plugin"


class SessionUse(msgspec.Struct, frozen=True, omit_defaults=True):
    """An action or a session plugin in a configuration."""

    profile: str
    position: int
    """Position of an action, or tier of a plugin, from 1."""


class SessionPartDescription(msgspec.Struct, frozen=True, rename="camel"):
    """An action or a session plugin in the JSON form of ``-o json``."""

    kind: PartKind
    name: str
    distribution: str
    version: str
    callbacks: tuple[str, ...]
    """Methods that a session calls; empty for an action."""
    summary: str = ""
    """The first paragraph of its docstring."""
    source: str = ""
    """Module and class."""
    load_milliseconds: float = 0.0
    enabled: tuple[SessionUse, ...] | None = None
    """Where the configuration names it; None without a configuration."""


def part_names(registry: SessionRegistry) -> Iterator[tuple[PartKind, str]]:
    """The kinds and names of all actions and session plugins."""
    for name in registry.action_names:
        yield PartKind.ACTION, name
    for name in registry.plugin_names:
        yield PartKind.PLUGIN, name


def describe_part(
    registry: SessionRegistry, kind: PartKind, name: str, sessions: Iterable[SessionSpec] | None
) -> SessionPartDescription:
    """The description of an action or session plugin.

    Raises SessionRegistryError if it cannot be loaded.
    """
    began_s = time.perf_counter()
    part: type[SessionPlugin | Action]
    if kind is PartKind.ACTION:
        part, origin = registry.action(name), registry.action_origin(name)
    else:
        part, origin = registry.plugin(name), registry.plugin_origin(name)
    load_s = time.perf_counter() - began_s
    return SessionPartDescription(
        kind=kind,
        name=name,
        distribution=origin.distribution,
        version=origin.version,
        callbacks=tuple(_callbacks(part)),
        summary=_summary(part),
        source=f"{part.__module__}:{part.__qualname__}",
        load_milliseconds=round(load_s * 1000, 1),
        enabled=None if sessions is None else tuple(_session_uses(kind, name, sessions)),
    )


def _callbacks(part: type[SessionPlugin | Action]) -> Iterator[str]:
    """The abstract methods of the callback interfaces that the plugin implements."""
    for base in SessionPlugin.__subclasses__():
        if base.__module__ == SessionPlugin.__module__ and issubclass(part, base):
            yield from sorted(base.__abstractmethods__)


def _session_uses(
    kind: PartKind, name: str, sessions: Iterable[SessionSpec]
) -> Iterator[SessionUse]:
    for spec in sessions:
        named: Iterable[Iterable[str]] = ((action,) for action in spec.actions)
        if kind is PartKind.PLUGIN:
            named = ((option.name for option in tier) for tier in spec.tiers)
        for place, names in enumerate(named, 1):
            if name in names:
                yield SessionUse(spec.scheduler_name, place)
