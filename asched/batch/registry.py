"""Finds session plugins and actions in installed distributions."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Generic, TypeVar

from asched.framework.runtime.profile import PluginOrigin
from asched.framework.runtime.strict import suggestion
from asched.framework.session_plugins import ACTION_GROUP, PLUGIN_GROUP, Action, SessionPlugin

T = TypeVar("T", bound=SessionPlugin | Action)


class SessionRegistryError(ValueError):
    """An action or session plugin is missing or invalid. The message names it and the problem."""


@cache
def _installed() -> tuple[importlib.metadata.EntryPoint, ...]:
    """Cached, because the search takes about 8 ms."""
    found = importlib.metadata.entry_points()
    return (*found.select(group=PLUGIN_GROUP), *found.select(group=ACTION_GROUP))


class SessionRegistry:
    """Actions and session plugins by name, imported on first use."""

    def __init__(
        self,
        plugins: Mapping[str, type[SessionPlugin]],
        actions: Mapping[str, type[Action]],
        entry_points: Iterable[importlib.metadata.EntryPoint] = (),
    ) -> None:
        groups: dict[str, list[importlib.metadata.EntryPoint]] = {
            PLUGIN_GROUP: [],
            ACTION_GROUP: [],
        }
        for entry_point in dict.fromkeys(entry_points):
            groups[entry_point.group].append(entry_point)
        self._plugins = _Catalog("session plugin", SessionPlugin, plugins, groups[PLUGIN_GROUP])
        self._actions = _Catalog("action", Action, actions, groups[ACTION_GROUP])

    @classmethod
    def discover(cls) -> SessionRegistry:
        """The plugins and actions of all installed distributions."""
        return cls({}, {}, _installed())

    @property
    def plugin_names(self) -> tuple[str, ...]:
        return self._plugins.names

    @property
    def action_names(self) -> tuple[str, ...]:
        return self._actions.names

    def plugin_origin(self, name: str) -> PluginOrigin:
        return self._plugins.origin(name)

    def action_origin(self, name: str) -> PluginOrigin:
        return self._actions.origin(name)

    def plugin(self, name: str) -> type[SessionPlugin]:
        """Raises :class:`SessionRegistryError`."""
        return self._plugins.load(name)

    def action(self, name: str) -> type[Action]:
        """Raises :class:`SessionRegistryError`."""
        return self._actions.load(name)


class _Catalog(Generic[T]):
    def __init__(
        self,
        kind: str,
        base: type[T],
        loaded: Mapping[str, type[T]],
        entry_points: Iterable[importlib.metadata.EntryPoint],
    ) -> None:
        self._kind = kind
        self._base = base
        self._loaded = dict(loaded)
        self._offers: dict[str, list[importlib.metadata.EntryPoint]] = {}
        for entry_point in entry_points:
            self._offers.setdefault(entry_point.name, []).append(entry_point)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self._offers.keys() | self._loaded.keys()))

    def origin(self, name: str) -> PluginOrigin:
        """Distribution and version are empty for an explicit class."""
        for offer in self._offers.get(name, ()):
            if offer.dist is not None:
                return PluginOrigin(name, offer.dist.name, offer.dist.version)
        return PluginOrigin(name, "", "")

    def load(self, name: str) -> type[T]:
        if name in self._loaded:
            return self._loaded[name]
        offers = self._offers.get(name, [])
        if not offers:
            hint = suggestion(name, self.names)
            raise SessionRegistryError(f'unknown {self._kind} "{name}"; {hint}')
        if len(offers) > 1:
            claims = " and ".join(sorted(offer.value for offer in offers))
            raise SessionRegistryError(
                f'{self._kind} "{name}" is provided by {claims}; uninstall all but one of them'
            )
        found = self._loaded[name] = self._checked(name, offers[0])
        return found

    def _checked(self, name: str, offer: importlib.metadata.EntryPoint) -> type[T]:
        where = f'{self._kind} "{name}"'
        try:
            found: object = offer.load()
        except (Exception, SystemExit) as error:
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            raise SessionRegistryError(
                f"{where}: importing {offer.value} failed: {reason}"
            ) from error
        if not (isinstance(found, type) and issubclass(found, self._base)):
            raise SessionRegistryError(
                f"{where}: {offer.value} is not a class derived from {self._base.__qualname__}"
            )
        if getattr(found, "name", None) != name:
            raise SessionRegistryError(f"{where}: the name attribute of {offer.value} differs")
        return found
