"""What the API server says of PodGroups once a scheduler wrote their status."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from asched.model.groups import (
    CustomPodGroup,
    CustomPodGroupCondition,
    CustomPodGroupStatus,
    PodGroup,
    PodGroupCondition,
    PodGroupStatus,
)
from asched.model.meta import Object
from asched.state.session_records import PodGroupDecided

GroupT = TypeVar("GroupT", bound=PodGroup | CustomPodGroup)


def with_status(group: GroupT, decision: PodGroupDecided) -> GroupT:
    """The group with the status that was decided for it."""
    if isinstance(group, PodGroup):
        own = tuple(
            PodGroupCondition(type=c.type, status=c.status, reason=c.reason, message=c.message)
            for c in decision.conditions
        )
        return msgspec.structs.replace(group, status=PodGroupStatus(conditions=own))
    custom = tuple(
        CustomPodGroupCondition(type=c.type, status=c.status, reason=c.reason, message=c.message)
        for c in decision.conditions
    )
    status = CustomPodGroupStatus(
        phase=str(decision.phase),
        conditions=custom,
        running=decision.running,
        succeeded=decision.succeeded,
        failed=decision.failed,
    )
    return msgspec.structs.replace(group, status=status)


def with_status_of(group: GroupT, known: Object | None) -> GroupT:
    """The group with the status that it has here already: in a recorded history it is what the
    scheduler of then wrote."""
    if isinstance(known, PodGroup | CustomPodGroup) and known.uid == group.uid:
        return msgspec.structs.replace(group, status=known.status)
    return group
