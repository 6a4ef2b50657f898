"""Clusters for the planner: a fold with the default profile."""

from __future__ import annotations

from typing import Final, Unpack

from msgspec.structs import replace

from asched.config.file import parse
from asched.config.registry import PluginRegistry
from asched.model.meta import OwnerReference
from asched.model.pod import Pod
from asched.model.resources import AnyObject
from asched.state.cluster import ClusterState
from asched.state.fold import Fold
from asched.state.records import EngineStarted, ObjectObserved, ProfilesLoaded, TurnStarted
from asched.testing.builders import PodOptions, from_api, pod

REGISTRY: Final = PluginRegistry.discover()
START_NS: Final = 1_767_225_600_000_000_000


def state_of(*objects: AnyObject) -> ClusterState:
    """The state of a cluster with these objects."""
    configuration = parse("", "test", REGISTRY, empty_is_defaults=True)
    fold = Fold(ClusterState(), REGISTRY.load)
    fold.apply(EngineStarted("test", 0))
    fold.apply(ProfilesLoaded(configuration.profiles))
    fold.apply(TurnStarted(START_NS))
    for each in objects:
        fold.apply(ObjectObserved(each))
    return fold.state


def owned(name: str, owner: str = "ReplicaSet/web", **options: Unpack[PodOptions]) -> Pod:
    """A pod with a controller."""
    built = pod(name, **options)
    kind, _, of = owner.partition("/")
    reference = OwnerReference(kind=kind, name=of, uid=owner, controller=True)
    return replace(built, metadata=replace(built.metadata, owner_references=(reference,)))


def budget(name: str, allowed: int, **labels: str) -> AnyObject:
    """A PodDisruptionBudget that allows so many disruptions now."""
    return from_api(
        {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": {"name": name},
            "spec": {"selector": {"matchLabels": labels}},
            "status": {"disruptionsAllowed": allowed},
        }
    )
