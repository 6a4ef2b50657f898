"""Runs one plugin on a cluster, given as a list of objects in any order.

Filters and scores run in the fold and the scheduling cycle of the daemon. Plugins of the binding
cycle get a :class:`FakeBindingClient`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar, cast

import msgspec

from asched.cycle.attempt import Attempt
from asched.cycle.feasible_nodes import FeasibleNodes
from asched.cycle.shape_cache import ShapeCache
from asched.framework.binding import (
    BindingContext,
    ClaimRef,
    NotPermitted,
    Permission,
    UnlimitedContext,
)
from asched.framework.interface import ExtensionPoint, Plugin
from asched.framework.pod_info import PodInfo
from asched.framework.runtime.profile import Profile, ProfileError
from asched.framework.status import SUCCESS, Status
from asched.model.meta import Object, ObjectMeta
from asched.model.pod import DEFAULT_SCHEDULER_NAME, ContainerExtendedResourceRequest, Pod
from asched.model.resource_claims import AllocationResult, ResourceClaim
from asched.model.storage import PersistentVolume, PersistentVolumeClaim
from asched.state.cluster import ClusterState
from asched.state.fold import Fold
from asched.state.records import EngineStarted, ObjectObserved, ProfilesLoaded, TurnStarted
from asched.testing.builders import split
from asched.testing.profiles import Arguments, ProfileSetup, profile

P = TypeVar("P", bound=Plugin)

START_NS = 1_767_225_600_000_000_000
"""Start time of all tests: 2026-01-01 00:00 UTC."""


def run_filter(
    plugin: type[Plugin], pod: Pod, cluster: Iterable[Object], *, args: Arguments | None = None
) -> dict[str, Status]:
    """The plugin's filter status of each node, by name. Runs its PreFilter first.

    Raises :class:`~asched.framework.runtime.plugin_calls.PluginFailure`; its cause is the exception
    of the plugin.
    """
    _require_point(plugin, ExtensionPoint.FILTER, ExtensionPoint.PRE_FILTER)
    single = _SinglePluginAttempt(plugin, pod, cluster, args)
    feasible = single.feasible
    found: dict[str, Status] = {}
    for row, name in single.nodes:
        if feasible.rejected is not None:
            found[name] = feasible.rejected
        elif feasible.node_names is not None and name not in feasible.node_names:
            found[name] = Status.unresolvable(f"node(s) didn't satisfy plugin {plugin.name}").by(
                plugin.name
            )
        else:
            found[name] = feasible.findings.status(row) or SUCCESS
    return found


def scores(
    plugin: type[Plugin],
    pod: Pod,
    cluster: Iterable[Object],
    *,
    args: Arguments | None = None,
    raw: bool = False,
) -> dict[str, int]:
    """The plugin's score of each node that its own filter accepts, by name.

    Scores are 0 to 100, or unnormalized with ``raw``. Empty if its PreScore returns Skip. Raises
    :class:`~asched.framework.runtime.plugin_calls.PluginFailure`.
    """
    _require_point(plugin, ExtensionPoint.SCORE)
    single = _SinglePluginAttempt(plugin, pod, cluster, args)
    if not single.feasible.count:
        return {}
    scoring = single.attempt.score(single.feasible)
    names = [single.state.nodes.names[row] for row in single.feasible.rows.tolist()]
    for own in scoring.plugins:
        if own.plugin == plugin.name:
            return dict(zip(names, (own.raw if raw else own.normalized).tolist(), strict=True))
    return {}


def instance(
    plugin: type[P], cluster: Iterable[Object] = (), *, args: Arguments | None = None
) -> P:
    """The plugin as built for a profile, to call ``pre_enqueue`` or a queueing hint.

    Pending pods of ``cluster`` are in its queue. Raises
    :class:`~asched.framework.runtime.strict.ConfigurationError` for invalid arguments.
    """
    setup = _alone(plugin, args)
    _, built = fold_cluster(setup, cluster)
    return cast(P, built.plugins[plugin.name])


def fold_cluster(
    setup: ProfileSetup, cluster: Iterable[Object], seed: int = 0
) -> tuple[ClusterState, Profile]:
    """The state of a daemon that has observed the cluster, and its first profile."""
    fold = Fold(ClusterState(), setup.registry.load)
    fold.apply(TurnStarted(START_NS))
    fold.apply(EngineStarted("asched.testing", seed))
    gates = setup.feature_gates
    fold.apply(ProfilesLoaded(setup.profiles, setup.queue, feature_gates=gates))
    built = fold.state.profiles[setup.scheduler_name]
    if built.missing:
        raise ProfileError(built.missing)
    existing, pending = split(cluster)
    for item in (*existing, *pending):
        fold.apply(ObjectObserved(observed_form(item, setup) if isinstance(item, Pod) else item))
    return fold.state, built


def observed_form(pod: Pod, setup: ProfileSetup) -> Pod:
    """The pod as the daemon decodes it.

    It has only the annotations that plugins declare to read. A pod for the default scheduler
    belongs to the first profile if no profile has that name.
    """
    replace, name = msgspec.structs.replace, pod.spec.scheduler_name
    annotations = pod.metadata.declared_annotations
    if annotations:
        names = {name for profile in setup.profiles for name in profile.plugin_names}
        read = {key for name in names for key in setup.registry.load(name).reads_annotations}
        kept = {key: text for key, text in annotations.items() if key in read}
        pod = replace(pod, metadata=replace(pod.metadata, declared_annotations=kept))
    if name == DEFAULT_SCHEDULER_NAME and name not in setup.scheduler_names:
        pod = replace(pod, spec=replace(pod.spec, scheduler_name=setup.scheduler_name))
    return pod


def _require_point(plugin: type[Plugin], *points: ExtensionPoint) -> None:
    if not any(point.served_by(plugin) for point in points):
        raise TypeError(f"{plugin.name} does not serve {points[0].field}")


def _alone(plugin: type[Plugin], args: Arguments | None) -> ProfileSetup:
    return profile(plugin, args_by_plugin={} if args is None else {plugin.name: args}, alone=True)


class _SinglePluginAttempt:
    """An attempt of one pod with a profile of one plugin."""

    def __init__(
        self,
        plugin: type[Plugin],
        pod: Pod,
        cluster: Iterable[Object],
        args: Arguments | None,
    ) -> None:
        setup = _alone(plugin, args)
        self.state, built = fold_cluster(setup, cluster)
        cache = ShapeCache(self.state.nodes)
        self.attempt = Attempt(self.state, built, PodInfo(observed_form(pod, setup)), cache)
        self.feasible: FeasibleNodes = self.attempt.find_feasible_nodes(limit_nodes=False)

    @property
    def nodes(self) -> list[tuple[int, str]]:
        """Row and name of each node, by name."""
        table = self.state.nodes
        named = [(row, name) for row, name in enumerate(table.names) if name]
        return sorted(named, key=lambda pair: pair[1])


MAX_CHECKS: Final = 10
"""Calls of its check by ``wait_until``, without any time between them."""


class RecordedRequest(NamedTuple):
    """A request of the plugin."""

    permission: Permission
    target: str
    """The key of the pod or claim, or the name of the volume."""
    value: object = None
    """The node, the claim, the annotations or the allocation, if any."""


class FakeBindingClient:
    """A :class:`~asched.framework.BindingClient` for tests: records requests, sends none.

    Raises :class:`~asched.framework.NotPermitted` for a request that the plugin does not declare in
    ``needs``.
    """

    def __init__(
        self,
        plugin: type[Plugin],
        cluster: Iterable[Object] = (),
        responses: Mapping[Permission, Status] | None = None,
    ) -> None:
        """``cluster`` holds the readable volumes and claims. The default response is Success.

        Writes change nothing that is read.
        """
        self.requests: list[RecordedRequest] = []
        self._plugin = plugin
        self._objects = {(type(item), item.key): item for item in cluster}
        self._responses = responses or {}

    @property
    def context(self) -> BindingContext:
        return UnlimitedContext()

    async def bind(self, pod: PodInfo, node_name: str) -> Status:
        return self._respond(Permission.BIND, pod.key, node_name)

    async def claim_volume(self, volume: str, claim: ClaimRef) -> Status:
        return self._respond(Permission.CLAIM_VOLUME, volume, claim)

    async def select_node(self, claim: ClaimRef, node_name: str) -> Status:
        return self._respond(Permission.SELECT_NODE, claim.key, node_name)

    async def annotate(self, pod: PodInfo, annotations: Mapping[str, str]) -> Status:
        return self._respond(Permission.ANNOTATE, pod.key, dict(annotations))

    async def read_volume(self, name: str) -> PersistentVolume | None:
        self._respond(Permission.READ_VOLUME, name)
        found = self._objects.get((PersistentVolume, name))
        return found if isinstance(found, PersistentVolume) else None

    async def read_claim(self, claim: ClaimRef) -> PersistentVolumeClaim | None:
        self._respond(Permission.READ_CLAIM, claim.key)
        found = self._objects.get((PersistentVolumeClaim, claim.key))
        if isinstance(found, PersistentVolumeClaim) and found.uid == claim.uid:
            return found
        return None

    async def allocate_claim(
        self, claim: ClaimRef, allocation: AllocationResult | None, consumer: PodInfo
    ) -> Status:
        return self._respond(Permission.ALLOCATE_CLAIM, claim.key, allocation)

    async def release_claim(self, claim: ClaimRef, consumer: PodInfo) -> Status:
        return self._respond(Permission.RELEASE_CLAIM, claim.key, consumer.uid)

    async def read_resource_claim(self, claim: ClaimRef) -> ResourceClaim | None:
        self._respond(Permission.READ_RESOURCE_CLAIM, claim.key)
        found = self._objects.get((ResourceClaim, claim.key))
        if isinstance(found, ResourceClaim) and found.uid == claim.uid:
            return found
        return None

    async def create_special_claim(
        self, pod: PodInfo, claim: ResourceClaim
    ) -> ResourceClaim | Status:
        status = self._respond(Permission.CREATE_SPECIAL_CLAIM, pod.key, claim.spec)
        if not status.is_success:
            return status
        name = f"{pod.name}-extended-resources-{len(self.requests)}"
        metadata = ObjectMeta(name=name, namespace=pod.namespace, uid=f"{pod.namespace}/{name}")
        return msgspec.structs.replace(claim, metadata=metadata)

    async def delete_special_claim(self, claim: ClaimRef) -> Status:
        return self._respond(Permission.DELETE_SPECIAL_CLAIM, claim.key)

    async def patch_extended_resource_status(
        self,
        pod: PodInfo,
        claim_name: str,
        mappings: Sequence[ContainerExtendedResourceRequest],
    ) -> Status:
        value = (claim_name, tuple(mappings))
        return self._respond(Permission.PATCH_EXTENDED_RESOURCE_STATUS, pod.key, value)

    async def wait_until(
        self, check: Callable[[], Awaitable[Status | None]], timeout_s: float
    ) -> Status | None:
        for _ in range(MAX_CHECKS):
            status = await check()
            if status is not None:
                return status
        return None

    def _respond(self, permission: Permission, target: str, value: object = None) -> Status:
        if permission not in self._plugin.needs:
            raise NotPermitted(
                f"{self._plugin.name} requests {permission.value}, which its needs do not include"
            )
        self.requests.append(RecordedRequest(permission, target, value))
        return self._responses.get(permission, SUCCESS)
