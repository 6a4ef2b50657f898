"""One session, from opening to closing."""

from __future__ import annotations

from collections import Counter

from asched.batch.closing import SessionClosing
from asched.batch.corrections import Correction, corrections_of
from asched.batch.open_session import OpenSession
from asched.batch.registry import SessionRegistry
from asched.batch.session_handle import SessionHandle
from asched.batch.session_volumes import NoVolumes, VolumeClaims
from asched.batch.snapshot import Cache, Snapshot
from asched.batch.stage import SessionStage
from asched.batch.statement import SessionChanges
from asched.batch.tiers import TierPlugin, Tiers
from asched.batch.trace import NoTrace, SessionTrace
from asched.framework.session_objects import Job, TaskStatus
from asched.framework.session_plugins import Invalid, SessionPlugin
from asched.framework.sessions import (
    ActionTally,
    Compatibility,
    IgnoredJob,
    PluginTally,
    SessionOutcome,
    SessionSpec,
    session_id,
)
from asched.state.cluster import ClusterState


def hold_session(
    cluster: ClusterState,
    spec: SessionSpec,
    registry: SessionRegistry,
    number: int,
    *,
    shrunk: frozenset[str] = frozenset(),
    volumes: VolumeClaims | None = None,
    trace: SessionTrace | None = None,
) -> SessionOutcome:
    """What a session of ``spec`` on the cluster as it is comes to. Changes nothing.

    ``number`` counts the profile's sessions and, with the cluster's seed, stands for chance.
    ``shrunk``: see :meth:`asched.batch.snapshot.Cache.snapshot`. Where ``trace`` is given, it is
    told how each decision came about; the outcome is the same. Raises
    :class:`asched.batch.registry.SessionRegistryError` for an action or plugin that cannot be had.
    """
    held = SessionRun(
        cluster,
        spec,
        registry,
        number,
        Cache(cluster, spec).snapshot(shrunk),
        volumes or NoVolumes(),
        trace or NoTrace(),
    )
    held.run_actions()
    return held.outcome(held.closing())


class SessionRun:
    """A session under way."""

    def __init__(
        self,
        cluster: ClusterState,
        spec: SessionSpec,
        registry: SessionRegistry,
        number: int,
        snapshot: Snapshot,
        volumes: VolumeClaims,
        trace: SessionTrace,
    ) -> None:
        self._spec = spec
        self._number = number
        self._snapshot = snapshot
        self._trace = trace
        self._actions = [registry.action(name)() for name in spec.actions]
        self._tallies: list[ActionTally] = []
        corrections = corrections_of(spec.compatibility)
        real_places = Correction.REAL_PLACES in corrections
        stage = SessionStage(cluster) if real_places else None
        seen = cluster if stage is None else stage
        books = SessionChanges(
            snapshot.jobs,
            snapshot.nodes,
            stage,
            volumes,
            trace,
            forgets_node=spec.compatibility is not Compatibility.KUBE_BATCH,
        )
        handle = SessionHandle(cluster, seen, spec.scheduler_name)
        self.session = OpenSession(spec, number, handle, seen.nodes, snapshot, books, trace)
        self.session.tiers = Tiers(_seats(spec, registry), corrections)
        self._invalid: dict[str, tuple[Job, Invalid]] = {}
        if self.session.corrects(Correction.DROP_INVALID_JOBS):
            self._drop_invalid_jobs()
        for plugin in self.session.tiers.plugins:
            plugin.on_open(self.session)
        books.handlers = self.session.tiers.event_handlers

    def _drop_invalid_jobs(self) -> None:
        for job in [*self.session.jobs.values()]:
            invalid = self.session.tiers.job_valid(job)
            if invalid is not None:
                self._invalid[job.id] = (job, invalid)
                self.session.drop_job(job.id)

    def run_actions(self) -> None:
        for action in self._actions:
            self.session.books.tally = Counter()
            self._trace.begin_action(action.name)
            action.execute(self.session)
            done = self.session.books.tally
            self._tallies.append(
                ActionTally(
                    action.name,
                    tasks=done["tasks"],
                    allocated=done[TaskStatus.ALLOCATED.value],
                    pipelined=done[TaskStatus.PIPELINED.value],
                    bound=done["bound"],
                    evicted=done["evicted"],
                    discarded=done["discarded"],
                )
            )

    def closing(self) -> SessionClosing:
        """What the plugins have to say, now that the actions have run."""
        transition_id = session_id(self._spec.scheduler_name, self._number)
        closing = SessionClosing(self.session, transition_id, self._snapshot.groups, self._invalid)
        for plugin in self.session.tiers.closing:
            plugin.on_close(closing)
        return closing

    def outcome(self, closing: SessionClosing) -> SessionOutcome:
        books = self.session.books
        return SessionOutcome(
            number=self._number,
            binds=tuple(books.binds),
            evictions=tuple(books.evictions),
            pipelined=closing.pipelined(),
            groups=closing.group_outcomes(),
            unschedulable=closing.unschedulable_pods(),
            events=closing.events(),
            ignored_jobs=tuple(
                IgnoredJob(job, reason) for job, reason in self._snapshot.ignored_jobs.items()
            ),
            actions=tuple(self._tallies),
            plugins=_plugin_tallies(self.session.tiers),
        )


def _seats(spec: SessionSpec, registry: SessionRegistry) -> list[list[TierPlugin]]:
    """One instance of each plugin, made with the arguments it is given last. kube-batch passes over
    names that nobody offers."""
    instances: dict[str, SessionPlugin] = {}
    known = set(registry.plugin_names)
    lenient = spec.compatibility is Compatibility.KUBE_BATCH
    tiers = [
        [option for option in tier if option.name in known or not lenient] for tier in spec.tiers
    ]
    for tier in tiers:
        for option in tier:
            instances[option.name] = registry.plugin(option.name)(option.arguments)
    return [
        [TierPlugin(instances[option.name], frozenset(option.disabled)) for option in tier]
        for tier in tiers
    ]


def _plugin_tallies(tiers: Tiers) -> tuple[PluginTally, ...]:
    return tuple(
        PluginTally(
            plugin.name,
            {point: count for (name, point), count in tiers.calls.items() if name == plugin.name},
            {
                point: count
                for (name, point), count in tiers.refusals.items()
                if name == plugin.name
            },
        )
        for plugin in tiers.plugins
    )
