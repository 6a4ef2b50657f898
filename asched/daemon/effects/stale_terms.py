"""What a replica decided when it led before, and was not known to be done when that ended."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import structlog

from asched.daemon.effects.binder import BindReconciler
from asched.daemon.effects.binding_cycle import given_up
from asched.daemon.effects.queue import EffectContext
from asched.framework.pod_info import PodInfo
from asched.framework.status import Code
from asched.state.cluster import PodPhase
from asched.state.records import BindFailed, EvictionFailed
from asched.state.session_records import PodGroupStatusWriteFailed

WHY = "decided in an earlier term of leadership, and given up"

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class StaleTermCleanup:
    """Gives up what an earlier term decided, once it is known what became of it.

    The leader of that term may have crashed just now, so a binding of its may arrive for as long as any
    that was sent without an answer, and keeps its place until then.

    Nobody else wrote to the journal meanwhile, but another leader, with a journal of its own, may
    have scheduled the cluster: on the node that was chosen then there may be no room any more.
    What Permit held then was never sent: it is given up at once, before Permit may be asked again.
    Nothing here writes to the cluster.
    """

    def __init__(self, context: EffectContext, binder: Callable[[float], BindReconciler]) -> None:
        """``binder`` makes one for a binding that may have been sent by the time that it is told."""
        self._cluster = context.cluster
        self._lanes = context.lanes
        self._report = context.report
        self._clock = context.clock
        self._binder = binder

    def give_up(self) -> set[str]:
        """Report the end of every effect that is open, bindings as soon as their fate is known.

        Returns the uids of the pods whose bindings may thereby fail.
        """
        now_s = self._clock.monotonic_s()
        assumed = [e for e in self._cluster.pods.values() if e.phase is PodPhase.ASSUMED]
        held = self._cluster.waiting.keys()
        for entry in assumed:
            pod = entry.info
            if pod.key in held:
                failed = BindFailed(pod.key, pod.uid, entry.node, Code.ERROR, message=WHY)
                self._report(failed)
                continue
            find_out = partial(self._find_out, self._binder(now_s), pod, entry.node)
            self._lanes.submit(pod.uid, "fate", find_out)
        for eviction in self._cluster.evictions.values():
            self._report(EvictionFailed(eviction.victim.key, eviction.victim.uid, WHY))
        for (kind, group), write in self._cluster.sessions.writes.items():
            if write.under_way:
                self._report(PodGroupStatusWriteFailed(kind, group, write.decision.uid, WHY))
        if assumed:
            log.info("bindings of an earlier term are given up", bindings=len(assumed))
        return {entry.info.uid for entry in assumed}

    async def _find_out(self, binder: BindReconciler, pod: PodInfo, node: str) -> None:
        outcome = await given_up(binder, pod, node, WHY)
        if outcome is not None:
            self._report(outcome)
