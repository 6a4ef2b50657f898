"""What the daemon does to the cluster, once the decision for it is durable."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from typing import NamedTuple

import structlog
from anyio.abc import TaskGroup

from asched.daemon.effects.bindings import Bindings, is_served
from asched.daemon.effects.evaluation import ExternalCalls
from asched.daemon.effects.groups import SessionEffects
from asched.daemon.effects.queue import EffectContext, PerPodQueue
from asched.daemon.effects.stale_terms import StaleTermCleanup
from asched.daemon.engine.inbox import Inbox
from asched.daemon.engine.runtime import StoppableSleep
from asched.daemon.plugin_host.binding_client import CancelReason
from asched.daemon.plugin_host.evaluator import ExternalPlugins
from asched.daemon.telemetry.metrics import Metrics
from asched.daemon.telemetry.stopwatch import CycleStopwatch
from asched.framework.interface import Eviction
from asched.framework.pod_info import PodInfo
from asched.framework.status import REJECTIONS
from asched.kube.client import ApiClient
from asched.kube.events import EventRecorder
from asched.kube.extenders import HttpExtender
from asched.kube.group_writer import GroupWriter
from asched.kube.timing import Backoff
from asched.kube.writers import (
    OutcomeUnknown,
    PodRef,
    PodWriter,
    Reason,
    WriteRejected,
    WriteSucceeded,
)
from asched.model.pod import DEFAULT_SCHEDULER_NAME, POD_SCHEDULED
from asched.state.cluster import ClusterState, PodPhase
from asched.state.records import (
    Assigned,
    AttemptFailed,
    BindFailed,
    Decision,
    EvictionFailed,
    ExtenderCallRequested,
    PermitAllowed,
    PermitRejected,
    Rejected,
    EvictionSucceeded,
)
from asched.state.session_records import EvictionDecided, PodGroupStatusDecided, SessionExecuted

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

BackoffFactory = Callable[[], Backoff]


class _Told(NamedTuple):
    """What we last said on a pod, or are about to say."""

    uid: str
    message: str
    reason: Reason
    nominated_node: str
    """What the API server says once it has heard us, unless somebody else has a say."""
    since: datetime | None
    """When the pod began to be unscheduled; None where it was before we came, as it says itself."""
    written: bool = False


class EffectDispatcher:
    """Carries out decisions. Outcomes come back as records in the inbox."""

    def __init__(
        self,
        cluster: ClusterState,
        client: ApiClient,
        events: EventRecorder | None,
        tasks: TaskGroup,
        inbox: Inbox,
        backoff: BackoffFactory,
        metrics: Metrics,
        plugins: ExternalPlugins,
        extenders: Sequence[HttpExtender] = (),
        stopwatch: CycleStopwatch | None = None,
    ) -> None:
        """``client`` is what they are written through; ``events`` None posts none; ``backoff`` paces
        the retries of one effect. ``extenders`` are those of the recorded configuration, in its order;
        ``plugins`` asks those of its plugins that are not asked as part of a decision. ``stopwatch``
        takes the time of some binding cycles."""
        self._cluster = cluster
        self._writer = PodWriter(client)
        self._events = events
        self._lanes = PerPodQueue(tasks, inbox.wake)
        self._report = inbox.put_outcome
        self._clock = client.clock
        self._pauses = StoppableSleep(client.clock)
        context = EffectContext(
            cluster, self._lanes, self._pauses, backoff, self._report, client.clock
        )
        self._sessions = SessionEffects(context, GroupWriter(client), events)
        self._bindings = Bindings(
            context, client, self._bound, metrics.scheduling, plugins.limits, extenders, stopwatch
        )
        self._earlier_term = StaleTermCleanup(context, self._bindings.binder)
        self._asking = ExternalCalls(cluster, extenders, tasks, inbox.put_outcome, plugins)
        self.limits = plugins.limits
        self._told: dict[str, _Told] = {}
        """By the pod's key. Left out again when the pod is bound or gone."""
        self._nominations: dict[str, str] = {}
        """By the pod's uid: the nomination, or its end where it is empty, that the next PATCH in the
        pod's lane carries. A later word on the condition replaces an earlier one, but not this."""

    @property
    def in_flight(self) -> int:
        """Pods with effects that have not ended."""
        return len(self._lanes)

    @property
    def has_unresolved_bindings(self) -> bool:
        """Whether a binding was left by a stop that may still arrive."""
        return self._bindings.left_in_doubt

    @property
    def load(self) -> int:
        """As :attr:`in_flight`, without pods that an extender is to bind, or that wait for a plugin of
        the binding cycle: a slow one must not keep us from deciding for pods that it has no part in. Nor
        must bindings that merely keep their place until it is known whether they arrive.
        Never less than 0."""
        return len(self._lanes) - self._bindings.waiting_outside

    def dispatch(self, decision: Decision) -> None:
        """Begin the effects of a decision that was just folded and is in the journal."""
        if isinstance(decision, SessionExecuted):
            if decision.error:
                log.error("a session came to nothing", scheduler=decision.scheduler_name,
                          number=decision.number, error=decision.error)  # fmt: skip
            return
        if isinstance(decision, PodGroupStatusDecided):
            self._sessions.group_decided(decision)
            return
        entry = self._cluster.entry(decision.key, decision.uid)
        if entry is None:
            return  # gone in the very turn that decided it
        match decision:
            case Assigned():
                if self._nominations.get(decision.uid):
                    # Room was made on a node, and now it has one: nobody needs to hear of it.
                    self._forget_told(decision.key, decision.uid)
                self._bindings.begin_if_due(entry)
            case PermitAllowed():
                self._bindings.begin_if_due(entry)
            case Rejected():
                self._tell(entry.info, decision.message, "Unschedulable", decision.nominated_node)
                for displaced in decision.cleared_nominations:
                    self._nominate(displaced.key, displaced.uid, "")
                for victim in decision.victims:
                    self._evict(self._cluster.evictions[victim.uid])
            case EvictionDecided():
                self._evict(self._cluster.evictions[decision.uid])
            case ExtenderCallRequested():
                self._asking.ask(decision, entry.info)
            case AttemptFailed():
                self._tell(entry.info, decision.message, "SchedulerError", None)
            case PermitRejected():
                if is_served(self._cluster, entry.info.pod.spec.scheduler_name):
                    self._tell(entry.info, decision.message, "Unschedulable", None)

    def ask_others(self, extenders: Sequence[HttpExtender]) -> None:
        """From now on these are the extenders, of a configuration that was just folded. Bindings that
        the ones before them carry out go on."""
        self._bindings.extenders = extenders
        self._asking.ask_others(extenders)

    def binding_failed(self, failure: BindFailed) -> None:
        """A binding ended without success, as a folded record says: tell the pod's owner."""
        if failure.uid in self._bindings.taken:
            self._bindings.taken.remove(failure.uid)
            return
        entry = self._cluster.entry(failure.key, failure.uid)
        if entry is not None and is_served(self._cluster, entry.info.pod.spec.scheduler_name):
            rejected = failure.code in REJECTIONS
            reason: Reason = "Unschedulable" if rejected else "SchedulerError"
            self._tell(entry.info, failure.message, reason, None)

    def resume(self) -> None:
        """After a start: take up what was decided before and not known to be done."""
        for entry in self._cluster.pods.values():
            self._bindings.begin_if_due(entry, perhaps_begun=True)
        for eviction in self._cluster.evictions.values():
            self._evict(eviction)
        self._sessions.resume()
        for node, pods in self._cluster.nominator.by_node.items():
            for info in pods.values():
                if info.pod.status.nominated_node_name != node:
                    self._nominate(info.key, info.uid, node)
        if self._lanes:
            log.info("effects decided before the start", effects=len(self._lanes))

    def abandon_previous_term(self) -> None:
        """After the start of a standby: what an earlier term of ours decided and is not known to be
        done is not done any more, because whoever led since may have given the room away."""
        self._bindings.taken |= self._earlier_term.give_up()

    def forget(self, key: str, uid: str) -> None:
        """That pod is gone; another one of the same name is none of this."""
        self._forget_told(key, uid)
        self._bindings.forget(uid)

    def stop(self) -> None:
        """Let what is under way end, but try nothing again. What plugins do is cancelled, and they are
        not asked for what is released later: the next start asks them again. Only DefaultBinder goes
        on, and PostBind is told, because no start does so again."""
        self._end(CancelReason.STOPPING)
        self._lanes.close()

    def depose(self) -> None:
        """Leadership was lost: what plugins do is cancelled at once, however long the last word takes,
        and no binding begins any more. Somebody else decides about those pods by now. Only what PostBind
        is told is true whoever leads."""
        self._end(CancelReason.LEADERSHIP_LOST)

    def _end(self, why: CancelReason) -> None:
        self._pauses.end()
        self._bindings.end(why)

    def _bound(self, info: PodInfo, node_name: str) -> None:
        self._forget_told(info.key, info.uid)
        if self._events is not None:
            self._events.scheduled(_ref(info), node_name)

    # -- conditions ---------------------------------------------------------------------------

    def _tell(self, info: PodInfo, message: str, reason: Reason, nominated: str | None) -> None:
        """Say on the pod itself why it is not scheduled, unless it says just that already."""
        if self._events is not None:
            self._events.failed_scheduling(_ref(info), message)
        known = self._told.get(info.key)
        if known is not None and known.uid != info.uid:
            known = None
        change = self._nomination_to_tell(info, nominated, known)
        if change is not None:
            self._nominations[info.uid] = change
        elif known is not None and (known.message, known.reason) == (message, reason):
            return
        node = change
        if node is None:
            node = known.nominated_node if known else info.pod.status.nominated_node_name
        since = known.since if known else self._unscheduled_since(info)
        told = self._told[info.key] = _Told(info.uid, message, reason, node, since)
        self._lanes.submit(info.uid, "tell", partial(self._patch, info, told))

    def _nomination_to_tell(
        self, info: PodInfo, decided: str | None, known: _Told | None
    ) -> str | None:
        """The nomination that the API server has yet to hear of, empty for the end of one; None where it
        knows, or is about to.

        One that was decided is written unless the pod says so already, as in kube-scheduler
        (``updatePod`` with ``ModeOverride``). A decision that leaves it as it is writes nothing
        (``ModeNoop``), unless an earlier word has not arrived, be it one from before a restart: then what
        the state holds differs from what the watch shows.
        """
        shown = info.pod.status.nominated_node_name
        if decided is None:
            held = self._cluster.nominator.node_of(info.key)
            return None if held == shown or (known and held == known.nominated_node) else held
        if known is None or (known.written and decided == known.nominated_node):
            # Somebody else may have overruled us since.
            return None if decided == shown else decided
        return None if decided == known.nominated_node else decided

    def _unscheduled_since(self, info: PodInfo) -> datetime | None:
        known = [c.status for c in info.pod.status.conditions if c.type == POD_SCHEDULED]
        return None if known == ["False"] else self._clock.utc()

    async def _patch(self, info: PodInfo, told: _Told) -> None:
        nominated = self._nominations.pop(info.uid, None)
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
        if not isinstance(outcome, WriteSucceeded):
            self._unsay(info.key, told)
            self._leave_to_next(info.key, info.uid, nominated)
        elif self._told.get(info.key) is told:
            self._told[info.key] = told._replace(written=True)
        if isinstance(outcome, WriteRejected | OutcomeUnknown):
            log.warning("condition not written", pod=info.key, error=outcome.message)

    def _unsay(self, key: str, told: _Told) -> None:
        """It was not said after all, so the next attempt is to say it again."""
        if self._told.get(key) is told:
            del self._told[key]

    def _leave_to_next(self, key: str, uid: str, nominated: str | None) -> None:
        """That nomination was not written: what waits in the lane to be said carries it, unless another
        one was decided since. Where nothing waits, the next attempt finds that it is missing."""
        waiting = self._told.get(key)
        if nominated is not None and waiting is not None and waiting.uid == uid:
            self._nominations.setdefault(uid, nominated)

    def _forget_told(self, key: str, uid: str) -> None:
        self._nominations.pop(uid, None)
        known = self._told.get(key)
        if known is not None and known.uid == uid:
            del self._told[key]

    def _nominate(self, key: str, uid: str, node: str) -> None:
        """Say the nomination alone, empty for the end of one."""
        self._forget_told(key, uid)
        self._nominations[uid] = node
        ref = PodRef.of(key, uid)
        self._lanes.submit(uid, "nominate", partial(self._run_nomination, ref, node))

    async def _run_nomination(self, ref: PodRef, node: str) -> None:
        if self._nominations.get(ref.uid) != node:
            return  # what was said before this carried it, or what follows says another node
        del self._nominations[ref.uid]
        entry = self._cluster.entry(ref.key, ref.uid)
        if entry is None or (node and entry.phase is not PodPhase.PENDING):
            return
        outcome = await self._writer.nominate(ref, node)
        if not isinstance(outcome, WriteSucceeded):
            self._leave_to_next(ref.key, ref.uid, node)
        if isinstance(outcome, WriteRejected | OutcomeUnknown):
            log.warning("nomination not written", pod=ref.key, node=node, error=outcome.message)

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
        if isinstance(outcome, WriteSucceeded):
            self._sessions.evicted(group, eviction.reason)
            if self._events is not None:
                by = PodRef.of(preemptor.key, preemptor.uid)
                self._events.preempted(ref, by, eviction.node)
            self._report(EvictionSucceeded(victim.key, victim.uid))
            return
        log.warning("eviction failed", pod=victim.key, error=outcome.message)
        self._report(EvictionFailed(victim.key, victim.uid, outcome.message))


def _ref(info: PodInfo) -> PodRef:
    return PodRef(info.namespace, info.name, info.uid)
