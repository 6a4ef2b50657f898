"""Does a plugin keep the contract? What ``asched plugins check`` tries, for a plugin's own tests as well.

Most of the contract cannot be seen in a class: that both forms of a filter agree, that a plugin answers
the same when it is asked again, that it leaves alone what it is shown. So it is run, on small clusters
of all sorts.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import Final, NamedTuple, cast

import msgspec
import numpy as np

from asched.cycle.attempt import Attempt
from asched.cycle.shape_cache import ShapeCache
from asched.framework.interface import (
    EnqueueExtensions,
    ExtensionPoint,
    FilterAllPlugin,
    FilterPlugin,
    Plugin,
    Scope,
    ScoreAllPlugin,
    ScorePlugin,
)
from asched.framework.nodes import Nodes
from asched.framework.pod_info import PodInfo
from asched.framework.runtime.plugin_calls import (
    PluginFailure,
    filter_node,
    filter_nodes,
    score_node,
    score_nodes,
)
from asched.framework.runtime.profile import Profile, parse_arguments
from asched.framework.runtime.strict import ConfigurationError
from asched.framework.status import Status
from asched.model.requests import pod_requests
from asched.state.cluster import ClusterState
from asched.state.records import AttemptFailed
from asched.testing.harness import folded
from asched.testing.placements import Placements, schedule
from asched.testing.profiles import Arguments, ProfileSetup, profile
from asched.testing.random_clusters import RandomCluster, random_cluster

CLUSTERS: Final = 6
"""How many random clusters a plugin is tried on."""
_ASYNCHRONOUS: Final = ("pre_bind", "bind", "post_bind")
_ROOM: Final = "NodeResourcesFit"
_REJECTING: Final = (
    ExtensionPoint.PRE_ENQUEUE,
    ExtensionPoint.PRE_FILTER,
    ExtensionPoint.FILTER,
    ExtensionPoint.RESERVE,
    ExtensionPoint.PERMIT,
)


class CheckOutcome(StrEnum):
    PASSED = "passed"
    NOTE = "note"
    """Allowed, and perhaps not meant."""
    FAILED = "failed"


class Finding(msgspec.Struct, frozen=True):
    """What one check of one plugin came to."""

    plugin: str
    check: str
    outcome: CheckOutcome
    message: str = ""


class _Verdict(NamedTuple):
    outcome: CheckOutcome
    message: str = ""


_PASSED: Final = _Verdict(CheckOutcome.PASSED)


class _Run(NamedTuple):
    """What a plugin made of a random cluster."""

    seed: int
    cluster: RandomCluster
    placements: Placements


def check_plugin(plugin: type[Plugin], *, args: Arguments | None = None) -> tuple[Finding, ...]:
    """Every check of a plugin's class that makes sense for it; ``args`` are its arguments, by default
    those that it has without any."""
    return tuple(
        Finding(plugin.name, name, *verdict) for name, verdict in _Checks(plugin, args).verdicts()
    )


class _Checks:
    """The checks of one plugin."""

    def __init__(self, plugin: type[Plugin], args: Arguments | None) -> None:
        self._plugin = plugin
        self._args = args
        self._runs: list[_Run] = []

    def verdicts(self) -> Iterator[tuple[str, _Verdict]]:
        yield "documentation", self._documentation()
        signatures = self._signatures()
        yield "signatures", signatures
        if _can_reject(self._plugin):
            yield "events", self._events()
        arguments = self._arguments()
        yield "arguments", arguments
        if signatures is not _PASSED or arguments is not _PASSED:
            return
        self._runs = [self._run(self._plugin, seed) for seed in range(CLUSTERS)]
        yield "answers", self._answers()
        if self._has(FilterPlugin, FilterAllPlugin):
            yield "forms of filter", self._on_every_pod(_filters_differ)
        if self._has(ScorePlugin, ScoreAllPlugin):
            yield "forms of score", self._on_every_pod(_scores_differ)
        if self._plugin.pure:
            yield "purity", self._purity()
            if self._plugin.scope.shared:
                yield "scope", self._scope()
        yield "no mutation", self._no_mutation()

    def _has(self, *bases: type[Plugin]) -> bool:
        return all(issubclass(self._plugin, base) for base in bases)

    # -- what can be seen -----------------------------------------------------------------------

    def _documentation(self) -> _Verdict:
        wanted: list[type] = [self._plugin]
        if self._plugin.arguments is not None:
            wanted.append(self._plugin.arguments)
        bare = [
            cls.__qualname__ for cls in wanted if not (cls.__dict__.get("__doc__") or "").strip()
        ]
        if bare:
            return _Verdict(CheckOutcome.FAILED, f"no docstring: {', '.join(bare)}")
        return _PASSED

    def _signatures(self) -> _Verdict:
        wrong = [*_wrong_signatures(self._plugin)]
        return _Verdict(CheckOutcome.FAILED, "; ".join(wrong)) if wrong else _PASSED

    def _events(self) -> _Verdict:
        if issubclass(self._plugin, EnqueueExtensions):
            return _PASSED
        return _Verdict(
            CheckOutcome.NOTE,
            "it can turn pods away and registers no events: such a pod is tried again only when the"
            " queue is flushed (unschedulableFlushInterval)",
        )

    def _arguments(self) -> _Verdict:
        arguments = self._plugin.arguments
        required = [
            field.encode_name
            for field in (() if arguments is None else msgspec.structs.fields(arguments))
            if field.required
        ]
        if self._args is None and required:
            what = f"it needs arguments ({', '.join(required)}), so it is not run"
            return _Verdict(CheckOutcome.NOTE, what)
        try:
            if self._args is None:
                parse_arguments(self._plugin, None)
            self._folded(random_cluster(0))
        except (ValueError, ConfigurationError) as error:
            return _Verdict(CheckOutcome.FAILED, str(error))
        except Exception as error:  # noqa: BLE001  whatever a plugin's constructor raises
            return _Verdict(
                CheckOutcome.FAILED, f"it cannot be built: {type(error).__name__}: {error}"
            )
        return _PASSED

    # -- what it takes to run it ------------------------------------------------------------------

    def _run(self, plugin: type[Plugin], seed: int) -> _Run:
        cluster = random_cluster(seed)
        return _Run(seed, cluster, schedule(self._setup(plugin), cluster.objects, cluster.pending))

    def _answers(self) -> _Verdict:
        """Whether everything it answers can be used."""
        for run in self._runs:
            for record in run.placements.records:
                if isinstance(record, AttemptFailed):
                    return _Verdict(CheckOutcome.FAILED, record.message)
        return _PASSED

    def _purity(self) -> _Verdict:
        for run in self._runs:
            divergence = run.placements.diverges()
            if divergence is not None:
                what = f"decided once more it answers otherwise: {divergence.recorded} became"
                return _Verdict(
                    CheckOutcome.FAILED,
                    f"{what} {divergence.decided}; declare pure = False if that is meant",
                )
        return _PASSED

    def _scope(self) -> _Verdict:
        """Whether what it says is the same where it is asked anew for each pod."""
        unshared = type(
            self._plugin.__name__,
            (self._plugin,),
            {"scope": Scope.CLUSTER, "api_version": self._plugin.api_version},
        )
        for run in self._runs:
            shared, anew = run.placements, self._run(unshared, run.seed).placements
            for pod in shared:
                if shared[pod] != anew[pod]:
                    return _Verdict(
                        CheckOutcome.FAILED,
                        f"it looks further than Scope.{self._plugin.scope.name}: {shared[pod]}, but"
                        f" asked anew for each pod {anew[pod]}",
                    )
        return self._shared_for_long()

    def _shared_for_long(self) -> _Verdict:
        """Whether its PreFilter and PreScore leave the nodes alone, as the scope has it."""
        for seed in range(CLUSTERS):
            cluster = random_cluster(seed)
            state, built, _ = self._folded(cluster)
            cache = ShapeCache(state.nodes)
            for pending in cluster.pending:
                pod = PodInfo(pending)
                try:
                    attempt = Attempt(state, built, pod, cache)
                    screening = attempt.screen(share_of_nodes=False)
                    if screening.count:
                        attempt.score(screening)
                    looks = cache.answers(built, pod).looks_at_nodes
                except PluginFailure:
                    continue  # which is told under "answers"
                if looks:
                    return _Verdict(
                        CheckOutcome.NOTE,
                        "its PreFilter or PreScore looks at nodes, which a plugin of"
                        f" Scope.{self._plugin.scope.name} should not: all that like pods share is"
                        " computed anew after each change to any node",
                    )
        return _PASSED

    def _on_every_pod(self, differ: Callable[[Plugin, Attempt, PodInfo, Nodes], str]) -> _Verdict:
        for seed in range(CLUSTERS):
            cluster = random_cluster(seed)
            state, built, plugin = self._folded(cluster)
            for pending in cluster.pending:
                pod = PodInfo(pending)
                attempt = Attempt(state, built, pod, ShapeCache(state.nodes))
                try:
                    told = differ(plugin, attempt, pod, state.nodes)
                except PluginFailure as failure:
                    told = str(failure)
                if told:
                    return _Verdict(CheckOutcome.FAILED, f"pod {pod.key}: {told}")
        return _PASSED

    def _no_mutation(self) -> _Verdict:
        """Whether what it was shown is afterwards what it was before."""
        for run in self._runs:
            cluster, untouched = run.cluster, random_cluster(run.seed)
            changed = [
                f"{type(now).__name__} {now.key}"
                for now, before in zip(cluster.everything, untouched.everything, strict=True)
                if now != before
            ]
            changed += [
                f"the requests of Pod {pod.key}"
                for pod in (*cluster.placed, *cluster.pending)
                if PodInfo(pod).shape.requests != pod_requests(pod)
            ]
            if changed:
                return _Verdict(
                    CheckOutcome.FAILED, f"it changed {changed[0]}, which is not its own"
                )
        return _PASSED

    def _folded(self, cluster: RandomCluster) -> tuple[ClusterState, Profile, Plugin]:
        state, built = folded(self._setup(self._plugin), cluster.objects)
        return state, built, built.plugins[self._plugin.name]

    def _setup(self, plugin: type[Plugin]) -> ProfileSetup:
        """The plugin beside the one that sees to it that no node is overcommitted: most count on it."""
        args = {} if self._args is None else {plugin.name: self._args}
        beside = [] if plugin.name == _ROOM else [_ROOM]
        return profile(plugin, *beside, args=args, alone=True)


def _can_reject(plugin: type[Plugin]) -> bool:
    return any(point.served_by(plugin) for point in _REJECTING)


def _filters_differ(plugin: Plugin, attempt: Attempt, pod: PodInfo, nodes: Nodes) -> str:
    """In what the two forms of a filter contradict each other, empty where they do not."""
    screening = attempt.screen(share_of_nodes=False)
    if screening.rejected is not None or plugin.name in screening.state.skip_filter:
        return ""
    both = cast("FilterPlugin", plugin)
    every = filter_nodes(both, screening.state, pod, nodes)
    for row in np.flatnonzero(nodes.alive).tolist():
        one = filter_node(both, screening.state, pod, nodes, row)
        if one != every.status(row):
            return (
                f"of {nodes.names[row]} filter says {_told(one)}, filter_all"
                f" {_told(every.status(row))}"
            )
    return ""


def _scores_differ(plugin: Plugin, attempt: Attempt, pod: PodInfo, nodes: Nodes) -> str:
    """In what the two forms of a score contradict each other, empty where they do not."""
    screening = attempt.screen(share_of_nodes=False)
    if not screening.count:
        return ""
    attempt.score(screening)
    if plugin.name in screening.state.skip_score:
        return ""
    both = cast("ScorePlugin", plugin)
    every = score_nodes(both, screening.state, pod, nodes)
    for row in screening.rows.tolist():
        one = score_node(both, screening.state, pod, nodes, row)
        if one != every[row]:
            return f"of {nodes.names[row]} score says {one}, score_all {every[row]}"
    return ""


def _told(status: Status | None) -> str:
    return "yes" if status is None else f"{status.code.title} ({status.message})"


def _wrong_signatures(plugin: type[Plugin]) -> Iterator[str]:
    """Methods of the plugin that cannot be called as those of its bases are."""
    methods = {
        name: method
        for base in plugin.__mro__[1:]
        if base.__module__.startswith("asched.framework.") and issubclass(base, Plugin)
        for name, method in vars(base).items()
        if inspect.isfunction(method) and name != "__init__"
    }
    for name, method in sorted(methods.items()):
        own = inspect.getattr_static(plugin, name)
        if not inspect.isfunction(own) or own is method:
            continue
        if inspect.iscoroutinefunction(own) is not inspect.iscoroutinefunction(method):
            should = "" if name in _ASYNCHRONOUS else "not "
            yield f"{name} must {should}be asynchronous"
        parameters = list(inspect.signature(method).parameters)
        try:
            inspect.signature(own).bind(*parameters)
        except TypeError:
            yield f"{name} must take {', '.join(parameters[1:]) or 'nothing'}"
