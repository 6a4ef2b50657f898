"""Carries out a plan in a cluster: cordon, evict, wait for each replacement; stop when it differs.

The nodes of all domains are cordoned first, as ``kubectl drain`` does: an eviction alone lets the
scheduler put the replacement back. Before each domain the plan is decided again on the observed
state. Nodes of domains that are not freed are uncordoned at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

import anyio
import structlog
from msgspec.structs import replace

from asched.consolidation.facts import ClusterReadError, with_facts
from asched.consolidation.live import FollowedCluster
from asched.consolidation.plan import ConsolidationError, ConsolidationPlan
from asched.kube.client import ApiClient
from asched.kube.disruption_writer import DisruptionWriter, EvictionThrottled
from asched.kube.pod_writer import PodTarget
from asched.kube.write_outcomes import ObjectGone, WriteSucceeded
from asched.model.node import Node
from asched.state.cluster import PlacementState
from asched.state.consolidation_records import (
    ConsolidationEnded,
    ConsolidationSettings,
    FreedDomain,
    PodMove,
)

RETRY_S: Final = 5.0
"""Delay after a throttled eviction without ``Retry-After``, as for ``kubectl drain``."""
_UNCORDON_LIMIT_S: Final = 30.0

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class ExecutionOptions(NamedTuple):
    """How a plan is carried out."""

    timeout_s: float = 300.0
    """For each eviction, and for its replacement to be bound."""
    retry_s: float = RETRY_S
    local_storage: bool = False
    """Whether pods with local storage may be evicted."""


class _DeviationError(Exception):
    """The cluster differs from the plan."""


async def carry_out(
    cluster: FollowedCluster,
    client: ApiClient,
    settings: ConsolidationSettings,
    plan: ConsolidationPlan,
    options: ExecutionOptions | None = None,
    progress: Callable[[str], None] = lambda line: None,
) -> list[ConsolidationEnded]:
    """Free the domains of a plan that was decided on this cluster.

    Returns what became of each domain that was begun; the last one has a deviation if the plan
    could not be completed. Raises :class:`~asched.journal.errors.JournalError`.
    """
    execution = _Execution(cluster, client, settings, options or ExecutionOptions(), progress)
    nodes = [(name, domain.name) for domain in plan.freed for name in domain.nodes]
    ended: list[ConsolidationEnded] = []
    try:
        for domain in plan.freed:
            result = await execution.free(domain, nodes)
            await cluster.record(result)
            ended.append(result)
            if result.deviation:
                break
    finally:
        done = {each.domain for each in ended if not each.deviation}
        left = [node for node, domain in nodes if domain not in done]
        with anyio.move_on_after(_UNCORDON_LIMIT_S, shield=True) as limited:
            await execution.uncordon(left)
        if limited.cancelled_caught:
            log.error("nodes not uncordoned in time", limit_s=_UNCORDON_LIMIT_S, nodes=left)
    return ended


class _Execution:
    """Writes to one cluster."""

    def __init__(
        self,
        cluster: FollowedCluster,
        client: ApiClient,
        settings: ConsolidationSettings,
        options: ExecutionOptions,
        progress: Callable[[str], None],
    ) -> None:
        self._cluster = cluster
        self._client = client
        self._writer = DisruptionWriter(client)
        self._settings = settings
        self._options = options
        self._progress = progress
        self._cordoned: set[str] = set()
        self._evicted: list[PodMove] = []

    async def free(
        self, domain: FreedDomain, nodes: Iterable[tuple[str, str]]
    ) -> ConsolidationEnded:
        """Move the pods of one domain. ``nodes``: all nodes to cordon, with their domains."""
        self._evicted = []
        try:
            await self._cordon(nodes)
            await self._move_all(domain.name)
            await self._await_ends()
        except (_DeviationError, ClusterReadError, ConsolidationError) as error:
            return ConsolidationEnded(domain.name, len(self._evicted), str(error))
        return ConsolidationEnded(domain.name, len(self._evicted))

    async def uncordon(self, nodes: Iterable[str]) -> None:
        """Undo the cordon of these nodes, as far as this process made it."""
        for name in nodes:
            node = self._cluster.state.objects(Node).get(name)
            if name in self._cordoned and node is not None:
                outcome = await self._writer.uncordon(node)
                self._cordoned.discard(name)
                if not isinstance(outcome, WriteSucceeded | ObjectGone):
                    log.error("node remains cordoned", node=name, error=outcome.message)

    async def _cordon(self, nodes: Iterable[tuple[str, str]]) -> None:
        state = self._cluster.state
        for name, domain in nodes:
            if name in self._cordoned:
                continue
            node = state.objects(Node).get(name)
            if node is None:
                raise _DeviationError(f"node {name} is gone")
            self._cordoned.add(name)
            outcome = await self._writer.cordon(node, domain)
            if not isinstance(outcome, WriteSucceeded):
                raise _DeviationError(f"node {name} cannot be cordoned: {outcome.message}")

        def observed() -> bool:
            known = state.objects(Node)
            return all(name not in known or known[name].spec.unschedulable for name, _ in nodes)

        if not await self._cluster.until(observed, self._options.timeout_s):
            raise _DeviationError("the watch does not show the cordoned nodes")

    async def _move_all(self, domain: str) -> None:
        """Evict one pod after the other. A replacement on another node than planned is no failure,
        but the moves that remain are decided again."""
        moves = await self._decide(domain)
        while moves:
            move = moves.pop(0)
            target = await self._move(move)
            self._progress(f"pod {move.pod} moved from {move.node} to {target}")
            if target != move.target and moves:
                moves = await self._decide(domain)

    async def _decide(self, domain: str) -> list[PodMove]:
        """The moves of a domain in the present state."""
        known = await with_facts(
            self._client, self._settings, local_storage=self._options.local_storage
        )
        plan = await self._cluster.decide(replace(known, domains=(domain,)))
        for kept in plan.kept:
            raise _DeviationError(kept.reason)
        return [move for freed in plan.freed for move in freed.moves]

    async def _move(self, move: PodMove) -> str:
        """Evict a pod, and wait for its replacement. Returns the node of the replacement."""
        state = self._cluster.state
        entry = state.entry(move.pod, move.uid)
        owner = None if entry is None else entry.info.pod.metadata.controller
        if owner is None:
            raise _DeviationError(f"pod {move.pod} is gone")
        before = self._pods_of(owner.uid)
        await self._evict(move)
        self._evicted.append(move)

        def replacement() -> str:
            for uid, node in self._pods_of(owner.uid).items():
                if node and uid not in before:
                    return node
            return ""

        limit_s = self._options.timeout_s
        if not await self._cluster.until(lambda: bool(replacement()), limit_s):
            what = f"the replacement of pod {move.pod}"
            raise _DeviationError(f"{what} is not bound after {limit_s:g} s")
        target = replacement()
        if target in self._cordoned:
            raise _DeviationError(f"the replacement of pod {move.pod} is on cordoned node {target}")
        return target

    def _pods_of(self, owner_uid: str) -> dict[str, str]:
        """The pods of a controller: their nodes by uid, empty for pods that are not bound."""
        return {
            entry.info.uid: entry.node if entry.placement_state is PlacementState.BOUND else ""
            for entry in self._cluster.state.pods.values()
            if (owner := entry.info.pod.metadata.controller) is not None and owner.uid == owner_uid
        }

    async def _evict(self, move: PodMove) -> None:
        clock, target = self._cluster.clock, PodTarget.of(move.pod, move.uid)
        ends_s = clock.monotonic_s() + self._options.timeout_s
        while True:
            outcome = await self._writer.evict(target)
            if isinstance(outcome, WriteSucceeded):
                return
            retry = isinstance(outcome, EvictionThrottled) and clock.monotonic_s() < ends_s
            if not retry:
                raise _DeviationError(f"pod {move.pod} cannot be evicted: {outcome.message}")
            assert isinstance(outcome, EvictionThrottled)
            await clock.sleep(outcome.retry_after_s or self._options.retry_s)

    async def _await_ends(self) -> None:
        """Wait until the evicted pods have left their nodes."""
        state, evicted = self._cluster.state, self._evicted

        def present() -> list[str]:
            return [move.pod for move in evicted if state.entry(move.pod, move.uid)]

        if not await self._cluster.until(lambda: not present(), self._options.timeout_s):
            raise _DeviationError(f"pod {present()[0]} has not ended")
