"""Turns due batch sessions into decision records; pure and synchronous.

A session becomes a ``SessionExecuted`` record, followed by bindings, evictions, and changed
messages and statuses of pods and PodGroups. A session that changes nothing is one short record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache

from asched.batch.registry import SessionRegistry, SessionRegistryError
from asched.batch.session import run_session
from asched.batch.session_volumes import SessionVolumes
from asched.framework.cluster import PodRef
from asched.framework.pod_groups import POD_GROUP_SCHEDULED, AnyPodGroup, PodGroupKey, find_group
from asched.framework.runtime.observation import describe_raised
from asched.framework.sessions import (
    ActionCounts,
    PodGroupOutcome,
    PodGroupPhase,
    SessionEventType,
    SessionOutcome,
    session_id,
)
from asched.model.groups import CustomPodGroup
from asched.model.limits import too_expensive
from asched.state.cluster import ClusterState
from asched.state.records import Assigned, Decision, Rejected, Reservation
from asched.state.session_records import (
    DecidedGroupCondition,
    EvictionDecided,
    PodGroupStatusDecided,
    SessionExecuted,
)
from asched.state.sessions import SessionProfile, same_status, status_matches


class SessionDecider:
    """Runs due sessions, one per call."""

    def __init__(self, cluster: ClusterState, registry: Callable[[], SessionRegistry]) -> None:
        """``registry`` is called for the first session."""
        self._cluster = cluster
        self._registry = cache(registry)
        self.last: SessionOutcome | None = None
        """The outcome of the last session, for metrics."""

    def next(self) -> tuple[Decision, ...]:
        """The decisions of the next due session, or nothing. The caller folds them before the next
        call."""
        now_ns = self._cluster.now_ns
        for profile in self._cluster.sessions:
            due_ns = profile.due_ns()
            if due_ns is not None and due_ns <= now_ns:
                return self._run(profile)
        return ()

    def _run(self, profile: SessionProfile) -> tuple[Decision, ...]:
        spec, number = profile.spec, profile.number + 1
        registry = self._registry()
        volumes = SessionVolumes(self._cluster, spec.scheduler_name)
        try:
            outcome = run_session(self._cluster, spec, registry, number, volumes)
            reservations = volumes.reservations
        except AssertionError:
            raise  # an invariant of the scheduler itself is broken
        except SessionRegistryError as error:
            return (SessionExecuted(spec.scheduler_name, number, error=str(error)),)
        except Exception as error:  # noqa: BLE001  a plugin error fails only its session
            message = " ".join(describe_raised(spec.scheduler_name, "Session", error).split())
            return (SessionExecuted(spec.scheduler_name, number, error=message),)
        finally:
            volumes.undo()
        self.last = outcome
        decisions = decisions_of(self._cluster, spec.scheduler_name, outcome, reservations)
        return (*decisions, *self._refusals(profile, number))

    def _refusals(self, profile: SessionProfile, number: int) -> Iterator[Rejected]:
        """Rejections of waiting pods above a limit, which are no tasks of the session."""
        for key in profile.pending:
            entry = self._cluster.pods[key]
            excess = entry.info.pod.spec.oversized
            if excess:
                message = too_expensive(excess)
                if entry.rejection != message:
                    yield Rejected(key, entry.info.uid, number, message, session=number)


Reservations = Mapping[tuple[str, str], tuple[Reservation, ...]]
"""Volume reservations by pod uid and node."""


def decisions_of(
    cluster: ClusterState,
    scheduler_name: str,
    outcome: SessionOutcome,
    reservations: Reservations,
) -> Iterator[Decision]:
    """The records for what the outcome changes."""
    number = outcome.number
    yield SessionExecuted(
        scheduler_name,
        number,
        tuple(counts for counts in outcome.actions if counts != ActionCounts(counts.action)),
        outcome.ignored_jobs,
    )
    for bind in outcome.binds:
        yield Assigned(
            bind.pod,
            bind.uid,
            bind.node,
            number,
            feasible_nodes=0,
            reservations=reservations.get((bind.uid, bind.node), ()),
            session=number,
        )
    for eviction in outcome.evictions:
        yield EvictionDecided(
            key=eviction.pod,
            uid=eviction.uid,
            node=eviction.node,
            session=number,
            reason=eviction.reason,
            preemptor=PodRef(eviction.preemptor, eviction.preemptor_uid),
            scheduler_name=scheduler_name,
        )
    for pod in outcome.unschedulable:
        entry = cluster.entry(pod.pod, pod.uid)
        if entry is not None and entry.rejection != pod.message:
            yield Rejected(pod.pod, pod.uid, number, pod.message, session=number)
    yield from _group_decisions(cluster, scheduler_name, outcome)


def _group_decisions(
    cluster: ClusterState, scheduler_name: str, outcome: SessionOutcome
) -> Iterator[PodGroupStatusDecided]:
    events = {
        event.key: event.message
        for event in outcome.events
        if event.kind == "PodGroup" and event.type is SessionEventType.WARNING
    }
    for status in outcome.groups:
        group = find_group(cluster, PodGroupKey(status.group, status.native))
        if group is None:
            continue
        decision = PodGroupStatusDecided(
            kind=type(group).__name__,
            group=status.group,
            uid=group.uid,
            session=outcome.number,
            phase=status.phase,
            running=status.running,
            succeeded=status.succeeded,
            failed=status.failed,
            conditions=_conditions(group, status, session_id(scheduler_name, outcome.number)),
            event=events.get(status.group, ""),
            scheduler_name=scheduler_name,
        )
        if not _is_current(cluster, group, decision):
            yield decision


def _is_current(cluster: ClusterState, group: AnyPodGroup, decision: PodGroupStatusDecided) -> bool:
    """Whether the PodGroup has that status, or a pending write sets it."""
    write = cluster.sessions.writes.get((decision.kind, decision.group))
    if write is not None and write.decision.uid == decision.uid:
        return same_status(write.decision, decision)
    return status_matches(group, decision)


def _conditions(
    group: AnyPodGroup, outcome: PodGroupOutcome, transition_id: str
) -> tuple[DecidedGroupCondition, ...]:
    if isinstance(group, CustomPodGroup):
        return tuple(
            DecidedGroupCondition(c.type, c.status, c.reason, c.message, c.transition_id)
            for c in outcome.conditions
        )
    # A scheduling.k8s.io PodGroup has one condition: whether the gang is scheduled.
    before = tuple(
        DecidedGroupCondition(c.type, c.status, c.reason, c.message)
        for c in group.status.conditions
    )
    if any(c.type == POD_GROUP_SCHEDULED and c.status == "True" for c in before):
        return before
    unschedulable = [c for c in outcome.conditions if c.transition_id == transition_id]
    if unschedulable:
        scheduled = DecidedGroupCondition(
            POD_GROUP_SCHEDULED, "False", "Unschedulable", unschedulable[0].message, transition_id
        )
    elif outcome.phase is PodGroupPhase.RUNNING:
        scheduled = DecidedGroupCondition(
            POD_GROUP_SCHEDULED, "True", "Scheduled", transition_id=transition_id
        )
    else:
        return before
    return (*(c for c in before if c.type != POD_GROUP_SCHEDULED), scheduled)
