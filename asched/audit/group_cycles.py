"""Group cycles in a journal: the one in which a member was decided, and its repetition."""

from __future__ import annotations

from typing import NamedTuple

from asched.cycle.decide import Decider
from asched.framework.pod_groups import group_of
from asched.group_cycle.decide import GroupDecider
from asched.journal.codec import object_subject
from asched.journal.store import JournalStore
from asched.model.groups import CUSTOM_POD_GROUPS, CompositePodGroup, PodGroup
from asched.model.pod import Pod
from asched.state.cluster import ClusterState
from asched.state.group_records import PodGroupAttempted
from asched.state.records import Decision, PermitRejected


class RecordedCycle(NamedTuple):
    """A recorded group cycle."""

    seq: int
    record: PodGroupAttempted
    begin_seq: int
    """The first record of the batch."""

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
    found: tuple[int, PodGroupAttempted] | None = None
    for kind in kinds:
        async for stored in journal.read(
            archived.seq, seq - 1, subject=object_subject(kind.__name__, key.key)
        ):
            if isinstance(stored.record, PodGroupAttempted):
                found = stored.seq, stored.record
    if found is None:
        return None
    last_seq, record = found
    return RecordedCycle(last_seq, record, await begin_of(journal, record, last_seq))


async def begin_of(journal: JournalStore, header: PodGroupAttempted, seq: int) -> int:
    """The first record of the batch with the group cycle ``header``, which is record ``seq``: that
    of the CompositePodGroup with which the group was tried."""
    found = seq
    if header.root:
        archived = await journal.archived()
        subject = object_subject(CompositePodGroup.__name__, header.root)
        async for stored in journal.read(archived.seq, seq - 1, subject=subject):
            if isinstance(stored.record, PodGroupAttempted):
                found = stored.seq
    return found


async def lost_reservation(journal: JournalStore, key: str, seq: int, end: int) -> bool:
    """Whether Permit rejected the pod that record ``seq`` assigned, up to record ``end``."""
    async for stored in journal.read(seq, end, subject=object_subject("Pod", key)):
        if isinstance(stored.record, PermitRejected):
            return True
    return False


def decisions_on(state: ClusterState) -> tuple[Decision, ...]:
    """The next decisions on a state, of a pod or a whole group."""
    decider = Decider(state)
    decider.groups = GroupDecider(state, decider.cache)
    return decider.next()
