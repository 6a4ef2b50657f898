"""What happened, by the API server's own history, and what must not happen."""

from __future__ import annotations

from time import monotonic
from typing import NamedTuple

from asched.apiserver.cluster import EmbeddedCluster
from asched.apiserver.storage import DELETED, StoreChange
from tests.daemon.world import Placements

LEASE = "asched"
SILENCE_S = 10.0
"""How long a replica may report that it is ready while nothing is bound or recorded."""


class AcceptedBinding(NamedTuple):
    at_s: float
    pod: str
    node: str
    holder: str
    """The holder of the lease at that time."""


class History:
    """Follows pods and the lease inside the API server, independent of any replica."""

    def __init__(self, cluster: EmbeddedCluster) -> None:
        self.placements = Placements(cluster)
        self.bindings: list[AcceptedBinding] = []
        self.holder = ""
        self.held_since_s = 0.0
        self.pending: dict[str, float] = {}
        """Pods without a node by name, with the time of their creation."""
        self._counts: dict[str, int] = {}
        cluster.listen("pods", self._on_pod)
        cluster.listen("leases.coordination.k8s.io", self._on_lease)

    def _on_lease(self, change: StoreChange) -> None:
        lease = change.new.obj
        if lease["metadata"]["name"] == LEASE:
            holder = lease["spec"].get("holderIdentity") or ""
            if holder != self.holder:
                self.holder, self.held_since_s = holder, monotonic()

    def _on_pod(self, change: StoreChange) -> None:
        pod = change.new.obj
        name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        node = pod["spec"].get("nodeName")
        if change.type == DELETED:
            self.pending.pop(name, None)
        elif change.old is None:
            if not node:
                self.pending[name] = monotonic()
        elif node and not change.old.obj["spec"].get("nodeName"):
            self.pending.pop(name, None)
            self._counts[uid] = self._counts.get(uid, 0) + 1
            self.bindings.append(AcceptedBinding(monotonic(), name, node, self.holder))

    def unbound_for_s(self, now_s: float) -> float:
        """How long pods have waited without any pod being bound; 0 if none waits."""
        if not self.pending:
            return 0.0
        last_s = self.bindings[-1].at_s if self.bindings else 0.0
        return now_s - max(last_s, min(self.pending.values()))

    def breaches(self) -> list[str]:
        """Pods that were bound twice or moved, and nodes over capacity."""
        twice = [f"pod {uid} was bound {n} times" for uid, n in self._counts.items() if n > 1]
        return twice + self.placements.violations


class HealthSample(NamedTuple):
    """One reading of /readyz."""

    at_s: float
    ready: bool
    """False also without an answer."""
    text: str


def wrongly_ready(samples: list[HealthSample], silent_s: float, now_s: float) -> bool:
    """Whether a replica was ready in all samples of the last :data:`SILENCE_S` of a silence.

    ``silent_s``: how long nothing was bound, or recorded, although something should be.
    """
    if silent_s < SILENCE_S:
        return False
    recent = [sample for sample in samples if sample.at_s >= now_s - SILENCE_S]
    covered = bool(recent) and recent[0].at_s <= now_s - SILENCE_S + 2
    return covered and all(sample.ready for sample in recent)
