"""Was a pod forgotten? Asked of a scheduler that knows nothing but what the API server has now."""

from __future__ import annotations

from asched.apiserver.cluster import EmbeddedCluster
from asched.apiserver.listing import ListOptions
from asched.apiserver.rendering import WholeObjects
from asched.config.file import Configuration
from asched.config.registry import PluginRegistry
from asched.core.deciders import AllDeciders
from asched.daemon.reload.reconfiguring import groups_of_use
from asched.kube.decoding import ObjectDecoder
from asched.model.pod import Pod
from asched.model.resources import in_order_of_listing
from asched.state.cluster import ClusterState, PodPhase
from asched.state.fold import Fold
from asched.state.observe import observe_list
from asched.state.records import (
    EngineStarted,
    Lottery,
    ProfilesLoaded,
    QueueSettings,
    Rejected,
    TurnStarted,
)
from asched.state.rules import LATEST_RULES
from asched.state.session_records import SessionsLoaded

_MOST_DECISIONS = 1_000


def overlooked(
    cluster: EmbeddedCluster, configuration: Configuration, registry: PluginRegistry, now_ns: int
) -> list[str]:
    """The pending pods that a scheduler with fresh eyes would give a node, or would make room for."""
    fold = Fold(ClusterState(), registry.load)
    fold.apply(TurnStarted(now_ns))
    fold.apply(EngineStarted("fresh", 0, Lottery.SAMPLE, rules=LATEST_RULES))
    fold.apply(ProfilesLoaded(configuration.profiles, QueueSettings()))
    if configuration.sessions:
        fold.apply(SessionsLoaded(configuration.sessions))
    for resource in in_order_of_listing(
        groups_of_use(configuration.profiles, configuration.sessions)
    ):
        kind = resource.value
        served = cluster.api.registry.find(kind.group, kind.version, kind.plural)
        if served is None:
            continue
        page = cluster.api.list(served, ListOptions())
        listed = ObjectDecoder(resource).listed(WholeObjects(served, None).many(page))
        for news in observe_list(fold.state, resource, listed.objects):
            fold.apply(news)
    return _decided(fold, now_ns)


def _decided(fold: Fold, now_ns: int) -> list[str]:
    decider, room = AllDeciders(fold.state), set[str]()
    for number in range(_MOST_DECISIONS):
        decisions = decider.next()
        if not decisions:
            if number and fold.state.sessions:
                break
            now_ns += 10**9
            fold.apply(TurnStarted(now_ns))
            decisions = decider.next()
            if not decisions:
                break
        for decision in decisions:
            fold.apply(decision)
            if isinstance(decision, Rejected) and decision.victims:
                room.add(decision.key)
    placed = {
        key
        for key, entry in fold.state.pods.items()
        if entry.phase is PodPhase.ASSUMED and key not in fold.state.waiting
    }
    return sorted(
        placed | {key for key in room if not _minds_others(fold.state.pods[key].info.pod)}
    )


def _minds_others(pod: Pod) -> bool:
    """Whether evictions for it may become of use by what other pods do. Preemption's reasons are not among
    those for which a pod is tried again (``UnschedulablePlugins`` of kube-scheduler): it waits for the
    flush, which no seed comes to."""
    spec = pod.spec
    return bool(spec.topology_spread_constraints) or spec.affinity is not None
