"""Profiles: the recorded specification, and the plugin instances built from it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from copy import copy
from functools import cached_property
from typing import Any, NamedTuple, Protocol, TypeVar, cast

import msgspec

from asched.framework.cluster import Handle
from asched.framework.events import (
    ActionType,
    ClusterEvent,
    EventResource,
    HintSelection,
    QueueingHintFn,
)
from asched.framework.interface import (
    BindPlugin,
    EnqueueExtensions,
    ExtensionPoint,
    FilterAllPlugin,
    FilterPlugin,
    GroupCycleSettings,
    GroupSchedulingPlugin,
    PermitPlugin,
    PlacementGeneratePlugin,
    PlacementScorePlugin,
    Plugin,
    PostBindPlugin,
    PostFilterPlugin,
    PreBindPlugin,
    PreEnqueuePlugin,
    PreFilterPlugin,
    PreScorePlugin,
    QueueSortPlugin,
    ReservePlugin,
    ScoreAllPlugin,
    ScorePlugin,
    WaitingPodReviewer,
)
from asched.framework.runtime.extenders import ExternalPlugin
from asched.framework.runtime.observation import describe_raised

P = TypeVar("P", bound=Plugin)


class ProfileError(ValueError):
    """A profile cannot be built; the message names the plugin or argument and the reason."""


class BreakerSpec(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A circuit breaker: skip a plugin for ``open_s`` after so many failures in ``window_s``."""

    failures: int
    window_s: float
    open_s: float


class PluginPolicy(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Settings of one plugin of a profile. Recorded, because decisions depend on them."""

    name: str
    external: bool = False
    """Evaluated outside the decision, with recorded answers, as an HTTP extender."""
    optional: bool = False
    """If the plugin is unavailable, pods are scheduled without it."""
    breaker: BreakerSpec | None = None


class PluginWeight(msgspec.Struct, frozen=True, gc=False):
    """A plugin at an extension point. ``weight`` applies to Score and PlacementScore only."""

    name: str
    weight: int = 1


class PluginOrigin(msgspec.Struct, frozen=True, gc=False):
    """The distribution that provides a plugin, recorded to explain differences in a replay."""

    name: str
    distribution: str
    version: str


class ProfileSpec(msgspec.Struct, frozen=True):
    """A profile with all defaults applied, as recorded in the journal.

    ``points`` maps the field name of an extension point (``filter``, ``score`` ...) to its plugins
    in order. ``arguments`` maps a plugin to its complete arguments as JSON values.
    """

    scheduler_name: str
    points: dict[str, tuple[PluginWeight, ...]]
    arguments: dict[str, dict[str, Any]] = {}
    percentage_of_nodes_to_score: int = 0
    """Stop filtering once this share of the nodes is feasible; 0 filters all nodes."""
    origins: tuple[PluginOrigin, ...] = ()
    policies: tuple[PluginPolicy, ...] = ()
    """Policies that differ from the default."""

    def plugins_at(self, point: ExtensionPoint) -> tuple[PluginWeight, ...]:
        return self.points.get(point.field, ())

    @property
    def plugin_names(self) -> tuple[str, ...]:
        """The plugins enabled at any point, each once, in order of first occurrence."""
        return tuple(dict.fromkeys(p.name for plugins in self.points.values() for p in plugins))

    @property
    def external(self) -> tuple[ExternalPlugin, ...]:
        """The plugins that are evaluated outside the decision, in order of first occurrence."""
        external = {policy.name: policy for policy in self.policies if policy.external}
        filters = {p.name for point in FILTER_POINTS for p in self.plugins_at(point)}
        weights = {p.name: p.weight for p in self.plugins_at(ExtensionPoint.SCORE)}
        return tuple(
            ExternalPlugin(
                name=name,
                scheduler_name=self.scheduler_name,
                filters=name in filters,
                scores=name in weights,
                weight=weights.get(name, 0),
                ignorable=external[name].optional,
            )
            for name in self.plugin_names
            if name in external
        )


FILTER_POINTS = (ExtensionPoint.PRE_FILTER, ExtensionPoint.FILTER)
EXTERNAL_POINTS = (*FILTER_POINTS, ExtensionPoint.PRE_SCORE, ExtensionPoint.SCORE)
"""The points of a decision that external plugins may serve."""
BINDING_POINTS = (ExtensionPoint.PRE_BIND, ExtensionPoint.BIND, ExtensionPoint.POST_BIND)
"""The points after the decision. They always run in the daemon."""


def unsupported_point(point: str) -> str:
    """Why an external plugin cannot serve a point, to be printed after its name."""
    return (
        f"is not pure or runs in a worker, so it cannot serve {point}:"
        " a replay would have to call it"
    )


def evaluate_in_process(specs: Iterable[ProfileSpec]) -> tuple[ProfileSpec, ...]:
    """The profiles without external plugins: a simulation evaluates all plugins in the decision."""
    replace = msgspec.structs.replace
    return tuple(
        replace(spec, policies=tuple(replace(policy, external=False) for policy in spec.policies))
        for spec in specs
    )


_ANY = ClusterEvent(EventResource.ANY, ActionType.ALL)
REJECTING = (
    PreEnqueuePlugin,
    PreFilterPlugin,
    FilterPlugin,
    FilterAllPlugin,
    ReservePlugin,
    PermitPlugin,
)
"""Plugins with rejections that events may lift (``shouldHaveEnqueueExtensions``)."""
_DEFAULT_RESOURCES = (
    EventResource.POD,
    EventResource.NODE,
    EventResource.PERSISTENT_VOLUME,
    EventResource.PERSISTENT_VOLUME_CLAIM,
    EventResource.CSI_NODE,
    EventResource.CSI_DRIVER,
    EventResource.CSI_STORAGE_CAPACITY,
    EventResource.STORAGE_CLASS,
)
"""Events for rejecting plugins without ``EnqueueExtensions`` (``UnrollWildCardResource``). A plugin
that has the extension and registers nothing gets no events."""


class WeightedScorer(NamedTuple):
    plugin: ScorePlugin | ScoreAllPlugin
    weight: int


class RegisteredEvent(NamedTuple):
    plugin: str
    event: ClusterEvent
    hint: QueueingHintFn | None
    own_group: bool = False
    only_for: Callable[[], Collection[str]] | None = None
    select: HintSelection | None = None


class ScopedPlugins(NamedTuple):
    """The plugins of scope CLUSTER, which are called in each attempt, or those of the other scopes:
    pods of one shape share their answers."""

    pre_filter: tuple[PreFilterPlugin, ...]
    filter: tuple[tuple[int, FilterPlugin | FilterAllPlugin], ...]
    """With their position among all filters."""
    pre_score: tuple[PreScorePlugin, ...]
    score: tuple[WeightedScorer, ...]

    def all(self) -> tuple[Plugin, ...]:
        filters = (plugin for _, plugin in self.filter)
        scorers = (scorer.plugin for scorer in self.score)
        return tuple(dict.fromkeys((*self.pre_filter, *filters, *self.pre_score, *scorers)))


class WeightedPlacementScorer(NamedTuple):
    plugin: PlacementScorePlugin
    weight: int


class PlacementPlugins(NamedTuple):
    generate: PlacementGeneratePlugin | None
    """The first one, as in kube-scheduler; None: all nodes are the only placement."""
    score: tuple[WeightedPlacementScorer, ...]


class BindingPlugins(NamedTuple):
    pre_bind: tuple[PreBindPlugin, ...]
    bind: tuple[BindPlugin, ...]
    post_bind: tuple[PostBindPlugin, ...]


PluginLoader = Callable[[str], type[Plugin]]
"""Returns a plugin's class by name. Raises :class:`ProfileError` if there is none."""


class AttachableHandle(Handle, Protocol):
    """A handle for the plugins of one profile."""

    def attach(self, profile: Profile) -> None:
        """Called when the profile is built."""


class Profile:
    """The plugin instances of one scheduler name, by extension point."""

    def __init__(self, spec: ProfileSpec, load: PluginLoader, handle: AttachableHandle) -> None:
        """Instantiate the plugins of ``spec``.

        Raises :class:`ProfileError` if a plugin is missing, does not serve a point at which it is
        enabled, or rejects its arguments.
        """
        self.spec = spec
        self.missing = ""
        """Why the profile cannot schedule. Set for a recorded profile that cannot be built here."""
        self.external = spec.external
        self.plugins: Mapping[str, Plugin] = _instantiate(spec, load, handle)
        self.pre_enqueue = self._at(ExtensionPoint.PRE_ENQUEUE, PreEnqueuePlugin)
        self.queue_sort = self._queue_sort()
        self.pre_filter = self._at(ExtensionPoint.PRE_FILTER, PreFilterPlugin)
        self.filter = cast(
            "tuple[FilterPlugin | FilterAllPlugin, ...]", self._at(ExtensionPoint.FILTER, Plugin)
        )
        self.post_filter = self._at(ExtensionPoint.POST_FILTER, PostFilterPlugin)
        self.pre_score = self._at(ExtensionPoint.PRE_SCORE, PreScorePlugin)
        weights = {p.name: p.weight for p in spec.plugins_at(ExtensionPoint.SCORE)}
        self.score = tuple(
            WeightedScorer(cast("ScorePlugin | ScoreAllPlugin", plugin), weights[plugin.name])
            for plugin in self._at(ExtensionPoint.SCORE, Plugin)
        )
        self.placement = self._placement_plugins()
        self.cluster_scope = self._of_scope(shared=False)
        self.shared_scope = self._of_scope(shared=True)
        versions = (plugin.shared_answers_version for plugin in self.plugins.values())
        self._versions = tuple(dict.fromkeys(v for v in versions if v is not None))
        self.reserve = self._at(ExtensionPoint.RESERVE, ReservePlugin)
        self.permit = self._at(ExtensionPoint.PERMIT, PermitPlugin)
        self.binding = BindingPlugins(
            self._at(ExtensionPoint.PRE_BIND, PreBindPlugin),
            self._at(ExtensionPoint.BIND, BindPlugin),
            self._at(ExtensionPoint.POST_BIND, PostBindPlugin),
        )
        if not self.binding.bind:
            raise self._error("at least one bind plugin is needed")
        self.events = (*self._registered_events(), *self._default_events())
        self.skipped: frozenset[str] = frozenset()
        """The plugins that :meth:`without` left out."""
        self._reduced: dict[frozenset[str], Profile] = {}
        handle.attach(self)

    @property
    def scheduler_name(self) -> str:
        return self.spec.scheduler_name

    @cached_property
    def group_cycle(self) -> GroupCycleSettings | None:
        """How it schedules whole pod groups; None: pod by pod."""
        found = (p for p in self.plugins.values() if isinstance(p, GroupSchedulingPlugin))
        return next((plugin.group_cycle for plugin in found), None)

    @property
    def permit_reviewers(self) -> tuple[WaitingPodReviewer, ...]:
        return tuple(plugin for plugin in self.permit if isinstance(plugin, WaitingPodReviewer))

    def shared_answers_versions(self) -> tuple[int, ...]:
        """Changes when cached answers of its plugins are no longer valid
        (:attr:`Plugin.shared_answers_version`)."""
        return tuple([version() for version in self._versions])

    def without(self, plugins: frozenset[str]) -> Profile:
        """The same profile, with the same instances, without these plugins in the cycle."""
        if not plugins:
            return self
        reduced = self._reduced.get(plugins)
        if reduced is None:
            reduced = self._reduced[plugins] = copy(self)
            reduced.skip(plugins)
        return reduced

    def skip(self, names: frozenset[str]) -> None:
        """Remove plugins from all points but PreEnqueue, QueueSort and Bind."""

        def kept(plugins: Iterable[P]) -> tuple[P, ...]:
            return tuple(plugin for plugin in plugins if plugin.name not in names)

        self.skipped = names
        self.external = tuple(plugin for plugin in self.external if plugin.name not in names)
        self.pre_filter = kept(self.pre_filter)
        self.filter = cast("tuple[FilterPlugin | FilterAllPlugin, ...]", kept(self.filter))
        self.post_filter = kept(self.post_filter)
        self.pre_score = kept(self.pre_score)
        self.score = tuple(scorer for scorer in self.score if scorer.plugin.name not in names)
        self.cluster_scope = self._of_scope(shared=False)
        self.shared_scope = self._of_scope(shared=True)
        generate, placement_score = self.placement
        self.placement = PlacementPlugins(
            None if generate is None or generate.name in names else generate,
            tuple(scorer for scorer in placement_score if scorer.plugin.name not in names),
        )
        self.reserve = kept(self.reserve)
        self.permit = kept(self.permit)
        pre_bind, bind, post_bind = self.binding
        self.binding = BindingPlugins(kept(pre_bind), bind, kept(post_bind))

    def _placement_plugins(self) -> PlacementPlugins:
        generate = self._at(ExtensionPoint.PLACEMENT_GENERATE, PlacementGeneratePlugin)
        entries = self.spec.plugins_at(ExtensionPoint.PLACEMENT_SCORE)
        weights = {entry.name: entry.weight for entry in entries}
        score = self._at(ExtensionPoint.PLACEMENT_SCORE, PlacementScorePlugin)
        return PlacementPlugins(
            generate[0] if generate else None,
            tuple(WeightedPlacementScorer(plugin, weights[plugin.name]) for plugin in score),
        )

    def _of_scope(self, *, shared: bool) -> ScopedPlugins:
        return ScopedPlugins(
            tuple(p for p in self.pre_filter if p.scope.shared is shared),
            tuple((rank, p) for rank, p in enumerate(self.filter) if p.scope.shared is shared),
            tuple(p for p in self.pre_score if p.scope.shared is shared),
            tuple(scorer for scorer in self.score if scorer.plugin.scope.shared is shared),
        )

    def _at(self, point: ExtensionPoint, base: type[P]) -> tuple[P, ...]:
        """The plugins enabled at a point, without external ones."""
        external = {plugin.name for plugin in self.external}
        found = []
        for entry in self.spec.plugins_at(point):
            if entry.name in external and point not in BINDING_POINTS:
                if point not in EXTERNAL_POINTS:
                    raise self._error(f"plugin {entry.name} {unsupported_point(point.field)}")
                continue
            plugin = self.plugins[entry.name]
            if not point.served_by(type(plugin)):
                raise self._error(f"plugin {entry.name} does not serve {point.field}")
            found.append(cast(P, plugin))
        return tuple(found)

    def _error(self, message: str) -> ProfileError:
        return ProfileError(f"profile {self.scheduler_name}: {message}")

    def _queue_sort(self) -> QueueSortPlugin:
        plugins = self._at(ExtensionPoint.QUEUE_SORT, QueueSortPlugin)
        if len(plugins) != 1:
            names = ", ".join(p.name for p in plugins) or "none"
            raise self._error(f"exactly one queueSort plugin is needed, got {names}")
        return plugins[0]

    def _in_process(self) -> Iterator[tuple[str, Plugin]]:
        external = {plugin.name for plugin in self.external}
        return ((name, plugin) for name, plugin in self.plugins.items() if name not in external)

    def _registered_events(self) -> Sequence[RegisteredEvent]:
        # External plugins register no events, so every event may make their pods schedulable.
        found = [RegisteredEvent(plugin.name, _ANY, None) for plugin in self.external]
        for name, plugin in self._in_process():
            if isinstance(plugin, EnqueueExtensions):
                try:
                    found += [
                        RegisteredEvent(name, *entry) for entry in plugin.events_to_register()
                    ]
                except BaseException as error:
                    raise _broken(self.spec, name, "events_to_register", error) from error
        return found

    def _default_events(self) -> Iterator[RegisteredEvent]:
        return (
            RegisteredEvent(name, ClusterEvent(resource, ActionType.ALL), None)
            for name, plugin in self._in_process()
            if isinstance(plugin, REJECTING) and not isinstance(plugin, EnqueueExtensions)
            for resource in _DEFAULT_RESOURCES
        )


def _instantiate(
    spec: ProfileSpec, load: PluginLoader, handle: AttachableHandle
) -> dict[str, Plugin]:
    """The plugins that run in the daemon, by name. All classes are loaded first."""
    external = {plugin.name for plugin in spec.external}
    binding = {p.name for point in BINDING_POINTS for p in spec.plugins_at(point)}
    names = [n for n in spec.plugin_names if n not in external or n in binding]
    classes = [(name, load(name)) for name in names]
    return {name: _instance(spec, cls, spec.arguments.get(name), handle) for name, cls in classes}


def _instance(
    spec: ProfileSpec,
    plugin: type[Plugin],
    arguments: dict[str, Any] | None,
    handle: AttachableHandle,
) -> Plugin:
    try:
        return plugin(parse_arguments(plugin, arguments), handle)
    except ValueError as error:
        raise ProfileError(f"plugin {plugin.name}: {error}") from None
    except BaseException as error:
        raise _broken(spec, plugin.name, "it cannot be made", error) from error


def _broken(spec: ProfileSpec, plugin: str, what: str, error: BaseException) -> ProfileError:
    """The exception of a plugin while its profile is built, as one line."""
    origin = next((o for o in spec.origins if o.name == plugin), None)
    label = "" if origin is None else f"{origin.distribution} {origin.version}".strip()
    where = f" of {label}" if label else ""
    reason = " ".join(describe_raised(plugin, "Init", error).split())
    return ProfileError(f"plugin {plugin}{where}: {what}: {reason}")


def parse_arguments(
    plugin: type[Plugin], arguments: dict[str, Any] | None
) -> msgspec.Struct | None:
    """The arguments as the plugin's own type, with defaults.

    Raises ValueError, with the path of the field, if they are invalid.
    """
    if plugin.arguments is None:
        if arguments:
            raise ValueError(f"takes no arguments, got {', '.join(sorted(arguments))}")
        return None
    return msgspec.convert(arguments or {}, plugin.arguments, strict=True)
