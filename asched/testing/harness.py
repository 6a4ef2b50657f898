"""One plugin, or a whole profile, on a described cluster: the fold and the cycle are the daemon's.

A cluster is described by the objects in it: nodes, pods on nodes, whatever else there is, in any order.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar, cast

import msgspec

from asched.cycle.attempt import Attempt, Screening
from asched.cycle.shape_cache import ShapeCache
from asched.daemon.reload.reconfiguring import annotations_read
from asched.framework.interface import ExtensionPoint, Plugin
from asched.framework.pod_info import PodInfo
from asched.framework.runtime.findings import Findings
from asched.framework.runtime.profile import Profile, ProfileError
from asched.framework.status import SUCCESS, Status
from asched.model.meta import Object
from asched.model.pod import DEFAULT_SCHEDULER_NAME, Pod
from asched.state.cluster import ClusterState
from asched.state.fold import Fold
from asched.state.records import EngineStarted, ObjectSeen, ProfilesLoaded, TurnStarted
from asched.state.rules import LATEST_RULES
from asched.testing.builders import split
from asched.testing.profiles import Arguments, ProfileSetup, profile

P = TypeVar("P", bound=Plugin)

START_NS = 1_767_225_600_000_000_000
"""When everything here begins: 2026-01-01 00:00 UTC."""


def run_filter(
    plugin: type[Plugin], pod: Pod, cluster: Iterable[Object], *, args: Arguments | None = None
) -> dict[str, Status]:
    """What a plugin says of each node by name, :data:`~asched.framework.SUCCESS` where the pod may go.

    Its PreFilter is run first where it has one. Raises
    :class:`~asched.framework.runtime.plugin_calls.PluginFailure`, with what the plugin raised as its cause.
    """
    _demand(plugin, ExtensionPoint.FILTER, ExtensionPoint.PRE_FILTER)
    lone = _Lone(plugin, pod, cluster, args)
    screening = lone.screening
    found: dict[str, Status] = {}
    for row, name in lone.nodes:
        if screening.rejected is not None:
            found[name] = screening.rejected
        elif screening.node_names is not None and name not in screening.node_names:
            found[name] = Status.unresolvable(f"node(s) didn't satisfy plugin {plugin.name}").by(
                plugin.name
            )
        else:
            found[name] = _verdict(screening.findings, row)
    return found


def _verdict(findings: Findings, row: int) -> Status:
    return findings.status(row) or SUCCESS


def scores(
    plugin: type[Plugin],
    pod: Pod,
    cluster: Iterable[Object],
    *,
    args: Arguments | None = None,
    raw: bool = False,
) -> dict[str, int]:
    """A plugin's score of each node by name, of those that its own filter leaves; 0 to 100, or as
    ``score`` gives them where ``raw``. Empty where its PreScore answers Skip.

    Raises :class:`~asched.framework.runtime.plugin_calls.PluginFailure`.
    """
    _demand(plugin, ExtensionPoint.SCORE)
    lone = _Lone(plugin, pod, cluster, args)
    if not lone.screening.count:
        return {}
    scoring = lone.attempt.score(lone.screening)
    names = [lone.state.nodes.names[row] for row in lone.screening.rows.tolist()]
    for own in scoring.plugins:
        if own.plugin == plugin.name:
            return dict(zip(names, (own.raw if raw else own.normalized).tolist(), strict=True))
    return {}


def instance(
    plugin: type[P], cluster: Iterable[Object] = (), *, args: Arguments | None = None
) -> P:
    """A plugin as a profile has it, for calling what has no function of its own here: ``pre_enqueue``,
    ``events_to_register``, a hint. Pending pods of ``cluster`` are in its queue.

    Raises :class:`~asched.framework.runtime.strict.ConfigurationError` where it refuses its arguments.
    """
    setup = _alone(plugin, args)
    _, built = folded(setup, cluster)
    return cast(P, built.plugins[plugin.name])


def folded(
    setup: ProfileSetup, cluster: Iterable[Object], seed: int = 0
) -> tuple[ClusterState, Profile]:
    """The state of a daemon that has seen the cluster, and its first profile."""
    fold = Fold(ClusterState(), setup.registry.load)
    fold.apply(TurnStarted(START_NS))
    fold.apply(EngineStarted("asched.testing", seed, rules=LATEST_RULES))
    fold.apply(ProfilesLoaded(setup.profiles, setup.queue))
    built = fold.state.profiles[setup.scheduler_name]
    if built.missing:
        raise ProfileError(built.missing)
    there, pending = split(cluster)
    for item in (*there, *pending):
        fold.apply(ObjectSeen(served(item, setup) if isinstance(item, Pod) else item))
    return fold.state, built


def served(pod: Pod, setup: ProfileSetup) -> Pod:
    """The pod as the daemon sees it: with the annotations that plugins declare to read, and for the
    first profile where it names the default scheduler, which is not there."""
    replace, name = msgspec.structs.replace, pod.spec.scheduler_name
    annotations = pod.metadata.declared_annotations
    if annotations:
        read = annotations_read(setup.profiles, setup.registry.load)
        kept = {key: text for key, text in annotations.items() if key in read}
        pod = replace(pod, metadata=replace(pod.metadata, declared_annotations=kept))
    if name == DEFAULT_SCHEDULER_NAME and name not in setup.scheduler_names:
        pod = replace(pod, spec=replace(pod.spec, scheduler_name=setup.scheduler_name))
    return pod


def _demand(plugin: type[Plugin], *points: ExtensionPoint) -> None:
    if not any(point.served_by(plugin) for point in points):
        raise TypeError(f"{plugin.name} does not serve {points[0].field}")


def _alone(plugin: type[Plugin], args: Arguments | None) -> ProfileSetup:
    return profile(plugin, args={} if args is None else {plugin.name: args}, alone=True)


class _Lone:
    """The attempt of one pod, under a profile with one plugin."""

    def __init__(
        self,
        plugin: type[Plugin],
        pod: Pod,
        cluster: Iterable[Object],
        args: Arguments | None,
    ) -> None:
        setup = _alone(plugin, args)
        self.state, built = folded(setup, cluster)
        cache = ShapeCache(self.state.nodes)
        self.attempt = Attempt(self.state, built, PodInfo(served(pod, setup)), cache)
        self.screening: Screening = self.attempt.screen(share_of_nodes=False)

    @property
    def nodes(self) -> list[tuple[int, str]]:
        """Row and name of every node, in order of names."""
        table = self.state.nodes
        named = [(row, name) for row, name in enumerate(table.names) if name]
        return sorted(named, key=lambda pair: pair[1])
