"""Checks of the plugin contract, for ``asched plugins check`` and for the tests of plugins.

Most checks run the plugin on small random clusters: both forms of a filter agree, repeated
decisions are equal, objects stay unmodified.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from random import Random
from typing import Final, NamedTuple, cast

import msgspec
import numpy as np

from asched.cycle.attempt import Attempt
from asched.cycle.shape_cache import ShapeCache
from asched.framework.interface import (
    EnqueueExtensions,
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
from asched.framework.runtime.profile import REJECTING, Profile, parse_arguments
from asched.framework.runtime.strict import ConfigurationError
from asched.framework.status import Status
from asched.model.node import Node
from asched.model.pod import Pod
from asched.model.requests import PODS, amounts, pod_requests
from asched.state.cluster import ClusterState
from asched.state.records import AttemptFailed
from asched.testing.builders import node, pod
from asched.testing.harness import fold_cluster
from asched.testing.placements import Placements, schedule
from asched.testing.profiles import Arguments, ProfileSetup, profile

CLUSTERS: Final = 6
"""Number of random clusters for each check."""
_ASYNCHRONOUS: Final = ("pre_bind", "bind", "post_bind")
_FIT: Final = "NodeResourcesFit"


class CheckOutcome(StrEnum):
    PASSED = "passed"
    NOTE = "note"
    """Allowed, but possibly unintended."""
    FAILED = "failed"


class Finding(msgspec.Struct, frozen=True):
    """The result of one check of one plugin."""

    plugin: str
    check: str
    outcome: CheckOutcome
    message: str = ""


class _Note(str):
    """The message of a check with outcome NOTE."""


class _Run(NamedTuple):
    """A plugin's placements on a random cluster."""

    seed: int
    cluster: RandomCluster
    placements: Placements


def check_plugin(plugin: type[Plugin], *, args: Arguments | None = None) -> tuple[Finding, ...]:
    """The results of all checks that apply to the plugin. ``args`` defaults to its own defaults."""
    return tuple(
        Finding(plugin.name, name, _outcome(message), message)
        for name, message in _Checks(plugin, args).results()
    )


def _outcome(message: str) -> CheckOutcome:
    if isinstance(message, _Note):
        return CheckOutcome.NOTE
    return CheckOutcome.FAILED if message else CheckOutcome.PASSED


class _Checks:
    """The checks of one plugin. A check returns what is wrong, or an empty string."""

    def __init__(self, plugin: type[Plugin], args: Arguments | None) -> None:
        self._plugin = plugin
        self._args = args
        self._runs: list[_Run] = []

    def results(self) -> Iterator[tuple[str, str]]:
        yield "documentation", self._documentation()
        signatures = "; ".join(_wrong_signatures(self._plugin))
        yield "signatures", signatures
        arguments = self._arguments()
        yield "arguments", arguments
        if issubclass(self._plugin, REJECTING):
            yield "events", self._events(is_valid=not signatures and not arguments)
        if signatures or arguments:
            return
        self._runs = [self._run(self._plugin, seed) for seed in range(CLUSTERS)]
        yield "results", self._valid_results()
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

    def _documentation(self) -> str:
        wanted: list[type] = [self._plugin]
        if self._plugin.arguments is not None:
            wanted.append(self._plugin.arguments)
        bare = [cls.__qualname__ for cls in wanted if not (vars(cls).get("__doc__") or "").strip()]
        return f"no docstring: {', '.join(bare)}" if bare else ""

    def _events(self, *, is_valid: bool) -> str:
        """What an operator with many rejected pods should know. ``is_valid``: it can be built."""
        if not issubclass(self._plugin, EnqueueExtensions):
            return _Note(
                "it can reject pods and has no EnqueueExtensions: every event of pods, nodes and"
                " storage requeues them"
            )
        if is_valid:
            _, built, _ = self._folded(random_cluster(0))
            if not any(event.plugin == self._plugin.name for event in built.events):
                return _Note(
                    "it can reject pods and registers an empty list of events: they are retried"
                    " only when the queue is flushed (unschedulableFlushInterval)"
                )
        return ""

    def _arguments(self) -> str:
        arguments = self._plugin.arguments
        required = [
            field.encode_name
            for field in (() if arguments is None else msgspec.structs.fields(arguments))
            if field.required
        ]
        if self._args is None and required:
            what = f"it requires arguments ({', '.join(required)}), so it was not run"
            return _Note(what)
        try:
            if self._args is None:
                parse_arguments(self._plugin, None)
            self._folded(random_cluster(0))
        except (ValueError, ConfigurationError) as error:
            return str(error)
        except Exception as error:  # noqa: BLE001  whatever a plugin's constructor raises
            return f"it cannot be built: {type(error).__name__}: {error}"
        return ""

    def _run(self, plugin: type[Plugin], seed: int) -> _Run:
        cluster = random_cluster(seed)
        return _Run(seed, cluster, schedule(self._setup(plugin), cluster.objects, cluster.pending))

    def _valid_results(self) -> str:
        for run in self._runs:
            for record in run.placements.records:
                if isinstance(record, AttemptFailed):
                    return record.message
        return ""

    def _purity(self) -> str:
        for run in self._runs:
            divergence = run.placements.divergence()
            if divergence is not None:
                return (
                    f"repeated decisions differ: {divergence.recorded} became"
                    f" {divergence.decided}; declare pure = False if this is intended"
                )
        return ""

    def _scope(self) -> str:
        """Whether results shared between pods equal results computed for each pod."""
        unshared = type(
            self._plugin.__name__,
            (self._plugin,),
            {"scope": Scope.CLUSTER, "api_version": self._plugin.api_version},
        )
        for run in self._runs:
            shared, own = run.placements, self._run(unshared, run.seed).placements
            for key in shared:
                if shared[key] != own[key]:
                    return (
                        f"it reads more than Scope.{self._plugin.scope.name} allows:"
                        f" {shared[key]}, but {own[key]} if computed for each pod"
                    )
        return self._reads_nodes_early()

    def _reads_nodes_early(self) -> str:
        """Whether its PreFilter or PreScore reads nodes, which its scope excludes."""
        for seed in range(CLUSTERS):
            cluster = random_cluster(seed)
            state, built, _ = self._folded(cluster)
            cache = ShapeCache(state.nodes)
            for pending in cluster.pending:
                pod = PodInfo(pending)
                try:
                    attempt = Attempt(state, built, pod, cache)
                    feasible = attempt.find_feasible_nodes(limit_nodes=False)
                    if feasible.count:
                        attempt.score(feasible)
                    looks = cache.filters(built, pod).pre_filter.nodes.read
                except PluginFailure:
                    continue  # reported by the check "results"
                if looks:
                    return _Note(
                        "its PreFilter or PreScore reads nodes, which a plugin of"
                        f" Scope.{self._plugin.scope.name} should not: results shared between equal"
                        " pods are recomputed after each change to any node",
                    )
        return ""

    def _on_every_pod(self, differ: Callable[[Plugin, Attempt, PodInfo, Nodes], str]) -> str:
        for seed in range(CLUSTERS):
            cluster = random_cluster(seed)
            state, built, plugin = self._folded(cluster)
            for pending in cluster.pending:
                pod = PodInfo(pending)
                attempt = Attempt(state, built, pod, ShapeCache(state.nodes))
                try:
                    difference = differ(plugin, attempt, pod, state.nodes)
                except PluginFailure as failure:
                    difference = str(failure)
                if difference:
                    return f"pod {pod.key}: {difference}"
        return ""

    def _no_mutation(self) -> str:
        for run in self._runs:
            cluster, untouched = run.cluster, random_cluster(run.seed)
            changed = [
                f"{type(now).__name__} {now.key}"
                for now, before in zip(cluster.all_objects, untouched.all_objects, strict=True)
                if now != before
            ]
            changed += [
                f"the requests of Pod {pod.key}"
                for pod in (*cluster.placed, *cluster.pending)
                if PodInfo(pod).shape.requests != pod_requests(pod)
            ]
            if changed:
                return f"it modified {changed[0]}"
        return ""

    def _folded(self, cluster: RandomCluster) -> tuple[ClusterState, Profile, Plugin]:
        state, built = fold_cluster(self._setup(self._plugin), cluster.objects)
        return state, built, built.plugins[self._plugin.name]

    def _setup(self, plugin: type[Plugin]) -> ProfileSetup:
        """A profile of the plugin and NodeResourcesFit, on which most plugins rely."""
        args = {} if self._args is None else {plugin.name: self._args}
        others = [] if plugin.name == _FIT else [_FIT]
        return profile(plugin, *others, args_by_plugin=args, alone=True)


def _filters_differ(plugin: Plugin, attempt: Attempt, pod: PodInfo, nodes: Nodes) -> str:
    """A difference between the two forms of a filter, or an empty string."""
    feasible = attempt.find_feasible_nodes(limit_nodes=False)
    if feasible.rejected is not None or plugin.name in feasible.state.skip_filter:
        return ""
    both = cast("FilterPlugin", plugin)
    every = filter_nodes(both, feasible.state, pod, nodes)
    for row in np.flatnonzero(nodes.alive).tolist():
        one = filter_node(both, feasible.state, pod, nodes, row)
        if one != every.status(row):
            return (
                f"on {nodes.names[row]} filter returns {_text(one)}, filter_all"
                f" {_text(every.status(row))}"
            )
    return ""


def _scores_differ(plugin: Plugin, attempt: Attempt, pod: PodInfo, nodes: Nodes) -> str:
    """A difference between the two forms of a score, or an empty string."""
    feasible = attempt.find_feasible_nodes(limit_nodes=False)
    if not feasible.count:
        return ""
    attempt.score(feasible)
    if plugin.name in feasible.state.skip_score:
        return ""
    both = cast("ScorePlugin", plugin)
    every = score_nodes(both, feasible.state, pod, nodes)
    for row in feasible.rows.tolist():
        one = score_node(both, feasible.state, pod, nodes, row)
        if one != every[row]:
            return f"on {nodes.names[row]} score returns {one}, score_all {every[row]}"
    return ""


def _text(status: Status | None) -> str:
    return "Success" if status is None else f"{status.code.title} ({status.message})"


def _wrong_signatures(plugin: type[Plugin]) -> Iterator[str]:
    """Methods with a signature that differs from that of the base class."""
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


_ZONES: Final = ("a", "b", "c")
_DISKS: Final = ("ssd", "hdd")
_TEAMS: Final = ("red", "blue", "")
_GPU: Final = "example.com/gpu"


class RandomCluster(NamedTuple):
    """A cluster, and pods to schedule on it."""

    nodes: tuple[Node, ...]
    placed: tuple[Pod, ...]
    pending: tuple[Pod, ...]

    @property
    def objects(self) -> tuple[Node | Pod, ...]:
        """Everything except the pending pods."""
        return (*self.nodes, *self.placed)

    @property
    def all_objects(self) -> tuple[Node | Pod, ...]:
        return (*self.objects, *self.pending)


def random_cluster(
    seed: int, *, nodes: int = 12, placed: int = 20, pending: int = 12
) -> RandomCluster:
    """The cluster of a seed, the same in each run."""
    random = Random(seed)
    created = tuple(_random_node(random, f"node-{number}") for number in range(nodes))
    return RandomCluster(
        created,
        tuple(_placed(random, created, placed)),
        tuple(_random_pod(random, f"pending-{n}") for n in range(pending)),
    )


def _placed(random: Random, nodes: Sequence[Node], count: int) -> Iterator[Pod]:
    """Pods on nodes with enough free resources."""
    free = {each.name: Counter(amounts(each.status.allocatable)) for each in nodes}
    for number in range(count):
        candidate = _random_pod(random, f"placed-{number}")
        requested = Counter({**pod_requests(candidate), PODS: 1})
        node_name = random.choice(nodes).name
        if requested <= free[node_name]:
            free[node_name] -= requested
            spec = msgspec.structs.replace(candidate.spec, node_name=node_name)
            yield msgspec.structs.replace(candidate, spec=spec)


def _random_node(random: Random, name: str) -> Node:
    labels = {"disk": random.choice(_DISKS)} if random.random() < 0.7 else {}
    return node(
        name,
        cpu=random.choice((1, 4, 8, 64)),
        memory=f"{random.choice((1, 8, 256))}Gi",
        max_pods=random.choice((1, 5, 110)),
        allocatable={_GPU: random.choice((1, 8))} if random.random() < 0.4 else {},
        labels=labels,
        zone=random.choice((*_ZONES, "")),
        taints=["dedicated=red:NoSchedule"] if random.random() < 0.2 else [],
        unschedulable=random.random() < 0.1,
    )


def _random_pod(random: Random, name: str) -> Pod:
    team = random.choice(_TEAMS)
    return pod(
        name,
        namespace=random.choice(("default", "shop")),
        cpu=random.choice((None, "100m", "500m", 2)),
        memory=random.choice((None, "64Mi", "2Gi")),
        requests={_GPU: 1} if random.random() < 0.2 else {},
        labels={"team": team} if team else {},
        priority=random.choice((0, 0, 0, 10)),
        node_selector={"disk": random.choice(_DISKS)} if random.random() < 0.2 else None,
        tolerations=["dedicated=red:NoSchedule"] if random.random() < 0.3 else [],
        host_ports=[8080] if random.random() < 0.1 else [],
    )
