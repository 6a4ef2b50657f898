"""What if this or that were different: hypothetical records on a copy of a state.

Whatever is supposed is folded like anything that happened, and the filters that then run are those
of the scheduling cycle itself. So what is found feasible here would be feasible.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import msgspec

from asched.cycle.attempt import Attempt
from asched.cycle.shape_cache import ShapeCache
from asched.framework.runtime.plugin_calls import PluginFailure, held_back
from asched.framework.runtime.profile import PluginLoader
from asched.model.node import Node
from asched.model.pod import Pod
from asched.state.checkpoint import checkpoint_of, restore
from asched.state.cluster import ClusterState, PodEntry
from asched.state.fold import Fold
from asched.state.records import ObjectGone, ObjectSeen


class Hypotheticals:
    """A copy of a state on which things can be tried for one pending pod."""

    def __init__(self, state: ClusterState, load: PluginLoader, key: str) -> None:
        """``key`` is the pod's. Raises KeyError where the state has no such pod."""
        self.key = key
        self._blob = checkpoint_of(state)
        self._load = load
        self._begin()

    def _begin(self) -> None:
        self._fold = restore(self._blob, self._load)
        self.state = self._fold.state
        self._cache = ShapeCache(self.state.nodes)

    @property
    def pod(self) -> Pod:
        return self.state.pods[self.key].info.pod

    def entry(self, key: str) -> PodEntry:
        return self.state.pods[key]

    # -- asking -------------------------------------------------------------------------------

    def feasible_nodes(self) -> tuple[str, ...]:
        """The nodes on which every filter passes, in order of rows; none for a pod that is held back
        before. A plugin that fails lets nothing pass."""
        state, info = self.state, self.state.pods[self.key].info
        profile = state.profiles[info.pod.spec.scheduler_name]
        if any(held_back(plugin, info) for plugin in profile.pre_enqueue):
            return ()
        if state.circuits.blocking(profile):
            return ()
        profile = state.circuits.in_force(profile)
        try:
            attempt = Attempt(state, profile, info, self._cache)
            screening = attempt.screen(share_of_nodes=False)
        except PluginFailure:
            return ()
        if screening.rejected is not None:
            return ()
        return tuple(state.nodes.names[row] for row in screening.rows.tolist())

    def feasible(self, node: str) -> bool:
        """Whether every filter passes there."""
        return node in self.feasible_nodes()

    # -- supposing ----------------------------------------------------------------------------

    @contextmanager
    def node_is(self, node: Node) -> Iterator[None]:
        """Within the block the node of that name is as given."""
        before = self.state.objects(Node)[node.key]
        self._fold.apply(ObjectSeen(node))
        try:
            yield
        finally:
            self._fold.apply(ObjectSeen(before))

    @contextmanager
    def pod_is(self, pod: Pod) -> Iterator[None]:
        """Within the block the pod of that key, pending or placed, is as given."""
        entry = self.state.pods[pod.key]
        before = _on_its_node(entry)
        self._fold.apply(ObjectSeen(_at(pod, entry.node)))
        try:
            yield
        finally:
            self._fold.apply(ObjectSeen(before))

    @contextmanager
    def without(self, keys: Sequence[str]) -> Iterator[HypotheticalAbsence]:
        """Within the block these placed pods are gone; some may be brought back in it."""
        entries = [self.state.pods[key] for key in keys]
        # Notes of Reserve plugins are not in the API's objects, so they do not come back by these.
        noted = any(entry.assignment or entry.reserved for entry in entries)
        absence = HypotheticalAbsence(
            self._fold, {entry.info.key: _on_its_node(entry) for entry in entries}
        )
        for key in keys:
            absence.take_away(key)
        try:
            yield absence
        finally:
            if noted:
                self._begin()
            else:
                for key in absence.away:
                    absence.bring_back(key)


class HypotheticalAbsence:
    """Placed pods that are supposed to be gone."""

    def __init__(self, fold: Fold, pods: dict[str, Pod]) -> None:
        self._fold = fold
        self._pods = pods
        self._away: dict[str, None] = {}

    @property
    def away(self) -> tuple[str, ...]:
        """Who is gone now."""
        return tuple(self._away)

    def take_away(self, key: str) -> None:
        self._away[key] = None
        self._fold.apply(ObjectGone("Pod", key, self._pods[key].uid))

    def bring_back(self, key: str) -> None:
        del self._away[key]
        self._fold.apply(ObjectSeen(self._pods[key]))


def _on_its_node(entry: PodEntry) -> Pod:
    """The pod as the API would show it, if it showed what we know."""
    return _at(entry.info.pod, entry.node)


def _at(pod: Pod, node: str) -> Pod:
    if pod.spec.node_name == node:
        return pod
    return msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, node_name=node))
