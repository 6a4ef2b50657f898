"""Schedules pods with whole profiles on a virtual cluster, and gives the placements."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import msgspec

from asched.audit.replay import Divergence, ReplayVerifier
from asched.cycle.inspect import Inspection, inspect
from asched.framework.interface import Plugin
from asched.framework.status import Status
from asched.model.meta import Object
from asched.model.pod import Pod
from asched.model.quantity import NS_PER_S
from asched.simulator.loop import Simulation
from asched.simulator.trace import (
    EndReason,
    ObjectSet,
    PodCreated,
    PodRun,
    TraceEvent,
    WorkloadTrace,
)
from asched.state.cluster import ClusterState
from asched.state.fold import Fold
from asched.state.records import AnyRecord
from asched.testing.builders import split
from asched.testing.harness import START_NS, observed_form
from asched.testing.invariants import check
from asched.testing.profiles import ProfileSetup, profile, profile_setup

Setup = ProfileSetup | type[Plugin] | Path | str
"""Profiles, a plugin to add to the default profile, or a configuration (a file, or YAML text)."""


class PlacementResult(msgspec.Struct, frozen=True):
    """The result for one pod."""

    pod: str
    """``namespace/name``."""
    node: str = ""
    """Its node at the end; empty if it is pending or gone."""
    message: str = ""
    """Why it is pending: the message of its ``PodScheduled`` condition."""
    attempts: int = 0
    evicted_for: str = ""
    """The pod that preempted it."""

    def __str__(self) -> str:
        if self.node:
            return f"{self.pod} -> {self.node}"
        return f"{self.pod}: {self.message or f'evicted for {self.evicted_for}'}"


class Placements(Mapping[str, PlacementResult]):
    """The results by ``namespace/name``; lookups may omit ``default/``."""

    def __init__(
        self, setup: ProfileSetup, simulation: Simulation, records: list[AnyRecord]
    ) -> None:
        self.setup = setup
        self._cluster = simulation.cluster
        self._placements = {run.key: _placement(run) for run in simulation.result().pods}
        self.records: tuple[AnyRecord, ...] = tuple(records)
        """All observations and decisions, as in a journal."""

    def __getitem__(self, pod: str) -> PlacementResult:
        return self._placements[pod if "/" in pod else f"default/{pod}"]

    def __iter__(self) -> Iterator[str]:
        return iter(self._placements)

    def __len__(self) -> int:
        return len(self._placements)

    def __repr__(self) -> str:
        return f"Placements({', '.join(map(str, self._placements.values()))})"

    @property
    def nodes(self) -> dict[str, str]:
        """The node of each placed pod, by name, or ``namespace/name`` outside ``default``."""
        return {
            placement.pod.removeprefix("default/"): placement.node
            for placement in self._placements.values()
            if placement.node
        }

    @property
    def pending(self) -> dict[str, str]:
        """The message of each pending pod, by name."""
        return {
            placement.pod.removeprefix("default/"): placement.message
            for placement in self._placements.values()
            if not placement.node and not placement.evicted_for
        }

    def rejections(self, pod: str) -> dict[str, Status]:
        """The status that rejects a pod on each node, for a pod pending at the end."""
        inspection = self.inspection(pod)
        return {} if inspection.filter is None else dict(inspection.filter.nodes)

    def inspection(self, pod: str) -> Inspection:
        """The results of all plugins on all nodes, for a pod pending at the end.

        ``asched explain`` shows the same. Raises KeyError for any other pod.
        """
        key = self[pod].pod
        entry = self._cluster.pods[key]
        if entry.node:
            raise KeyError(f"{key} is on {entry.node}")
        built = self._cluster.profiles[entry.info.pod.spec.scheduler_name]
        return inspect(self._cluster, built, entry.info)

    def divergence(self) -> Divergence | None:
        """Repeat all decisions with new plugin instances. Returns the first one that differs.

        None if all are equal, as with pure plugins. Raises AssertionError for an inconsistent
        state.
        """
        fold = Fold(ClusterState(), self.setup.registry.load)
        verifier = ReplayVerifier(fold, complete=True)
        for seq, record in enumerate(self.records, 1):
            divergence = verifier.verify(seq, record)
            if divergence is not None:
                return divergence
        check(fold.state)
        return verifier.end(len(self.records) + 1)


def schedule(
    setup: Setup,
    cluster: Iterable[Object],
    pods: Iterable[Pod] = (),
    *,
    seed: int = 0,
    max_virtual_s: float = 600.0,
) -> Placements:
    """Schedule ``pods`` in order, and the pending pods of ``cluster``, on a virtual clock.

    Permit timeouts, preemption and backoff take virtual time. The run ends when nothing is left to
    do, or after ``max_virtual_s`` virtual seconds (a gang that lacks a member retries forever).
    Victims do not come back. PreBind, Bind and PostBind do not run; each binding succeeds. ``seed``
    decides ties.

    Raises :class:`~asched.framework.runtime.strict.ConfigurationError` or ConfigFileError for an
    invalid setup, and ProfileError for a missing plugin.
    """
    found = _setup(setup)
    existing, pending = split(cluster)
    events: list[TraceEvent] = [
        PodCreated(START_NS, observed_form(item, found), recreated=False)
        if isinstance(item, Pod)
        else ObjectSet(START_NS, item)
        for item in existing
    ]
    events += [
        PodCreated(START_NS, observed_form(pod, found), recreated=False)
        for pod in (*pending, *pods)
    ]
    simulation = Simulation(
        WorkloadTrace(tuple(events), START_NS, START_NS + round(max_virtual_s * NS_PER_S)),
        found.scheduler(seed),
        found.registry.load,
    )
    records = [record for turn in simulation.turns() for record in turn.records]
    return Placements(found, simulation, records)


def _setup(setup: Setup) -> ProfileSetup:
    match setup:
        case ProfileSetup():
            return setup
        case Path() | str():
            return profile_setup(setup)
        case _:
            return profile(setup)


def _placement(run: PodRun) -> PlacementResult:
    placement = run.placements[-1] if run.placements else None
    node = placement.node if placement is not None and placement.ended_ns is None else ""
    evicted = placement is not None and placement.end is EndReason.PREEMPTED
    return PlacementResult(
        run.key,
        node,
        run.message,
        run.attempts,
        placement.by if placement is not None and evicted else "",
    )
