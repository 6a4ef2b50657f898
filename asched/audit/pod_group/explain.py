"""Explains a pod group: why it does not run, what each domain lacks, and what would admit it."""

from __future__ import annotations

from typing import NamedTuple

from msgspec.structs import replace

from asched.audit.explain_job import explain_job
from asched.audit.group_cycles import begin_of, decisions_on
from asched.audit.lookup import AuditError, PodName, fold_before
from asched.audit.pod_group.attempts import (
    GroupRecords,
    RecordedHeader,
    group_records,
    recorded_attempt,
)
from asched.audit.pod_group.examine import BY_SESSION, explained, find_key
from asched.audit.pod_group.forms import GroupReasonKind, PodGroupExplanation
from asched.audit.timeline import time_of
from asched.framework.pod_groups import PodGroupKey
from asched.framework.runtime.profile import PluginLoader
from asched.framework.runtime.strict import nearest
from asched.journal.statistics import last_seq_at
from asched.journal.store import JournalStore
from asched.model.groups import CUSTOM_POD_GROUPS, PodGroup
from asched.state.cluster import ClusterState


def parse_group(text: str) -> str:
    """``namespace/name``. Raises :class:`AuditError`."""
    namespace, slash, name = text.partition("/")
    if not slash or not namespace or not name or "/" in name:
        raise AuditError(f"{text!r} is not a pod group; expected NAMESPACE/NAME of its PodGroup")
    return text


class GroupQuestion(NamedTuple):
    """What to explain about a group."""

    attempt: int | None = None
    """Number of a recorded attempt of the whole group, from 1: the state before it is explained."""
    at_ns: int | None = None
    """Later records are ignored; nanoseconds since the epoch."""
    last_seq: int | None = None
    """As ``at_ns``, which it precedes."""
    unblock: bool = True
    """Search changes."""
    repeat: bool = True
    """Recompute the recorded attempt."""


async def explain_pod_group(
    journal: JournalStore,
    load: PluginLoader,
    key: str,
    asked: GroupQuestion = GroupQuestion(),  # noqa: B008  immutable
) -> PodGroupExplanation:
    """Explains the group ``namespace/name``, by default at the end of the journal.

    Raises :class:`AuditError`, :class:`~asched.journal.errors.JournalError`, ProfileError.
    """
    at_ns, attempt = asked.at_ns, asked.attempt
    end = (await journal.head()).seq if at_ns is None else await last_seq_at(journal, at_ns)
    end = end if asked.last_seq is None else asked.last_seq
    if not end:
        raise AuditError("the journal has no records up to that time")
    state = (await fold_before(journal, load, end + 1)).state
    group = find_key(state, key)
    records = await _records(journal, state, key, group, end)
    header = _chosen(records, key, attempt)
    begin = 0 if header is None else await begin_of(journal, header.record, header.seq)
    if attempt is not None and header is not None:
        end = begin - 1
        state = (await fold_before(journal, load, end + 1)).state
        group = find_key(state, key)
    assert group is not None, "a group without records and pods is unknown"
    found = explained(state, load, end, group, unblock=asked.unblock)
    if found.mode == BY_SESSION:
        found = await _with_job(journal, load, found)
    if header is None:
        return found
    recorded = await recorded_attempt(journal, header)
    if not asked.repeat:
        return replace(found, attempt=recorded)
    before = (await fold_before(journal, load, begin)).state
    recorded = replace(recorded, at=time_of(before.date_ns))
    return replace(found, attempt=recorded, reproduced=header.record in decisions_on(before))


async def _records(
    journal: JournalStore, state: ClusterState, key: str, group: PodGroupKey | None, end: int
) -> GroupRecords:
    """Raises :class:`AuditError` for a group that does not exist."""
    if group is not None:
        return await group_records(journal, group, end)
    for native in (True, False):
        records = await group_records(journal, PodGroupKey(key, native), end)
        if records.deleted_seq:
            raise AuditError(f"PodGroup {key} was deleted at record {records.deleted_seq}")
    known = [*state.objects(PodGroup), *(each.key for each in state.groups)]
    for kind in CUSTOM_POD_GROUPS:
        known += state.objects(kind)
    guess = nearest(key, known)
    hint = f"; did you mean {guess}?" if guess else ""
    raise AuditError(f"no PodGroup {key} exists at record {end}{hint}")


def _chosen(records: GroupRecords, key: str, attempt: int | None) -> RecordedHeader | None:
    """Raises :class:`AuditError` for an unknown attempt."""
    headers = records.headers
    if attempt is None:
        return headers[-1] if headers else None
    if not 1 <= attempt <= len(headers):
        known = f"attempts 1 to {len(headers)} exist" if headers else "none is recorded"
        raise AuditError(f"no attempt {attempt} of PodGroup {key} as a whole: {known}")
    return headers[attempt - 1]


async def _with_job(
    journal: JournalStore, load: PluginLoader, found: PodGroupExplanation
) -> PodGroupExplanation:
    """The explanation of a group that batch sessions serve, with its last session."""
    name = PodName(found.namespace, found.name)
    try:
        job = await explain_job(journal, name, load, last_seq=found.seq)
    except AuditError as error:
        return replace(found, notes=(*found.notes, str(error)))
    if job.admitted or not job.reasons:
        return replace(found, job=job)
    kind = GroupReasonKind.BATCH_SESSION
    return replace(found, job=job, reason=kind, sentence=job.reasons[0])
