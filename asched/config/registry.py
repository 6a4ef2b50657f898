"""Plugin registries: plugins of installed distributions, or an explicit mapping of classes.

A distribution provides plugins in the entry-point group ``asched.plugins``; the entry point's name
is the plugin's name. A plugin is imported when a profile enables it, so a broken plugin that is not
used has no effect. There is no global registry.
"""

from __future__ import annotations

import importlib.metadata
import inspect
from collections.abc import Iterable, Mapping
from functools import cache
from itertools import chain
from typing import NamedTuple

import msgspec

from asched.framework.interface import API_VERSION, ENTRY_POINT_GROUP, Plugin
from asched.framework.runtime.profile import PluginOrigin, ProfileError
from asched.framework.runtime.strict import suggestion


class RegistryError(ProfileError):
    """A plugin cannot be loaded; the message is one line with its name and a remedy."""


class _Candidate(NamedTuple):
    """A distribution's entry point for a plugin name, not yet loaded."""

    entry_point: importlib.metadata.EntryPoint
    distribution: str
    version: str

    @property
    def label(self) -> str:
        return f"{self.distribution} {self.version}"


class _Loaded(NamedTuple):
    plugin: type[Plugin]
    origin: PluginOrigin


class PluginRegistry:
    """Plugins by name. :meth:`load` is the ``PluginLoader`` of a ``Profile``."""

    def __init__(
        self,
        classes: Mapping[str, type[Plugin]] | None = None,
        *,
        distribution: str = "",
        version: str = "",
        installed: Iterable[_Candidate] = (),
        loaded: Mapping[str, _Loaded] | None = None,
    ) -> None:
        """A registry of these classes, attributed to ``distribution``, and of others.

        Raises :class:`RegistryError` if a class is no valid plugin of its name.
        """
        self._candidates: dict[str, list[_Candidate]] = {}
        for candidate in sorted(installed, key=lambda candidate: candidate.label):
            self._candidates.setdefault(candidate.entry_point.name, []).append(candidate)
        self._loaded = dict(loaded or {})
        for name, plugin in (classes or {}).items():
            self._register(name, plugin, PluginOrigin(name, distribution, version))

    @classmethod
    def discover(cls) -> PluginRegistry:
        """All plugins of the installed distributions."""
        return cls(installed=dict.fromkeys(_installed()))

    def including(self, *plugins: type[Plugin]) -> PluginRegistry:
        """A registry in which these classes replace others of their names.

        Raises :class:`RegistryError` if a class is no valid plugin.
        """
        classes = {getattr(plugin, "name", plugin.__qualname__): plugin for plugin in plugins}
        installed = chain.from_iterable(self._candidates.values())
        return PluginRegistry(classes, installed=installed, loaded=self._loaded)

    @property
    def names(self) -> tuple[str, ...]:
        """All names, sorted, whether or not their plugins can be loaded."""
        return tuple(sorted({*self._candidates, *self._loaded}))

    def __contains__(self, name: object) -> bool:
        return name in self._loaded or name in self._candidates

    def load(self, name: str) -> type[Plugin]:
        """The plugin's class, imported on first use.

        Raises :class:`RegistryError` for an unknown name, a name of two distributions, an entry
        point that cannot be imported, and a class that violates the plugin contract.
        """
        if name in self._loaded:
            return self._loaded[name].plugin
        candidates = self._candidates.get(name, ())
        if not candidates:
            raise RegistryError(f'unknown plugin "{name}"; {self._suggestion(name)}')
        if len(candidates) > 1:
            providers = " and ".join(f"{c.label} ({c.entry_point.value})" for c in candidates)
            raise RegistryError(
                f'plugin "{name}" is provided by {providers}; uninstall all but one of them'
            )
        (found,) = candidates
        origin = PluginOrigin(name, found.distribution, found.version)
        self._register(name, _import(found), origin)
        return self._loaded[name].plugin

    def origin(self, name: str) -> PluginOrigin:
        """The distribution and version of a plugin, which is loaded if necessary."""
        self.load(name)
        return self._loaded[name].origin

    def providers(self, name: str) -> tuple[str, ...]:
        """``distribution version`` of each provider of the name, without loading it."""
        if name in self._loaded:
            origin = self._loaded[name].origin
            return (f"{origin.distribution} {origin.version}".strip(),)
        return tuple(candidate.label for candidate in self._candidates.get(name, ()))

    def _register(self, name: str, plugin: object, origin: PluginOrigin) -> None:
        checked = _checked(name, plugin, f"{origin.distribution} {origin.version}")
        self._loaded[name] = _Loaded(checked, origin)

    def _suggestion(self, name: str) -> str:
        if not self.names:
            return f"no installed distribution offers plugins in the group {ENTRY_POINT_GROUP}"
        return suggestion(name, self.names)


def _installed() -> Iterable[_Candidate]:
    """Entry points of the group; the first one of duplicate distributions counts."""
    metadata_of = cache(lambda distribution: distribution.metadata)
    for entry_point in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP):
        metadata = metadata_of(entry_point.dist)
        # The name is None if the metadata is partly removed on disk.
        if metadata["Name"]:
            yield _Candidate(entry_point, metadata["Name"], metadata["Version"])


def _import(candidate: _Candidate) -> object:
    entry_point = candidate.entry_point
    try:
        return entry_point.load()
    except (Exception, SystemExit) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise RegistryError(
            f'plugin "{entry_point.name}" of {candidate.label}: importing {entry_point.value}'
            f" failed: {reason}"
        ) from error


def _checked(name: str, plugin: object, label: str) -> type[Plugin]:
    """The class. Raises :class:`RegistryError` if it violates the contract."""
    where = f'plugin "{name}"' + (f" of {label}" if label.strip() else "")
    if not (isinstance(plugin, type) and issubclass(plugin, Plugin)):
        raise RegistryError(
            f"{where}: {plugin!r} is not a class derived from asched.framework.interface.Plugin"
        )
    # Not inherited: a subclass may be written for another version than its base class.
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
            f"{where}: class {plugin.__qualname__} has the name {own_name!r};"
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
