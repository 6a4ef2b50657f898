"""The members of pod groups and their status.

A status follows from the rest of the state (:func:`asched.state.pod_fold.member_status`). It is
stored here, so that a decision about a member need not look at all members of a large group.
"""

from __future__ import annotations

from collections.abc import Iterator, KeysView

from asched.framework.caching import ChangeLog
from asched.framework.pod_groups import (
    GANG_INFEASIBLE_REASON,
    GANG_SCHEDULING,
    MemberStatus,
    PodGroupKey,
)
from asched.framework.pod_info import QueuedPod

_ONLY_GANG_SCHEDULING = frozenset({GANG_SCHEDULING})


def pending_status(queued: QueuedPod | None) -> MemberStatus:
    """The status of a pending pod of one of our profiles, by the outcome of its last attempt."""
    if queued is None:
        return MemberStatus.READY
    rejected_by = queued.unschedulable_plugins | queued.pending_plugins
    if rejected_by == _ONLY_GANG_SCHEDULING:
        return MemberStatus.GANG_PENDING
    if GANG_INFEASIBLE_REASON in rejected_by:
        return MemberStatus.GANG_INFEASIBLE
    return MemberStatus.REJECTED if rejected_by or queued.consecutive_errors else MemberStatus.READY


class PodGroupMembers:
    """The members of one group (:class:`asched.framework.pod_groups.GroupMembers`)."""

    def __init__(self) -> None:
        self.statuses: dict[str, MemberStatus] = {}
        self._counts = dict.fromkeys(MemberStatus, 0)
        self.gang_pending: set[str] = set()
        """Keys of the members with that status; some may be active again."""

    def count(self, *statuses: MemberStatus) -> int:
        return sum(map(self._counts.__getitem__, statuses))

    def set_status(self, key: str, status: MemberStatus) -> None:
        self.remove(key)
        self.statuses[key] = status
        self._counts[status] += 1
        if status is MemberStatus.GANG_PENDING:
            self.gang_pending.add(key)

    def remove(self, key: str) -> None:
        status = self.statuses.pop(key, None)
        if status is not None:
            self._counts[status] -= 1
            if status is MemberStatus.GANG_PENDING:
                self.gang_pending.remove(key)


_EMPTY = PodGroupMembers()
_MAX_CHANGES = 4096


class PodGroups:
    """All groups that pods name. Only the fold changes them."""

    def __init__(self) -> None:
        self._groups: dict[PodGroupKey, PodGroupMembers] = {}
        self._at_permit: dict[PodGroupKey, None] = {}
        self.permit_changes: ChangeLog[PodGroupKey] = ChangeLog(_MAX_CHANGES)
        """The groups with members that wait on Permit, each when something about it changed. A
        cache: it is not part of checkpoints."""
        self.changes: ChangeLog[PodGroupKey] = ChangeLog(_MAX_CHANGES)
        """The groups with a member that came, left or got a status. A cache as well."""

    def __iter__(self) -> Iterator[PodGroupKey]:
        return iter(self._groups)

    def members(self, group: PodGroupKey) -> PodGroupMembers:
        """The members of the group, for reading; empty for an unknown group."""
        return self._groups.get(group, _EMPTY)

    @property
    def at_permit(self) -> KeysView[PodGroupKey]:
        """The groups with members that wait on Permit."""
        return self._at_permit.keys()

    def set_status(self, group: PodGroupKey, key: str, status: MemberStatus) -> None:
        """Add a member, or change its status."""
        members = self._groups.get(group)
        if members is None:
            members = self._groups[group] = PodGroupMembers()
        members.set_status(key, status)
        self.changes.append(group)
        self._update_at_permit(group, members)

    def remove(self, group: PodGroupKey, key: str) -> None:
        """The pod is no longer a member."""
        members = self._groups.get(group)
        if members is None:
            return
        members.remove(key)
        self.changes.append(group)
        self._update_at_permit(group, members)
        if not members.statuses:
            del self._groups[group]

    def note_change(self, group: PodGroupKey) -> None:
        """The PodGroup changed, or the queue in which a member waits."""
        if group in self._at_permit:
            self.permit_changes.append(group)

    def _update_at_permit(self, group: PodGroupKey, members: PodGroupMembers) -> None:
        if not members.count(MemberStatus.WAITING):
            self._at_permit.pop(group, None)
            return
        if group not in self._at_permit:
            self._at_permit[group] = None
        self.permit_changes.append(group)
