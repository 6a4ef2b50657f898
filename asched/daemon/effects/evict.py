"""Evictions of victims, for preemption and batch sessions."""

from __future__ import annotations

from functools import partial

import structlog

from asched.daemon.effects.bind import PREVIOUS_TERM
from asched.daemon.effects.group_status import PodGroupStatusHandler
from asched.daemon.effects.per_pod_queue import EffectContext
from asched.framework.cluster import Eviction
from asched.kube.events import EventRecorder
from asched.kube.pod_writer import PodTarget, PodWriter
from asched.kube.write_outcomes import WriteSucceeded
from asched.model.pod import DEFAULT_SCHEDULER_NAME
from asched.state.records import EvictionFailed, EvictionSucceeded

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class EvictionHandler:
    """Deletes victims and reports ``EvictionSucceeded`` or ``EvictionFailed``."""

    def __init__(
        self,
        context: EffectContext,
        writer: PodWriter,
        events: EventRecorder | None,
        groups: PodGroupStatusHandler,
    ) -> None:
        """``events`` None posts none. ``groups`` posts the Events of PodGroups that lose a pod."""
        self._context = context
        self._writer = writer
        self._events = events
        self._groups = groups

    def evict(self, victim_uid: str) -> None:
        """Carry out a decided eviction."""
        eviction = self._context.cluster.evictions[victim_uid]
        self._context.queue.submit(victim_uid, "evict", partial(self._run, eviction))

    def resume(self) -> None:
        """Restart the evictions that were decided before this process started."""
        for uid in self._context.cluster.evictions:
            self.evict(uid)

    def abandon_previous_term(self) -> None:
        """Fail the evictions of a previous term of this replica."""
        for eviction in self._context.cluster.evictions.values():
            victim = eviction.victim
            self._context.report(EvictionFailed(victim.key, victim.uid, PREVIOUS_TERM))

    async def _run(self, eviction: Eviction) -> None:
        victim, preemptor, cluster = eviction.victim, eviction.preemptor, self._context.cluster
        ref = PodTarget.of(victim.key, victim.uid)
        preempting = cluster.entry(preemptor.key, preemptor.uid)
        name = preempting.info.pod.spec.scheduler_name if preempting else DEFAULT_SCHEDULER_NAME
        entry = cluster.entry(victim.key, victim.uid)
        group = None
        if eviction.reason and entry is not None:
            group = self._groups.group_of_victim(entry.info.pod)
        now = self._context.clock.utc()
        outcome = await self._writer.evict(ref, now=now, scheduler_name=name)
        if isinstance(outcome, WriteSucceeded):
            self._groups.record_eviction(group, eviction.reason)
            if self._events is not None:
                by = PodTarget.of(preemptor.key, preemptor.uid)
                self._events.preempted(ref, by, eviction.node)
            self._context.report(EvictionSucceeded(victim.key, victim.uid))
            return
        log.warning("eviction failed", pod=victim.key, error=outcome.message)
        self._context.report(EvictionFailed(victim.key, victim.uid, outcome.message))
