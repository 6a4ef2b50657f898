"""What follows the journal in addition to the index: evictions, queues of batch sessions, and
comparisons of a shadow."""

from __future__ import annotations

import msgspec

from asched.audit.evictions import EvictionLog, EvictionLogForm
from asched.audit.queue_log import QueueLog, QueueLogForm
from asched.audit.shadow import ShadowLog, ShadowLogForm
from asched.pricing.prices import Prices
from asched.state import records as r
from asched.state.cluster import ClusterState


class FollowedLogsForm(msgspec.Struct, array_like=True):
    """Logs to be stored."""

    evictions: EvictionLogForm
    queues: QueueLogForm
    shadow: ShadowLogForm


class FollowedLogs:
    """The logs of one journal, up to one record."""

    def __init__(self, form: FollowedLogsForm | None = None, prices: Prices | None = None) -> None:
        """``form``: stored logs to continue with the next record. ``prices`` adds costs.

        Raises ValueError for the logs of a shadow that were made with other prices.
        """
        self.evictions = EvictionLog(None if form is None else form.evictions)
        self.queues = QueueLog(None if form is None else form.queues)
        self.shadow = ShadowLog(None if form is None else form.shadow, prices)

    @property
    def form(self) -> FollowedLogsForm:
        """To be stored."""
        return FollowedLogsForm(self.evictions.form, self.queues.form, self.shadow.form)

    def apply(self, seq: int, record: r.AnyRecord, state: ClusterState) -> None:
        """Add a record; ``state`` is the one after it."""
        self.evictions.apply(seq, record, state)
        self.queues.apply(seq, record, state)
        self.shadow.apply(seq, record, state)
