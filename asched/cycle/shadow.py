"""What we would decide for a pod that another scheduler has decided for: shadow mode's decision.

It is made from the state as it is before the other's answer is folded, and follows from the records
before it as our own decisions do: so a replay makes it once more.
"""

from __future__ import annotations

import msgspec

from asched.cycle.attempt import Attempt
from asched.cycle.decide import NO_NODES, fit_message
from asched.cycle.tie_breaker import BestNodes
from asched.cycle.post_filter import post_filter
from asched.cycle.shape_cache import ShapeCache
from asched.framework.pod_info import PodInfo
from asched.framework.runtime.extenders import AttemptPausedError
from asched.framework.runtime.plugin_calls import PluginFailure
from asched.state.cluster import ClusterState
from asched.state.records import ShadowCompared


class ShadowDecision(msgspec.Struct, frozen=True):
    """Our own decision, with every node that ties left open."""

    best: tuple[str, ...] = ()
    """The nodes with the highest total score, sorted; empty where no node is feasible."""
    score: int = 0
    """Their total; 0 where a single feasible node needed none."""
    feasible: int = 0
    message: str = ""
    """Why no node would do, in the words of the pod's condition."""

    def agrees_with(self, other: ShadowCompared) -> bool:
        """Whether the other scheduler's node is among the best; whether its message is ours."""
        if other.node:
            return other.node in self.best
        return not self.best and self.message == other.message


class ShadowDecider:
    """Answers from one state. All nodes are looked at, and extenders are never asked."""

    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self._cache = ShapeCache(state.nodes)

    def answer(self, info: PodInfo) -> ShadowDecision:
        """What an attempt for the pod would find now. A plugin that fails is the message."""
        state = self._state
        if not state.nodes.cluster_size:
            return ShadowDecision(message=NO_NODES)
        profile = state.profiles[info.pod.spec.scheduler_name]
        try:
            attempt = Attempt(state, profile, info, self._cache)
            screening = attempt.screen(
                nominated=state.nominator.node_of(info.key), share_of_nodes=False
            )
            if not screening.count:
                result, _ = post_filter(state, profile, info, screening)
                return ShadowDecision(message=fit_message(state, screening, result.status.message))
            best = BestNodes(0, screening.feasible, 1)
            if screening.count > 1:
                best = attempt.best(screening)
        except (PluginFailure, AttemptPausedError) as failure:
            return ShadowDecision(message=str(failure))
        names = sorted(state.nodes.names[row] for row in best.rows.tolist())
        return ShadowDecision(tuple(names), best.score, screening.count)

    def compared(
        self, number: int, info: PodInfo, node: str = "", message: str = ""
    ) -> ShadowCompared:
        """The other scheduler's answer, ``node`` or why there is none, with our own beside it.

        ``number`` counts comparisons.
        """
        answer = self.answer(info)
        theirs = ShadowCompared(number, info.key, info.uid, node, message)
        agreed = answer.agrees_with(theirs)
        return msgspec.structs.replace(
            theirs,
            best=answer.best,
            score=answer.score,
            feasible=answer.feasible,
            # Where both say the same it is not written twice.
            own_message="" if agreed else answer.message,
            agreed=agreed,
        )
