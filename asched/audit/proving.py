"""Writes inclusion proofs: that a signed journal holds a record."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from asched.audit.lookup import AuditError, PodName, find_pod
from asched.journal.archive import all_batch_ranges
from asched.journal.chain import GENESIS, SealedBatch, verify_range
from asched.journal.codec import object_subject
from asched.journal.errors import JournalError
from asched.journal.sealing import batch_leaf
from asched.journal.signatures import SignedState, signed_state
from asched.journal.store import JournalStore
from asched.proof.inclusion import InclusionProof, ProvenRow, RecordProof
from asched.proof.merkle import BatchHeader, Frontier, inclusion_path, row_leaf
from asched.state.records import Assigned, AttemptFailed, Rejected

_DECISIONS = (Assigned, Rejected, AttemptFailed)


async def prove_pod(
    journal: JournalStore, pod: PodName, seq: int | None, archive: Path | None
) -> InclusionProof:
    """A proof of the record ``seq`` about a pod; by default of its last decision.

    Raises :class:`AuditError` for an unknown pod or a record about something else, and
    :class:`~asched.journal.errors.JournalError`.
    """
    key = str(pod) if seq is not None and pod.namespace else await find_pod(journal, pod)
    subject = object_subject("Pod", key)
    if seq is None:
        seq = await _last_decision(journal, subject)
    proof = await prove_record(journal, seq, archive)
    found = proof.records[0].record
    if found.subject != subject:
        about = found.subject or "the scheduler"
        raise AuditError(f"record {seq} ({found.kind}) is about {about}, not about pod {key}")
    return proof


async def _last_decision(journal: JournalStore, subject: str) -> int:
    archived = await journal.archived()
    last = decided = 0
    async for stored in journal.read(archived.seq, subject=subject):
        last = stored.seq
        if isinstance(stored.record, _DECISIONS):
            decided = stored.seq
    return decided or last


async def prove_record(journal: JournalStore, seq: int, archive: Path | None) -> InclusionProof:
    """A proof of one record. Raises :class:`~asched.journal.errors.JournalError`."""
    state = await signed_state(journal)
    if state.signed is None or state.stored is None:
        raise JournalError("the journal is not signed (journal.signingKey), so nothing is proven")
    if not 1 <= seq <= state.signed.seq:
        raise JournalError(f"record {seq} is not signed: the signed head is at {state.signed.seq}")
    before, files = Frontier(), archive
    archived = await journal.archived()
    if seq <= archived.seq and archive is None:
        raise JournalError(f"record {seq} is in the archive: give its directory with --archive DIR")
    if seq > archived.seq:
        before, files = await _archived_tree(journal, state), None
    leaves, holding = await _leaves(journal, state, before, files, seq)
    key_changes = state.log.rows_with_keys() if len(state.log.keys) > 1 else ()
    return InclusionProof(state.stored, (_record_proof(holding, leaves, before, seq),), key_changes)


async def _archived_tree(journal: JournalStore, state: SignedState) -> Frontier:
    segments = await journal.segments()
    statement = state.log.segment(segments[-1].segment) if segments else None
    return Frontier() if statement is None else statement.position.tree


async def _leaves(
    journal: JournalStore, state: SignedState, before: Frontier, archive: Path | None, seq: int
) -> tuple[list[bytes], SealedBatch]:
    """The leaves after ``before`` up to the signed head, verified; and the record's batch."""
    assert state.signed is not None  # checked by the caller
    head = GENESIS if not before.size else await journal.archived()
    tree, leaves = before.copy(), list[bytes]()
    holding: SealedBatch | None = None
    state.roots.forget_before(before.size)
    state.roots.check(tree, head.seq)
    async for batches in all_batch_ranges(journal, archive):
        head = verify_range(batches, head)
        for batch in batches.batches:
            if tree.size < state.signed.size:
                leaves.append(batch_leaf(batch[-1]))
                tree.append(leaves[-1])
                state.roots.check(tree, batch[2])
        if holding is None and head.seq >= seq:
            holding = next(s for s in batches.split() if s.batch.last_seq >= seq)
    state.roots.check_complete(head)
    assert holding is not None  # the journal is as long as its signed head
    return leaves, holding


def _record_proof(
    sealed: SealedBatch, leaves: Sequence[bytes], before: Frontier, seq: int
) -> RecordProof:
    batch = sealed.batch
    rows = [row_leaf(r.seq, r.version, r.kind, r.subject, r.payload) for r in sealed.rows]
    row = sealed.rows[seq - batch.first_seq]
    row_path = inclusion_path(seq - batch.first_seq, rows)
    batch_path = inclusion_path(batch.batch - 1, leaves, before)
    return RecordProof(
        record=ProvenRow(row.seq, row.kind, row.version, row.subject, row.payload),
        batch=BatchHeader(*batch[:-1]),
        row_path=tuple(node.hex() for node in row_path),
        batch_path=tuple(node.hex() for node in batch_path),
    )
