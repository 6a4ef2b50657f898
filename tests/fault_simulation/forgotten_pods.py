"""Detection of forgotten pods by a new scheduler that knows only the API server."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from msgspec.structs import replace

from asched.apiserver.cluster import EmbeddedCluster
from asched.apiserver.listing import ListOptions
from asched.apiserver.serializers import ObjectSerializer
from asched.config.file import Configuration
from asched.config.registry import PluginRegistry
from asched.core.scheduler import SchedulerCore
from asched.daemon.startup import watched_groups
from asched.framework.group_hierarchy import ancestors
from asched.framework.pod_groups import group_of
from asched.kube.decoding import ObjectDecoder
from asched.model.groups import CompositePodGroup, NativeGroup, PodGroup
from asched.model.pod import Pod
from asched.model.requests import is_extended_resource, pod_requests
from asched.model.resources import (
    AnyObject,
    GroupResource,
    WatchedResource,
    in_order_of_listing,
)
from asched.state.cluster import ClusterState, PlacementState
from asched.state.fold import Fold
from asched.state.observe import observe_list
from asched.state.records import (
    EngineStarted,
    ProfilesLoaded,
    QueueSettings,
    Rejected,
    TurnStarted,
)
from asched.state.session_records import SessionsLoaded
from asched.state.sessions import status_matches
from tests.fault_simulation.tree_attempts import TreeAttempt

_MOST_DECISIONS = 1_000


def forgotten_pods(
    cluster: EmbeddedCluster,
    configuration: Configuration,
    registry: PluginRegistry,
    now_ns: int,
    attempts: Mapping[str, TreeAttempt],
) -> list[str]:
    """The pending pods that a new scheduler would place or preempt for.

    The children of a tree are tried in order, so an early child that fits can take the room of two
    later ones. If other pods take some of that room, the early child no longer fits, and the tree
    may be feasible. No event announces that, as in kube-scheduler: placed pods only take room. So a
    tree is not forgotten if it is infeasible without the pods that were placed since its latest
    attempt (``attempts``, by the uid of the root). Those of them that were nominated had their room
    already.
    """
    fold = _new_scheduler(cluster, configuration, registry, now_ns)
    found = _decided(fold, now_ns)
    trees = {key: root for key in found if (root := _attempted_root(fold.state, key, attempts))}
    for root in sorted({*trees.values()}):
        earlier = _new_scheduler(cluster, configuration, registry, now_ns, attempts[root])
        then = _decided(earlier, now_ns)
        found = [key for key in found if trees.get(key) != root or key in then]
    return found


def _new_scheduler(
    cluster: EmbeddedCluster,
    configuration: Configuration,
    registry: PluginRegistry,
    now_ns: int,
    before: TreeAttempt | None = None,
) -> Fold:
    """``before``: it knows no pods that were placed since this attempt, or as nominated."""
    fold = Fold(ClusterState(), registry.load)
    fold.apply(TurnStarted(now_ns))
    fold.apply(EngineStarted("fresh", 0))
    fold.apply(ProfilesLoaded(configuration.profiles, QueueSettings()))
    if configuration.sessions:
        fold.apply(SessionsLoaded(configuration.sessions))
    for resource in in_order_of_listing(
        watched_groups(configuration.profiles, configuration.sessions)
    ):
        listed = _listed(cluster, resource)
        kept = listed if before is None else tuple(_unplaced(listed, before))
        for news in observe_list(fold.state, resource, kept):
            fold.apply(news)
    return fold


def _unplaced(objects: Iterable[AnyObject], before: TreeAttempt) -> Iterator[AnyObject]:
    for one in objects:
        uid = one.metadata.uid
        if uid not in before.placed_since:
            yield one
        elif isinstance(one, Pod) and uid in before.nominated:
            status = replace(one.status, nominated_node_name=before.nominated[uid])
            yield replace(one, spec=replace(one.spec, node_name=""), status=status)


def _attempted_root(state: ClusterState, pod: str, attempts: Mapping[str, TreeAttempt]) -> str:
    """The uid of the tree with which the pod was tried; empty if there is none."""
    key = group_of(state.pods[pod].info.pod)
    group = None if key is None else state.objects(PodGroup).get(key.key)
    if group is None:
        return ""
    above = ancestors(state, group).chain
    return next((one.metadata.uid for one in above if one.metadata.uid in attempts), "")


def _listed(cluster: EmbeddedCluster, resource: WatchedResource) -> tuple[AnyObject, ...]:
    """All objects that the API server has, in the first known version that it serves."""
    kind, registry = resource.value, cluster.api.registry
    versions = (kind.version, *kind.other_versions)
    served = (registry.find(kind.group, version, kind.plural) for version in versions)
    found = next(filter(None, served), None)
    if found is None:
        return ()
    page = cluster.api.list(found, ListOptions())
    return ObjectDecoder(resource).listed(ObjectSerializer(found, found.view).many(page)).objects


_KINDS: dict[type[PodGroup | CompositePodGroup], GroupResource] = {
    PodGroup: GroupResource.POD_GROUPS,
    CompositePodGroup: GroupResource.COMPOSITE_POD_GROUPS,
}


def forgotten_groups(cluster: EmbeddedCluster, state: ClusterState) -> list[str]:
    """Groups that differ between daemon and API server, or lack their last status. Only
    resources that are served and watched."""
    forgotten: list[str] = []
    for kind, resource in _KINDS.items():
        if kind is CompositePodGroup and not (state.objects(kind) and _is_served(cluster)):
            continue
        known = state.objects(kind)
        groups = {one.key: one for one in _listed(cluster, resource) if isinstance(one, kind)}
        differ = {key for key, group in groups.items() if known.get(key) != group}
        differ |= known.keys() - groups.keys()
        forgotten += sorted(differ or _unwritten(state, kind, groups))
    return forgotten


def differing_objects(
    cluster: EmbeddedCluster, configuration: Configuration, state: ClusterState
) -> list[str]:
    """Objects that the state has otherwise than the API server, with the record that is missing."""
    groups = watched_groups(configuration.profiles, configuration.sessions)
    return [
        f"{resource.label}: {record}"
        for resource in in_order_of_listing(groups)
        for record in observe_list(state, resource, _listed(cluster, resource))
    ]


def _is_served(cluster: EmbeddedCluster) -> bool:
    kind = GroupResource.COMPOSITE_POD_GROUPS.value
    return cluster.api.registry.find(kind.group, kind.version, kind.plural) is not None


def _unwritten(
    state: ClusterState, kind: type[NativeGroup], groups: Mapping[str, NativeGroup]
) -> set[str]:
    return {
        key
        for (name, key), write in state.sessions.writes.items()
        if name == kind.__name__
        and (write.in_flight or not status_matches(groups[key], write.decision))
    }


def _decided(fold: Fold, now_ns: int) -> list[str]:
    decider, room = SchedulerCore(fold), set[str]()
    for number in range(_MOST_DECISIONS):
        decisions = decider.propose()
        if not decisions:
            if number and fold.state.sessions:
                break
            now_ns += 10**9
            fold.apply(TurnStarted(now_ns))
            decisions = decider.propose()
            if not decisions:
                break
        for decision in decisions:
            fold.apply(decision)
            if isinstance(decision, Rejected) and decision.victims:
                room.add(decision.key)
    placed = {
        key
        for key, entry in fold.state.pods.items()
        if entry.placement_state is PlacementState.ASSUMED and key not in fold.state.waiting
    }
    return sorted(
        placed | {key for key in room if not _depends_on_others(fold.state.pods[key].info.pod)}
    )


def _depends_on_others(pod: Pod) -> bool:
    """Whether other pods or free devices can make preemption for this pod useful.

    As in kube-scheduler, such a change does not requeue the pod (``UnschedulablePlugins``): it
    waits for the flush of the queue, which no seed reaches.
    """
    spec = pod.spec
    if spec.resource_claims or any(map(is_extended_resource, pod_requests(pod))):
        return True
    return bool(spec.topology_spread_constraints) or spec.affinity is not None
