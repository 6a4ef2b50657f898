"""Calls of HTTP extenders and external plugins that an attempt waits for.

Each call is a task of its own, so a slow extender delays only the pods that need it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import anyio
import msgspec
import numpy as np
import structlog
from anyio.abc import TaskGroup, TaskStatus

from asched.config.kube_scheduler import Extender
from asched.daemon.effects.per_pod_queue import EffectContext
from asched.framework.cluster import PodRef
from asched.framework.pod_info import PodInfo
from asched.framework.runtime.extenders import ExtenderVerb, PreemptionCandidate
from asched.kube.extenders import (
    ExtenderError,
    ExtenderFilterResult,
    ExtenderNodes,
    ExtenderRejection,
    HttpExtender,
    VictimPods,
    open_extenders,
)
from asched.kube.timing import Clock
from asched.state.pending_evaluations import pack_mask
from asched.state.records import (
    ExtenderAnswer,
    ExtenderCallFailed,
    ExtenderCallRequested,
    ExtenderFailedNodes,
    ExtenderFiltered,
    ExtenderPreemptionProcessed,
    ExtenderPrioritized,
)

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class _Call(NamedTuple):
    """One call of one extender or external plugin."""

    extenders: Sequence[HttpExtender]
    """Extenders of the configuration under which the call was requested."""
    number: int
    """Position among the extenders, followed by the external plugins."""
    request: ExtenderCallRequested
    pod: PodInfo


class ExternalCallHandler:
    """Makes the calls that attempts request; the results are reported as records. A call that is
    lost with a stopping daemon is requested again by the next start."""

    def __init__(self, context: EffectContext) -> None:
        self._cluster = context.cluster
        self._report = context.report
        self._extenders = [*context.services.extenders]
        """Each configuration has a list of its own: calls of a previous one have another."""
        self._tasks = context.services.tasks
        self._plugins = context.services.plugins
        self._errors: dict[int, str] = {}
        """Latest error of each failing extender or plugin, so that it is logged once."""
        self._nodes = ExtenderNodes([])
        """Nodes of the latest request; successive requests are often about the same."""

    def use_extenders(self, extenders: Sequence[HttpExtender]) -> None:
        """Replace the extenders. Results of the previous ones are dropped: their attempts ended
        with the old configuration, and start again under the same number."""
        self._extenders = [*extenders]
        self._errors.clear()

    def call(self, request: ExtenderCallRequested, pod: PodInfo) -> None:
        """Start the calls of a request that is folded and durable. Nodes are those at this time."""
        calls = [_Call(self._extenders, index, request, pod) for index in request.extenders]
        if calls[0].number >= len(self._extenders):  # external plugins follow the extenders
            for call in calls:
                self._tasks.start_soon(self._run_plugin, call)
            return
        table = self._cluster.nodes
        rows = self._cluster.pending_evaluations[request.key].rows.tolist()
        objects = [table.node(row) for row in rows]
        if objects != self._nodes.objects:
            self._nodes = ExtenderNodes(objects)
        victims = [self._with_pods(candidate) for candidate in request.candidates]
        for call in calls:
            if call.number < len(self._extenders):
                self._tasks.start_soon(self._run_extender, call, self._nodes, victims)
            else:
                self._tasks.start_soon(self._run_plugin, call)

    def _with_pods(self, candidate: PreemptionCandidate) -> VictimPods:
        found = (self._cluster.entry(victim.key, victim.uid) for victim in candidate.victims)
        return VictimPods(candidate, [entry.info.pod for entry in found if entry is not None])

    async def _run_extender(
        self, call: _Call, nodes: ExtenderNodes, victims: Sequence[VictimPods]
    ) -> None:
        error = ""
        try:
            answer = await self._answer(call, nodes, victims)
        except ExtenderError as failure:
            error, request = str(failure), call.request
            answer = ExtenderCallFailed(
                request.key, request.uid, request.attempt, call.number, request.verb, error
            )
        if call.extenders is self._extenders:
            self._log_change(call.number, error)
            self._report(answer)

    async def _run_plugin(self, call: _Call) -> None:
        answer = None
        if call.extenders is self._extenders:
            answer = await self._plugins.answer(call.number, call.request, call.pod)
        if answer is not None and call.extenders is self._extenders:
            error = answer.message if isinstance(answer, ExtenderCallFailed) else ""
            self._log_change(call.number, error)
            self._report(answer)

    async def _answer(
        self, call: _Call, nodes: ExtenderNodes, victims: Sequence[VictimPods]
    ) -> ExtenderAnswer:
        extender, request, pod = call.extenders[call.number], call.request, call.pod.pod
        about = (request.key, request.uid, request.attempt, call.number)
        match request.verb:
            case ExtenderVerb.FILTER:
                filtered = await extender.filter(pod, nodes)
                passed = np.array([name in filtered.passed for name in nodes.names], np.bool_)
                return ExtenderFiltered(
                    *about,
                    passed=pack_mask(passed),
                    failed_nodes=_failed_nodes(nodes.names, filtered),
                )
            case ExtenderVerb.PRIORITIZE:
                scores = await extender.prioritize(pod, nodes)
                in_order = tuple(scores.get(name, 0) for name in nodes.names)
                return ExtenderPrioritized(*about, scores=in_order)
            case ExtenderVerb.PREEMPT:
                left = await extender.preempt(pod, victims)
                candidates = tuple(self._with_keys(extender, candidate) for candidate in left)
                return ExtenderPreemptionProcessed(*about, candidates=candidates)

    def _with_keys(
        self, extender: HttpExtender, candidate: PreemptionCandidate
    ) -> PreemptionCandidate:
        """The candidate with the keys of victims that the extender added by UID. Raises
        :class:`ExtenderError` for an unknown node or pod."""
        row = self._cluster.nodes.row_of(candidate.node)
        if row is None:
            raise ExtenderError(f'nodeinfo not found for node name "{candidate.node}"')
        keys = {pod.uid: pod.key for pod in self._cluster.nodes.pods(row)}
        victims = []
        for victim in candidate.victims:
            # A victim of the request keeps its key, even if it was deleted meanwhile.
            key = victim.key or keys.get(victim.uid)
            if key is None:
                raise ExtenderError(
                    f"extender: {extender.name} claims to preempt pod (UID: {victim.uid}) on node:"
                    f" {candidate.node}, but the pod is not found on that node"
                )
            victims.append(PodRef(key, victim.uid))
        return msgspec.structs.replace(candidate, victims=tuple(victims))

    def _log_change(self, index: int, error: str) -> None:
        """Log each new error once, and once that it is over."""
        if error == self._errors.get(index, ""):
            return
        self._errors[index] = error
        name = self._cluster.evaluators[index].name
        kind = "extender" if index < len(self._extenders) else "external plugin"
        if error:
            log.warning("external call failed", kind=kind, name=name, error=error)
        else:
            log.info("external call recovered", kind=kind, name=name)


def _failed_nodes(
    names: Sequence[str], answer: ExtenderFilterResult
) -> tuple[ExtenderFailedNodes, ...]:
    """The failed nodes, grouped by message. A node that passed has not failed."""
    places: dict[ExtenderRejection, list[int]] = {}
    for place, name in enumerate(names):
        rejection = answer.rejected.get(name)
        if rejection is not None and name not in answer.passed:
            places.setdefault(rejection, []).append(place)
    found = []
    for rejection, where in places.items():
        mask = np.zeros(len(names), np.bool_)
        mask[where] = True
        found.append(
            ExtenderFailedNodes(rejection.message, pack_mask(mask), rejection.unresolvable)
        )
    return tuple(found)


# -- opening and closing of extenders -------------------------------------------------------------

_BUSY_POLL_S = 1.0


class ExtenderReplacement(NamedTuple):
    """Extenders that are open and not used yet."""

    extenders: Sequence[HttpExtender]
    use: Callable[[], None]
    """Call once they are in use; the previous ones close when they are idle."""


class ExtenderPool:
    """Opens the extenders of successive configurations. Replaced ones stay open while they are
    busy, for instance with a binding."""

    def __init__(self, tasks: TaskGroup, clock: Clock) -> None:
        """All are closed when ``tasks`` is cancelled."""
        self._tasks = tasks
        self._clock = clock
        self._replaced = anyio.Event()
        """Set when the extenders in use are replaced."""

    async def replacement(self, configured: Sequence[Extender]) -> ExtenderReplacement:
        """Open extenders. Raises :class:`~asched.kube.errors.KubeConfigError` for unusable
        certificates."""
        replaced = anyio.Event()
        extenders: Sequence[HttpExtender] = await self._tasks.start(
            self._hold, tuple(configured), replaced
        )
        return ExtenderReplacement(extenders, partial(self._use, replaced))

    def _use(self, replaced: anyio.Event) -> None:
        self._replaced.set()
        self._replaced = replaced

    async def _hold(
        self,
        configured: Sequence[Extender],
        replaced: anyio.Event,
        *,
        task_status: TaskStatus[Sequence[HttpExtender]],
    ) -> None:
        async with open_extenders(configured) as extenders:
            task_status.started(extenders)
            await replaced.wait()
            while any(extender.busy for extender in extenders):
                await self._clock.sleep(_BUSY_POLL_S)
