"""How the run stands at one moment, read from the daemon's state. Nothing here changes it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final, NamedTuple

from asched.cli.demo.loading import Loading
from asched.cli.demo.tally import Tally
from asched.cli.demo.workload import GPU
from asched.model.requests import CPU, MEMORY, PODS
from asched.state.cluster import ClusterState

RESOURCES: Final = (CPU, MEMORY, GPU, PODS)
_MILLI: Final = 1000
_GI: Final = 1 << 30
_NOT_TRIED: Final = "not tried yet"


class Use(NamedTuple):
    """How much of a resource the pods on nodes request, in whole cores, GiB or pieces."""

    resource: str
    requested: float
    allocatable: float

    @property
    def part(self) -> float:
        return self.requested / self.allocatable if self.allocatable else 0.0


class Reason(NamedTuple):
    """Why pods are pending, as the scheduler says it, and how many."""

    pods: int
    text: str


@dataclass(frozen=True)
class Standing:
    elapsed_s: float
    total: int
    """Pods that will be created."""
    feasible: int
    """Of them, those that can run."""
    created: int
    bound: int
    """Of the feasible ones."""
    recent_per_s: int
    nodes: int
    active: int
    backoff: int
    unschedulable: int
    gated: int
    in_flight: int
    use: tuple[Use, ...]
    reasons: tuple[Reason, ...]
    latest: tuple[str, ...]
    notices: tuple[str, ...]


def standing(
    elapsed_s: float, total: int, feasible: int, loading: Loading, tally: Tally, state: ClusterState
) -> Standing:
    queue = state.queue
    return Standing(
        elapsed_s=elapsed_s,
        total=total,
        feasible=feasible,
        created=loading.created_pods,
        bound=feasible - len(tally.unbound),
        recent_per_s=tally.recent_per_s,
        nodes=state.nodes.cluster_size,
        active=len(queue.active),
        backoff=len(queue.backoff),
        unschedulable=len(queue.unschedulable),
        gated=len(queue.gated),
        in_flight=len(list(queue.in_flight)),
        use=utilisation(state),
        reasons=pending_reasons(state),
        latest=tuple(tally.latest),
        notices=tuple(loading.notices),
    )


def utilisation(state: ClusterState) -> tuple[Use, ...]:
    """Requested and allocatable of all nodes together."""
    table = state.nodes
    found = []
    for resource in RESOURCES:
        if resource == PODS:
            requested, allocatable = table.pod_count, table.allowed_pods
        else:
            requested, allocatable = table.requested(resource), table.allocatable(resource)
        unit = {CPU: _MILLI, MEMORY: _GI}.get(resource, 1)
        found.append(Use(resource, int(requested.sum()) / unit, int(allocatable.sum()) / unit))
    return tuple(found)


def pending_reasons(state: ClusterState) -> tuple[Reason, ...]:
    """Why pods that were tried or held back are pending, the most frequent reason first."""
    counts: Counter[str] = Counter()
    queue = state.queue
    for pod in queue.gated.values():
        counts[f"held back by {pod.gating_plugin}"] += 1
    for waiting in (queue.unschedulable, queue.backoff, queue.active):
        for key in waiting:
            counts[state.pods[key].rejection or _NOT_TRIED] += 1
    del counts[_NOT_TRIED]
    return tuple(Reason(n, text) for text, n in sorted(counts.items(), key=lambda c: (-c[1], c[0])))
