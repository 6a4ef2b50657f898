"""A copy of the cluster state in which nodes are cordoned and pods are moved.

The scheduler core decides where replacements go. So a move counts everything that the scheduling
cycle counts, and the moves before it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final

from msgspec.structs import replace

from asched.consolidation.candidates import moving_pods
from asched.core.scheduler import Budget, SchedulerCore
from asched.framework.pod_info import PodInfo
from asched.framework.runtime.profile import PluginLoader
from asched.model.node import Node
from asched.model.pod import Pod, PodStatus
from asched.state.checkpoint import restore
from asched.state.cluster import ClusterState, PlacementState, PodEntry
from asched.state.consolidation_records import PodMove
from asched.state.records import (
    Assigned,
    AttemptFailed,
    Bound,
    Decision,
    ExtenderCallRequested,
    ObjectDeleted,
    ObjectObserved,
    Rejected,
)
from asched.state.session_records import EvictionDecided

_ONE: Final = Budget(decisions=1)
MAX_DECISIONS: Final = 100_000
"""Decisions after one change of the cluster; more of them are an endless loop."""


class MoveTrial:
    """The copy. Nothing of it reaches the state that it was made from."""

    def __init__(self, checkpoint: bytes, load: PluginLoader) -> None:
        fold = restore(checkpoint, load)
        self.state: ClusterState = fold.state
        self._core = SchedulerCore(fold)
        self._core.begin_turn(self.state.now_ns)
        self._cordoned: dict[str, Node] = {}
        """The nodes before they were cordoned here."""
        self._message = ""
        """Why the replacement in hand was rejected last."""
        self._evicts = ""
        """The pod that a decision evicts; empty for none."""
        self._put_off_until_ns = 0
        """When the namespace of the replacement has budget for its attempt; 0 for now."""

    def settle(self) -> int:
        """Decide the pods that are due in the queue. Returns how many of them get a node. Evictions
        that they need are left out."""
        return self._decide("")

    def cordon(self, nodes: Iterable[str]) -> None:
        """Make nodes unschedulable."""
        for name in nodes:
            node = self.state.objects(Node)[name]
            if name not in self._cordoned:
                self._cordoned[name] = node
                spec = replace(node.spec, unschedulable=True)
                self._core.apply(ObjectObserved(replace(node, spec=spec)))

    def free(self, nodes: Collection[str], freed: Collection[str]) -> tuple[PodMove, ...] | str:
        """Free nodes on top of what was done; if that is impossible, undo it and the cordon.

        Returns the moves, or why there are none. ``freed``: all nodes that are cordoned, with
        these. The undone state may differ in the queue of pending pods.
        """
        self.cordon(nodes)
        moves: list[PodMove] = []
        moved: list[Pod] = []
        for pod in moving_pods(self._on(nodes)):
            node = self.state.pods[pod.key].node
            moved.append(with_node(pod.pod, node))
            result = self.move(pod, node, freed)
            if isinstance(result, str):
                self._undo(nodes, moved)
                return result
            moves.append(result)
        return tuple(moves)

    def _on(self, nodes: Iterable[str]) -> Iterator[PodEntry]:
        """The pods of nodes."""
        table = self.state.nodes
        for name in nodes:
            row = table.row_of(name)
            for pod in () if row is None else table.pods(row):
                yield self.state.pods[pod.key]

    def _undo(self, nodes: Iterable[str], moved: Sequence[Pod]) -> None:
        for original in reversed(moved):
            uid = self.state.pods[original.key].info.uid
            self._core.apply(ObjectDeleted("Pod", original.key, uid))
            self._core.apply(ObjectObserved(original))
        for name in nodes:
            self._core.apply(ObjectObserved(self._cordoned.pop(name)))
        self._core.take_records()

    def move(self, pod: PodInfo, node: str, freed: Collection[str]) -> PodMove | str:
        """Delete a pod and let the core place its replacement.

        Returns why that fails: no node, an eviction, or a node among ``freed``.
        """
        self._core.apply(ObjectDeleted("Pod", pod.key, pod.uid))
        replacement = _replacement_of(pod.pod)
        self._message, self._evicts = "", ""
        self._core.apply(ObjectObserved(replacement))
        self._decide(replacement.metadata.uid)
        entry = self.state.entry(pod.key, replacement.metadata.uid)
        if self._evicts:
            return f"pod {self._evicts} would be preempted for pod {pod.key}"
        if entry is None or entry.placement_state is PlacementState.PENDING:
            reason = " ".join(self._message.split()).rstrip(".") or "it is gated"
            return f"pod {pod.key} would not be scheduled: {reason}"
        if entry.placement_state is not PlacementState.BOUND:
            return f"pod {pod.key} would wait on Permit"
        if entry.node in freed:
            return f"pod {pod.key} tolerates cordoned nodes, and would return to {entry.node}"
        return PodMove(pod.key, pod.uid, node, entry.node)

    def _decide(self, uid: str) -> int:
        """Decide until nothing is left to decide, and bind what gets a node. Returns how many pods
        do. The clock stands, except for a replacement that its namespace's budget puts off."""
        bound = 0
        for _ in range(MAX_DECISIONS):
            decisions = self._core.decide(_ONE)
            if not decisions and self._put_off_until_ns:
                self._core.begin_turn(max(self._core.now_ns, self._put_off_until_ns))
                self._put_off_until_ns = 0
                self._core.record_turn()
                continue
            if not decisions:
                break
            for decision in decisions:
                self._note(decision, uid)
                if isinstance(decision, Assigned):
                    bound += self._bind(decision)
            self._core.take_records()
        return bound

    def _note(self, decision: Decision, uid: str) -> None:
        match decision:
            case Rejected() | AttemptFailed() if decision.uid == uid:
                self._message = decision.message
                if isinstance(decision, Rejected):
                    self._put_off_until_ns = decision.put_off_until_ns
            case ExtenderCallRequested() if decision.uid == uid:
                self._message = "an extender decides about it"
        if isinstance(decision, Rejected) and decision.victims:
            self._evicts = decision.victims[0].key
        elif isinstance(decision, EvictionDecided):
            self._evicts = decision.key

    def _bind(self, decision: Assigned) -> bool:
        key, uid = decision.key, decision.uid
        entry = self.state.entry(key, uid)
        if entry is None or key in self.state.waiting:
            return False
        self._core.apply(Bound(key, uid, decision.node))
        return True


def with_node(pod: Pod, node: str) -> Pod:
    """The pod as the API shows it once it is bound."""
    return replace(pod, spec=replace(pod.spec, node_name=node))


def _replacement_of(pod: Pod) -> Pod:
    """The pod that a controller creates for an evicted one. Its name may be another one then, on
    which no filter depends."""
    metadata = replace(pod.metadata, uid=f"{pod.metadata.uid}-replacement")
    return replace(with_node(pod, ""), metadata=metadata, status=PodStatus())
