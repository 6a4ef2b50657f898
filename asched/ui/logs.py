"""What follows the journal beside the index: evictions, and the queues of batch sessions."""

from __future__ import annotations

from asched.audit.evictions import EvictionLog
from asched.audit.queue_log import QueueLog
from asched.state import records as r
from asched.state.cluster import ClusterState


class FollowedLogs:
    """The logs of one journal, up to one record."""

    def __init__(self) -> None:
        self.evictions = EvictionLog()
        self.queues = QueueLog()

    def apply(self, seq: int, record: r.AnyRecord, state: ClusterState) -> None:
        """Add a record; ``state`` is the one after it."""
        self.evictions.apply(seq, record, state)
        self.queues.apply(seq, record, state)
