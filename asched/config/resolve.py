"""Resolves a configuration into profiles: defaults, merging, MultiPoint expansion, arguments.

The rules are kube-scheduler 1.36's. First the configured plugins are merged into the default ones,
set by set (:func:`_merge`). Then plugins at ``multiPoint`` are expanded to the extension points
that they implement (:meth:`_ProfileResolver._expand`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from operator import attrgetter
from typing import Any, Final, NamedTuple

import msgspec

from asched.config.kube_scheduler import (
    API_VERSION,
    Extender,
    KubeSchedulerConfiguration,
    PluginRef,
    Plugins,
    PluginSet,
    ProfileConfig,
)
from asched.config.registry import PluginRegistry
from asched.framework.feature_gates import DEFAULT_FEATURE_GATES, FeatureGates
from asched.framework.interface import ExtensionPoint, Plugin
from asched.framework.pod_groups import GANG_SCHEDULING
from asched.framework.runtime.profile import (
    PluginOrigin,
    PluginWeight,
    ProfileError,
    ProfileSpec,
    parse_arguments,
)
from asched.framework.runtime.strict import ConfigurationError, Path, Problem, StrictDecoder, quote

DEFAULT_PLUGINS: Final = (
    PluginRef("SchedulingGates"),
    PluginRef("PrioritySort"),
    PluginRef("NodeUnschedulable"),
    PluginRef("NodeName"),
    PluginRef("TaintToleration", 3),
    PluginRef("NodeAffinity", 2),
    PluginRef("NodePorts"),
    PluginRef("NodeResourcesFit", 1),
    PluginRef("VolumeRestrictions"),
    PluginRef("NodeVolumeLimits"),
    PluginRef("VolumeBinding"),
    PluginRef("VolumeZone"),
    PluginRef("PodTopologySpread", 2),
    PluginRef("InterPodAffinity", 2),
    # Before DefaultPreemption: freeing an idle claim is better than evicting a pod.
    PluginRef("DynamicResources", 2),
    PluginRef("DefaultPreemption"),
    PluginRef("NodeResourcesBalancedAllocation", 1),
    PluginRef("ImageLocality", 1),
    PluginRef("DefaultBinder"),
    PluginRef("NodeDeclaredFeatures"),
)
"""The plugins that kube-scheduler 1.36 enables at MultiPoint, in its order. A profile enables those
in the registry."""

_DEFAULT_NAMES: Final = frozenset(ref.name for ref in DEFAULT_PLUGINS)
_WEIGHTED: Final = (ExtensionPoint.SCORE, ExtensionPoint.PLACEMENT_SCORE)
_ALL: Final = "*"
_FIT: Final = "NodeResourcesFit"


_GATED: Final = {
    "NodeDeclaredFeatures": attrgetter("node_declared_features"),
    GANG_SCHEDULING: attrgetter("gang_scheduling"),
}
"""The default plugins with a gate."""


def default_plugins(
    registry: PluginRegistry, gates: FeatureGates = DEFAULT_FEATURE_GATES
) -> tuple[PluginRef, ...]:
    """The default plugins at MultiPoint that the registry has and the gates allow."""
    refs = (*DEFAULT_PLUGINS, PluginRef(GANG_SCHEDULING))
    return tuple(
        ref
        for ref in refs
        if ref.name in registry and (ref.name not in _GATED or _GATED[ref.name](gates))
    )


def without_ignored_resources(
    profiles: Iterable[ProfileSpec], extenders: Iterable[Extender]
) -> tuple[ProfileSpec, ...]:
    """The profiles with NodeResourcesFit ignoring resources that extenders manage.

    As in kube-scheduler, resources with ``ignoredByScheduler`` replace ``ignoredResources``.
    """
    ignored = [
        resource.name
        for extender in extenders
        for resource in extender.managed_resources
        if resource.ignored_by_scheduler
    ]
    if not ignored:
        return tuple(profiles)
    return tuple(_with_ignored(profile, ignored) for profile in profiles)


def _with_ignored(profile: ProfileSpec, resources: list[str]) -> ProfileSpec:
    if _FIT not in profile.plugin_names:
        return profile
    args: dict[str, Any] = profile.arguments.get(_FIT, {}) | {"ignoredResources": resources}
    return msgspec.structs.replace(profile, arguments=profile.arguments | {_FIT: args})


class _Enabled(NamedTuple):
    """An enabled plugin and its place in the document (None: enabled by default)."""

    name: str
    weight: int
    path: Path | None


class _MergedSet(NamedTuple):
    enabled: tuple[_Enabled, ...]
    disabled: frozenset[str]


def resolve(
    config: KubeSchedulerConfiguration,
    registry: PluginRegistry,
    gates: FeatureGates = DEFAULT_FEATURE_GATES,
) -> tuple[ProfileSpec, ...]:
    """The profiles with defaults and merges applied; loads enabled plugins.

    Raises :class:`ConfigurationError` with all problems of all profiles.
    """
    profiles, problems = resolve_with_problems(config, registry, gates=gates)
    if problems:
        raise ConfigurationError(problems)
    return profiles


class OptionalPlugins:
    """Plugins that are omitted from profiles if they cannot be loaded."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self.names = frozenset(names)
        self.missing: dict[str, str] = {}


def resolve_with_problems(
    config: KubeSchedulerConfiguration,
    registry: PluginRegistry,
    optional: OptionalPlugins | None = None,
    gates: FeatureGates = DEFAULT_FEATURE_GATES,
) -> tuple[tuple[ProfileSpec, ...], list[Problem]]:
    """As :func:`resolve`, with problems as a value; with any, the profiles are not usable."""
    problems: list[Problem] = []
    specs: list[ProfileSpec] = []
    for index, profile in enumerate(config.effective_profiles):
        resolver = _ProfileResolver(
            profile, registry, ("profiles", index), optional or OptionalPlugins(), gates
        )
        share = profile.percentage_of_nodes_to_score
        if share is None:
            share = config.percentage_of_nodes_to_score
        specs.append(resolver.spec(share))
        problems += resolver.problems
    problems += _problems_between(specs)
    return tuple(specs), problems


class _ProfileResolver:
    def __init__(
        self,
        profile: ProfileConfig,
        registry: PluginRegistry,
        path: Path,
        optional: OptionalPlugins,
        gates: FeatureGates,
    ) -> None:
        self._optional = optional
        self._gates = gates
        self._profile = profile
        self._registry = registry
        self._path = path
        self._classes: dict[str, type[Plugin] | None] = {}
        self.problems: list[Problem] = []

    def spec(self, percentage_of_nodes_to_score: int) -> ProfileSpec:
        plugins = self._profile.plugins
        refs = default_plugins(self._registry, self._gates)
        defaults = [_Enabled(ref.name, ref.weight, None) for ref in refs]
        multi_point = _merge(defaults, plugins.multi_point, (*self._path, "plugins", "multiPoint"))
        points: dict[str, tuple[PluginWeight, ...]] = {}
        for point in ExtensionPoint:
            path = (*self._path, "plugins", point.field)
            merged = self._expand(point, _merge([], plugins.at(point), path), multi_point)
            points[point.field] = tuple(
                PluginWeight(name, (weight or 1) if point in _WEIGHTED else 1)
                for name, weight, _ in merged
            )
        self._check_counts(points)
        names = dict.fromkeys(p.name for entries in points.values() for p in entries)
        return ProfileSpec(
            scheduler_name=self._profile.scheduler_name or "",
            points=points,
            arguments=self._arguments(names),
            percentage_of_nodes_to_score=percentage_of_nodes_to_score,
            origins=self._origins(names),
        )

    def _note(self, path: Path | None, message: str) -> None:
        """Add a problem at ``path``, or at the profile, once."""
        problem = Problem(path or self._path, message)
        if problem not in self.problems:
            self.problems.append(problem)

    def _load(self, entry: _Enabled) -> type[Plugin] | None:
        """The plugin's class; None, with one problem, if it cannot be loaded."""
        if entry.name not in self._classes:
            self._classes[entry.name] = None
            try:
                self._classes[entry.name] = self._registry.load(entry.name)
                self._check_gate(entry)
            except ProfileError as error:
                why = _unavailable(entry.name, self._registry) or str(error)
                if entry.name in self._optional.names:
                    self._optional.missing[entry.name] = why
                else:
                    path = (*entry.path, "name") if entry.path else None
                    self._note(path, why)
        return self._classes[entry.name]

    def _check_gate(self, entry: _Enabled) -> None:
        """kube-scheduler ignores a plugin if its gate is off, even if a profile enables it."""
        if entry.name == "NodeDeclaredFeatures" and not self._gates.node_declared_features:
            self._note(
                (*entry.path, "name") if entry.path else None,
                f"plugin {entry.name} needs the feature gate {entry.name}",
            )

    def _expand(
        self, point: ExtensionPoint, own: _MergedSet, multi_point: _MergedSet
    ) -> list[_Enabled]:
        """The plugins at a point: those that override MultiPoint, in the point's order, then
        MultiPoint's, then the point's other ones."""
        explicit = self._explicit(point, own)
        expanded: dict[str, _Enabled] = {}
        overriding: set[str] = set()
        for entry in () if _ALL in own.disabled else multi_point.enabled:
            plugin = self._load(entry)
            if plugin is None or not point.served_by(plugin) or entry.name in own.disabled:
                continue
            if entry.name in explicit:
                overriding.add(entry.name)
            elif entry.name in expanded:
                self._note(entry.path, f"plugin {entry.name} is enabled twice")
            else:
                expanded[entry.name] = entry
        first = [entry for name, entry in explicit.items() if name in overriding]
        last = [entry for name, entry in explicit.items() if name not in overriding]
        return [*first, *expanded.values(), *last]

    def _explicit(self, point: ExtensionPoint, own: _MergedSet) -> dict[str, _Enabled]:
        """The plugins enabled at the point itself, by name, in order."""
        explicit: dict[str, _Enabled] = {}
        for entry in own.enabled:
            plugin = self._load(entry)
            if plugin is None:
                continue
            if entry.name in explicit:
                self._note(entry.path, f"plugin {entry.name} is enabled twice")
            elif not point.served_by(plugin):
                served = ", ".join(p.field for p in ExtensionPoint if p.served_by(plugin))
                self._note(
                    entry.path,
                    f"plugin {entry.name} does not serve {point.field}; it serves"
                    f" {served or 'none'}",
                )
            else:
                explicit[entry.name] = entry
        return explicit

    def _check_counts(self, points: dict[str, tuple[PluginWeight, ...]]) -> None:
        if not self._profile.scheduler_name:
            self._note((*self._path, "schedulerName"), "required where there are several profiles")
        sorts = [entry.name for entry in points["queueSort"]]
        if len(sorts) != 1:
            self._note(
                (*self._path, "plugins", "queueSort"),
                f"exactly one queueSort plugin is needed, got {', '.join(sorts) or 'none'}",
            )
        if not points["bind"]:
            self._note((*self._path, "plugins", "bind"), "at least one bind plugin is needed")

    def _arguments(self, enabled: Iterable[str]) -> dict[str, dict[str, Any]]:
        """Complete arguments of each enabled plugin that has any, as JSON values."""
        given: dict[str, Any] = {}
        for index, entry in enumerate(self._profile.plugin_config):
            path = (*self._path, "pluginConfig", index)
            if entry.name in given:
                self._note((*path, "name"), f"plugin {entry.name} is configured twice")
                continue
            if entry.name not in self._registry:
                if entry.name not in _DEFAULT_NAMES:
                    self._load(_Enabled(entry.name, 0, path))
                continue
            plugin = self._classes.get(entry.name)
            if plugin is not None:
                given[entry.name] = self._given_arguments(plugin, entry.args, (*path, "args"))
        complete = {}
        for name in enabled:
            plugin = self._classes[name]
            if plugin is not None and plugin.arguments is not None:
                args = given[name] if name in given else self._default_arguments(plugin)
                if args is not None:
                    complete[name] = _as_json(args)
        return complete

    def _default_arguments(self, plugin: type[Plugin]) -> msgspec.Struct | None:
        try:
            return parse_arguments(plugin, None)
        except ValueError as error:
            self._note(
                (*self._path, "pluginConfig"), f"plugin {plugin.name} needs arguments: {error}"
            )
            return None

    def _given_arguments(
        self, plugin: type[Plugin], args: dict[str, Any], path: Path
    ) -> msgspec.Struct | None:
        """The arguments as the plugin's type; ``apiVersion`` and ``kind`` are allowed."""
        declared = (
            {f.encode_name for f in msgspec.structs.fields(plugin.arguments)}
            if plugin.arguments
            else set()
        )
        plain = dict(args)
        for field, wanted in (("apiVersion", API_VERSION), ("kind", f"{plugin.name}Args")):
            if field not in declared:
                found = plain.pop(field, None)
                if found is not None and found != wanted:
                    self._note((*path, field), f"expected {wanted}, got {quote(found)}")
        if plugin.arguments is None:
            for name in plain:
                self._note((*path, name), f"plugin {plugin.name} takes no arguments")
            return None
        decoder = StrictDecoder()
        decoded = decoder.decode(plain, plugin.arguments, path)
        self.problems += decoder.problems
        return decoded

    def _origins(self, enabled: Iterable[str]) -> tuple[PluginOrigin, ...]:
        return tuple(self._registry.origin(name) for name in sorted(enabled))


def _merge(defaults: Iterable[_Enabled], custom: PluginSet, path: Path) -> _MergedSet:
    """The configured set merged into the default one.

    Defaults keep their place unless disabled. Enabling one again replaces its weight. Other
    configured plugins follow in their order. Enabling takes precedence over disabling.
    """
    disabled = frozenset(ref.name for ref in custom.disabled)
    entries = [
        _Enabled(ref.name, ref.weight, (*path, "enabled", index))
        for index, ref in enumerate(custom.enabled)
    ]
    # The last one of a name replaces the default; the others are reported as duplicates.
    by_name = {entry.name: entry for entry in entries}
    kept = [
        by_name.get(default.name, default)
        for default in defaults
        if _ALL not in disabled and default.name not in disabled
    ]
    return _MergedSet((*kept, *(entry for entry in entries if entry not in kept)), disabled)


def _as_json(args: msgspec.Struct) -> Any:
    """JSON values, equal to those read back from the journal."""
    return msgspec.json.decode(msgspec.json.encode(args, order="deterministic"))


def _unavailable(name: str, registry: PluginRegistry) -> str | None:
    """The message for a default plugin of kube-scheduler that this installation lacks."""
    if name in registry or name not in _DEFAULT_NAMES:
        return None
    return f"plugin {name} of kube-scheduler is not provided by this installation"


def _problems_between(specs: list[ProfileSpec]) -> Iterator[Problem]:
    """Names must be unique, and all profiles share one queue, so one queueSort."""
    first: dict[str, int] = {}
    for index, spec in enumerate(specs):
        name = spec.scheduler_name
        if name and name in first:
            yield Problem(
                ("profiles", index, "schedulerName"),
                f"{quote(name)} is already used by profiles[{first[name]}]",
            )
        first.setdefault(name, index)
        if _queue_order(spec) != _queue_order(specs[0]):
            yield Problem(
                ("profiles", index, "plugins", "queueSort"),
                "must be the same, with the same arguments, as in profiles[0]: "
                "all profiles share one queue",
            )


def _queue_order(spec: ProfileSpec) -> list[tuple[str, Any]]:
    entries = spec.plugins_at(ExtensionPoint.QUEUE_SORT)
    return [(entry.name, spec.arguments.get(entry.name)) for entry in entries]


def find_ineffective(
    config: KubeSchedulerConfiguration,
    registry: PluginRegistry,
    gates: FeatureGates = DEFAULT_FEATURE_GATES,
) -> list[Problem]:
    """Settings that have no effect and are probably mistakes; kube-scheduler accepts them silently.

    These are disabled plugins that do not exist, and arguments of plugins that are not enabled.
    """
    found: list[Problem] = []
    specs, _ = resolve_with_problems(config, registry, gates=gates)
    for index, (profile, spec) in enumerate(zip(config.effective_profiles, specs, strict=True)):
        path: Path = ("profiles", index)
        for field in msgspec.structs.fields(Plugins):
            point_set: PluginSet = getattr(profile.plugins, field.name)
            found += [
                Problem(
                    (*path, "plugins", field.encode_name, "disabled", position, "name"),
                    f"no effect: unknown plugin {quote(ref.name)}",
                )
                for position, ref in enumerate(point_set.disabled)
                if ref.name not in registry and ref.name not in (_DEFAULT_NAMES | {_ALL})
            ]
        found += [
            Problem(
                (*path, "pluginConfig", position),
                f"no effect: plugin {entry.name} is not enabled in this profile",
            )
            for position, entry in enumerate(profile.plugin_config)
            if entry.name not in spec.plugin_names
        ]
    return found
