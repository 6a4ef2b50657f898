"""Reports of the API server that wait for the watch to confirm them.

The watch event of the same change carries more than the answer to the request, so an answer that
arrives first waits for it, and one record is enough.
"""

from __future__ import annotations

import msgspec

from asched.framework.cluster import PodRef
from asched.model.pod import FAILED, SUCCEEDED, Pod
from asched.state import records as r
from asched.state.cluster import ClusterState


class PendingEvictions:
    """Accepted evictions of victims that the watch still shows as running.

    An accepted deletion frees nothing yet. A preemptor that is requeued before the watch shows the
    deletion would find no capacity and evict the same victims again.
    """

    def __init__(self, cluster: ClusterState) -> None:
        self._cluster = cluster
        self.accepted: dict[str, r.EvictionSucceeded] = {}
        """By the victim's UID."""

    def hold(self, evicted: r.EvictionSucceeded) -> bool:
        """Keep the report if the watch does not show the deletion yet; False if it does."""
        entry = self._cluster.entry(evicted.key, evicted.uid)
        if entry is None or entry.info.pod.terminating:
            return False
        self.accepted[evicted.uid] = evicted
        return True

    def with_unplaced_flag(self, evicted: r.EvictionSucceeded) -> r.EvictionSucceeded:
        """The report, with a note if the victim no longer occupies a node."""
        entry = self._cluster.entry(evicted.key, evicted.uid)
        unplaced = entry is not None and not entry.node
        return msgspec.structs.replace(evicted, unplaced=True) if unplaced else evicted

    def due_before(self, record: r.AnyRecord) -> r.EvictionSucceeded | None:
        """The report to record right before ``record``, which shows the victim deleted.

        Either a kept report, or a new one for a victim that lost its node before its deletion was
        answered.
        """
        evictions = self._cluster.evictions.by_victim
        if not self.accepted and not evictions:
            return None
        victim = self._deleted_by(record)
        if victim is None:
            return None
        report = self.accepted.pop(victim.uid, None)
        if report is not None:
            return self.with_unplaced_flag(report)
        if victim.uid in evictions:
            report = self.with_unplaced_flag(r.EvictionSucceeded(victim.key, victim.uid))
            return report if report.unplaced else None
        return None

    def _deleted_by(self, record: r.AnyRecord) -> PodRef | None:
        """The pod that ``record`` shows deleted or terminating."""
        match record:
            case r.ObjectDeleted():
                return PodRef(record.key, record.uid)
            case r.PodUpdated() if record.deletion_timestamp or record.phase in (SUCCEEDED, FAILED):
                return PodRef(record.key, record.uid)
            case r.ObjectObserved(object=Pod() as pod):
                ended = PodRef(pod.key, pod.uid) if pod.terminating or pod.terminal else None
                return self._replaced(pod.key, pod.uid) or ended
            case r.PodObserved():
                return self._replaced(record.key, record.uid)
        return None

    def _replaced(self, key: str, uid: str) -> PodRef | None:
        """The known pod of the same name with another UID: its deletion was never observed."""
        entry = self._cluster.pods.get(key)
        if entry is None or entry.info.uid == uid:
            return None
        return PodRef(key, entry.info.uid)


class UnconfirmedBindings:
    """Successful bindings that the watch has not shown yet. They wait for one turn."""

    def __init__(self, cluster: ClusterState) -> None:
        self._cluster = cluster
        self._bound: list[r.Bound] = []

    def __bool__(self) -> bool:
        return bool(self._bound)

    def add(self, bound: r.Bound) -> None:
        """Keep the report unless the watch has shown the binding."""
        if not self._is_confirmed(bound):
            self._bound.append(bound)

    def take(self) -> list[r.Bound]:
        """Remove all reports; return those that the watch has not confirmed meanwhile."""
        reports, self._bound = self._bound, []
        return [report for report in reports if not self._is_confirmed(report)]

    def _is_confirmed(self, bound: r.Bound) -> bool:
        entry = self._cluster.entry(bound.key, bound.uid)
        return entry is not None and entry.info.pod.node_name == entry.node == bound.node
