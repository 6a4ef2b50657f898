"""What the daemon does to the cluster, once the decision for it is durable."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from typing import NamedTuple

import structlog
from anyio.abc import TaskGroup

from asched.daemon.asking import Asking
from asched.daemon.binding import binding_cycle, plain_binding
from asched.daemon.earlier_term import EarlierTerm
from asched.daemon.inbox import Inbox
from asched.daemon.lanes import Lanes
from asched.daemon.metrics import Metrics
from asched.daemon.outside.plugins import OutsidePlugins
from asched.daemon.patient_binder import PatientBinder
from asched.daemon.pauses import Pauses
from asched.daemon.plugin_client import Ending
from asched.daemon.plugin_work import PluginWork
from asched.daemon.session_effects import SessionEffects
from asched.daemon.telemetry.scheduling_metrics import AttemptResult
from asched.daemon.telemetry.stopwatch import CycleStopwatch
from asched.framework.interface import Eviction, Victim
from asched.framework.pod_info import PodInfo, QueuedPod
from asched.framework.profile import Profile
from asched.framework.status import REJECTIONS, Code
from asched.framework.volumes import mounts_claims
from asched.kube.events import EventRecorder
from asched.kube.extenders import HttpExtender
from asched.kube.group_writer import GroupWriter
from asched.kube.timing import Backoff, Clock
from asched.kube.volume_writers import VolumeWriter
from asched.kube.writers import (
    BoundElsewhere,
    Done,
    PodRef,
    PodWriter,
    Reason,
    Refused,
    Unknown,
)
from asched.model.node import Node
from asched.model.pod import DEFAULT_SCHEDULER_NAME, POD_SCHEDULED
from asched.state.cluster import ClusterState, PodEntry, PodPhase
from asched.state.records import (
    Assigned,
    AttemptFailed,
    BindFailed,
    Bound,
    Decision,
    EvictionFailed,
    ExtenderAsked,
    PermitAllowed,
    PermitRejected,
    Rejected,
    VictimEvicted,
)
from asched.state.session_records import EvictionDecided, PodGroupDecided, SessionHeld

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

BackoffFactory = Callable[[], Backoff]


class _Told(NamedTuple):
    """The condition we last wrote for a pod."""

    uid: str
    message: str
    reason: Reason
    nominated_node: str
    since: datetime | None
    """When the pod began to be unscheduled; None where it was before we came, as it says itself."""


class Effects:
    """Carries out decisions. Outcomes come back as records in the inbox."""

    def __init__(
        self,
        cluster: ClusterState,
        writer: PodWriter,
        volumes: VolumeWriter,
        groups: GroupWriter,
        events: EventRecorder | None,
        tasks: TaskGroup,
        inbox: Inbox,
        clock: Clock,
        backoff: BackoffFactory,
        metrics: Metrics,
        plugins: OutsidePlugins,
        extenders: Sequence[HttpExtender] = (),
        stopwatch: CycleStopwatch | None = None,
    ) -> None:
        """``events`` None posts none; ``backoff`` paces the retries of one effect. ``extenders`` are
        those of the recorded configuration, in its order; ``plugins`` asks those of its plugins that
        are not asked as part of a decision. ``stopwatch`` takes the time of some binding cycles."""
        self._stopwatch = stopwatch
        self._cluster = cluster
        self._writer = writer
        self._volumes = volumes
        self._events = events
        self._lanes = Lanes(tasks, inbox.wake)
        self._report = inbox.put_outcome
        self._clock = clock
        self._backoff = backoff
        self._metrics = metrics
        self._pauses = Pauses(clock)
        self._sessions = SessionEffects(
            cluster, groups, events, self._lanes, inbox, self._pauses, clock, backoff
        )
        self._earlier_term = EarlierTerm(
            cluster, writer, self._lanes, self._pauses, self._report, backoff
        )
        self._extenders = extenders
        self._asking = Asking(cluster, extenders, tasks, inbox.put_outcome, plugins)
        self.limits = plugins.limits
        self._bound_outside = 0
        """Bindings under way that wait for an extender, or for a plugin that may take long."""
        self._work: dict[str, PluginWork] = {}
        """What plugins do for bindings under way, by the pod's uid: lanes are by uid as well, so the
        binding of a pod that is gone may not have ended when that of its namesake begins."""
        self._told: dict[str, _Told] = {}
        """By the pod's key. Left out again when the pod is bound or gone."""
        self._taken: set[str] = set()
        """Uids of pods that somebody else bound, until the failed binding is in the journal."""
        self._deposed = False
        """Whether leadership was lost: this process does not lead again."""

    @property
    def under_way(self) -> int:
        """Pods with effects that have not ended."""
        return len(self._lanes)

    @property
    def load(self) -> int:
        """As :attr:`under_way`, without those that wait for an extender to bind their pod, or for a
        plugin: a slow one must not keep us from deciding for pods that it has no part in."""
        return len(self._lanes) - self._bound_outside

    def release(self, decision: Decision) -> None:
        """Begin the effects of a decision that was just folded and is in the journal."""
        if isinstance(decision, SessionHeld):
            if decision.error:
                log.error("a session came to nothing", scheduler=decision.scheduler_name,
                          number=decision.number, error=decision.error)  # fmt: skip
            return
        if isinstance(decision, PodGroupDecided):
            self._sessions.group_decided(decision)
            return
        entry = self._cluster.entry(decision.key, decision.uid)
        if entry is None:
            return  # gone in the very turn that decided it
        match decision:
            case Assigned() | PermitAllowed():
                self._bind_if_due(entry)
            case Rejected():
                self._tell(entry.info, decision.message, "Unschedulable", decision.nominated_node)
                for displaced in decision.displaced:
                    self._clear_nomination(displaced)
                for victim in decision.victims:
                    self._evict(self._cluster.evictions[victim.uid])
            case EvictionDecided():
                self._evict(self._cluster.evictions[decision.uid])
            case ExtenderAsked():
                self._asking.ask(decision, entry.info)
            case AttemptFailed():
                self._tell(entry.info, decision.message, "SchedulerError", None)
            case PermitRejected():
                if self._is_served(entry.info.pod.spec.scheduler_name):
                    self._tell(entry.info, decision.message, "Unschedulable", None)

    def ask_others(self, extenders: Sequence[HttpExtender]) -> None:
        """From now on these are the extenders, of a configuration that was just folded. Bindings that
        the ones before them carry out go on."""
        self._extenders = extenders
        self._asking.ask_others(extenders)

    def binding_failed(self, failure: BindFailed) -> None:
        """A binding ended without success, as a folded record says: tell the pod's owner."""
        if failure.uid in self._taken:
            self._taken.remove(failure.uid)
            return
        entry = self._cluster.entry(failure.key, failure.uid)
        if entry is not None and self._is_served(entry.info.pod.spec.scheduler_name):
            rejected = failure.code in REJECTIONS
            reason: Reason = "Unschedulable" if rejected else "SchedulerError"
            self._tell(entry.info, failure.message, reason, None)

    def resume(self) -> None:
        """After a start: take up what was decided before and not known to be done."""
        for entry in self._cluster.pods.values():
            self._bind_if_due(entry)
        for eviction in self._cluster.evictions.values():
            self._evict(eviction)
        self._sessions.resume()
        if self._lanes:
            log.info("effects decided before the start", effects=len(self._lanes))

    def disown(self) -> None:
        """After the start of a standby: what an earlier term of ours decided and is not known to be
        done is not done any more, because whoever led since may have given the room away."""
        self._taken |= self._earlier_term.give_up()

    def forget(self, key: str, uid: str) -> None:
        """That pod is gone; another one of the same name is none of this."""
        self._forget_told(key, uid)
        work = self._work.get(uid)
        if work is not None:
            work.end(Ending.POD_GONE)

    def stop(self) -> None:
        """Let what is under way end, but try nothing again. What plugins do is cancelled: the next
        start asks them again."""
        self._end(Ending.STOPPING)
        self._lanes.close()

    def depose(self) -> None:
        """Leadership was lost: what plugins do is cancelled at once, however long the last word takes,
        and no binding begins any more. Somebody else decides about those pods by now."""
        self._deposed = True
        self._end(Ending.LEADERSHIP_LOST)

    def _end(self, why: Ending) -> None:
        self._pauses.end()
        for work in self._work.values():
            work.end(why)

    # -- bindings -----------------------------------------------------------------------------

    def _bind_if_due(self, entry: PodEntry) -> None:
        if entry.phase is PodPhase.ASSUMED and entry.info.key not in self._cluster.waiting:
            queued = self._cluster.queue.known(entry.info.key)
            bind = partial(
                self._run_binding, entry.info, entry.node, queued, self._clock.monotonic_s()
            )
            self._lanes.submit(entry.info.uid, "bind", bind)

    async def _run_binding(
        self, info: PodInfo, node_name: str, queued: QueuedPod | None, decided_at_s: float
    ) -> None:
        """``queued`` is what the queue knew of the pod; None for one that a session placed."""
        if self._deposed:
            return
        name = info.pod.spec.scheduler_name
        profile = self._cluster.profiles.get(name)
        if profile is not None:
            profile = self._cluster.circuits.in_force(profile)
        # Both can only be missing for what was decided before a restart, or has waited in its lane.
        if not self._is_served(name) or not self._node_exists(node_name):
            missing = f"node {node_name}" if self._is_served(name) else f"profile {name}"
            why = f"{missing} is gone since the pod was assigned"
            self._report(BindFailed(info.key, info.uid, node_name, Code.ERROR, "", why))
            return
        binder = PatientBinder(
            self._writer, self._volumes, self._pauses, self._clock, self._backoff(),
            self._node_exists,
        )  # fmt: skip
        watch = None
        if queued is not None and self._stopwatch is not None:
            watch = self._stopwatch.binding(info, queued.attempts)
        work = PluginWork(self.limits, self._wait_outside, watch)
        outcome = await self._bind(profile, binder, info, node_name, work)
        if watch is not None:
            watch.end()
        if outcome is None:
            return
        result = AttemptResult.SCHEDULED
        if isinstance(outcome, BindFailed):
            result = AttemptResult.ERROR
            log.warning(
                "binding failed", pod=info.key, node=node_name, plugin=outcome.plugin,
                error=outcome.message,
            )  # fmt: skip
            if isinstance(binder.fate, BoundElsewhere):
                self._taken.add(info.uid)
        else:
            self._forget_told(info.key, info.uid)
            if self._events is not None:
                self._events.scheduled(_ref(info), node_name)
            if queued is not None and queued.entered_at_ns is not None:
                waited_s = self._clock.utc().timestamp() - queued.entered_at_ns / 1e9
                self._metrics.scheduling.scheduled(queued.attempts, waited_s)
        self._metrics.scheduling.attempt_ended(
            result, name, self._clock.monotonic_s() - decided_at_s
        )
        self._report(outcome)

    async def _bind(
        self,
        profile: Profile | None,
        binder: PatientBinder,
        info: PodInfo,
        node_name: str,
        work: PluginWork,
    ) -> Bound | BindFailed | None:
        """How the binding ended; None if it was abandoned."""
        if profile is None and mounts_claims(info.pod):
            # What a session set aside for it is bound first.
            profile = self._cluster.binding_profile(info.pod.spec.scheduler_name)
        if profile is None:
            return await plain_binding(binder, info, node_name)
        binders = self._binders(info)
        self._wait_outside(bool(binders))
        self._work[info.uid] = work
        try:
            return await binding_cycle(profile, binder, info, node_name, binders, work)
        finally:
            self._wait_outside(-bool(binders))
            del self._work[info.uid]

    def _wait_outside(self, pods: int) -> None:
        self._bound_outside += pods

    def _is_served(self, scheduler_name: str) -> bool:
        cluster = self._cluster
        return scheduler_name in cluster.profiles or scheduler_name in cluster.sessions

    def _binders(self, info: PodInfo) -> list[HttpExtender]:
        """The extenders that are to bind the pod in place of Bind plugins."""
        return [
            extender
            for spec, extender in zip(self._cluster.extenders, self._extenders, strict=True)
            if spec.bind_verb and spec.is_interested_in(info)
        ]

    def _node_exists(self, name: str) -> bool:
        return name in self._cluster.objects(Node)

    # -- conditions ---------------------------------------------------------------------------

    def _tell(self, info: PodInfo, message: str, reason: Reason, nominated: str | None) -> None:
        """Say on the pod itself why it is not scheduled, unless it says just that already."""
        if self._events is not None:
            self._events.failed_scheduling(_ref(info), message)
        known = self._told.get(info.key)
        if known is not None and known.uid != info.uid:
            known = None
        node = nominated if nominated is not None else (known.nominated_node if known else "")
        since = known.since if known else self._unscheduled_since(info)
        told = _Told(info.uid, message, reason, node, since)
        if told == known:
            return
        self._told[info.key] = told
        self._lanes.submit(info.uid, "tell", partial(self._patch, info, told, nominated))

    def _unscheduled_since(self, info: PodInfo) -> datetime | None:
        known = [c.status for c in info.pod.status.conditions if c.type == POD_SCHEDULED]
        return None if known == ["False"] else self._clock.utc()

    async def _patch(self, info: PodInfo, told: _Told, nominated: str | None) -> None:
        entry = self._cluster.entry(info.key, info.uid)
        if entry is None or entry.phase is not PodPhase.PENDING:
            self._unsay(info.key, told)  # a node was found meanwhile, or the pod went
            return
        outcome = await self._writer.patch_unschedulable(
            _ref(info),
            message=told.message,
            reason=told.reason,
            last_transition=told.since,
            nominated_node=nominated,
        )
        if not isinstance(outcome, Done):
            self._unsay(info.key, told)
        if isinstance(outcome, Refused | Unknown):
            log.warning("condition not written", pod=info.key, error=outcome.message)

    def _unsay(self, key: str, told: _Told) -> None:
        """It was not said after all, so the next attempt is to say it again."""
        if self._told.get(key) is told:
            del self._told[key]

    def _forget_told(self, key: str, uid: str) -> None:
        known = self._told.get(key)
        if known is not None and known.uid == uid:
            del self._told[key]

    def _clear_nomination(self, displaced: Victim) -> None:
        self._forget_told(displaced.key, displaced.uid)
        ref = PodRef.of(displaced.key, displaced.uid)
        self._lanes.submit(displaced.uid, "clear nomination", partial(self._run_clearing, ref))

    async def _run_clearing(self, ref: PodRef) -> None:
        outcome = await self._writer.nominate(ref, "")
        if isinstance(outcome, Refused | Unknown):
            log.warning("nomination not cleared", pod=ref.key, error=outcome.message)

    # -- evictions ----------------------------------------------------------------------------

    def _evict(self, eviction: Eviction) -> None:
        self._lanes.submit(eviction.victim.uid, "evict", partial(self._run_eviction, eviction))

    async def _run_eviction(self, eviction: Eviction) -> None:
        victim, preemptor = eviction.victim, eviction.preemptor
        ref = PodRef.of(victim.key, victim.uid)
        by_entry = self._cluster.entry(preemptor.key, preemptor.uid)
        by_whom = (
            by_entry.info.pod.spec.scheduler_name
            if by_entry is not None
            else DEFAULT_SCHEDULER_NAME
        )
        entry = self._cluster.entry(victim.key, victim.uid)
        group = None
        if eviction.reason and entry is not None:
            group = self._sessions.victim_of(entry.info.pod)
        outcome = await self._writer.evict(ref, now=self._clock.utc(), scheduler_name=by_whom)
        if isinstance(outcome, Done):
            self._sessions.evicted(group, eviction.reason)
            if self._events is not None:
                by = PodRef.of(preemptor.key, preemptor.uid)
                self._events.preempted(ref, by, eviction.node)
            self._report(VictimEvicted(victim.key, victim.uid))
            return
        log.warning("eviction failed", pod=victim.key, error=outcome.message)
        self._report(EvictionFailed(victim.key, victim.uid, outcome.message))


def _ref(info: PodInfo) -> PodRef:
    return PodRef(info.namespace, info.name, info.uid)
