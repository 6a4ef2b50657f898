"""Which pods belong to which group, and how each stands. Only the fold changes it.

How a pod stands follows from the rest of the state (:func:`standing_of`); it is kept here, and counted,
so that nobody has to look at all members of a large group for each of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, KeysView, Mapping

from asched.framework.pod_groups import GANG_ROOM, GANG_SCHEDULING, MemberStatus, PodGroupKey
from asched.framework.pod_info import QueuedPod

_GANG_ALONE = frozenset({GANG_SCHEDULING})


def standing_of_pending(queued: QueuedPod | None) -> MemberStatus:
    """How a pending pod of one of our profiles stands, by how its last attempt ended."""
    if queued is None:
        return MemberStatus.READY
    refused_by = queued.unschedulable_plugins | queued.pending_plugins
    if refused_by == _GANG_ALONE:
        return MemberStatus.ASLEEP
    if GANG_ROOM in refused_by:
        return MemberStatus.IN_VAIN
    return MemberStatus.REFUSED if refused_by or queued.consecutive_errors else MemberStatus.READY


class Members:
    """The members of one group (:class:`asched.framework.pod_groups.GroupMembers`)."""

    __slots__ = ("_counts", "_standings", "asleep")

    def __init__(self) -> None:
        self._standings: dict[str, MemberStatus] = {}
        self._counts: Counter[MemberStatus] = Counter()
        self.asleep: set[str] = set()
        """Those that stand so; some may be awake again and not have been tried yet."""

    @property
    def standings(self) -> Mapping[str, MemberStatus]:
        return self._standings

    def count(self, *standings: MemberStatus) -> int:
        return sum(self._counts[standing] for standing in standings)

    def enter(self, key: str, standing: MemberStatus) -> None:
        self.leave(key)
        self._standings[key] = standing
        self._counts[standing] += 1
        if standing is MemberStatus.ASLEEP:
            self.asleep.add(key)

    def leave(self, key: str) -> None:
        standing = self._standings.pop(key, None)
        if standing is not None:
            self._counts[standing] -= 1
            self.asleep.discard(key)


_NOBODY = Members()


class PodGroups:
    """All groups that pods name."""

    def __init__(self) -> None:
        self._groups: dict[PodGroupKey, Members] = {}
        self._holding: dict[PodGroupKey, None] = {}

    def __iter__(self) -> Iterator[PodGroupKey]:
        return iter(self._groups)

    def members(self, group: PodGroupKey) -> Members:
        """The members of the group; of an unknown one, none. Not to be changed."""
        return self._groups.get(group, _NOBODY)

    @property
    def holding(self) -> KeysView[PodGroupKey]:
        """The groups with members that Permit holds."""
        return self._holding.keys()

    def enter(self, group: PodGroupKey, key: str, standing: MemberStatus) -> None:
        """The pod of that key is a member and stands so."""
        members = self._groups.get(group)
        if members is None:
            members = self._groups[group] = Members()
        members.enter(key, standing)
        self._note_holding(group, members)

    def leave(self, group: PodGroupKey, key: str) -> None:
        """The pod of that key is a member no more, if it was one."""
        members = self._groups.get(group)
        if members is None:
            return
        members.leave(key)
        self._note_holding(group, members)
        if not members.standings:
            del self._groups[group]

    def _note_holding(self, group: PodGroupKey, members: Members) -> None:
        if not members.count(MemberStatus.WAITING):
            self._holding.pop(group, None)
        elif group not in self._holding:
            self._holding[group] = None
