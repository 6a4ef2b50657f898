"""Clusters with one gang, for sessions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NoReturn

from asched_optimal.action import Optimal

from asched.batch.registry import SessionRegistry
from asched.batch.session import run_session
from asched.framework.sessions import PluginOption, SessionOutcome, SessionSpec
from asched.model.resources import AnyObject
from asched.state.cluster import ClusterState
from asched.state.fold import Fold
from asched.state.records import EngineStarted, ObjectObserved
from asched.state.session_records import SessionsLoaded
from asched.testing.builders import from_api, pod

SCHEDULER: Final = "batch"
TIERS: Final = (
    ("priority", "gang", "conformance"),
    ("drf", "predicates", "proportion", "nodeorder"),
)
_INSTALLED: Final = SessionRegistry.discover()
_ACTIONS: Final = ("allocate", "backfill")
REGISTRY: Final = SessionRegistry(
    {name: _INSTALLED.plugin(name) for tier in TIERS for name in tier},
    {Optimal.name: Optimal} | {name: _INSTALLED.action(name) for name in _ACTIONS},
)
"""The built-in plugins and actions, and ``optimal``, installed or not."""


def gang(
    name: str, pods: Sequence[Mapping[str, Any]], *, minimum: int = 0, topology: str = ""
) -> list[AnyObject]:
    """A PodGroup and its pods; each mapping has the keywords of a builder."""
    annotations = {"asched.dev/preferred-topology": topology} if topology else {}
    group = {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "PodGroup",
        "metadata": {"name": name, "annotations": annotations},
        "spec": {"minMember": minimum or len(pods), "queue": "default"},
    }
    own = {"scheduling.k8s.io/group-name": name}
    members = [
        pod(f"{name}-{n}", scheduler_name=SCHEDULER, annotations=own, labels={"gang": name}, **each)
        for n, each in enumerate(pods)
    ]
    return [from_api(group), *members]


def placed(objects: Sequence[AnyObject], *actions: str, seed: int = 1) -> dict[str, str]:
    """The node of each pod that a session binds, by name."""
    binds = outcome(objects, *actions, seed=seed).binds
    return {bind.pod.partition("/")[2]: bind.node for bind in binds}


def outcome(objects: Sequence[AnyObject], *actions: str, seed: int = 1) -> SessionOutcome:
    """What a session decides."""
    state = ClusterState()
    fold = Fold(state, _no_plugins)
    tiers = tuple(tuple(map(PluginOption, tier)) for tier in TIERS)
    spec = SessionSpec(SCHEDULER, actions, tiers)
    fold.apply(EngineStarted("test", seed))
    fold.apply(SessionsLoaded((spec,)))
    queue = {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "Queue",
        "metadata": {"name": "default"},
        "spec": {"weight": 1},
    }
    for each in (from_api(queue), *objects):
        fold.apply(ObjectObserved(each))
    return run_session(state, spec, REGISTRY, 1)


def _no_plugins(name: str) -> NoReturn:
    raise LookupError(name)
