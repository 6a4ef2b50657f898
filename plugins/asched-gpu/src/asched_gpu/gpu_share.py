"""GpuShare: pods that share cards, or take whole ones, each on cards that are decided with its node."""

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
    Verdicts,
)
from asched.model import Object, Pod
from asched_gpu.cards import Books, CardTable, note_of, noted
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
    """The policies, as ``args`` name them."""

    RANDOM = "random"
    DOT_PRODUCT = "dot-product"
    CLUSTERING = "clustering"
    PACKING = "packing"
    BEST_FIT = "best-fit"
    FGD = "fgd"
    FGD_ALIGNED = "fgd-aligned"


class Ties(Enum):
    """Which of equally good nodes is taken."""

    FIRST = "first"
    """The one that joined first: nodes fill up one after the other, which leaves whole ones free."""
    LOT = "lot"
    """One by lot, as kube-scheduler does."""


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
    workload: tuple[TaskClass, ...] = ()
    """What is expected to come, for the policies that look ahead."""
    ties: Ties | None = None
    """``first`` by default, but for the policy ``random``."""

    def __post_init__(self) -> None:
        if self.policy in _FOR_WORKLOAD and not self.workload:
            raise ValueError(f"policy {self.policy.value} needs a workload: the tasks expected")

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
    """Places pods on cards by one of several policies.

    A decision names the cards, so a replay gives the same ones. They are written to the pod as
    annotation before it is bound, for the node to obey; and are read from there for pods that somebody
    else placed.
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
        self._books = Books()
        number = workload.model_number if workload is not None else (lambda model: 0)
        self._cards = CardTable(handle.cluster, self._books, number)

    # -- the decision -------------------------------------------------------------------------

    def pre_filter(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> PreFilterResult:
        try:
            demand = demand_of(pod.shape)
        except DemandError as error:
            return PreFilterResult(Status.unresolvable(str(error)))
        state.write(DEMAND, demand)
        return PreFilterResult(SUCCESS if demand.cards else Status.skip())

    def filter_all(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> Verdicts:
        demand, cards = state.read(DEMAND), self._cards.of(nodes)
        codes = np.where(fits(cards, demand), 0, np.where(cards.size < demand.cards, 2, 1))
        return Verdicts(codes.astype(np.int16), (_FULL, _TOO_FEW))

    def score_all(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> Int64Column:
        demand, cards = state.read(DEMAND), self._cards.of(nodes)
        scores = np.zeros(nodes.size, np.int64)
        able = fits(cards, demand) & (cards.cpu_milli >= demand.cpu_milli)
        rows = np.flatnonzero(able)
        if len(rows):
            scores[rows] = self._policy.score(cards.take(rows), demand)
        return scores

    def normalize(self, state: CycleState, pod: PodInfo, scores: Int64Column) -> Int64Column:
        """To 0 to 100; but where the first of equals is to be taken that one alone has 100."""
        if not len(scores):
            return scores
        brought = scores
        if self._policy.stretched:
            lowest, highest = int(scores.min()), int(scores.max())
            brought = (scores - lowest) * MAX_NODE_SCORE // max(1, highest - lowest)
        if not self._args.first_of_equals:
            return brought
        best = int((scores if self._policy.exact else brought).argmax())
        brought = np.minimum(brought, MAX_NODE_SCORE - 1)
        brought[best] = MAX_NODE_SCORE
        return brought

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
        return ReserveResult(note=note_of(chosen))

    def _draws(self, pod: PodInfo) -> Callable[[int], int]:
        drawn = 0

        def draw(below: int) -> int:
            nonlocal drawn
            drawn += 1
            return self.handle.draw(f"{pod.uid}/{drawn}", below)

        return draw

    def reserved(self, pod: PodInfo, node_name: str, note: dict[str, Any] | None) -> None:
        if note is not None:
            self._books.enter(pod.uid, noted(note))

    def unreserve(self, pod: PodInfo, node_name: str, note: dict[str, Any] | None) -> None:
        self._books.strike(pod.uid)

    def released(self, pod: PodInfo, node_name: str, note: dict[str, Any] | None) -> None:
        self._books.strike(pod.uid)

    def pre_bind_pre_flight(self, pod: PodInfo, node_name: str) -> bool:
        return self._books.given(pod.uid) is not None

    async def pre_bind(self, client: BindingClient, pod: PodInfo, node_name: str) -> Status:
        cards = self._books.given(pod.uid)
        if cards is None:
            return SUCCESS
        return await client.annotate(pod, {GPU_INDEX: index_text(cards)})

    # -- what may help ------------------------------------------------------------------------

    def events_to_register(self) -> Sequence[ClusterEventWithHint]:
        pods = ActionType.DELETE | ActionType.UPDATE_POD_SCALE_DOWN
        nodes = ActionType.ADD | ActionType.UPDATE_NODE_ALLOCATABLE
        return (
            ClusterEventWithHint(ClusterEvent(EventResource.ASSIGNED_POD, pods), _cards_freed),
            ClusterEventWithHint(ClusterEvent(EventResource.NODE, nodes)),
        )


def _cards_freed(pod: Pod, old: Object | None, new: Object | None) -> QueueingHint:
    """Whether the pod that went had any card."""
    if not isinstance(old, Pod):
        return QueueingHint.QUEUE
    containers = (*old.spec.containers, *old.spec.init_containers)
    asks = any(GPU_MILLI in container.resources.requests for container in containers)
    return QueueingHint.QUEUE if asks else QueueingHint.SKIP
