"""Folds a watch recording of a real cluster."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from asched.config.kube_scheduler import KubeSchedulerConfiguration
from asched.config.registry import PluginRegistry
from asched.config.resolve import resolve
from asched.core.inputs import Deleted, Listed
from asched.kube.tape import Tape
from asched.model.pod import Pod
from asched.model.quantity import NS_PER_S
from asched.model.resources import AnyObject, Resource, WatchedResource
from asched.state.cluster import ClusterState
from asched.state.fold import Fold
from asched.state.observe import observe_deletion, observe_list, observe_object
from asched.state.records import AnyRecord, ProfilesLoaded, TurnStarted
from asched.testing.invariants import check


def _uids(state: ClusterState, resource: WatchedResource) -> dict[str, str]:
    """Uids by key of the objects of a resource in the state."""
    if resource is Resource.PODS:
        return {key: entry.info.uid for key, entry in state.pods.items()}
    return {key: item.uid for key, item in state.object_store.of_kind(resource.value.type).items()}


def test_recorded_churn_folds_to_existing_objects(shared_dir: Path) -> None:
    registry = PluginRegistry.discover()
    fold = Fold(ClusterState(), registry.load)
    fold.apply(ProfilesLoaded(resolve(KubeSchedulerConfiguration(), registry)))
    existing: dict[WatchedResource, dict[str, AnyObject]] = {}
    records = 0
    for at_s, change in ((item.at_s, item.change) for item in Tape(_tape(shared_dir))):
        fold.apply(TurnStarted(max(fold.state.now_ns, round(at_s * NS_PER_S))))
        known = existing.setdefault(change.resource, {})
        observed: list[AnyRecord | None] = []
        if isinstance(change, Listed):
            known.clear()
            known.update({item.key: item for item in change.objects})
            for record in observe_list(fold.state, change.resource, change.objects):
                fold.apply(record)
                records += 1
        elif isinstance(change, Deleted):
            known.pop(change.object.key, None)
            observed.append(observe_deletion(fold.state, change.object))
        else:
            known[change.object.key] = change.object
            observed.append(observe_object(fold.state, change.object))
        for item in observed:
            if item is not None:
                fold.apply(item)
                records += 1
    check(fold.state)
    assert records > 1000
    for resource, objects in existing.items():
        # Finished pods are not in the state.
        running = {
            key: item.uid
            for key, item in objects.items()
            if not (isinstance(item, Pod) and item.terminal)
        }
        assert _uids(fold.state, resource) == running, resource
    pods = {entry.info.key: entry.node for entry in fold.state.pods.values()}
    assert pods == {
        key: cast(Pod, item).node_name
        for key, item in existing[Resource.PODS].items()
        if not cast(Pod, item).terminal
    }


def _tape(shared_dir: Path) -> Path:
    return shared_dir / "tapes" / "churn-24.jsonl.gz"
