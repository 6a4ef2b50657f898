"""Asking extenders what an attempt waits for. Each question is a task of its own: a slow extender
holds up the pods that need it and nobody else."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np
import structlog
from anyio.abc import TaskGroup

from asched.daemon.plugin_host.evaluator import ExternalPlugins
from asched.framework.interface import Victim
from asched.framework.pod_info import PodInfo
from asched.framework.runtime.extenders import ExtenderVerb, PreemptionCandidate
from asched.kube.extenders import (
    AskedNodes,
    ExtenderError,
    ExtenderRejection,
    FilterAnswer,
    HttpExtender,
    VictimPods,
)
from asched.state.cluster import ClusterState
from asched.state.inquiries import packed
from asched.state.records import (
    ExtenderAnswer,
    ExtenderCallRequested,
    ExtenderCallFailed,
    ExtenderFiltered,
    ExtenderPrioritized,
    ExtenderFailedNodes,
    ExtenderPreemptionProcessed,
)

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class ExternalCalls:
    """Puts the questions of attempts to extenders; the answers come back as records.

    A question that a stopping daemon leaves unanswered is lost with it. The next start finds the
    attempt in the journal and asks again.
    """

    def __init__(
        self,
        cluster: ClusterState,
        extenders: Sequence[HttpExtender],
        tasks: TaskGroup,
        report: Callable[[ExtenderAnswer], None],
        plugins: ExternalPlugins,
    ) -> None:
        self._plugins = plugins
        self._cluster = cluster
        self._extenders = extenders
        self._tasks = tasks
        self._report = report
        self._failing: dict[int, str] = {}
        """What each failing extender failed with last, so that it is said once."""
        self._nodes = AskedNodes([])
        """Those of the last question: like pods ask about the same, one after the other."""

    def ask_others(self, extenders: Sequence[HttpExtender]) -> None:
        """Ask these from now on. What those before them still answer is no answer to anything: the
        attempts that asked were given up with the old configuration, and begin again under the same
        number."""
        self._extenders = extenders
        self._failing.clear()

    def ask(self, question: ExtenderCallRequested, pod: PodInfo) -> None:
        """Put a question that was just folded and is in the journal, about the nodes as they now
        are. What is asked is settled on return; the answers come later."""
        if question.extenders[0] >= len(self._extenders):
            # They come after the extenders, and look for themselves when it is their turn.
            for index in question.extenders:
                self._tasks.start_soon(self._run_plugin, self._extenders, index, question, pod)
            return
        inquiry = self._cluster.inquiries[question.key]
        table = self._cluster.nodes
        objects = [table.node(row) for row in inquiry.rows.tolist()]
        if objects != self._nodes.objects:
            self._nodes = AskedNodes(objects)
        nodes = self._nodes
        victims = [self._with_pods(candidate) for candidate in question.candidates]
        asked = self._extenders
        for index in question.extenders:
            if index < len(asked):
                self._tasks.start_soon(self._run, asked, index, question, pod, nodes, victims)
            else:
                self._tasks.start_soon(self._run_plugin, asked, index, question, pod)

    def _with_pods(self, candidate: PreemptionCandidate) -> VictimPods:
        found = (self._cluster.entry(victim.key, victim.uid) for victim in candidate.victims)
        return VictimPods(candidate, [entry.info.pod for entry in found if entry is not None])

    async def _run(
        self,
        asked: Sequence[HttpExtender],
        index: int,
        question: ExtenderCallRequested,
        pod: PodInfo,
        nodes: AskedNodes,
        victims: Sequence[VictimPods],
    ) -> None:
        trouble = ""
        try:
            answer = await self._answer(asked[index], index, question, pod, nodes, victims)
        except ExtenderError as error:
            answer = ExtenderCallFailed(
                question.key, question.uid, question.attempt, index, question.verb, str(error)
            )
            trouble = str(error)
        if asked is self._extenders:
            self._say(index, trouble)
            self._report(answer)

    async def _run_plugin(
        self, asked: Sequence[HttpExtender], index: int, question: ExtenderCallRequested, pod: PodInfo
    ) -> None:
        answer = None
        if asked is self._extenders:
            answer = await self._plugins.answer(index, question, pod)
        if answer is not None and asked is self._extenders:
            self._say(index, answer.message if isinstance(answer, ExtenderCallFailed) else "")
            self._report(answer)

    async def _answer(
        self,
        extender: HttpExtender,
        index: int,
        question: ExtenderCallRequested,
        pod: PodInfo,
        nodes: AskedNodes,
        victims: Sequence[VictimPods],
    ) -> ExtenderAnswer:
        about = (question.key, question.uid, question.attempt, index)
        match question.verb:
            case ExtenderVerb.FILTER:
                filtered = await extender.filter(pod.pod, nodes)
                passed = np.array([name in filtered.passed for name in nodes.names], np.bool_)
                refused = _refusals(nodes.names, filtered)
                return ExtenderFiltered(*about, passed=packed(passed), failed_nodes=refused)
            case ExtenderVerb.PRIORITIZE:
                scores = await extender.prioritize(pod.pod, nodes)
                in_order = tuple(scores.get(name, 0) for name in nodes.names)
                return ExtenderPrioritized(*about, scores=in_order)
            case ExtenderVerb.PREEMPT:
                left = await extender.preempt(pod.pod, victims)
                resolved = tuple(self._resolved(extender, candidate) for candidate in left)
                return ExtenderPreemptionProcessed(*about, candidates=resolved)

    def _resolved(
        self, extender: HttpExtender, candidate: PreemptionCandidate
    ) -> PreemptionCandidate:
        """The candidate with the keys of victims that the extender chose by itself.

        Raises :class:`ExtenderError` for what is not there.
        """
        row = self._cluster.nodes.row_of(candidate.node)
        if row is None:
            raise ExtenderError(f'nodeinfo not found for node name "{candidate.node}"')
        keys = {pod.uid: pod.key for pod in self._cluster.nodes.pods(row)}
        victims = []
        for victim in candidate.victims:
            # One of the question's that went meanwhile has its key already.
            key = victim.key or keys.get(victim.uid)
            if key is None:
                raise ExtenderError(
                    f"extender: {extender.name} claims to preempt pod (UID: {victim.uid}) on node:"
                    f" {candidate.node}, but the pod is not found on that node"
                )
            victims.append(Victim(key, victim.uid))
        return msgspec.structs.replace(candidate, victims=tuple(victims))

    def _say(self, index: int, trouble: str) -> None:
        """Once for each new trouble, and once when it is over."""
        if trouble == self._failing.get(index, ""):
            return
        self._failing[index] = trouble
        name = self._cluster.outsiders[index].name
        if index >= len(self._extenders):
            if trouble:
                log.warning("a plugin fails outside decisions", plugin=name, error=trouble)
            else:
                log.info("the plugin answers again", plugin=name)
        elif trouble:
            log.warning("an extender fails", extender=name, error=trouble)
        else:
            log.info("the extender answers again", extender=name)


def _refusals(names: Sequence[str], answer: FilterAnswer) -> tuple[ExtenderFailedNodes, ...]:
    """The refused nodes by what is said of them. What passed is not refused, whatever is said."""
    places: dict[ExtenderRejection, list[int]] = {}
    for place, name in enumerate(names):
        refusal = answer.refused.get(name)
        if refusal is not None and name not in answer.passed:
            places.setdefault(refusal, []).append(place)
    found = []
    for refusal, where in places.items():
        mask = np.zeros(len(names), np.bool_)
        mask[where] = True
        found.append(ExtenderFailedNodes(refusal.message, packed(mask), refusal.unresolvable))
    return tuple(found)
