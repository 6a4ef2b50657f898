"""Applies hypothetical changes to a private cluster state and runs the filters on it.

Changes are records that the real fold applies, and the filters are those of the scheduling cycle.
A node that is feasible here would be feasible after the real change.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import cast

from msgspec.structs import replace

from asched.audit.whatif.pod_lifetime import with_node
from asched.cycle.attempt import Attempt
from asched.cycle.shape_cache import ShapeCache
from asched.framework.devices import SharedDevices
from asched.framework.runtime.plugin_calls import PluginFailure, gate_status
from asched.framework.runtime.profile import PluginLoader
from asched.model.pod import Pod
from asched.model.resource_claims import ResourceClaim, ResourceClaimStatus
from asched.model.resources import AnyObject
from asched.state.checkpoint import checkpoint_of, restore
from asched.state.cluster import ClusterState, PodEntry
from asched.state.fold import Fold
from asched.state.records import ObjectDeleted, ObjectObserved


class ChangeableState:
    """A state on which changes are tried."""

    def __init__(self, state: ClusterState, load: PluginLoader) -> None:
        """The state must be a private copy."""
        self._load = load
        self._checkpoint = b""
        """For :meth:`_restore`. Empty until notes of Reserve plugins need it."""
        self._use(Fold(state, load))

    def _restore(self) -> None:
        self._use(restore(self._checkpoint, self._load))

    def _use(self, fold: Fold) -> None:
        self._fold, self.state = fold, fold.state
        self.cache = ShapeCache(self.state.nodes)

    @contextmanager
    def replaced(self, *items: AnyObject) -> Iterator[None]:
        """Replaces objects by these of the same kind and key within the block: nodes, pending and
        placed pods, and others."""
        before = [self._present(item) for item in items]
        for item in items:
            if isinstance(item, Pod):
                item = with_node(item, self.state.pods[item.key].node)
            self._fold.apply(ObjectObserved(item))
        try:
            yield
        finally:
            for old in before:
                self._fold.apply(ObjectObserved(old))

    @contextmanager
    def added(self, *items: AnyObject) -> Iterator[None]:
        """Objects that do not exist yet, within the block."""
        for item in items:
            self._fold.apply(ObjectObserved(item))
        try:
            yield
        finally:
            for item in reversed(items):
                self._fold.apply(ObjectDeleted(type(item).__name__, item.key, item.uid))

    def _present(self, item: AnyObject) -> AnyObject:
        if isinstance(item, Pod):
            return _on_its_node(self.state.pods[item.key])
        return cast(AnyObject, self.state.objects(type(item))[item.key])

    @contextmanager
    def deallocated(self, claim: ResourceClaim) -> Iterator[None]:
        """The claim loses its allocation within the block. Pods that were placed with it no longer
        hold its devices."""
        with self.replaced(replace(claim, status=ResourceClaimStatus())):
            shared = self.state.plugin_context.shared.get(SharedDevices)
            with nullcontext() if shared is None else shared.without_pending(claim):
                yield

    @contextmanager
    def without_pods(self, keys: Sequence[str]) -> Iterator[RemovedPods]:
        """Removes these placed pods within the block, which may restore some of them."""
        entries = [self.state.pods[key] for key in keys]
        # The API objects do not contain the notes of Reserve plugins, so ObjectObserved cannot
        # restore them.
        has_notes = any(entry.assignment or entry.reserved for entry in entries)
        if has_notes and not self._checkpoint:
            self._checkpoint = checkpoint_of(self.state)
        pods = {entry.info.key: _on_its_node(entry) for entry in entries}
        removed = RemovedPods(self._fold, pods)
        for key in keys:
            removed.remove(key)
        try:
            yield removed
        finally:
            if has_notes:
                self._restore()
            else:
                for key in removed.keys:
                    removed.restore(key)


class HypotheticalState(ChangeableState):
    """A state on which changes are tried for one pending pod."""

    def __init__(self, state: ClusterState, load: PluginLoader, key: str) -> None:
        """``key`` is the pod's. Raises KeyError if the state has no such pod."""
        super().__init__(state, load)
        self.key = key

    @property
    def pod_entry(self) -> PodEntry:
        return self.state.pods[self.key]

    @property
    def pod(self) -> Pod:
        return self.pod_entry.info.pod

    def feasible_nodes(self) -> tuple[str, ...]:
        """The nodes on which every filter passes, in row order. Empty if PreEnqueue or an open
        circuit holds the pod back, or if a plugin fails."""
        state, info = self.state, self.pod_entry.info
        profile = state.profiles[info.pod.spec.scheduler_name]
        if any(gate_status(plugin, info) for plugin in profile.pre_enqueue):
            return ()
        if state.guards.circuits.blocking(profile):
            return ()
        profile = state.guards.circuits.in_force(profile)
        try:
            attempt = Attempt(state, profile, info, self.cache)
            screening = attempt.find_feasible_nodes(limit_nodes=False)
        except PluginFailure:
            return ()
        if screening.rejected is not None:
            return ()
        return tuple(state.nodes.names[row] for row in screening.rows.tolist())

    def feasible(self, node: str) -> bool:
        return node in self.feasible_nodes()


class RemovedPods:
    """Placed pods that a hypothetical state leaves out."""

    def __init__(self, fold: Fold, pods: dict[str, Pod]) -> None:
        self._fold = fold
        self._pods = pods
        self._removed: dict[str, None] = {}

    @property
    def keys(self) -> tuple[str, ...]:
        """The pods that are removed now."""
        return tuple(self._removed)

    def remove(self, key: str) -> None:
        self._removed[key] = None
        self._fold.apply(ObjectDeleted("Pod", key, self._pods[key].uid))

    def restore(self, key: str) -> None:
        del self._removed[key]
        self._fold.apply(ObjectObserved(self._pods[key]))


def _on_its_node(entry: PodEntry) -> Pod:
    """The pod as the API would show it once its assignment is bound."""
    return with_node(entry.info.pod, entry.node)
