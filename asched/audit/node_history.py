"""What happened to a node, and to pods on it."""

from __future__ import annotations

from datetime import datetime

import msgspec

from asched.audit.history import ALWAYS, Period, opened_for
from asched.audit.timeline import time_of
from asched.framework.profile import PluginLoader
from asched.journal.store import JournalStore
from asched.model.node import Node
from asched.state import records as r
from asched.state.cluster import ClusterState


class NodeEvent(msgspec.Struct, frozen=True, rename="camel"):
    """One thing that happened to a node."""

    event: str
    """``seen``, ``changed``, ``gone``; of a pod ``assigned``, ``bound``, ``bindFailed``, ``left``;
    ``nominated`` where room is made on it for a pod."""
    seq: int
    at: datetime
    pod: str = ""
    detail: str = ""


class NodeTimeline(msgspec.Struct, rename="camel"):
    """All that happened to a node, oldest first."""

    name: str
    entries: list[NodeEvent] = []


class _Follower:
    """Writes down what concerns one node."""

    def __init__(self, name: str, state: ClusterState) -> None:
        """``state`` is what comes before the first record."""
        self.timeline = NodeTimeline(name)
        self.now_ns = state.now_ns
        self._name = name
        node = state.objects_of.get(Node, {}).get(name)
        self._node = node if isinstance(node, Node) else None
        self.known = self._node is not None
        """Whether there ever was such a node."""
        self._here = {
            key: entry.info.uid for key, entry in state.pods.items() if entry.node == name
        }
        self._seq = 0

    def follow(self, seq: int, record: r.AnyRecord) -> None:
        self._seq = seq
        match record:
            case r.TurnStarted():
                self.now_ns = record.now_ns
            case r.ObjectSeen(object=Node() as node) if node.name == self._name:
                self._seen(node)
            case r.ObjectGone(kind="Node", key=key) if key == self._name:
                self._node = None
                self._write("gone")
            case r.Assigned(node=name) if name == self._name:
                self._here[record.key] = record.uid
                self._write("assigned", record.key, f"attempt {record.attempt}")
            case r.Bound(node=name) if name == self._name:
                self._here[record.key] = record.uid
                self._write("bound", record.key)
            case r.BindFailed(node=name) if name == self._name:
                # It may be of a pod that is gone, and another of that name be here.
                if self._here.get(record.key) == record.uid:
                    del self._here[record.key]
                self._write("bindFailed", record.key, record.message)
            case r.Rejected(nominated_node=name) if name == self._name:
                victims = ", ".join(victim.key for victim in record.victims)
                self._write("nominated", record.key, f"evicting {victims}" if victims else "")
            case r.PodSeen() | r.PodChanged():
                self._placed(record.key, record.uid, record.node_name)
            case r.ObjectSeen(object=thing) if type(thing).__name__ == "Pod":
                self._placed(thing.key, thing.uid, getattr(thing, "node_name", ""))
            case r.ObjectGone(kind="Pod", key=key) | r.PermitRejected(key=key):
                if key in self._here:
                    del self._here[key]
                    self._write("left", key)

    def _write(self, event: str, pod: str = "", detail: str = "") -> None:
        at = time_of(self.now_ns)
        self.timeline.entries.append(NodeEvent(event, self._seq, at, pod, detail))

    def _placed(self, key: str, uid: str, node: str) -> None:
        """The API server showed the pod on that node."""
        if node == self._name and key not in self._here:
            self._here[key] = uid
            self._write("bound", key, "by another scheduler, or before we looked")

    def _seen(self, node: Node) -> None:
        before, self._node = self._node, node
        self.known = True
        if before is None:
            self._write("seen", detail=_described(node))
        else:
            self._write("changed", detail="; ".join(_differences(before, node)))


def _described(node: Node) -> str:
    offered = ", ".join(f"{key} {value}" for key, value in node.status.allocatable.items())
    taints = ", ".join(f"{t.key}={t.value}:{t.effect}" for t in node.spec.taints)
    cordoned = ", cordoned" if node.spec.unschedulable else ""
    return f"offers {offered or 'nothing'}{f', taints {taints}' if taints else ''}{cordoned}"


def _differences(old: Node, new: Node) -> list[str]:
    found = []
    for what, before, after in (
        ("label", old.metadata.labels, new.metadata.labels),
        ("allocatable", old.status.allocatable, new.status.allocatable),
    ):
        for key in sorted({*before, *after}):
            was, now = before.get(key, "(none)"), after.get(key, "(none)")
            if was != now:
                found.append(f"{what} {key} {was} -> {now}")
    for what, was, now in (
        ("unschedulable", old.spec.unschedulable, new.spec.unschedulable),
        ("taints", _taints(old), _taints(new)),
        ("ready", old.ready, new.ready),
    ):
        if was != now:
            found.append(f"{what} {was} -> {now}")
    return found or ["nothing that is told here"]


def _taints(node: Node) -> str:
    return ", ".join(f"{t.key}={t.value}:{t.effect}" for t in node.spec.taints) or "(none)"


async def node_timeline(
    journal: JournalStore, name: str, load: PluginLoader, period: Period = ALWAYS
) -> NodeTimeline | None:
    """The node's timeline within the period; None where the journal knows no such node.

    Raises :class:`~asched.journal.errors.JournalError`, ProfileError and FoldError.
    """
    opened = await opened_for(journal, load, period)
    follower = _Follower(name, opened.fold.state)
    async for stored in journal.read(opened.seq):
        if isinstance(stored.record, r.TurnStarted) and not period.covers(
            max(stored.record.now_ns, period.since_ns)
        ):
            break
        follower.follow(stored.seq, stored.record)
    if not follower.known:
        return None
    timeline, since = follower.timeline, time_of(period.since_ns)
    timeline.entries = [entry for entry in timeline.entries if entry.at >= since]
    return timeline
