"""Recorded batch sessions: a small cluster, a configuration, and kube-batch's result."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, cast

import msgspec

from asched.framework.resource_vector import TOLERANT
from asched.framework.sessions import SessionSpec
from asched.model.resources import AnyObject, GroupResource, Resource, WatchedResource, decode
from asched.state.cluster import ClusterState
from asched.state.fold import Fold
from asched.state.records import EngineStarted, ObjectObserved
from asched.state.session_records import SessionsLoaded
from tests.conformance.documents import DocumentError

_PLAIN = {
    "priorityClasses": Resource.PRIORITY_CLASSES,
    "nodes": Resource.NODES,
    "pods": Resource.PODS,
    "pdbs": Resource.POD_DISRUPTION_BUDGETS,
}
_CUSTOM = {
    ("queues", "scheduling.incubator.k8s.io/v1alpha1"): GroupResource.INCUBATOR_QUEUES,
    ("queues", "scheduling.sigs.dev/v1alpha2"): GroupResource.SIGS_QUEUES,
    ("podGroups", "scheduling.incubator.k8s.io/v1alpha1"): GroupResource.INCUBATOR_POD_GROUPS,
    ("podGroups", "scheduling.sigs.dev/v1alpha2"): GroupResource.SIGS_POD_GROUPS,
}
_ORDER = ("priorityClasses", "nodes", "queues", "pods", "podGroups", "pdbs")

PRIORITY_WITHOUT_ADMISSION = 1
"""kube-batch's priority of a pod without one from admission."""


class Expected(NamedTuple):
    """The recorded results of one session."""

    stable: dict[str, Any]
    varies: dict[str, Any]
    lenient: bool
    """Some results occurred in one run only, so there may be others."""
    partial: bool = False
    """Only the top-level fields are specified (in cases derived by hand)."""


class World(NamedTuple):
    """The recorded cluster, folded."""

    state: ClusterState
    fold: Fold
    shrunk: frozenset[str]


class BatchDocument:
    """One recorded file."""

    def __init__(self, path: Path) -> None:
        """Raises :class:`DocumentError` for an invalid file."""
        try:
            recorded = msgspec.json.decode(path.read_bytes())
            self.conf: str = recorded["conf"]
            self.scheduler_name: str = recorded["schedulerName"]
            self.default_queue: str = recorded["defaultQueue"]
            self._objects: dict[str, list[dict[str, Any]]] = recorded["objects"]
            self._updates: list[dict[str, Any]] = recorded.get("nodeUpdates", [])
            self.faults: dict[str, list[str]] = recorded.get("faults", {})
            self.hazards: list[str] = recorded.get("hazards", [])
            self.expected = [
                Expected(
                    found["stable"],
                    found["varies"],
                    found["coreSeenOnce"] > 0,
                    found.get("partial", False),
                )
                for key in ("expect", "expect2")
                if (found := recorded.get(key)) is not None
            ]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DocumentError(f"{path.name} is no recorded session: {error!r}") from None

    def world(self, spec: SessionSpec, seed: int) -> World:
        """The cluster after all objects were observed in the recorded order."""
        state = ClusterState()
        fold = Fold(state, _no_plugins)
        fold.apply(EngineStarted("test", seed))
        fold.apply(SessionsLoaded((spec,)))
        for resource, raw in self._in_order():
            seen = decode(resource, msgspec.json.encode(raw))
            fold.apply(ObjectObserved(cast(AnyObject, seen)))
        for raw in self._updates:
            fold.apply(
                ObjectObserved(cast(AnyObject, decode(Resource.NODES, msgspec.json.encode(raw))))
            )
        return World(state, fold, self._shrunk(state))

    def _in_order(self) -> Iterator[tuple[WatchedResource, dict[str, Any]]]:
        for field in _ORDER:
            for raw in self._objects.get(field) or ():
                if field == "pods":
                    raw["spec"].setdefault("priority", PRIORITY_WITHOUT_ADMISSION)
                resource = _PLAIN.get(field) or _CUSTOM[field, raw["apiVersion"]]
                yield resource, raw

    def _shrunk(self, state: ClusterState) -> frozenset[str]:
        """Nodes with less capacity than their pods use after an update."""
        table = state.nodes
        found = set()
        for raw in self._updates:
            row = table.row_of(raw["metadata"]["name"])
            assert row is not None
            for name in ("cpu", "memory"):
                lacking = int(table.requested(name)[row]) - int(table.allocatable(name)[row])
                if lacking >= TOLERANT.of(name):
                    found.add(table.names[row])
        return frozenset(found)


def is_batch_document(path: Path) -> bool:
    """Whether the file records a batch session, not single pods."""
    try:
        recorded = msgspec.json.decode(path.read_bytes())
    except ValueError:
        return False
    return isinstance(recorded, dict) and "conf" in recorded


def _no_plugins(name: str) -> Any:
    raise LookupError(f"no profile is loaded, and none needs {name}")
