"""Everything that follows the journal for the browser interface, record by record."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from asched.audit.timeline_log import PodPart, TimelineLog, TimelinePart
from asched.model.node import Node
from asched.state import records as r
from asched.state.cluster import ClusterState
from asched.state.fold import Fold
from asched.ui.columns import ClusterHistory
from asched.ui.device_history import DeviceHistory
from asched.ui.index import JournalIndex
from asched.ui.logs import FollowedLogs
from asched.ui.node_facts import FactsHistory
from asched.ui.placements import PlacementHistory
from asched.ui.plugin_history import PluginHistory


@dataclass
class Indexes:
    """All up to the same record."""

    names: JournalIndex = field(default_factory=JournalIndex)
    cluster: ClusterHistory = field(default_factory=ClusterHistory)
    facts: FactsHistory = field(default_factory=FactsHistory)
    devices: DeviceHistory = field(default_factory=DeviceHistory)
    logs: FollowedLogs = field(default_factory=FollowedLogs)
    placements: PlacementHistory = field(default_factory=PlacementHistory)
    plugins: PluginHistory = field(default_factory=PluginHistory)
    timelines: TimelineLog | None = None
    """None until there is a fold."""

    def begin(self, seq: int, fold: Fold) -> None:
        """Start with the state of a checkpoint, or at the beginning."""
        self.names.begin(seq, fold.state)
        self.facts.begin(seq, fold.state)
        self.resume(seq, fold)

    def resume(self, seq: int, fold: Fold) -> None:
        """Continue after record ``seq`` with a fold of the records up to it."""
        self.cluster.begin(seq, fold.state)
        self.devices.begin(seq, fold.state)
        self.placements.begin(seq, fold.state)
        self.plugins.begin(seq, fold.state)
        if self.timelines is None:
            self.timelines = TimelineLog(fold)
        else:
            self.timelines.skip_to(fold)

    def before(self, seq: int, record: r.AnyRecord) -> None:
        """The next record, before it is folded."""
        if self.timelines is not None:
            self.timelines.before(seq, record)

    def after(self, seq: int, record: r.AnyRecord, state: ClusterState) -> None:
        """The same record; ``state`` is the one after it."""
        match record:
            case r.ObjectObserved(object=Node() as node):
                self.facts.observe(seq, node)
            case r.ObjectDeleted(kind="Node"):
                self.facts.delete(seq, record.key)
        self.names.apply(seq, record, state)
        self.logs.apply(seq, record, state)
        self.cluster.apply(seq, state)
        self.devices.apply(seq, record)
        self.placements.apply(seq, record, state)
        self.plugins.apply(seq, state)
        if self.timelines is not None:
            self.timelines.after(record)

    def taken_timelines(self) -> Iterator[TimelinePart]:
        """The entries that are not stored."""
        return iter(()) if self.timelines is None else self.timelines.take()

    def timeline_parts(self, key: str) -> list[PodPart]:
        """The entries of a key that are not stored."""
        return [] if self.timelines is None else self.timelines.parts(key)
