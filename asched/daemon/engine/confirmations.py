"""Evictions that the API server accepted, until the watch shows them.

An accepted deletion is not yet room: for the moment between the answer and the watch the victim still
stands on its node. A preemptor that was told too early would be tried, find no room, and have the same
victims evicted once more.

Bindings that the API server has answered for and the watch has not shown yet.

Both tell of the same binding, mostly within the same milliseconds, and one record is enough: that of the
watch, which tells more. So an answer that comes first waits for it, for a turn of the engine.
"""

from __future__ import annotations

import msgspec

from asched.framework.interface import Victim
from asched.model.pod import FAILED, SUCCEEDED, Pod
from asched.state.cluster import ClusterState
from asched.state.records import (
    AnyRecord,
    Bound,
    ObjectGone,
    ObjectSeen,
    PodChanged,
    PodSeen,
    VictimEvicted,
)


class PendingEvictions:
    """Holds back what effects report of victims."""

    def __init__(self, cluster: ClusterState) -> None:
        self._cluster = cluster
        self._accepted: dict[str, VictimEvicted] = {}
        """By the victim's uid."""

    def __bool__(self) -> bool:
        return bool(self._accepted)

    def as_it_stands(self, evicted: VictimEvicted) -> VictimEvicted:
        """The report, with the note that no room of the victim is left to become free."""
        entry = self._cluster.entry(evicted.key, evicted.uid)
        roomless = entry is not None and not entry.node
        return msgspec.structs.replace(evicted, roomless=True) if roomless else evicted

    def told_before(self, record: AnyRecord) -> VictimEvicted | None:
        """The report that belongs right before ``record``, which shows the victim gone or going: the one
        that was held back; or that a victim which had lost its room went before our deletion was
        answered."""
        evictions = self._cluster.evictions
        if not self._accepted and not evictions:
            return None
        victim = self._shown_going(record)
        if victim is None:
            return None
        report = self._accepted.pop(victim.uid, None)
        if report is not None:
            return self.as_it_stands(report)
        if victim.uid in evictions:
            report = self.as_it_stands(VictimEvicted(victim.key, victim.uid))
            return report if report.roomless else None
        return None

    def holds(self, evicted: VictimEvicted) -> bool:
        """Whether the victim stands there as if nothing had happened. Then :meth:`told_before` gives
        the report back in time."""
        entry = self._cluster.entry(evicted.key, evicted.uid)
        if entry is None or entry.info.pod.terminating:
            return False
        self._accepted[evicted.uid] = evicted
        return True

    def _shown_going(self, record: AnyRecord) -> Victim | None:
        """The pod that is gone or going by this record."""
        match record:
            case ObjectGone():
                return Victim(record.key, record.uid)
            case PodChanged() if record.deletion_timestamp or record.phase in (SUCCEEDED, FAILED):
                return Victim(record.key, record.uid)
            case ObjectSeen(object=Pod() as pod):
                going = Victim(pod.key, pod.uid) if pod.terminating or pod.terminal else None
                return self._followed(pod.key, pod.uid) or going
            case PodSeen():
                return self._followed(record.key, record.uid)
        return None

    def _followed(self, key: str, uid: str) -> Victim | None:
        """Another pod that had this one's name, of whose end nothing was told."""
        entry = self._cluster.pods.get(key)
        if entry is None or entry.info.uid == uid:
            return None
        return Victim(key, entry.info.uid)


class UnconfirmedBindings:
    """Answers that wait for the watch."""

    def __init__(self, cluster: ClusterState) -> None:
        self._cluster = cluster
        self._answers: list[Bound] = []

    def __bool__(self) -> bool:
        return bool(self._answers)

    def answered(self, answer: Bound) -> None:
        """It waits, unless the watch has shown the binding already."""
        if not self._is_shown(answer):
            self._answers.append(answer)

    def overdue(self) -> list[Bound]:
        """Those that waited and were not shown meanwhile; they wait no longer."""
        answers, self._answers = self._answers, []
        return [answer for answer in answers if not self._is_shown(answer)]

    def _is_shown(self, answer: Bound) -> bool:
        entry = self._cluster.entry(answer.key, answer.uid)
        return entry is not None and entry.info.pod.node_name == entry.node == answer.node
