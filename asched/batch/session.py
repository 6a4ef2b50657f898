"""Runs one session: opens it, executes its actions, and collects what it leaves to write."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from asched.batch.corrections import Correction, corrections_of
from asched.batch.open_session import OpenSession
from asched.batch.registry import SessionRegistry
from asched.batch.session_volumes import VolumeClaims
from asched.batch.snapshot import Cache, Snapshot
from asched.batch.statement import SessionChanges
from asched.batch.tiers import TierPlugin, Tiers
from asched.batch.trace import SessionTrace
from asched.framework.resource_vector import ResourceVector
from asched.framework.session_objects import Job, TaskStatus
from asched.framework.session_plugins import SessionPlugin, ValidateResult
from asched.framework.sessions import (
    ActionCounts,
    Compatibility,
    IgnoredJob,
    PluginCounts,
    PodGroupOutcome,
    PodGroupPhase,
    SessionBind,
    SessionEvent,
    SessionEventType,
    SessionOutcome,
    SessionPodGroupCondition,
    SessionSpec,
    UnschedulablePod,
    session_id,
)
from asched.model.groups import CustomPodGroup, PodGroup
from asched.state.cluster import ClusterState, ProfileHandle

UNSCHEDULABLE = "Unschedulable"
FAILED_SCHEDULING = "FailedScheduling"
EVICT = "Evict"
NO_NODES = "0 nodes are available"


def run_session(
    cluster: ClusterState,
    spec: SessionSpec,
    registry: SessionRegistry,
    number: int,
    volumes: VolumeClaims | None = None,
) -> SessionOutcome:
    """The outcome of a session on the present state, which does not change.

    Pseudo-random choices follow from ``number``, the session's, and the cluster's seed. Raises
    :class:`asched.batch.registry.SessionRegistryError` for an action or plugin that is missing.
    """
    run = SessionRun(cluster, spec, registry, number, volumes=volumes)
    run.run_actions()
    return run.outcome(run.closing())


class SessionRun:
    def __init__(
        self,
        cluster: ClusterState,
        spec: SessionSpec,
        registry: SessionRegistry,
        number: int,
        *,
        snapshot: Snapshot | None = None,
        volumes: VolumeClaims | None = None,
        trace: SessionTrace | None = None,
    ) -> None:
        self._spec = spec
        self._number = number
        self._snapshot = snapshot = snapshot or Cache(cluster, spec).snapshot()
        self._trace = trace = trace or SessionTrace()
        self._actions = [registry.action(name)() for name in spec.actions]
        self._tallies: list[ActionCounts] = []
        corrections = corrections_of(spec.compatibility)
        # Plugins see the session's placements in a copy.
        corrected = cluster.fork() if Correction.REAL_PLACES in corrections else None
        table = None if corrected is None else corrected.nodes
        changes = SessionChanges(
            snapshot.jobs, snapshot.nodes, table, volumes or VolumeClaims(), trace
        )
        self.session = OpenSession(
            spec,
            number,
            handle=ProfileHandle(corrected or cluster, spec.scheduler_name),
            snapshot=snapshot,
            changes=changes,
            tiers=Tiers(_tier_plugins(spec, registry), corrections),
            trace=trace,
        )
        self._invalid: dict[str, tuple[Job, ValidateResult]] = {}
        if self.session.corrects(Correction.DROP_INVALID_JOBS):
            self._drop_invalid_jobs()
        for plugin in self.session.tiers.plugins:
            plugin.on_open(self.session)
        changes.handlers = self.session.tiers.event_handlers

    def _drop_invalid_jobs(self) -> None:
        for job in [*self.session.jobs.values()]:
            invalid = self.session.tiers.job_valid(job)
            if invalid is not None:
                self._invalid[job.id] = (job, invalid)
                del self.session.jobs[job.id]

    def run_actions(self) -> None:
        for action in self._actions:
            counts = self.session.changes.counts = Counter()
            self._trace.begin_action(action.name)
            action.execute(self.session)
            self._tallies.append(
                ActionCounts(
                    action.name,
                    tasks=counts["tasks"],
                    allocated=counts[TaskStatus.ALLOCATED.value],
                    pipelined=counts[TaskStatus.PIPELINED.value],
                    bound=counts["bound"],
                    evicted=counts["evicted"],
                    discarded=counts["discarded"],
                )
            )

    def closing(self) -> SessionClosing:
        """Runs the plugins' ``on_close`` after the actions."""
        transition_id = session_id(self._spec.scheduler_name, self._number)
        closing = SessionClosing(self.session, transition_id, self._snapshot.groups, self._invalid)
        for plugin in self.session.tiers.closing:
            plugin.on_close(closing)
        return closing

    def outcome(self, closing: SessionClosing) -> SessionOutcome:
        changes = self.session.changes
        return SessionOutcome(
            number=self._number,
            binds=tuple(changes.binds),
            evictions=tuple(changes.evictions),
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


def _tier_plugins(spec: SessionSpec, registry: SessionRegistry) -> list[list[TierPlugin]]:
    """One instance of each plugin, with the arguments of its last occurrence. As kube-batch,
    compatibility mode skips unknown names."""
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


def _plugin_tallies(tiers: Tiers) -> tuple[PluginCounts, ...]:
    def by_point(counts: Counter[tuple[str, str]], plugin: str) -> dict[str, int]:
        return {point: count for (name, point), count in counts.items() if name == plugin}

    return tuple(
        PluginCounts(
            plugin.name, by_point(tiers.calls, plugin.name), by_point(tiers.rejections, plugin.name)
        )
        for plugin in tiers.plugins
    )


class SessionClosing:
    """A :class:`asched.framework.session_plugins.Closing`: collects the statuses of PodGroups, the
    conditions of pods, and Events."""

    def __init__(
        self,
        session: OpenSession,
        transition_id: str,
        groups: dict[str, PodGroup | CustomPodGroup],
        invalid: dict[str, tuple[Job, ValidateResult]],
    ) -> None:
        """``groups``: the real PodGroups by job. ``invalid``: the dropped jobs, with reasons."""
        self._session = session
        self._transition_id = transition_id
        self._groups = groups
        self._invalid = invalid
        self._conditions: dict[str, dict[str, SessionPodGroupCondition]] = {}
        for job, found in invalid.values():
            self.set_condition(job, UNSCHEDULABLE, found.reason, found.message)

    def set_condition(self, job: Job, condition_type: str, reason: str, message: str) -> None:
        condition = SessionPodGroupCondition(
            condition_type, "True", reason, message, self._transition_id
        )
        self._conditions.setdefault(job.id, {})[condition_type] = condition

    def fit_message(self, job: Job) -> str:
        waiting = job.waiting_count
        if waiting and job.pipelined and self._session.corrects(Correction.NODES_IN_MESSAGES):
            return f"resources are being released for {waiting} of its pods."
        error = self._session.fit_errors.get(job.id)
        if error is not None:
            return error
        deltas = self._session.fit_deltas.get(job.id)
        return _missing_resources(deltas) if deltas else NO_NODES

    def _jobs(self) -> Iterator[Job]:
        yield from self._session.jobs.values()
        for job, _ in self._invalid.values():
            yield job

    def group_outcomes(self) -> tuple[PodGroupOutcome, ...]:
        return tuple(self.outcome_of(job) for job in self._jobs() if job.id in self._groups)

    def outcome_of(self, job: Job) -> PodGroupOutcome:
        """The status of the job's real or shadow PodGroup."""
        group = self._groups.get(job.id)
        before = [
            SessionPodGroupCondition(old.type, old.status, old.reason, old.message)
            for old in (group.status.conditions if group is not None else ())
        ]
        new = self._conditions.get(job.id, {})
        kept = [new.get(old.type, old) for old in before]
        known = {old.type for old in before}
        conditions = (*kept, *(condition for kind, condition in new.items() if kind not in known))
        return PodGroupOutcome(
            job.group,
            self._phase(job),
            job.count(TaskStatus.RUNNING),
            job.count(TaskStatus.SUCCEEDED),
            job.count(TaskStatus.FAILED),
            conditions,
            native=isinstance(group, PodGroup),
        )

    def _phase(self, job: Job) -> PodGroupPhase:
        unschedulable = UNSCHEDULABLE in self._conditions.get(job.id, {})
        if unschedulable and job.count(TaskStatus.RUNNING):
            return PodGroupPhase.UNKNOWN
        running = job.allocated_count >= job.min_member
        return PodGroupPhase.RUNNING if running else PodGroupPhase.PENDING

    def unschedulable_pods(self) -> tuple[UnschedulablePod, ...]:
        return tuple(
            UnschedulablePod(task.key, task.uid, self._pod_message(job))
            for job in self._jobs()
            for status in (TaskStatus.ALLOCATED, TaskStatus.PENDING)
            for task in job.with_status(status)
        )

    def _pod_message(self, job: Job) -> str:
        invalid = self._invalid.get(job.id)
        return self.fit_message(job) if invalid is None else invalid[1].message

    def pipelined(self) -> tuple[SessionBind, ...]:
        return tuple(
            SessionBind(task.key, task.uid, task.node)
            for job in self._session.jobs.values()
            for task in job.with_status(TaskStatus.PIPELINED)
        )

    def events(self) -> tuple[SessionEvent, ...]:
        return (*self._eviction_events(), *self._group_events(), *self._pod_events())

    def _eviction_events(self) -> Iterator[SessionEvent]:
        jobs = {task.uid: job for job in self._session.jobs.values() for task in job.tasks.values()}
        for eviction in self._session.changes.evictions:
            job = jobs[eviction.uid]
            if job.group:
                yield SessionEvent(
                    "PodGroup", job.group, SessionEventType.NORMAL, EVICT, eviction.reason.value
                )

    def _group_events(self) -> Iterator[SessionEvent]:
        for job in self._jobs():
            if job.id not in self._groups or self._phase(job) is PodGroupPhase.RUNNING:
                continue
            message = (
                f"{job.count(TaskStatus.PENDING)}/{len(job.tasks)} tasks in gang unschedulable:"
                f" {self._pod_message(job)}"
            )
            yield SessionEvent(
                "PodGroup", job.group, SessionEventType.WARNING, UNSCHEDULABLE, message
            )

    def _pod_events(self) -> Iterator[SessionEvent]:
        for pod in self.unschedulable_pods():
            yield SessionEvent(
                "Pod", pod.pod, SessionEventType.WARNING, FAILED_SCHEDULING, pod.message, pod.uid
            )


def _missing_resources(deltas: dict[str, ResourceVector]) -> str:
    """kube-batch's message: how many nodes are short of each resource, sorted as text."""
    counts: Counter[str] = Counter(
        name for delta in deltas.values() for name, number in delta.amounts().items() if number < 0
    )
    reasons = sorted(f"{count} insufficient {name}" for name, count in counts.items())
    return f"0/{len(deltas)} nodes are available, {', '.join(reasons)}."
