"""Recorded attempts to schedule a group as a whole, read from the journal."""

from __future__ import annotations

from typing import NamedTuple

from asched.audit.pod_group.forms import RecordedGroupAttempt
from asched.audit.timeline import time_of
from asched.framework.pod_groups import PodGroupKey
from asched.journal.codec import object_subject
from asched.journal.store import JournalStore
from asched.model.groups import CUSTOM_POD_GROUPS, PodGroup
from asched.state.group_records import GroupOutcome, PodGroupAttempted
from asched.state.records import ObjectDeleted, Rejected


class RecordedHeader(NamedTuple):
    """The record of an attempt."""

    seq: int
    record: PodGroupAttempted
    at_ns: int
    """When it was written."""


class GroupRecords(NamedTuple):
    """What a journal has about a group."""

    headers: list[RecordedHeader]
    """Oldest first."""
    deleted_seq: int = 0
    """The record of its deletion, if that is the last one about it."""


async def group_records(journal: JournalStore, group: PodGroupKey, end: int) -> GroupRecords:
    """The unarchived records about a group up to ``end``."""
    kinds = (PodGroup,) if group.native else CUSTOM_POD_GROUPS
    archived = await journal.archived()
    headers: list[RecordedHeader] = []
    deleted_seq = last_seq = 0
    for kind in kinds:
        subject = object_subject(kind.__name__, group.key)
        async for stored in journal.read(archived.seq, end, subject=subject):
            last_seq = max(last_seq, stored.seq)
            match stored.record:
                case PodGroupAttempted() as header:
                    headers.append(RecordedHeader(stored.seq, header, stored.written_at_ns))
                case ObjectDeleted():
                    deleted_seq = stored.seq
    headers.sort(key=lambda header: header.seq)
    return GroupRecords(headers, deleted_seq if deleted_seq == last_seq else 0)


async def recorded_attempt(journal: JournalStore, found: RecordedHeader) -> RecordedGroupAttempt:
    """An attempt, with the victims that the decisions about its members name."""
    seq, header, at_ns = found
    victims: list[str] = []
    if header.outcome is GroupOutcome.WAITING:
        async for stored in journal.read(seq, seq + header.members):
            if isinstance(stored.record, Rejected):
                victims += [victim.key for victim in stored.record.victims]
    return RecordedGroupAttempt(
        seq=seq,
        at=time_of(at_ns),
        outcome=header.outcome,
        members=header.members,
        placed=header.placed,
        domain=header.placement,
        domains_tried=header.placements,
        message=header.message,
        victims=tuple(sorted(victims)),
    )
