"""What the journal says of the run so far: a projection of its records.

How the run stands at one moment, read from the daemon's state. Nothing here changes it.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from asched.cli.demo.workload import GPU, Loading
from asched.journal.store import JournalStore
from asched.model.pod import Pod
from asched.model.quantity import NS_PER_S
from asched.model.requests import CPU, MEMORY, PODS
from asched.state.cluster import ClusterState
from asched.state.records import (
    AnyRecord,
    Assigned,
    AttemptFailed,
    BindFailed,
    Bound,
    ObjectSeen,
    PodSeen,
    Rejected,
    TurnStarted,
)

_LATEST: Final = 6


class JournalCounts:
    """Counts and times, kept up to date by reading on in the journal.

    Times are those of the engine's turns: when a pod was seen, and when the confirmation of its
    binding was.
    """

    def __init__(self, feasible: set[str]) -> None:
        """:param feasible: keys of the pods that are expected to be bound."""
        self.seq = 0
        """The last record that was read."""
        self.unbound = set(feasible)
        """Of the feasible pods, those without a confirmed binding."""
        self.seen = 0
        self.rejections = 0
        self.failures = 0
        self.latencies_ns: list[int] = []
        """From seen to bound, for each pod bound."""
        self.latest: deque[str] = deque(maxlen=_LATEST)
        self.first_seen_ns = 0
        self.last_bound_ns = 0
        self.attempts: dict[str, int] = {}
        """Attempts by key, of pods tried more than once."""
        self._now_ns = 0
        self._seen_ns: dict[str, int] = {}
        self._bound_per_s: dict[int, int] = {}

    @property
    def bound(self) -> int:
        return len(self.latencies_ns)

    async def read_on(self, journal: JournalStore) -> None:
        """Take in what was appended since the last call."""
        async for stored in journal.read(self.seq):
            self._apply(stored.record)
            self.seq = stored.seq

    def _apply(self, record: AnyRecord) -> None:
        match record:
            case TurnStarted():
                self._now_ns = record.now_ns
            case ObjectSeen(object=Pod() as pod):
                self._pod_seen(pod.metadata.uid, pod.node_name)
            case PodSeen():
                self._pod_seen(record.uid, record.node_name)
            case Assigned():
                self._tried(record.key, record.attempt)
                self._say(record.key, f"to {record.node}, best of {record.feasible}")
            case Rejected():
                self._tried(record.key, record.attempt)
                self.rejections += 1
                self._say(record.key, f"unschedulable: {record.message}")
            case AttemptFailed() | BindFailed():
                self.failures += 1
                self._say(record.key, f"failed: {record.message}")
            case Bound():
                self._pod_bound(record)

    def _say(self, key: str, text: str) -> None:
        self.latest.append(f"{key} {text}")

    def _tried(self, key: str, attempt: int) -> None:
        if attempt > 1:
            self.attempts[key] = attempt

    def _pod_seen(self, uid: str, node_name: str) -> None:
        if node_name or uid in self._seen_ns:
            return
        self._seen_ns[uid] = self._now_ns
        self.first_seen_ns = self.first_seen_ns or self._now_ns
        self.seen += 1

    def _pod_bound(self, record: Bound) -> None:
        self.unbound.discard(record.key)
        self.latencies_ns.append(self._now_ns - self._seen_ns[record.uid])
        self.last_bound_ns = self._now_ns
        second = self._now_ns // NS_PER_S
        self._bound_per_s[second] = self._bound_per_s.get(second, 0) + 1

    # -- figures ------------------------------------------------------------------------------

    @property
    def elapsed_s(self) -> float:
        """From the first pod seen to the last one bound."""
        return max(0, self.last_bound_ns - self.first_seen_ns) / NS_PER_S

    @property
    def pods_per_s(self) -> float:
        return self.bound / self.elapsed_s if self.elapsed_s else float(self.bound)

    @property
    def best_second(self) -> int:
        """The most pods bound within one second of the clock."""
        return max(self._bound_per_s.values(), default=0)

    @property
    def recent_per_s(self) -> int:
        """Pods bound in the last full second."""
        return self._bound_per_s.get(self._now_ns // NS_PER_S - 1, 0)

    def latency_s(self, percent: float) -> float:
        """A percentile (nearest rank) of the time from seen to bound, in seconds."""
        return percentile(sorted(self.latencies_ns), percent) / NS_PER_S


def percentile(ordered: Sequence[int], percent: float) -> int:
    """The smallest of ``ordered`` that ``percent`` of them do not exceed; 0 for none."""
    if not ordered:
        return 0
    rank = -(-len(ordered) * percent // 100)
    return ordered[max(0, int(rank) - 1)]


RESOURCES: Final = (CPU, MEMORY, GPU, PODS)
_MILLI: Final = 1000
_GI: Final = 1 << 30
_NOT_TRIED: Final = "not tried yet"


class NodeUtilization(NamedTuple):
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
class DemoStatus:
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
    use: tuple[NodeUtilization, ...]
    reasons: tuple[Reason, ...]
    latest: tuple[str, ...]
    notices: tuple[str, ...]


def standing(
    elapsed_s: float,
    total: int,
    feasible: int,
    loading: Loading,
    tally: JournalCounts,
    state: ClusterState,
) -> DemoStatus:
    queue = state.queue
    return DemoStatus(
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


def utilisation(state: ClusterState) -> tuple[NodeUtilization, ...]:
    """Requested and allocatable of all nodes together."""
    table = state.nodes
    found = []
    for resource in RESOURCES:
        if resource == PODS:
            requested, allocatable = table.pod_count, table.allowed_pods
        else:
            requested, allocatable = table.requested(resource), table.allocatable(resource)
        unit = {CPU: _MILLI, MEMORY: _GI}.get(resource, 1)
        found.append(
            NodeUtilization(resource, int(requested.sum()) / unit, int(allocatable.sum()) / unit)
        )
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
