"""Where plugins come from: installed distributions, or an explicit mapping of classes.

A distribution offers plugins in the entry-point group ``asched.plugins``; the entry point's name is
the plugin's name. Nothing is imported before a profile enables the plugin, so a broken plugin that
nobody uses harms nobody. A registry is a value that is passed around: there is no global one.
"""

from __future__ import annotations

import importlib.metadata
import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from asched.framework.interface import API_VERSION, ENTRY_POINT_GROUP, Plugin
from asched.framework.runtime.profile import PluginOrigin, ProfileError
from asched.framework.runtime.strict import nearest


class RegistryError(ProfileError):
    """A plugin cannot be had; the message is one line that names it and what to do."""


class _Offer(NamedTuple):
    """One distribution's claim to a plugin name, not yet loaded."""

    entry_point: importlib.metadata.EntryPoint
    distribution: str
    version: str

    @property
    def label(self) -> str:
        return f"{self.distribution} {self.version}"


class PluginRegistry:
    """Plugins by name. :meth:`load` is the ``PluginLoader`` that a ``Profile`` takes."""

    def __init__(
        self,
        classes: Mapping[str, type[Plugin]] | None = None,
        *,
        distribution: str = "",
        version: str = "",
    ) -> None:
        """A registry of exactly these classes, said to come from ``distribution``.

        Raises :class:`RegistryError` where a class is no usable plugin of that name.
        """
        self._offers: dict[str, tuple[_Offer, ...]] = {}
        self._loaded: dict[str, type[Plugin]] = {}
        self._origins: dict[str, PluginOrigin] = {}
        for name, plugin in (classes or {}).items():
            self._accept(name, plugin, PluginOrigin(name, distribution, version))

    @classmethod
    def of(cls, *plugins: type[Plugin]) -> PluginRegistry:
        """A registry of these classes under their own names."""
        return cls({plugin.name: plugin for plugin in plugins})

    @classmethod
    def discover(cls, search_path: Sequence[str] | None = None) -> PluginRegistry:
        """All plugins of the installed distributions (or of those found on ``search_path``)."""
        registry = cls()
        found: dict[str, list[_Offer]] = {}
        for offer in _installed(search_path):
            found.setdefault(offer.entry_point.name, []).append(offer)
        registry._offers = {
            name: tuple(sorted(offers, key=lambda offer: offer.label))
            for name, offers in found.items()
        }
        return registry

    def including(self, *plugins: type[Plugin]) -> PluginRegistry:
        """A registry that has these classes as well, in place of any others of their names.

        Raises :class:`RegistryError` for a class that is no usable plugin.
        """
        registry = PluginRegistry()
        registry._offers = self._offers
        registry._loaded, registry._origins = dict(self._loaded), dict(self._origins)
        for plugin in plugins:
            name = getattr(plugin, "name", plugin.__qualname__)
            registry._accept(name, plugin, PluginOrigin(name, "", ""))
        return registry

    @property
    def names(self) -> tuple[str, ...]:
        """Every name on offer, sorted, whether or not it can be loaded."""
        return tuple(sorted(self._offers.keys() | self._loaded.keys()))

    def __contains__(self, name: object) -> bool:
        return name in self._loaded or name in self._offers

    def load(self, name: str) -> type[Plugin]:
        """The plugin's class, imported on first use.

        Raises :class:`RegistryError` for an unknown name, a name that two distributions claim, an
        entry point that fails to import, and a class that breaks the plugin contract.
        """
        if name in self._loaded:
            return self._loaded[name]
        offers = self._offers.get(name, ())
        if not offers:
            raise RegistryError(f'unknown plugin "{name}"; {self._what_there_is(name)}')
        if len(offers) > 1:
            claims = " and ".join(f"{o.label} ({o.entry_point.value})" for o in offers)
            raise RegistryError(
                f'plugin "{name}" is provided by {claims}; uninstall all but one of them'
            )
        offer = offers[0]
        self._accept(name, _import(offer), PluginOrigin(name, offer.distribution, offer.version))
        return self._loaded[name]

    def origin(self, name: str) -> PluginOrigin:
        """Which distribution, in which version, the loaded plugin came from. Loads it if need be."""
        self.load(name)
        return self._origins[name]

    def offered_by(self, name: str) -> tuple[str, ...]:
        """``distribution version`` of everyone who claims the name, without loading anything."""
        if name in self._origins:
            origin = self._origins[name]
            return (f"{origin.distribution} {origin.version}".strip(),)
        return tuple(offer.label for offer in self._offers.get(name, ()))

    def _accept(self, name: str, plugin: object, origin: PluginOrigin) -> None:
        self._loaded[name] = _checked(name, plugin, f"{origin.distribution} {origin.version}")
        self._origins[name] = origin

    def _what_there_is(self, name: str) -> str:
        guess = nearest(name, self.names)
        if guess:
            return f"did you mean {guess}?"
        if not self.names:
            return f"no installed distribution offers plugins in the group {ENTRY_POINT_GROUP}"
        return f"expected one of {', '.join(self.names)}"


def _installed(search_path: Sequence[str] | None) -> Iterable[_Offer]:
    """Entry points of the group; of a distribution found twice on the path, the first counts."""
    seen: set[str] = set()
    if search_path is None:
        distributions = importlib.metadata.distributions()
    else:
        distributions = importlib.metadata.distributions(path=list(search_path))
    for distribution in distributions:
        # Metadata may be half-removed on disk; the name is then None whatever the stubs say.
        name: str | None = distribution.metadata["Name"]
        if not name or name.casefold() in seen:
            continue
        seen.add(name.casefold())
        entry_points = distribution.entry_points.select(group=ENTRY_POINT_GROUP)
        for entry_point in dict.fromkeys(entry_points):
            yield _Offer(entry_point, name, distribution.version)


def _import(offer: _Offer) -> object:
    entry_point = offer.entry_point
    try:
        return entry_point.load()
    except (Exception, SystemExit) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise RegistryError(
            f'plugin "{entry_point.name}" of {offer.label}: importing {entry_point.value} failed:'
            f" {reason}"
        ) from error


def _checked(name: str, plugin: object, label: str) -> type[Plugin]:
    """The class if it keeps the contract; raises :class:`RegistryError` saying what it breaks."""
    where = f'plugin "{name}"' + (f" of {label}" if label.strip() else "")
    if not (isinstance(plugin, type) and issubclass(plugin, Plugin)):
        raise RegistryError(
            f"{where}: {plugin!r} is not a class derived from asched.framework.interface.Plugin"
        )
    # A subclass of somebody else's plugin was written for the version that its own author knew.
    version = vars(plugin).get("api_version")
    if version is None:
        raise RegistryError(
            f"{where}: class {plugin.__qualname__} does not state api_version;"
            f" this asched has version {API_VERSION}"
        )
    if version != API_VERSION:
        raise RegistryError(
            f"{where}: written for api_version {version!r}, this asched has version {API_VERSION}"
        )
    own_name = getattr(plugin, "name", None)
    if own_name != name:
        raise RegistryError(
            f"{where}: class {plugin.__qualname__} calls itself {own_name!r};"
            " both names must be the same"
        )
    if inspect.isabstract(plugin):
        missing = ", ".join(sorted(plugin.__abstractmethods__))
        raise RegistryError(f"{where}: class {plugin.__qualname__} does not implement {missing}")
    arguments = plugin.arguments
    if arguments is not None and not (
        isinstance(arguments, type) and issubclass(arguments, msgspec.Struct)
    ):
        raise RegistryError(f"{where}: arguments must be a msgspec.Struct type, is {arguments!r}")
    return plugin
