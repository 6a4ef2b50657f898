"""Evictions that the API server accepted, until the watch shows them.

An accepted deletion is not yet room: for the moment between the answer and the watch the victim still
stands on its node. A preemptor that was told too early would be tried, find no room, and have the same
victims evicted once more.
"""

from __future__ import annotations

from asched.model.pod import FAILED, SUCCEEDED
from asched.state.cluster import ClusterState
from asched.state.records import AnyRecord, ObjectGone, ObjectSeen, PodChanged, VictimEvicted


class EvictionEcho:
    """Holds back what effects report of victims."""

    def __init__(self, cluster: ClusterState) -> None:
        self._cluster = cluster
        self._accepted: dict[str, VictimEvicted] = {}
        """By the victim's uid."""

    def __bool__(self) -> bool:
        return bool(self._accepted)

    def holds(self, evicted: VictimEvicted) -> bool:
        """Whether the victim stands there as if nothing had happened. Then :meth:`shown_by` gives the
        report back in time."""
        entry = self._cluster.entry(evicted.key, evicted.uid)
        if entry is None or entry.info.pod.terminating:
            return False
        self._accepted[evicted.uid] = evicted
        return True

    def shown_by(self, record: AnyRecord) -> VictimEvicted | None:
        """The report that belongs right before ``record``, which shows the victim gone or going."""
        match record:
            case ObjectGone():
                return self._accepted.pop(record.uid, None)
            case PodChanged() if record.deletion_timestamp or record.phase in (SUCCEEDED, FAILED):
                return self._accepted.pop(record.uid, None)
            case ObjectSeen() if record.object.metadata.deletion_timestamp is not None:
                return self._accepted.pop(record.object.metadata.uid, None)
        return None
