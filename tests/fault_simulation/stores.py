"""A journal on a disk with injected faults."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from random import Random
from typing import Protocol

import anyio
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from asched.journal.chain import BatchRange, Head, SealedBatch, Segment, Writer
from asched.journal.codec import CODEC
from asched.journal.errors import JournalBusyError, JournalFullError, JournalIOError
from asched.journal.memory import MemoryJournal, MemoryStore
from asched.journal.store import AppendResult, Checkpoint, CheckpointMark, StoredRecord
from asched.proof.heads import SignedHead
from asched.proof.keys import JournalKeys, SigningKey
from asched.proof.statements import CheckpointDigest, KeyChange, StatementRow
from asched.state.records import AnyRecord
from tests.fault_simulation.mixes import JournalFaults
from tests.fault_simulation.ports import Ports
from tests.fault_simulation.trace import Trace

KEYS = JournalKeys(SigningKey(Ed25519PrivateKey.from_private_bytes(bytes(32))))
"""Every simulated journal is signed."""


class Disk:
    """State shared by the processes of one journal: stored data and disk faults."""

    def __init__(self, chance: Random, faults: JournalFaults) -> None:
        self.journal = MemoryJournal()
        self.chance = chance
        self.faults = faults
        self.failing = False
        """Whether every append fails."""


class BatchListener(Protocol):
    """Called with each batch when it becomes durable."""

    def __call__(self, first_seq: int, records: Sequence[AnyRecord]) -> None: ...


class FaultyStore:
    """One process's :class:`~asched.journal.store.JournalStore`."""

    def __init__(
        self, name: str, disk: Disk, ports: Ports, trace: Trace, stored: BatchListener
    ) -> None:
        self.keys = KEYS
        self._name = name
        self._disk = disk
        self._store = MemoryStore(disk.journal, KEYS)
        self._ports = ports
        self._trace = trace
        self._stored = stored

    def _draw(self, share: float) -> bool:
        return self._disk.chance.random() < share

    async def claim(self, writer: str, *, claimed_at_ns: int) -> int:
        await self._ports.wait()
        await anyio.sleep(self._disk.chance.uniform(0.001, 0.01))
        await self._ports.wait()
        if self._disk.failing or self._draw(self._disk.faults.claim):
            raise JournalBusyError("injected: the journal is locked")
        epoch = await self._store.claim(writer, claimed_at_ns=claimed_at_ns)
        self._trace(self._name, f"claims epoch {epoch}")
        return epoch

    async def append(
        self, records: Sequence[AnyRecord], *, written_at_ns: int, first_seq: int | None = None
    ) -> AppendResult:
        await self._ports.wait()
        await self._take_time()
        await self._ports.wait()
        self._fail_before()
        journal = self._disk.journal
        batches = len(journal.batches)
        appended = await self._store.append(
            records, written_at_ns=written_at_ns, first_seq=first_seq
        )
        if len(journal.batches) > batches:
            batch, rows = journal.batches[-1]
            self._trace(self._name, f"stored {batch.first_seq} to {batch.last_seq} {batch.hash}")
            # Decode the stored bytes instead of using the given records.
            self._stored(
                batch.first_seq,
                [CODEC.decode(r.seq, r.kind, r.version, r.subject, r.payload) for r in rows],
            )
        if self._draw(self._disk.faults.failed_but_stored):
            self._trace(self._name, "the response of the journal is lost")
            raise JournalIOError("injected: unknown whether stored")
        await self._take_time()
        await self._ports.wait()
        return appended

    async def _take_time(self) -> None:
        chance, faults = self._disk.chance, self._disk.faults
        delay_s = chance.uniform(0.0001, 0.002)
        if self._draw(faults.slow):
            delay_s = chance.uniform(0.05, 3.0)
        if self._draw(faults.hanging):
            delay_s = chance.uniform(30.0, 120.0)
        await anyio.sleep(delay_s)

    def _fail_before(self) -> None:
        faults = self._disk.faults
        if self._disk.failing or self._draw(faults.full):
            raise JournalFullError("injected: disk full")
        if self._draw(faults.busy):
            raise JournalBusyError("injected: the journal is locked")
        if self._draw(faults.failed):
            raise JournalIOError("injected: the disk failed")

    async def save_checkpoint(self, seq: int, blob: bytes) -> None:
        await self._ports.wait()
        await self._take_time()
        await self._ports.wait()
        if self._disk.failing or self._draw(self._disk.faults.checkpoint):
            raise JournalFullError("injected: disk full")
        await self._store.save_checkpoint(seq, blob)
        self._trace(self._name, f"checkpoint at {seq}, {len(blob)} bytes")

    async def check_writer(self) -> None:
        await self._ports.wait()
        await self._store.check_writer()

    async def drop_checkpoints(self, seqs: Sequence[int]) -> None:
        await self._ports.wait()
        await self._store.drop_checkpoints(seqs)

    async def close(self) -> None:
        await self._store.close()

    # -- reading, without faults ----------------------------------------------------------------

    async def head(self) -> Head:
        return await self._store.head()

    def read(
        self, after_seq: int = 0, up_to: int | None = None, *, subject: str | None = None
    ) -> AsyncIterator[StoredRecord]:
        return self._store.read(after_seq, up_to, subject=subject)

    async def subjects(self, kind: str) -> Sequence[str]:
        return await self._store.subjects(kind)

    def batches(self, after_batch: int = 0) -> AsyncIterator[SealedBatch]:
        return self._store.batches(after_batch)

    def batch_ranges(self, after_batch: int = 0) -> AsyncIterator[BatchRange]:
        return self._store.batch_ranges(after_batch)

    async def archived(self) -> Head:
        return await self._store.archived()

    async def segments(self) -> Sequence[Segment]:
        return await self._store.segments()

    async def writers(self) -> Sequence[Writer]:
        return await self._store.writers()

    async def find_unchained(self, head: Head) -> str | None:
        return await self._store.find_unchained(head)

    async def check_definitions(self) -> None:
        await self._store.check_definitions()

    async def checkpoint_marks(self) -> Sequence[CheckpointMark]:
        return await self._store.checkpoint_marks()

    async def load_checkpoint(self, at_or_before_seq: int | None = None) -> Checkpoint | None:
        return await self._store.load_checkpoint(at_or_before_seq)

    async def checkpoint_digests(
        self, first_seq: int = 0, last_seq: int | None = None
    ) -> Sequence[CheckpointDigest]:
        return await self._store.checkpoint_digests(first_seq, last_seq)

    async def statements(self) -> Sequence[StatementRow]:
        return await self._store.statements()

    async def statements_tip(self) -> StatementRow | None:
        return await self._store.statements_tip()

    async def change_key(self, change: KeyChange, signers: Sequence[SigningKey]) -> None:
        await self._store.change_key(change, signers)

    async def signed_head(self) -> SignedHead | None:
        return await self._store.signed_head()

    async def save_signed_head(self, signed: SignedHead) -> None:
        await self._ports.wait()
        if self._disk.failing or self._draw(self._disk.faults.checkpoint):
            raise JournalFullError("injected: disk full")
        await self._store.save_signed_head(signed)
