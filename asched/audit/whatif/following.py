"""From records to what happened by itself, and to what was made of it.

The records are folded, and after each one it is seen what became of the pod that it is about. So
this need not know of the many records that can move a pod: the fold does.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple, cast

import msgspec

from asched.audit.whatif.lives import RecordedLife, fresh, placed
from asched.journal.codec import subject_of
from asched.model.custom import CustomObject
from asched.model.groups import CustomPodGroup, PodGroup
from asched.model.meta import Object
from asched.model.node import REGION_LABEL, ZONE_LABEL, Node
from asched.model.pod import Pod
from asched.model.resources import AnyObject, GroupResource, in_order_of_listing
from asched.simulator.trace import (
    EndReason,
    NodeSpan,
    ObjectRemoved,
    ObjectSet,
    Run,
    TraceEvent,
    WorkloadTrace,
)
from asched.state import records as r
from asched.state.cluster import PodEntry, PodPhase
from asched.state.fold import Fold


class _Seen(NamedTuple):
    """A pod as the state holds it, before or after a record."""

    pod: Pod
    node: str
    phase: PodPhase

    @classmethod
    def of(cls, entry: PodEntry | None) -> _Seen | None:
        return None if entry is None else cls(entry.info.pod, entry.node, entry.phase)


class _Appearance(NamedTuple):
    """The place at which a pod enters the history; how long it ran is known at the end."""

    life: RecordedLife


class _Disappearance(NamedTuple):
    life: RecordedLife
    at_ns: int


class HistoryFollower:
    """Folds the records of a period and gathers both."""

    def __init__(self, fold: Fold, begin_ns: int, *, shadow: bool = False) -> None:
        """``fold`` has folded what came before the period, which begins with the state it made.

        ``shadow``: another scheduler decided for our profiles' pods, and takes our place here.
        """
        self.shadow = shadow
        self.reconfigured = 0
        """How often another configuration was loaded in the period."""
        self._fold = fold
        self._state = fold.state
        self._begin_ns = begin_ns
        self._lives: dict[RecordedLife, None] = {}
        """Those that entered the history, in order of time."""
        self._by_uid: dict[str, RecordedLife] = {}
        """By every uid that a pod had."""
        self._events: list[TraceEvent | _Appearance | _Disappearance] = []
        self._displaced: dict[str, deque[RecordedLife]] = {}
        """Pods that had to go, by their controller's uid: its next ones are in their place."""
        self._open: dict[str, NodeSpan] = {}
        self._closed: list[NodeSpan] = []
        self._begin()

    def _begin(self) -> None:
        listed = in_order_of_listing(tuple(GroupResource))
        kinds: list[type[Object]] = [*(resource.type for resource in listed), CustomObject]
        for kind in kinds:
            for item in self._state.objects_of.get(kind, {}).values():
                self._events.append(ObjectSet(self._begin_ns, cast(AnyObject, item)))
                if isinstance(item, Node):
                    self._open[item.name] = NodeSpan(item, self._begin_ns)
        for entry in self._state.pods.values():
            self._appeared(entry.info.pod, entry.node, self._begin_ns)
        self._note_evictions(self._begin_ns)

    # -- records --------------------------------------------------------------------------------

    def follow(self, record: r.AnyRecord) -> None:
        """Fold the next record. Raises FoldError, ProfileError."""
        if isinstance(record, r.ProfilesLoaded) and self._reconfigures(record):
            self.reconfigured += 1
        kind, _, key = subject_of(record).partition("/")
        of_pod = kind == "pod"
        pods = self._state.pods
        before = _Seen.of(pods.get(key)) if of_pod else None
        echo = isinstance(record, r.ObjectObserved) and self._is_echo(record.object)
        self._fold.apply(record)
        now_ns = self._state.now_ns
        if of_pod:
            self._compare(before, _Seen.of(pods.get(key)), now_ns)
        if not echo:
            self._note(record, now_ns)
        if isinstance(record, r.DECISIONS):
            self._note_evictions(now_ns)

    def _is_echo(self, seen: Object) -> bool:
        """A PodGroup of which only the status changed, which sessions write."""
        if not isinstance(seen, PodGroup | CustomPodGroup) or not self._state.sessions:
            return False
        kept = self._state.objects_of.get(type(seen), {}).get(seen.key)
        return isinstance(kept, PodGroup | CustomPodGroup) and (
            msgspec.structs.replace(seen, status=kept.status) == kept
        )

    def _reconfigures(self, record: r.ProfilesLoaded) -> bool:
        """Whether other profiles than before decide from here on."""
        before = tuple(profile.spec for profile in self._state.profiles.values())
        return bool(before) and before != record.profiles

    def _note(self, record: r.AnyRecord, now_ns: int) -> None:
        """What a record says beside where its pod is."""
        match record:
            case r.ObjectObserved(object=Pod()) | r.ObjectDeleted(kind="Pod"):
                pass
            case r.ObjectObserved():
                self._events.append(ObjectSet(now_ns, record.object))
                if isinstance(record.object, Node):
                    self._close_span(record.object.name, now_ns)
                    self._open[record.object.name] = NodeSpan(record.object, now_ns)
            case r.ObjectDeleted():
                self._events.append(ObjectRemoved(now_ns, record.kind, record.key, record.uid))
                if record.kind == "Node":
                    self._node_gone(record.key, now_ns)
            case r.Assigned() | r.Rejected() | r.AttemptFailed():
                self._attempted(record)
            case r.EvictionFailed():
                self._spared(record.uid)
            case r.ShadowCompared():
                self.shadow = True
            case _:
                pass

    def _attempted(self, record: r.Assigned | r.Rejected | r.AttemptFailed) -> None:
        life = self._by_uid.get(record.uid)
        if life is None:
            return
        life.attempts += 1
        if isinstance(record, r.Assigned):
            return
        life.message = record.message
        life.rejections += isinstance(record, r.Rejected)

    def _node_gone(self, name: str, now_ns: int) -> None:
        self._close_span(name, now_ns)
        for entry in self._state.pods.values():
            life = self._by_uid.get(entry.info.uid) if entry.node == name else None
            if life is not None:
                self._displace(life)

    def _close_span(self, node: str, at_ns: int) -> None:
        span = self._open.pop(node, None)
        if span is not None and span.from_ns < at_ns:
            self._closed.append(msgspec.structs.replace(span, to_ns=at_ns))

    # -- pods that come, change and go ------------------------------------------------------------

    def _compare(self, before: _Seen | None, after: _Seen | None, now_ns: int) -> None:
        if before is not None and (after is None or after.pod.uid != before.pod.uid):
            self._gone(before, now_ns)
            before = None
        if after is None:
            return
        if before is None:
            self._appeared(after.pod, after.node, now_ns)
            return
        life = self._by_uid.get(after.pod.uid)
        if life is None:
            return
        if after.node != before.node:
            self._moved(life, before, after, now_ns)
        elif after.phase is PodPhase.BOUND and before.phase is PodPhase.ASSUMED:
            life.bind(after.pod.uid, now_ns)
        if after.pod is not before.pod:
            self._changed(life, before.pod, after.pod, now_ns)

    def _changed(self, life: RecordedLife, old: Pod, new: Pod, now_ns: int) -> None:
        if new.terminating and not old.terminating and new.uid == life.uid and not life.evicted:
            life.deleted_ns = now_ns
            if not life.on_node:
                self._ended(life, now_ns, EndReason.DELETED)
        labels = _own_labels(life, new)
        if labels != _own_labels(life, old) or placed(new, "").spec != placed(old, "").spec:
            # It goes on under the name it had first.
            metadata = msgspec.structs.replace(life.pod.metadata, labels=labels)
            changed = msgspec.structs.replace(fresh(new), metadata=metadata)
            self._events.append(ObjectSet(now_ns, changed))

    def _appeared(self, pod: Pod, node: str, now_ns: int) -> None:
        if pod.terminating and not node:
            return  # nobody is going to place it
        displaced = None if node else self._next_displaced(pod)
        if displaced is not None:
            displaced.go_on(pod.uid)
            self._by_uid[pod.uid] = displaced
            return
        self._enters(RecordedLife(pod, now_ns, node))

    def _enters(self, life: RecordedLife) -> None:
        self._lives[life] = None
        self._by_uid[life.uid] = life
        self._events.append(_Appearance(life))

    def _moved(self, life: RecordedLife, before: _Seen, after: _Seen, now_ns: int) -> None:
        uid, node = after.pod.uid, after.node
        if before.node:
            life.leave(uid, now_ns, EndReason.BIND_FAILED)
        if not node:
            if life.given and len(life.placements) == 1:
                # Assumed when the period began, and never bound there.
                self._enters_anew(life, after.pod, "", now_ns)
        elif after.phase is PodPhase.ASSUMED:
            life.assign(uid, node, now_ns)
        elif life.bound or self._takes_our_place(after.pod):
            life.place(uid, node, now_ns)
        else:
            self._enters_anew(life, after.pod, node, now_ns)

    def _enters_anew(self, life: RecordedLife, pod: Pod, node: str, now_ns: int) -> None:
        """What was known of it so far does not count."""
        del self._lives[life]
        self._enters(RecordedLife(pod, now_ns, node))

    def _takes_our_place(self, pod: Pod) -> bool:
        """Whether somebody else's binding counts as our decision."""
        return self.shadow and self._serves(pod)

    def _serves(self, pod: Pod) -> bool:
        """Whether one of our profiles or sessions is to place it."""
        name = pod.spec.scheduler_name
        return name in self._state.profiles or name in self._state.sessions

    def _gone(self, seen: _Seen, now_ns: int) -> None:
        uid = seen.pod.uid
        life = self._by_uid.get(uid)
        if life is None:
            return
        why = life.why_gone(uid, seen.node, node_there=seen.node in self._open)
        life.leave(uid, now_ns, why)
        if uid == life.uid and life.end is None:
            self._ended(life, now_ns, why)

    def _ended(self, life: RecordedLife, now_ns: int, why: EndReason) -> None:
        life.finish(now_ns, why)
        self._events.append(_Disappearance(life, now_ns))

    # -- pods that have to go for others, or with their node --------------------------------------

    def _note_evictions(self, now_ns: int) -> None:
        """Whose eviction was decided, whatever decided it."""
        for uid, eviction in self._state.evictions.items():
            life = self._by_uid.get(uid)
            if life is not None and life.uid == uid and not life.evicted:
                life.evict(uid, now_ns, eviction.preemptor.key)
                self._displace(life)

    def _spared(self, uid: str) -> None:
        life = self._by_uid.get(uid)
        if life is not None:
            life.spare(uid)

    def _displace(self, life: RecordedLife) -> None:
        owner = life.pod.metadata.controller
        if owner is not None and life.returns:
            self._displaced.setdefault(owner.uid, deque()).append(life)

    def _next_displaced(self, pod: Pod) -> RecordedLife | None:
        """The pod in whose place this one was made."""
        owner = pod.metadata.controller
        waiting = self._displaced.get(owner.uid) if owner is not None else None
        while waiting:
            life = waiting.popleft()
            if life.evicted or life.end is EndReason.NODE_GONE or self._without_node(life):
                return life
        return None

    def _without_node(self, life: RecordedLife) -> bool:
        return life.end is None and life.placements[-1].node not in self._open

    # -- the end --------------------------------------------------------------------------------

    def exogenous(self, end_ns: int) -> WorkloadTrace:
        """What happened by itself."""
        events: list[TraceEvent] = []
        for event in self._events:
            match event:
                case _Appearance(life):
                    if self._counts(life):
                        events.append(life.created())
                case _Disappearance(life, at_ns):
                    # Of several the last: it was made anew after the others.
                    gone = life.deleted(at_ns) if at_ns == life.ended_ns else None
                    if gone is not None and self._counts(life):
                        events.append(gone)
                case _:
                    events.append(event)
        return WorkloadTrace(tuple(events), self._begin_ns, end_ns)

    def run(self, end_ns: int) -> Run:
        """What was made of it."""
        pods = tuple(life.as_run() for life in self._lives if self._counts(life))
        spans = [*self._closed, *self._open.values()]
        nodes = tuple(sorted(spans, key=lambda span: (span.from_ns, span.node.name)))
        return Run(self._begin_ns, end_ns, pods, nodes)

    def _counts(self, life: RecordedLife) -> bool:
        """Pods that other schedulers are to place are none of our business until they did."""
        known = life.given or self._serves(life.pod)
        return known and life in self._lives


def _own_labels(life: RecordedLife, pod: Pod) -> dict[str, str]:
    """The pod's labels without those that it has from its node: an API server copies zone and
    region onto a pod that is bound (the admission plugin PodTopologyLabels, KEP-4742)."""
    if not pod.spec.node_name:
        return pod.labels
    given = life.pod.labels
    return {
        k: v for k, v in pod.labels.items() if k not in (ZONE_LABEL, REGION_LABEL) or k in given
    }
