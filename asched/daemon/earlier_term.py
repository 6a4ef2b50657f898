"""What a replica decided when it led before, and was not known to be done when that ended."""

from __future__ import annotations

from functools import partial

import structlog

from asched.daemon.effect_context import EffectContext
from asched.framework.status import Code
from asched.kube.writers import Done, PodRef, PodWriter, Unknown
from asched.state.cluster import PodEntry, PodPhase
from asched.state.records import BindFailed, Bound, EvictionFailed
from asched.state.session_records import PodGroupWriteFailed

WHY = "decided in an earlier term of leadership, and given up"

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class EarlierTerm:
    """Gives up what an earlier term decided, after reading what became of it.

    Nobody else wrote to the journal meanwhile, but another leader, with a journal of its own, may
    have scheduled the cluster: on the node that was chosen then there may be no room any more.
    Nothing here writes to the cluster.
    """

    def __init__(self, context: EffectContext, writer: PodWriter) -> None:
        self._cluster = context.cluster
        self._writer = writer
        self._lanes = context.lanes
        self._pauses = context.pauses
        self._report = context.report
        self._backoff = context.backoff

    def give_up(self) -> set[str]:
        """Report the end of every effect that is open, bindings as soon as their fate was read.

        Returns the uids of the pods whose bindings may thereby fail.
        """
        assumed = [e for e in self._cluster.pods.values() if e.phase is PodPhase.ASSUMED]
        for entry in assumed:
            self._lanes.submit(entry.info.uid, "fate", partial(self._find_out, entry, entry.node))
        for eviction in self._cluster.evictions.values():
            self._report(EvictionFailed(eviction.victim.key, eviction.victim.uid, WHY))
        for (kind, group), write in self._cluster.sessions.writes.items():
            if write.under_way:
                self._report(PodGroupWriteFailed(kind, group, write.decision.uid, WHY))
        if assumed:
            log.info("bindings of an earlier term, whose fate is read", bindings=len(assumed))
        return {entry.info.uid for entry in assumed}

    async def _find_out(self, entry: PodEntry, node: str) -> None:
        key, uid = entry.info.key, entry.info.uid
        backoff = self._backoff()
        while isinstance(fate := await self._writer.fate(PodRef.of(key, uid), node, WHY), Unknown):
            if not await self._pauses.pause(backoff.next_s()):
                return
        if isinstance(fate, Done):
            self._report(Bound(key, uid, node))
        else:
            self._report(BindFailed(key, uid, node, Code.ERROR, "", fate.message))
