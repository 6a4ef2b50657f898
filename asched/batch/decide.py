"""``decisions = decide(state)`` for the profiles that sessions serve: pure and synchronous.

A session that is due is held on the state as it is, and what comes of it becomes records: the session
itself first, then bindings, evictions, and what is new to be said of pods and PodGroups. What was
said before is not said again, so a session that changes nothing is one short record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from asched.batch.registry import SessionRegistry, SessionRegistryError
from asched.batch.session import hold_session
from asched.batch.session_volumes import SessionVolumes
from asched.framework.interface import Victim
from asched.framework.pod_groups import (
    POD_GROUP_SCHEDULED,
    AnyPodGroup,
    PodGroupKey,
    find_group,
)
from asched.framework.sessions import (
    ActionTally,
    PodGroupOutcome,
    PodGroupPhase,
    SessionEventType,
    SessionOutcome,
    session_id,
)
from asched.model.groups import CustomPodGroup
from asched.state.cluster import ClusterState
from asched.state.records import Assigned, Decision, Rejected, Reservation
from asched.state.session_records import (
    EvictionDecided,
    GroupCondition,
    PodGroupDecided,
    SessionHeld,
)
from asched.state.sessions import SessionProfile, same_status, says

RegistrySource = Callable[[], SessionRegistry]


class SessionDecider:
    """Holds the sessions that are due, one a call."""

    def __init__(self, cluster: ClusterState, registry: RegistrySource) -> None:
        """``registry`` is asked when the first session is held."""
        self._cluster = cluster
        self._source = registry
        self._registry: SessionRegistry | None = None
        self.last: SessionOutcome | None = None
        """What the last session that was held here came to. For metrics."""

    def next(self) -> tuple[Decision, ...]:
        """The decisions of the next session that is due; empty where none is. All are to be folded
        before the next call."""
        now_ns = self._cluster.now_ns
        for profile in self._cluster.sessions:
            due_ns = profile.due_ns()
            if due_ns is not None and due_ns <= now_ns:
                return self._hold(profile)
        return ()

    def _hold(self, profile: SessionProfile) -> tuple[Decision, ...]:
        spec, number = profile.spec, profile.number + 1
        if self._registry is None:
            self._registry = self._source()
        volumes = SessionVolumes(self._cluster, spec.scheduler_name)
        try:
            outcome = hold_session(self._cluster, spec, self._registry, number, volumes=volumes)
            reservations = volumes.reservations
        except AssertionError:
            raise  # our own: the state contradicts itself
        except SessionRegistryError as error:
            return (SessionHeld(spec.scheduler_name, number, error=str(error)),)
        except Exception as error:  # noqa: BLE001  a guest's bug costs its session and no more
            what = " ".join(f"{type(error).__name__}: {error}".split())
            return (SessionHeld(spec.scheduler_name, number, error=what),)
        finally:
            volumes.undo()
        self.last = outcome
        return tuple(decisions_of(self._cluster, spec.scheduler_name, outcome, reservations))


Reservations = Mapping[tuple[str, str], tuple[Reservation, ...]]
"""What was set aside for pods, by uid and node."""


def decisions_of(
    cluster: ClusterState,
    scheduler_name: str,
    outcome: SessionOutcome,
    reservations: Reservations,
) -> Iterator[Decision]:
    """What is new in the outcome, as records."""
    number = outcome.number
    yield SessionHeld(
        scheduler_name,
        number,
        tuple(tally for tally in outcome.actions if tally != ActionTally(tally.action)),
        outcome.ignored_jobs,
    )
    for bind in outcome.binds:
        yield Assigned(
            bind.pod,
            bind.uid,
            bind.node,
            number,
            feasible=0,
            reservations=reservations.get((bind.uid, bind.node), ()),
            session=number,
        )
    for eviction in outcome.evictions:
        yield EvictionDecided(
            eviction.pod,
            eviction.uid,
            eviction.node,
            number,
            eviction.reason,
            Victim(eviction.preemptor, eviction.preemptor_uid),
            scheduler_name,
        )
    for pod in outcome.unschedulable:
        entry = cluster.entry(pod.pod, pod.uid)
        if entry is not None and entry.rejection != pod.message:
            yield Rejected(pod.pod, pod.uid, number, pod.message, session=number)
    yield from _group_decisions(cluster, scheduler_name, outcome)


def _group_decisions(
    cluster: ClusterState, scheduler_name: str, outcome: SessionOutcome
) -> Iterator[PodGroupDecided]:
    events = {
        event.key: event.message
        for event in outcome.events
        if event.kind == "PodGroup" and event.type is SessionEventType.WARNING
    }
    for found in outcome.groups:
        group = find_group(cluster, PodGroupKey(found.group, found.native))
        if group is None:
            continue
        conditions = _conditions(group, found, session_id(scheduler_name, outcome.number))
        decision = PodGroupDecided(
            type(group).__name__,
            found.group,
            group.uid,
            outcome.number,
            found.phase,
            found.running,
            found.succeeded,
            found.failed,
            conditions,
            events.get(found.group, ""),
            scheduler_name,
        )
        if not _is_said(cluster, group, decision):
            yield decision


def _is_said(cluster: ClusterState, group: AnyPodGroup, decision: PodGroupDecided) -> bool:
    """Whether the PodGroup says so already, or it was decided before."""
    write = cluster.sessions.writes.get((decision.kind, decision.group))
    if write is not None and write.decision.uid == decision.uid:
        return same_status(write.decision, decision)
    return says(group, decision)


def _conditions(
    group: AnyPodGroup, found: PodGroupOutcome, transition_id: str
) -> tuple[GroupCondition, ...]:
    if isinstance(group, CustomPodGroup):
        return tuple(
            GroupCondition(c.type, c.status, c.reason, c.message, c.transition_id)
            for c in found.conditions
        )
    # Kubernetes' own have one condition, which says whether the gang has its places.
    kept = tuple(
        GroupCondition(c.type, c.status, c.reason, c.message)
        for c in group.status.conditions
        if c.type != POD_GROUP_SCHEDULED
    )
    lacking = [c for c in found.conditions if c.transition_id == transition_id]
    if lacking:
        scheduled = GroupCondition(
            POD_GROUP_SCHEDULED, "False", "Unschedulable", lacking[0].message, transition_id
        )
        return (*kept, scheduled)
    if found.phase is PodGroupPhase.RUNNING:
        scheduled = GroupCondition(
            POD_GROUP_SCHEDULED, "True", "Scheduled", transition_id=transition_id
        )
        return (*kept, scheduled)
    return tuple(
        GroupCondition(c.type, c.status, c.reason, c.message) for c in group.status.conditions
    )
