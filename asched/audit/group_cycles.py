"""Group cycles in a journal: the one in which a member was decided, and its repetition."""

from __future__ import annotations

from typing import NamedTuple

from asched.cycle.decide import Decider
from asched.framework.pod_groups import group_of
from asched.group_cycle.decide import GroupDecider
from asched.journal.codec import object_subject
from asched.journal.store import JournalStore
from asched.model.groups import CUSTOM_POD_GROUPS, PodGroup
from asched.model.pod import Pod
from asched.state.cluster import ClusterState
from asched.state.group_records import PodGroupAttempted
from asched.state.records import Decision


class RecordedCycle(NamedTuple):
    """A recorded group cycle."""

    seq: int
    record: PodGroupAttempted

    @property
    def summary(self) -> str:
        """One line for the user."""
        record = self.record
        where = f" in domain {record.placement}" if record.placement else ""
        tried = f" ({record.placements} domains tried)" if record.placements > 1 else ""
        why = f": {record.message}" if record.message else ""
        return (
            f"decided with PodGroup {record.group}, which is {record.outcome}: {record.placed} of"
            f" {record.members} pending members fit{where}{tried}{why}"
        )


async def cycle_of(journal: JournalStore, pod: Pod, seq: int) -> RecordedCycle | None:
    """The last cycle of the pod's group before a record; None if there was none."""
    key = group_of(pod)
    if key is None:
        return None
    kinds = (PodGroup,) if key.native else CUSTOM_POD_GROUPS
    archived = await journal.archived()
    found: RecordedCycle | None = None
    for kind in kinds:
        async for stored in journal.read(
            archived.seq, seq - 1, subject=object_subject(kind.__name__, key.key)
        ):
            if isinstance(stored.record, PodGroupAttempted):
                found = RecordedCycle(stored.seq, stored.record)
    return found


def decisions_on(state: ClusterState) -> tuple[Decision, ...]:
    """The next decisions on a state, of a pod or a whole group."""
    decider = Decider(state)
    decider.groups = GroupDecider(state, decider.cache)
    return decider.next()
