"""A profile made ready: one instance of each plugin, listed by extension point.

How a profile deals with single plugins: what the operator's settings and the plugin itself say.

It is recorded with the profile, because decisions depend on it.

What is raised across the framework, apart from the modules that raise it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from copy import copy
from typing import Any, NamedTuple, Protocol, TypeVar, cast

import msgspec

from asched.framework.cluster import Handle
from asched.framework.events import ActionType, ClusterEvent, EventResource, QueueingHintFn
from asched.framework.interface import (
    BindPlugin,
    EnqueueExtensions,
    ExtensionPoint,
    FilterAllPlugin,
    FilterPlugin,
    PermitPlugin,
    PermitReview,
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
)
from asched.framework.runtime.extenders import ExternalPlugin
from asched.framework.runtime.observation import CURRENT_CALL, to_printable


class ProfileError(ValueError):
    """A profile cannot be built; the message says which plugin or argument and why."""


class BreakerSpec(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """When a plugin that fails again and again is left alone for a while."""

    failures: int
    """So many failures ..."""
    window_s: float
    """... within this time ..."""
    open_s: float
    """... and it is not asked for this long."""


class PluginPolicy(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """What is particular about one plugin of a profile."""

    name: str
    outside: bool = False
    """It is not asked as part of a decision: its answers are recorded, as an HTTP extender's are."""
    optional: bool = False
    """Pods are scheduled without it where it cannot be asked."""
    breaker: BreakerSpec | None = None


P = TypeVar("P", bound=Plugin)


class PluginWeight(msgspec.Struct, frozen=True, gc=False):
    """A plugin at an extension point; ``weight`` counts at Score only."""

    name: str
    weight: int = 1


class PluginOrigin(msgspec.Struct, frozen=True, gc=False):
    """Where a plugin's code came from: recorded, so that a replay can name what differs."""

    name: str
    distribution: str
    version: str


class ProfileSpec(msgspec.Struct, frozen=True):
    """A profile with every default and merge applied: what the journal records of it.

    ``points`` maps an extension point's field name (``filter``, ``score`` ...) to its plugins in
    order. ``arguments`` maps a plugin to its complete arguments as JSON values.
    """

    scheduler_name: str
    points: dict[str, tuple[PluginWeight, ...]]
    arguments: dict[str, dict[str, Any]] = {}
    percentage_of_nodes_to_score: int = 0
    """Stop looking once this share of the nodes was found feasible; 0 looks at all."""
    origins: tuple[PluginOrigin, ...] = ()
    policies: tuple[PluginPolicy, ...] = ()
    """Of the plugins about which there is anything to say."""

    def plugins_at(self, point: ExtensionPoint) -> tuple[PluginWeight, ...]:
        return self.points.get(point.field, ())

    @property
    def plugin_names(self) -> tuple[str, ...]:
        """Every plugin enabled anywhere, each once, in order of first mention."""
        return tuple(dict.fromkeys(p.name for plugins in self.points.values() for p in plugins))

    @property
    def outside(self) -> tuple[ExternalPlugin, ...]:
        """The plugins that are not asked as part of a decision, in order of first mention."""
        outside = {policy.name: policy for policy in self.policies if policy.outside}
        filters = {p.name for point in FILTER_POINTS for p in self.plugins_at(point)}
        weights = {p.name: p.weight for p in self.plugins_at(ExtensionPoint.SCORE)}
        return tuple(
            ExternalPlugin(
                name,
                self.scheduler_name,
                name in filters,
                name in weights,
                weights.get(name, 0),
                outside[name].optional,
            )
            for name in self.plugin_names
            if name in outside
        )


FILTER_POINTS = (ExtensionPoint.PRE_FILTER, ExtensionPoint.FILTER)
OUTSIDE_POINTS = (*FILTER_POINTS, ExtensionPoint.PRE_SCORE, ExtensionPoint.SCORE)
"""Where a plugin may be asked outside decisions."""
BINDING_POINTS = (ExtensionPoint.PRE_BIND, ExtensionPoint.BIND, ExtensionPoint.POST_BIND)
"""They come after a decision, so it does not matter to them where else the plugin is asked."""

_ANY = ClusterEvent(EventResource.ANY, ActionType.ALL)
_REJECTING = (
    PreEnqueuePlugin, PreFilterPlugin, FilterPlugin, FilterAllPlugin, ReservePlugin, PermitPlugin,
)  # fmt: skip
"""Whose rejections an event may lift (``shouldHaveEnqueueExtensions`` of kube-scheduler)."""
_UNASKED = (
    EventResource.POD,
    EventResource.NODE,
    EventResource.PERSISTENT_VOLUME,
    EventResource.PERSISTENT_VOLUME_CLAIM,
    EventResource.CSI_NODE,
    EventResource.CSI_DRIVER,
    EventResource.CSI_STORAGE_CAPACITY,
    EventResource.STORAGE_CLASS,
)
"""What a plugin hears of that is no ``EnqueueExtensions``, since nobody knows what may lift its
rejections (``UnrollWildCardResource``). One that registers nothing at all hears of nothing."""


def unsupported_point(point: str) -> str:
    """Why a plugin that is asked outside decisions cannot serve a point, after its name."""
    return f"is not pure or runs in a worker, so it cannot serve {point}: a replay would have to call it"


_LISTS = (
    "filter", "outside", "own_plugins", "own_pre_filter", "own_pre_score", "permit",
    "permit_reviewers", "post_bind", "post_filter", "pre_bind", "pre_filter", "pre_score", "reserve",
)  # fmt: skip
"""The attributes of a profile that list plugins which it can do without."""


def evaluate_in_process(specs: Iterable[ProfileSpec]) -> tuple[ProfileSpec, ...]:
    """The profiles with every plugin asked as part of decisions: for where nobody asks outside them,
    as in a simulation."""
    replace = msgspec.structs.replace
    return tuple(
        replace(spec, policies=tuple(replace(policy, outside=False) for policy in spec.policies))
        for spec in specs
    )


class Weighted(NamedTuple):
    plugin: ScorePlugin | ScoreAllPlugin
    weight: int


class RegisteredEvent(NamedTuple):
    """One plugin's interest in an event."""

    plugin: str
    event: ClusterEvent
    hint: QueueingHintFn | None
    own_group: bool = False
    only_for: Callable[[], Collection[str]] | None = None


PluginLoader = Callable[[str], type[Plugin]]
"""Finds a plugin's class by name. Raises :class:`ProfileError` where there is none to be had."""


class OwnHandle(Handle, Protocol):
    """A handle that works for one profile."""

    def built(self, profile: Profile) -> None:
        """The profile is ready: it is what the handle speaks of from now on."""


class Profile:
    """The plugins of one scheduler name, instantiated."""

    def __init__(self, spec: ProfileSpec, load: PluginLoader, handle: OwnHandle) -> None:
        """Build every plugin of ``spec``.

        Raises :class:`ProfileError` where a plugin is missing, does not serve the point it is
        enabled at, or refuses its arguments.
        """
        self.spec = spec
        self.handle = handle
        self.missing = ""
        """Why it cannot decide, where it stands for a recorded profile that cannot be built here."""
        self.scheduler_name = spec.scheduler_name
        self.outside = spec.outside
        self._outside = {plugin.name for plugin in self.outside}
        beside = {p.name for point in BINDING_POINTS for p in spec.plugins_at(point)}
        classes = {
            name: load(name)
            for name in spec.plugin_names
            if name not in self._outside or name in beside
        }
        self.plugins: Mapping[str, Plugin] = {
            name: self._instantiate(plugin, spec.arguments.get(name))
            for name, plugin in classes.items()
        }
        self.pre_enqueue = self._at(ExtensionPoint.PRE_ENQUEUE, PreEnqueuePlugin)
        self.queue_sort = self._queue_sort()
        self.pre_filter = self._at(ExtensionPoint.PRE_FILTER, PreFilterPlugin)
        self.filter = cast(
            "tuple[FilterPlugin | FilterAllPlugin, ...]", self._at(ExtensionPoint.FILTER, Plugin)
        )
        self.post_filter = self._at(ExtensionPoint.POST_FILTER, PostFilterPlugin)
        self.pre_score = self._at(ExtensionPoint.PRE_SCORE, PreScorePlugin)
        self.score = tuple(
            Weighted(cast("ScorePlugin | ScoreAllPlugin", self.plugins[p.name]), p.weight)
            for p in spec.plugins_at(ExtensionPoint.SCORE)
            if p.name not in self._outside
        )
        # Those of scope CLUSTER, which are asked in each attempt, apart from the others.
        self.own_pre_filter = tuple(p for p in self.pre_filter if not p.scope.shared)
        self.own_filter = tuple((i, p) for i, p in enumerate(self.filter) if not p.scope.shared)
        self.own_pre_score = tuple(p for p in self.pre_score if not p.scope.shared)
        self.own_score = tuple(w for w in self.score if not w.plugin.scope.shared)
        self.own_plugins = self._own_plugins()
        self.reserve = self._at(ExtensionPoint.RESERVE, ReservePlugin)
        self.permit = self._at(ExtensionPoint.PERMIT, PermitPlugin)
        self.permit_reviewers = tuple(p for p in self.permit if isinstance(p, PermitReview))
        self.pre_bind = self._at(ExtensionPoint.PRE_BIND, PreBindPlugin)
        self.bind = self._at(ExtensionPoint.BIND, BindPlugin)
        self.post_bind = self._at(ExtensionPoint.POST_BIND, PostBindPlugin)
        if not self.bind:
            raise ProfileError(f"profile {self.scheduler_name}: at least one bind plugin is needed")
        self.events = tuple(self._registered_events())
        self.events_of_silent = self._events_of_silent()
        """What those hear who could register events and do not."""
        self.left_out: frozenset[str] = frozenset()
        """Plugins that are left alone for now, in a profile made by :meth:`without`."""
        self._reduced: dict[frozenset[str], Profile] = {}
        handle.built(self)

    def _own_plugins(self) -> tuple[Plugin, ...]:
        """Each once, in the order in which they are asked."""
        filters = (plugin for _, plugin in self.own_filter)
        scorers = (weighted.plugin for weighted in self.own_score)
        asked = (*self.own_pre_filter, *filters, *self.own_pre_score, *scorers)
        return tuple(dict.fromkeys(asked))

    def _events_of_silent(self) -> tuple[RegisteredEvent, ...]:
        return tuple(
            RegisteredEvent(name, ClusterEvent(resource, ActionType.ALL), None)
            for name, plugin in self.plugins.items()
            if name not in self._outside
            and isinstance(plugin, _REJECTING)
            and not isinstance(plugin, EnqueueExtensions)
            for resource in _UNASKED
        )

    def without(self, plugins: frozenset[str]) -> Profile:
        """The same profile, with the same plugins but for these."""
        if not plugins:
            return self
        twin = self._reduced.get(plugins)
        if twin is None:
            twin = self._reduced[plugins] = copy(self)
            twin.left_out = plugins
            for field in _LISTS:
                kept = (plugin for plugin in getattr(self, field) if plugin.name not in plugins)
                setattr(twin, field, tuple(kept))
            twin.score = tuple(w for w in self.score if w.plugin.name not in plugins)
            twin.own_score = tuple(w for w in self.own_score if w.plugin.name not in plugins)
            own = ((rank, plugin) for rank, plugin in enumerate(twin.filter))
            twin.own_filter = tuple((rank, p) for rank, p in own if not p.scope.shared)
        return twin

    def _at(self, point: ExtensionPoint, base: type[P]) -> tuple[P, ...]:
        found = []
        for entry in self.spec.plugins_at(point):
            if entry.name in self._outside and point not in BINDING_POINTS:
                self._check_outside(entry.name, point)
                continue
            plugin = self.plugins[entry.name]
            if not point.served_by(type(plugin)):
                raise ProfileError(
                    f"profile {self.scheduler_name}: plugin {entry.name} does not serve"
                    f" {point.field}"
                )
            found.append(cast(P, plugin))
        return tuple(found)

    def _check_outside(self, plugin: str, point: ExtensionPoint) -> None:
        if point not in OUTSIDE_POINTS:
            raise ProfileError(
                f"profile {self.scheduler_name}: plugin {plugin} {unsupported_point(point.field)}"
            )

    def _queue_sort(self) -> QueueSortPlugin:
        plugins = self._at(ExtensionPoint.QUEUE_SORT, QueueSortPlugin)
        if len(plugins) != 1:
            names = ", ".join(p.name for p in plugins) or "none"
            raise ProfileError(
                f"profile {self.scheduler_name}: exactly one queueSort plugin is needed, got {names}"
            )
        return plugins[0]

    def _registered_events(self) -> Sequence[RegisteredEvent]:
        # Nobody asks them what may change their mind, so anything may.
        found = [RegisteredEvent(plugin.name, _ANY, None) for plugin in self.outside]
        for name, plugin in self.plugins.items():
            if name not in self._outside and isinstance(plugin, EnqueueExtensions):
                try:
                    found += [
                        RegisteredEvent(
                            name, entry.event, entry.hint, entry.own_group, entry.only_for
                        )
                        for entry in plugin.events_to_register()
                    ]
                except BaseException as error:
                    raise self._broken(name, "events_to_register", error) from error
        return found

    def _instantiate(self, plugin: type[Plugin], arguments: dict[str, Any] | None) -> Plugin:
        try:
            with CURRENT_CALL.of(plugin.name, "Init"):
                return plugin(parse_arguments(plugin, arguments), self.handle)
        except ValueError as error:
            raise ProfileError(f"plugin {plugin.name}: {error}") from None
        except BaseException as error:
            raise self._broken(plugin.name, "it cannot be made", error) from error

    def _broken(self, plugin: str, what: str, error: BaseException) -> ProfileError:
        """What a plugin raised while its profile was built, in one line."""
        origin = next((o for o in self.spec.origins if o.name == plugin), None)
        label = "" if origin is None else f"{origin.distribution} {origin.version}".strip()
        where = f" of {label}" if label else ""
        reason = " ".join(f"{type(error).__name__}: {to_printable(error)}".split())
        return ProfileError(f"plugin {plugin}{where}: {what}: {reason}")


def parse_arguments(
    plugin: type[Plugin], arguments: dict[str, Any] | None
) -> msgspec.Struct | None:
    """Arguments as the plugin's own type, defaults filled in.

    Raises ValueError, with the path of the field, for what the type refuses.
    """
    if plugin.arguments is None:
        if arguments:
            raise ValueError(f"takes no arguments, got {', '.join(sorted(arguments))}")
        return None
    return msgspec.convert(arguments or {}, plugin.arguments, strict=True)
