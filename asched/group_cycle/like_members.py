"""Members of a group that the filters of a profile do not distinguish."""

from __future__ import annotations

from asched.cycle.precheck import refusal
from asched.cycle.shape_cache import ShapeCache
from asched.framework.pod_info import PodInfo, PodShape
from asched.framework.runtime.profile import Profile
from asched.state.cluster import ClusterState

LikeKey = tuple[PodShape, int, str]


class LikeMembers:
    """Finds like members under one profile. Answers are kept until a row of the nodes changes."""

    def __init__(self, cluster: ClusterState, profile: Profile, cache: ShapeCache) -> None:
        self._cluster = cluster
        self._profile = profile
        self._cache = cache
        self._keys: dict[str, LikeKey | None] = {}
        """By uid."""
        self._cursor = -1

    def key(self, info: PodInfo) -> LikeKey | None:
        """Equal for members that fit on the same nodes, and that may preempt the same pods; None
        if more than that key decides about the member. Call :meth:`ShapeCache.filters` first, so
        that what applies to a pod is up to date. Raises :class:`PluginFailure`."""
        cursor = self._cluster.nodes.cursor
        if cursor != self._cursor:
            self._keys.clear()
            self._cursor = cursor
        if info.uid not in self._keys:
            self._keys[info.uid] = self._key(info)
        return self._keys[info.uid]

    def _key(self, info: PodInfo) -> LikeKey | None:
        spec = info.pod.spec
        if spec.node_name or refusal(self._cluster, info):
            return None
        # Labels and the like decide which plugins apply to a pod.
        if not self._cache.plugins(self._profile, info).none_applies:
            return None
        return info.shape, info.priority, spec.preemption_policy
