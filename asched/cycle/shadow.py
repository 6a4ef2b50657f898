"""Decisions for pods that another scheduler has decided, in shadow mode.

They only read the state, and run the same code as an attempt.
"""

from __future__ import annotations

import msgspec

from asched.cycle.attempt import Attempt
from asched.cycle.feasible_nodes import NO_NODES, fit_message
from asched.cycle.node_selection import BestNodes
from asched.cycle.post_filter import run_post_filter
from asched.cycle.precheck import refusal
from asched.cycle.shape_cache import ShapeCache
from asched.framework.pod_info import PodInfo
from asched.framework.runtime.extenders import AttemptPausedError
from asched.framework.runtime.plugin_calls import PluginFailure
from asched.state.cluster import ClusterState
from asched.state.records import ShadowCompared


class ShadowDecision(msgspec.Struct, frozen=True):
    """The decision of an attempt, with all nodes that tie."""

    best: tuple[str, ...] = ()
    """The nodes with the highest total score, sorted; empty if no node is feasible."""
    score: int = 0
    """Their total; 0 for a single feasible node."""
    feasible: int = 0
    message: str = ""
    """The message of the pod's condition if no node is feasible."""

    def agrees_with(self, other: ShadowCompared) -> bool:
        """Whether the other scheduler's node is among the best, or its message is the same."""
        if other.node:
            return other.node in self.best
        return not self.best and self.message == other.message


class ShadowDecider:
    """Decides from one state. Evaluates all nodes and no extenders."""

    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self._cache = ShapeCache(state.nodes)

    def decide(self, info: PodInfo) -> ShadowDecision:
        """What an attempt for the pod would decide now. A plugin failure becomes the message."""
        state = self._state
        if not state.nodes.cluster_size:
            return ShadowDecision(message=NO_NODES)
        refused = refusal(state, info)
        if refused is not None:
            return ShadowDecision(message=refused.message)
        profile = state.profiles[info.pod.spec.scheduler_name]
        try:
            attempt = Attempt(state, profile, info, self._cache)
            found = attempt.find_feasible_nodes(
                nominated=state.nominator.node_of(info.key), limit_nodes=False
            )
            if not found.count:
                result = run_post_filter(state, profile, info, found).result
                return ShadowDecision(message=fit_message(state, found, result.status.message))
            best = BestNodes(0, found.feasible, 1)
            if found.count > 1:
                best = attempt.best(found)
        except (PluginFailure, AttemptPausedError) as failure:
            return ShadowDecision(message=str(failure))
        names = sorted(state.nodes.names[row] for row in best.rows.tolist())
        return ShadowDecision(tuple(names), best.score, found.count)

    def compare(
        self, number: int, info: PodInfo, node: str = "", message: str = ""
    ) -> ShadowCompared:
        """Compare the other scheduler's ``node`` or ``message`` with the own decision.

        ``number`` counts comparisons.
        """
        own = self.decide(info)
        theirs = ShadowCompared(info.key, info.uid, number, node, message)
        agreed = own.agrees_with(theirs)
        return msgspec.structs.replace(
            theirs,
            best=own.best,
            score=own.score,
            feasible_nodes=own.feasible,
            # An identical message is recorded once.
            own_message="" if agreed else own.message,
            agreed=agreed,
        )
