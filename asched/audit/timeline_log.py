"""The timelines of all pods, collected while a fold follows the journal, in parts to be stored.

A part holds the entries of some records. The parts of a pod are its timelines, without a fold.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import msgspec

from asched.audit.entries import Entry, PodTimeline
from asched.audit.timeline import PodTimelines
from asched.framework.pod_info import PodInfo
from asched.state.fold import Fold

_MAX_ENDED: Final = 4096
"""Deleted pods to which the result of an effect may still be added."""


class PodPart(msgspec.Struct, array_like=True):
    """Entries of one pod."""

    uid: str
    entries: list[Entry]


class TimelinePart(NamedTuple):
    """Entries of all pods that had a key, in some records."""

    key: str
    first_seq: int
    pods: list[PodPart]
    """In the order in which they appeared."""


class TimelineLog(PodTimelines):
    """Follows every pod. Entries stay here until they are taken."""

    def __init__(self, fold: Fold) -> None:
        """``fold`` contains all earlier records."""
        self._parts: dict[str, list[PodTimeline]] = {}
        self._ended: dict[tuple[str, str], None] = {}
        super().__init__(lambda *_: True, fold)

    def _chooses(self, info: PodInfo) -> bool:
        return True

    def follow(self, key: str, uid: str, queue: str) -> None:
        super().follow(key, uid, queue)
        self._ended.pop((key, uid), None)

    def _new_timeline(self, key: str, uid: str) -> PodTimeline:
        """Not in the parts before its first entry."""
        namespace, _, name = key.rpartition("/")
        return PodTimeline(namespace, name, uid)

    def _timeline_of(self, key: str, uid: str) -> PodTimeline | None:
        """For an entry that follows."""
        timeline = self._timelines.get((key, uid))
        if timeline is None and (key, uid) in self._ended:
            timeline = self._timelines[key, uid] = self._new_timeline(key, uid)
        if timeline is not None:
            parts = self._parts.setdefault(key, [])
            if all(one is not timeline for one in parts):
                parts.append(timeline)
        return timeline

    def parts(self, key: str) -> list[PodPart]:
        """The entries of a key that are not taken yet."""
        return _pod_parts(self._parts.get(key, ()))

    def take(self) -> Iterator[TimelinePart]:
        """All entries since the last call."""
        parts, self._parts = self._parts, {}
        for key, timelines in parts.items():
            pods = _pod_parts(timelines)
            for one in timelines:
                one.entries.clear()
            if pods:
                yield TimelinePart(key, pods[0].entries[0].seq, pods)
        self._forget_ended()

    def _forget_ended(self) -> None:
        alive = {(key, one.timeline.uid) for key, one in self._followed.items()}
        for ended in [pod for pod in self._timelines if pod not in alive]:
            del self._timelines[ended]
            self._ended[ended] = None
        while len(self._ended) > _MAX_ENDED:
            del self._ended[next(iter(self._ended))]


def _pod_parts(timelines: Iterable[PodTimeline]) -> list[PodPart]:
    return [PodPart(one.uid, [*one.entries]) for one in timelines if one.entries]


def joined(key: str, parts: Iterable[PodPart], last_seq: int) -> list[PodTimeline]:
    """The timelines of a key up to a record, oldest first, from its parts in order."""
    namespace, _, name = key.rpartition("/")
    found: dict[str, list[Entry]] = {}
    for part in parts:
        until = [entry for entry in part.entries if entry.seq <= last_seq]
        if until:
            found.setdefault(part.uid, []).extend(until)
    return [PodTimeline(namespace, name, uid, entries) for uid, entries in found.items()]
