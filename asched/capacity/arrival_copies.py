"""Copies pods of a trace, with everything that concerns them, to other times."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Final, NamedTuple

import msgspec

from asched.framework.pod_groups import PodGroupKey, group_of, key_of
from asched.model.groups import CustomPodGroup, PodGroup
from asched.model.meta import ObjectMeta
from asched.model.pod import Pod
from asched.simulator.trace import (
    ObjectRemoved,
    ObjectSet,
    PodCreated,
    PodDeleted,
    TraceEvent,
    WorkloadTrace,
)

_GROUP_KINDS: Final = frozenset(
    ("PodGroup", "IncubatorPodGroup", "SigsPodGroup", "VolcanoPodGroup")
)


class Copy(NamedTuple):
    """One use of an arrival."""

    number: int
    """0 keeps names and uids."""
    shift_ns: int


class ArrivalCopies:
    """Applies copies to the events of a trace."""

    def __init__(self, copies: Mapping[str, Sequence[Copy]], trace: WorkloadTrace) -> None:
        """``copies``: those of each pod, by the uid of its creation. Pods of one group have the
        same ones; other pods stay as they are."""
        self._copies = copies
        self._trace = trace
        self._of_group: dict[PodGroupKey, Sequence[Copy]] = {}
        for event in trace.events:
            if isinstance(event, PodCreated) and event.pod.metadata.uid in copies:
                group = group_of(event.pod)
                if group is not None:
                    self._of_group[group] = copies[event.pod.metadata.uid]

    def trace(self) -> WorkloadTrace:
        """The trace with the copies instead of the pods, in order of time."""
        events = [one for event in self._trace.events for one in self._copied(event)]
        events.sort(key=attrgetter("at_ns"))
        return msgspec.structs.replace(self._trace, events=tuple(events))

    def _copied(self, event: TraceEvent) -> Iterator[TraceEvent]:
        replace = msgspec.structs.replace
        match event:
            case PodCreated(pod=pod) if (copies := self._copies.get(pod.metadata.uid)) is not None:
                for copy in copies:
                    yield replace(event, at_ns=self._at(event, copy), pod=_pod(pod, copy.number))
            case PodDeleted(uid=uid) if (copies := self._copies.get(uid)) is not None:
                for copy in copies:
                    key, new_uid = _name(event.key, copy.number), _name(uid, copy.number)
                    yield PodDeleted(self._at(event, copy), key, new_uid)
            case ObjectSet(object=Pod() as pod) if (
                copies := self._copies.get(pod.metadata.uid)
            ) is not None:
                for copy in copies:
                    yield ObjectSet(self._at(event, copy), _pod(pod, copy.number))
            case ObjectSet(object=(PodGroup() | CustomPodGroup()) as group):
                yield event
                for copy in self._group_copies(key_of(group)):
                    metadata = _renamed(group.metadata, copy.number)
                    yield ObjectSet(self._at(event, copy), replace(group, metadata=metadata))
            case ObjectRemoved(kind=kind) if kind in _GROUP_KINDS:
                yield event
                for copy in self._group_copies(PodGroupKey(event.key, kind == "PodGroup")):
                    yield ObjectRemoved(self._at(event, copy), kind, _name(event.key, copy.number))
            case _:
                yield event

    def _group_copies(self, group: PodGroupKey) -> Iterator[Copy]:
        return (copy for copy in self._of_group.get(group, ()) if copy.number)

    def _at(self, event: TraceEvent, copy: Copy) -> int:
        return max(self._trace.begin_ns, event.at_ns + copy.shift_ns)


def _name(name: str, number: int) -> str:
    return f"{name}-x{number}" if number else name


def _renamed(metadata: ObjectMeta, number: int) -> ObjectMeta:
    owners = tuple(
        msgspec.structs.replace(owner, name=_name(owner.name, number), uid=_name(owner.uid, number))
        for owner in metadata.owner_references
    )
    return msgspec.structs.replace(
        metadata,
        name=_name(metadata.name, number),
        uid=_name(metadata.uid, number),
        owner_references=owners,
    )


def _pod(pod: Pod, number: int) -> Pod:
    """The pod with names of its own, in a copy of its group."""
    if not number:
        return pod
    replace = msgspec.structs.replace
    metadata, spec = _renamed(pod.metadata, number), pod.spec
    group = spec.scheduling_group
    if group is not None and group.pod_group_name:
        renamed = replace(group, pod_group_name=_name(group.pod_group_name, number))
        spec = replace(spec, scheduling_group=renamed)
    elif metadata.annotations.group_name:
        name = _name(metadata.annotations.group_name, number)
        metadata = replace(metadata, annotations=replace(metadata.annotations, group_name=name))
    return replace(pod, metadata=metadata, spec=spec)
