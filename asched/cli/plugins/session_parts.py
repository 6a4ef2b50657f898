"""What there is to say of installed session plugins and actions."""

from __future__ import annotations

import inspect
import time
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from typing import NamedTuple

import msgspec

from asched.batch.registry import SessionRegistry, SessionRegistryError
from asched.framework.session_plugins import Action, SessionPlugin
from asched.framework.sessions import SessionSpec


class PartKind(StrEnum):
    """What takes part in a batch session."""

    ACTION = "action"
    PLUGIN = "session plugin"


class SessionUse(msgspec.Struct, frozen=True, omit_defaults=True):
    """One place at which a configuration names an action or a session plugin."""

    profile: str
    place: int
    """Of an action in its order, of a plugin its tier, from 1."""


class SessionPartDescription(msgspec.Struct, frozen=True, rename="camel"):
    """An action or a session plugin, as ``-o json`` prints it."""

    kind: PartKind
    name: str
    distribution: str
    version: str
    callbacks: tuple[str, ...]
    """Methods that a session asks it by; none for an action."""
    summary: str = ""
    """The first paragraph of its docstring."""
    source: str = ""
    """Module and class."""
    load_milliseconds: float = 0.0
    enabled: tuple[SessionUse, ...] | None = None
    """Where the configuration names it; None where none was given."""


class Described(NamedTuple):
    found: Sequence[SessionPartDescription]
    broken: Sequence[str]
    """Why those that cannot be loaded cannot, a line each."""


def describe_all(registry: SessionRegistry, sessions: Sequence[SessionSpec] | None) -> Described:
    """All actions and session plugins, those that are broken aside."""
    found, broken = [], []
    for kind, name in _names(registry):
        try:
            found.append(_describe(registry, kind, name, sessions))
        except SessionRegistryError as error:
            broken.append(str(error))
    return Described(found, broken)


def describe_named(
    registry: SessionRegistry, name: str, sessions: Sequence[SessionSpec] | None
) -> list[SessionPartDescription]:
    """The action and the session plugin of that name; there may be either, both or none. Raises
    SessionRegistryError for one that cannot be loaded."""
    return [
        _describe(registry, kind, known, sessions)
        for kind, known in _names(registry)
        if known == name
    ]


def _names(registry: SessionRegistry) -> Iterator[tuple[PartKind, str]]:
    for name in registry.action_names:
        yield PartKind.ACTION, name
    for name in registry.plugin_names:
        yield PartKind.PLUGIN, name


def _describe(
    registry: SessionRegistry, kind: PartKind, name: str, sessions: Iterable[SessionSpec] | None
) -> SessionPartDescription:
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
        summary=" ".join((inspect.getdoc(part) or "").partition("\n\n")[0].split()),
        source=f"{part.__module__}:{part.__qualname__}",
        load_milliseconds=round(load_s * 1000, 1),
        enabled=None if sessions is None else tuple(_uses(kind, name, sessions)),
    )


def _callbacks(part: type[SessionPlugin | Action]) -> Iterator[str]:
    """The methods that the base classes demand which a session plugin derives from."""
    for base in SessionPlugin.__subclasses__():
        if base.__module__ == SessionPlugin.__module__ and issubclass(part, base):
            yield from sorted(base.__abstractmethods__)


def _uses(kind: PartKind, name: str, sessions: Iterable[SessionSpec]) -> Iterator[SessionUse]:
    for spec in sessions:
        named: Iterable[Iterable[str]] = ((action,) for action in spec.actions)
        if kind is PartKind.PLUGIN:
            named = ((option.name for option in tier) for tier in spec.tiers)
        for place, names in enumerate(named, 1):
            if name in names:
                yield SessionUse(spec.scheduler_name, place)
