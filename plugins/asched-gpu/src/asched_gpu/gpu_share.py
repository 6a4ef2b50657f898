"""GpuShare: assigns shares of cards or whole cards to pods, together with the node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, ClassVar

import numpy as np

from asched.framework import (
    MAX_NODE_SCORE,
    SUCCESS,
    ActionType,
    Arguments,
    BindingClient,
    ClusterEvent,
    ClusterEventWithHint,
    CycleState,
    EnqueueExtensions,
    EventResource,
    FilterAllPlugin,
    FilterResult,
    Handle,
    Int64Column,
    Nodes,
    NormalizeScore,
    Permission,
    PodInfo,
    PreBindPlugin,
    PreFilterPlugin,
    PreFilterResult,
    QueueingHint,
    ReservePlugin,
    ReserveResult,
    Scope,
    ScoreAllPlugin,
    StateKey,
    Status,
)
from asched.model import Object, Pod
from asched_gpu.cards import AssignedCards, CardTable, cards_from, reservation_of
from asched_gpu.demand import (
    GPU_COUNT,
    GPU_INDEX,
    GPU_MILLI,
    Demand,
    DemandError,
    demand_of,
    index_text,
)
from asched_gpu.policies import (
    AlignedDescent,
    BestFit,
    Clustering,
    DotProduct,
    FragmentationDescent,
    Packing,
    Policy,
    Random,
    fits,
)
from asched_gpu.workload import TaskClass, Workload


class PolicyName(Enum):
    """The policies in ``args``."""

    RANDOM = "random"
    DOT_PRODUCT = "dot-product"
    CLUSTERING = "clustering"
    PACKING = "packing"
    BEST_FIT = "best-fit"
    FGD = "fgd"
    FGD_ALIGNED = "fgd-aligned"


class Ties(Enum):
    """How ties between nodes of equal score are broken."""

    FIRST = "first"
    """The node that joined first: nodes fill up one by one, which keeps others empty."""
    RANDOM = "random"
    """A random node, as in kube-scheduler."""


_WITHOUT_WORKLOAD: dict[PolicyName, Callable[[], Policy]] = {
    PolicyName.RANDOM: Random,
    PolicyName.DOT_PRODUCT: DotProduct,
    PolicyName.CLUSTERING: Clustering,
    PolicyName.PACKING: Packing,
    PolicyName.BEST_FIT: BestFit,
}
_FOR_WORKLOAD: dict[PolicyName, Callable[[Workload], Policy]] = {
    PolicyName.FGD: FragmentationDescent,
    PolicyName.FGD_ALIGNED: AlignedDescent,
}


class GpuShareArgs(Arguments, frozen=True):
    """``args`` of GpuShare."""

    policy: PolicyName = PolicyName.BEST_FIT
    """Which node and which cards a pod gets."""
    workload: tuple[TaskClass, ...] = ()
    """The expected tasks, for ``fgd`` and ``fgd-aligned``."""
    ties: Ties | None = None
    """Default: ``first``, or ``random`` for the policy ``random``."""

    def __post_init__(self) -> None:
        if self.policy in _FOR_WORKLOAD and not self.workload:
            raise ValueError(f"policy {self.policy.value} needs a workload: the expected tasks")

    @property
    def first_of_equals(self) -> bool:
        if self.ties is None:
            return self.policy is not PolicyName.RANDOM
        return self.ties is Ties.FIRST


DEMAND: StateKey[Demand] = StateKey("GpuShare/demand")
_FULL = Status.unschedulable(f"Insufficient {GPU_MILLI} on a card")
_TOO_FEW = Status.unresolvable("too few cards")


class GpuShare(
    PreFilterPlugin,
    FilterAllPlugin,
    ScoreAllPlugin,
    NormalizeScore,
    ReservePlugin,
    PreBindPlugin,
    EnqueueExtensions,
):
    """Assigns cards to pods by one of several policies.

    The cards are recorded with the decision, and written to an annotation of the pod before it is
    bound. For pods that another scheduler placed, the cards are read from the annotation.
    """

    name: ClassVar[str] = "GpuShare"
    api_version: ClassVar[int] = 1
    arguments = GpuShareArgs
    scope: ClassVar[Scope] = Scope.NODE
    needs = frozenset({Permission.ANNOTATE})
    reads_annotations = (GPU_COUNT, GPU_INDEX)

    def __init__(self, args: GpuShareArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        self._args = args
        workload = Workload(args.workload) if args.workload else None
        self._policy: Policy
        if workload is not None and args.policy in _FOR_WORKLOAD:
            self._policy = _FOR_WORKLOAD[args.policy](workload)
        else:
            self._policy = _WITHOUT_WORKLOAD[args.policy]()
        self._assigned = AssignedCards()
        number = workload.model_number if workload is not None else (lambda model: 0)
        self._cards = CardTable(handle.cluster, self._assigned, number)

    # -- the decision -------------------------------------------------------------------------

    def pre_filter(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> PreFilterResult:
        try:
            demand = demand_of(pod.shape)
        except DemandError as error:
            return PreFilterResult(Status.unresolvable(str(error)))
        state.write(DEMAND, demand)
        return PreFilterResult(SUCCESS if demand.cards else Status.skip())

    def filter_all(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> FilterResult:
        demand, cards = state.read(DEMAND), self._cards.of(nodes)
        codes = np.where(fits(cards, demand), 0, np.where(cards.size < demand.cards, 2, 1))
        return FilterResult(codes.astype(np.int16), (_FULL, _TOO_FEW))

    def score_all(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> Int64Column:
        demand, cards = state.read(DEMAND), self._cards.of(nodes)
        scores = np.zeros(nodes.size, np.int64)
        able = fits(cards, demand) & (cards.cpu_milli >= demand.cpu_milli)
        rows = np.flatnonzero(able)
        if len(rows):
            scores[rows] = self._policy.score(cards.take(rows), demand)
        return scores

    def normalize(self, state: CycleState, pod: PodInfo, scores: Int64Column) -> Int64Column:
        """Scale to 0 to 100. With ``ties: first``, only the first of the best nodes gets 100."""
        if not len(scores):
            return scores
        scaled = scores
        if self._policy.stretched:
            lowest, highest = int(scores.min()), int(scores.max())
            scaled = (scores - lowest) * MAX_NODE_SCORE // max(1, highest - lowest)
        if not self._args.first_of_equals:
            return scaled
        best = int((scores if self._policy.exact else scaled).argmax())
        scaled = np.minimum(scaled, MAX_NODE_SCORE - 1)
        scaled[best] = MAX_NODE_SCORE
        return scaled

    # -- the cards ----------------------------------------------------------------------------

    def reserve(self, state: CycleState, pod: PodInfo, node_name: str) -> ReserveResult:
        demand = state.read(DEMAND)
        if not demand.cards:
            return ReserveResult()
        nodes = self.handle.cluster.nodes
        row = nodes.row_of(node_name)
        if row is None:
            return ReserveResult(Status.error(f"no node {node_name}"))
        cards = self._cards.of(nodes.take(np.array([row], np.intp)))
        if not fits(cards, demand)[0]:
            return ReserveResult(_FULL)
        chosen = self._policy.choose(cards, demand, self._draws(pod))
        given = cards.free[0, list(chosen)]
        if len(given) != demand.cards or (given < demand.milli).any():
            return ReserveResult(Status.error(f"{self._args.policy.value} chose cards {chosen}"))
        return ReserveResult(reservation=reservation_of(chosen))

    def _draws(self, pod: PodInfo) -> Callable[[int], int]:
        drawn = 0

        def draw(below: int) -> int:
            nonlocal drawn
            drawn += 1
            return self.handle.stable_random(f"{pod.uid}/{drawn}", below)

        return draw

    def on_reserved(self, pod: PodInfo, node_name: str, reservation: dict[str, Any] | None) -> None:
        if reservation is not None:
            self._assigned.add(pod.uid, cards_from(reservation))

    def unreserve(self, pod: PodInfo, node_name: str, reservation: dict[str, Any] | None) -> None:
        self._assigned.remove(pod.uid)

    def on_deleted(self, pod: PodInfo, node_name: str, reservation: dict[str, Any] | None) -> None:
        self._assigned.remove(pod.uid)

    def pre_bind_pre_flight(self, pod: PodInfo, node_name: str) -> bool:
        return self._assigned.get(pod.uid) is not None

    async def pre_bind(self, client: BindingClient, pod: PodInfo, node_name: str) -> Status:
        cards = self._assigned.get(pod.uid)
        if cards is None:
            return SUCCESS
        return await client.annotate(pod, {GPU_INDEX: index_text(cards)})

    # -- events -------------------------------------------------------------------------------

    def events_to_register(self) -> Sequence[ClusterEventWithHint]:
        pods = ActionType.DELETE | ActionType.UPDATE_POD_SCALE_DOWN
        nodes = ActionType.ADD | ActionType.UPDATE_NODE_ALLOCATABLE
        return (
            ClusterEventWithHint(ClusterEvent(EventResource.ASSIGNED_POD, pods), _cards_freed),
            ClusterEventWithHint(ClusterEvent(EventResource.NODE, nodes)),
        )


def _cards_freed(pod: Pod, old: Object | None, new: Object | None) -> QueueingHint:
    """Whether the deleted pod used any card."""
    if not isinstance(old, Pod):
        return QueueingHint.QUEUE
    containers = (*old.spec.containers, *old.spec.init_containers)
    used_cards = any(GPU_MILLI in container.resources.requests for container in containers)
    return QueueingHint.QUEUE if used_cards else QueueingHint.SKIP
