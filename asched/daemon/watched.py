"""Which resources a configuration has a use for, beyond those that every scheduler watches."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from asched.framework.pod_groups import GANG_SCHEDULING
from asched.framework.profile import ProfileSpec
from asched.framework.sessions import SessionSpec
from asched.model.resources import GroupResource

POD_GROUPS = frozenset(
    {
        GroupResource.POD_GROUPS,
        GroupResource.INCUBATOR_POD_GROUPS,
        GroupResource.SIGS_POD_GROUPS,
        GroupResource.VOLCANO_POD_GROUPS,
    }
)


def groups_of_use(
    profiles: Iterable[ProfileSpec], sessions: Collection[SessionSpec] = ()
) -> frozenset[GroupResource]:
    """All, where there are batch sessions; PodGroups, where any profile schedules gangs."""
    if sessions:
        return frozenset(GroupResource) - {GroupResource.WORKLOADS}
    gangs = any(GANG_SCHEDULING in profile.plugin_names for profile in profiles)
    return POD_GROUPS if gangs else frozenset()
