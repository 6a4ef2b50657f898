"""A whole profile schedules pods on a described cluster, and what came of it."""

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
from asched.state.invariants import check
from asched.state.records import AnyRecord
from asched.testing.builders import split
from asched.testing.harness import START_NS, served
from asched.testing.profiles import ProfileSetup, configured, profile

Setup = ProfileSetup | type[Plugin] | Path | str
"""What is to schedule: profiles, the default profile with one plugin more, or a configuration (a file,
or YAML text)."""


class PlacementResult(msgspec.Struct, frozen=True):
    """What became of one pod."""

    pod: str
    """``namespace/name``."""
    node: str = ""
    """Where it is in the end; empty while it is pending or gone."""
    message: str = ""
    """Why it is pending: the text of its ``PodScheduled`` condition."""
    attempts: int = 0
    """How often it was tried."""
    evicted_for: str = ""
    """The pod that it had to make room for."""

    def __str__(self) -> str:
        if self.node:
            return f"{self.pod} -> {self.node}"
        return f"{self.pod}: {self.message or f'evicted for {self.evicted_for}'}"


class Placements(Mapping[str, PlacementResult]):
    """What became of the pods, by ``namespace/name``; ``default/`` may be left out in questions."""

    def __init__(
        self, setup: ProfileSetup, simulation: Simulation, records: list[AnyRecord]
    ) -> None:
        self.setup = setup
        self._cluster = simulation.cluster
        self._placements = {run.key: _placement(run) for run in simulation.result().pods}
        self.records: tuple[AnyRecord, ...] = tuple(records)
        """All that was observed and decided, as a journal would hold it."""

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
        """The node of each pod that has one, by the pod's name (with its namespace, where that is
        not ``default``)."""
        return {
            placement.pod.removeprefix("default/"): placement.node
            for placement in self._placements.values()
            if placement.node
        }

    @property
    def pending(self) -> dict[str, str]:
        """Why each pod is pending that is, by the pod's name."""
        return {
            placement.pod.removeprefix("default/"): placement.message
            for placement in self._placements.values()
            if not placement.node and not placement.evicted_for
        }

    def refusals(self, pod: str) -> dict[str, Status]:
        """For a pod that is pending in the end, the status that refuses it on each node."""
        inspection = self.inspection(pod)
        return {} if inspection.filter is None else dict(inspection.filter.nodes)

    def inspection(self, pod: str) -> Inspection:
        """For a pod that is pending in the end, all that each plugin says of each node, as
        ``asched explain`` shows it. Raises KeyError for any other pod."""
        key = self[pod].pod
        entry = self._cluster.pods[key]
        if entry.node:
            raise KeyError(f"{key} is on {entry.node}")
        built = self._cluster.profiles[entry.info.pod.spec.scheduler_name]
        return inspect(self._cluster, built, entry.info)

    def diverges(self) -> Divergence | None:
        """Decide everything once more, with plugins built anew, and tell the first decision that
        comes out otherwise; None where all are the same, as they are with plugins that are pure.

        AssertionError where the state contradicts itself in the end.
        """
        fold = Fold(ClusterState(), self.setup.registry.load)
        judge = ReplayVerifier(fold, complete=True)
        for seq, record in enumerate(self.records, 1):
            divergence = judge.verify(seq, record)
            if divergence is not None:
                return divergence
        check(fold.state)
        return judge.end(len(self.records) + 1)


def schedule(
    setup: Setup,
    cluster: Iterable[Object],
    pods: Iterable[Pod] = (),
    *,
    seed: int = 0,
    at_most_s: float = 600.0,
) -> Placements:
    """Schedule ``pods``, in their order, and those of ``cluster`` that are pending.

    The clock is a virtual one: pods that Permit holds are let go or time out, victims end, pods are
    tried again after their backoff, until nothing happens any more, or for ``at_most_s`` virtual
    seconds (a gang that lacks a member is tried for ever). A victim does not come back. PreBind, Bind and PostBind are not run: a binding succeeds. ``seed`` draws among equal nodes.

    Raises :class:`~asched.framework.runtime.strict.ConfigurationError` or ConfigFileError for a setup that
    cannot be, and ProfileError for a missing plugin.
    """
    found = _setup(setup)
    there, pending = split(cluster)
    events: list[TraceEvent] = [
        PodCreated(START_NS, served(item, found), returns=False)
        if isinstance(item, Pod)
        else ObjectSet(START_NS, item)
        for item in there
    ]
    events += [PodCreated(START_NS, served(pod, found), returns=False) for pod in (*pending, *pods)]
    simulation = Simulation(
        WorkloadTrace(tuple(events), START_NS, START_NS + round(at_most_s * NS_PER_S)),
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
            return configured(setup)
        case _:
            return profile(setup)


def _placement(run: PodRun) -> PlacementResult:
    placement = run.placements[-1] if run.placements else None
    node = placement.node if placement is not None and placement.ended_ns is None else ""
    evicted = placement is not None and placement.end is EndReason.PREEMPTED
    return PlacementResult(
        run.key, node, run.message, run.attempts, placement.by if placement is not None and evicted else ""
    )
