"""The contract of stores. Each test runs for each kind of store."""

from __future__ import annotations

import hashlib

import anyio
import anyio.lowlevel
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from asched.journal.chain import GENESIS, Head, seal, verify, verify_range
from asched.journal.codec import CODEC, EncodedRecord
from asched.journal.errors import ConflictError, FencedError, JournalError
from asched.journal.memory import MemoryStore
from asched.journal.store import Checkpoint, JournalStore, StoredRecord
from asched.state.records import AnyRecord
from tests.journal.conftest import OpenStore
from tests.journal.samples import mixed, turn, verified_head
from tests.journal.strategies import records
from tests.run_size import examples


async def everything(store: JournalStore) -> list[AnyRecord]:
    return [stored.record async for stored in store.read()]


async def test_empty_journal(store: JournalStore) -> None:
    assert await store.head() == GENESIS
    assert await everything(store) == []
    assert [b async for b in store.batches()] == []
    assert await store.load_checkpoint() is None


async def test_read_returns_records_in_order(
    store: JournalStore,
) -> None:
    assert (await store.append(turn(1), written_at_ns=100))[:2] == (1, 3)
    assert (await store.append(mixed(), written_at_ns=90))[:2] == (4, 7)
    stored = [s async for s in store.read()]
    expected = [(100, r) for r in turn(1)] + [(90, r) for r in mixed()]
    assert stored == [StoredRecord(seq, *rest) for seq, rest in enumerate(expected, 1)]
    head = await store.head()
    assert (head.seq, head.batch) == (7, 2)


async def test_read_range(store: JournalStore) -> None:
    for number in range(4):
        await store.append(turn(number), written_at_ns=number)
    assert [s.seq async for s in store.read(2, 7)] == [3, 4, 5, 6, 7]
    assert [s.seq async for s in store.read(11)] == [12]
    assert [s.seq async for s in store.read(10, 99)] == [11, 12]
    assert [s.seq async for s in store.read(12)] == []
    assert [s.seq async for s in store.read(5, 5)] == []


async def test_read_subject(store: JournalStore) -> None:
    await store.append(mixed(), written_at_ns=1)
    assert [s.seq async for s in store.read(subject="pod/default/web-1")] == [2, 4]
    assert [s.seq async for s in store.read(2, subject="pod/default/web-1")] == [4]
    assert [s.seq async for s in store.read(0, 3, subject="pod/default/web-1")] == [2]
    assert [s.seq async for s in store.read(subject="node/node-1")] == [1]
    assert [s.seq async for s in store.read(subject="' OR 1=1 --")] == []


async def test_read_across_chunks(store: JournalStore) -> None:
    expected: list[AnyRecord] = []
    for number, pods in enumerate((0, 1, 999, 1500, 1000, 0)):
        batch = turn(number, pods)
        await store.append(batch, written_at_ns=number)
        expected += batch
    assert await everything(store) == expected
    assert [s.seq async for s in store.read(500, 3000)] == list(range(501, 3001))


async def test_iteration_ends_at_initial_head(store: JournalStore) -> None:
    await store.append(turn(1), written_at_ns=1)
    seen = []
    async for stored in store.read():
        seen.append(stored.seq)
        if stored.seq == 1:
            await store.append(turn(2), written_at_ns=2)
    assert seen == [1, 2, 3]


async def test_abandoned_iteration_releases_connection(store: JournalStore) -> None:
    await store.append(turn(1, 3000), written_at_ns=1)
    for _ in range(20):
        async for stored in store.read():
            assert stored.seq == 1
            break
    await store.append(turn(2), written_at_ns=2)


async def test_empty_batch_is_rejected(store: JournalStore) -> None:
    with pytest.raises(ValueError, match="at least one"):
        await store.append([], written_at_ns=1)


async def test_encoding_error_stores_nothing(
    store: JournalStore,
) -> None:
    broken = [*turn(1), *turn(2)]
    broken[2] = object()  # type: ignore[call-overload]  # what the type checker would refuse
    with pytest.raises((TypeError, KeyError)):
        await store.append(broken, written_at_ns=1)
    assert await store.head() == GENESIS


async def test_repeated_append_is_stored_once(store: JournalStore) -> None:
    first = await store.append(turn(1), written_at_ns=1, first_seq=1)
    assert await store.append(turn(1), written_at_ns=1, first_seq=1) == first
    second = await store.append(turn(2), written_at_ns=2, first_seq=4)
    # Also if other batches followed.
    assert await store.append(turn(1), written_at_ns=1, first_seq=1) == first
    assert await store.append(turn(2), written_at_ns=2, first_seq=4) == second
    assert await everything(store) == turn(1) + turn(2)


@pytest.mark.parametrize(
    ("records", "written_at_ns", "first_seq"),
    [
        (turn(2), 1, 1),  # other records
        (turn(1)[:2], 1, 1),  # fewer
        (turn(1), 2, 1),  # at another time
        (turn(1)[1:], 1, 2),  # not the start of a batch
        (turn(1), 1, 5),  # beyond the end
        (turn(1), 1, 0),
    ],
)
async def test_batch_out_of_sequence_is_rejected(
    store: JournalStore, records: list[AnyRecord], written_at_ns: int, first_seq: int
) -> None:
    await store.append(turn(1), written_at_ns=1)
    with pytest.raises(ConflictError):
        await store.append(records, written_at_ns=written_at_ns, first_seq=first_seq)
    assert await everything(store) == turn(1)
    assert (await store.append(turn(2), written_at_ns=2, first_seq=4))[:2] == (4, 6)


async def test_only_newest_writer_appends(open_store: OpenStore) -> None:
    old, new = await open_store(), await open_store()
    with pytest.raises(FencedError, match="not claimed"):
        await old.append(turn(1), written_at_ns=1)
    assert await old.claim("old", claimed_at_ns=1) == 1
    await old.append(turn(1), written_at_ns=1)
    assert await new.claim("new", claimed_at_ns=2) == 2
    with pytest.raises(FencedError, match="claimed"):
        await old.append(turn(2), written_at_ns=2)
    with pytest.raises(FencedError):  # not even a repetition
        await old.append(turn(1), written_at_ns=1, first_seq=1)
    await new.append(turn(3), written_at_ns=3, first_seq=4)
    with pytest.raises(FencedError):
        await old.append(turn(2), written_at_ns=2)
    assert await old.claim("old again", claimed_at_ns=4) == 3
    await old.append(turn(4), written_at_ns=4, first_seq=7)
    assert await everything(new) == turn(1) + turn(3) + turn(4)
    assert [s.batch.epoch async for s in new.batches()] == [1, 2, 3]


async def test_writer_with_older_epoch_is_fenced(open_store: OpenStore) -> None:
    old, new = await open_store(), await open_store()
    await old.claim("old", claimed_at_ns=1)
    await old.append(turn(1), written_at_ns=1)
    await new.claim("new", claimed_at_ns=2)
    await new.append(turn(2), written_at_ns=2)
    with pytest.raises(FencedError, match="another process"):
        await old.append(turn(3), written_at_ns=3, first_seq=4)
    assert await everything(old) == turn(1) + turn(2)


async def test_concurrent_claims_get_different_epochs(open_store: OpenStore) -> None:
    stores = [await open_store() for _ in range(4)]
    epochs: list[int] = []

    async def claim(store: JournalStore) -> None:
        epochs.append(await store.claim("one of many", claimed_at_ns=1))

    async with anyio.create_task_group() as tasks:
        for store in stores:
            tasks.start_soon(claim, store)
    assert sorted(epochs) == [1, 2, 3, 4]


async def test_concurrent_appends_are_gapless(store: JournalStore) -> None:
    async def append(number: int) -> None:
        first_seq, last_seq, *_ = await store.append(turn(number, number), written_at_ns=number)
        stored = [s.record async for s in store.read(first_seq - 1, last_seq)]
        assert stored == turn(number, number)

    async with anyio.create_task_group() as tasks:
        for number in range(20):
            tasks.start_soon(append, number)
    assert [s.seq async for s in store.read()] == list(range(1, 20 + sum(range(20)) + 1))
    assert await verified_head(store) == await store.head()


async def test_readers_see_complete_batches(open_store: OpenStore) -> None:
    writer = await open_store()
    await writer.claim("writer", claimed_at_ns=1)
    readers = [await open_store() for _ in range(3)]
    done = anyio.Event()

    async def write() -> None:
        for number in range(40):
            await writer.append(turn(number), written_at_ns=number)
        done.set()

    async def read(reader: JournalStore) -> None:
        while not done.is_set():
            stored = await everything(reader)
            assert stored == [r for number in range(len(stored) // 3) for r in turn(number)]
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(write)
        for reader in readers:
            tasks.start_soon(read, reader)
    for reader in readers:
        assert (await reader.head()).seq == 120


@pytest.mark.parametrize("steps", [0, 1, 2, 3, 5, 8, 20])
async def test_cancelled_append_is_atomic_and_repeatable(store: JournalStore, steps: int) -> None:
    await store.append(turn(0), written_at_ns=0)

    async def append() -> None:
        await store.append(turn(1), written_at_ns=1, first_seq=4)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(append)
        for _ in range(steps):
            await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()
    assert await everything(store) in (turn(0), turn(0) + turn(1))
    await append()
    assert await everything(store) == turn(0) + turn(1)
    assert await verified_head(store) == await store.head()


async def test_chain_is_the_same_in_every_store(store: JournalStore) -> None:
    for number in range(3):
        await store.append(turn(number), written_at_ns=number)
    await store.append(mixed(), written_at_ns=3)
    head = await store.head()
    assert await verified_head(store) == head
    expected = GENESIS
    for written_at_ns, batch in enumerate([turn(0), turn(1), turn(2), mixed()]):
        encoded = [CODEC.encode(record) for record in batch]
        expected = seal(expected, encoded, 1, written_at_ns).head
    assert head == expected
    assert [s.batch.batch async for s in store.batches(2)] == [3, 4]


def test_form_of_hash_is_stable() -> None:
    sealed = seal(Head(7, 2, "ab" * 32), [EncodedRecord("Kind", 3, "pod/ä", '{"n":1}')], 4, 5)
    row = hashlib.sha256('\0008 3 4 5 7\nKindpod/ä{"n":1}\n'.encode()).hexdigest()
    text = f"{'ab' * 32}\nasched-batch-2 3 8 8 4 5\n{row}\n"
    assert sealed.batch.hash == hashlib.sha256(text.encode()).hexdigest()
    assert verify(sealed, Head(7, 2, "ab" * 32)) == sealed.head
    assert sealed.batch.hash == "882665cac35c6eb49b1549c419a20ccc81dc8735e9bd79d0b27fd9c83823f766"


async def test_checkpoints(store: JournalStore) -> None:
    for number in range(4):
        await store.append(turn(number), written_at_ns=number)
    assert await store.load_checkpoint() is None
    await store.save_checkpoint(3, b"three")
    await store.save_checkpoint(8, b"\0eight\xff")
    assert await store.load_checkpoint() == Checkpoint(8, b"\0eight\xff")
    assert await store.load_checkpoint(8) == Checkpoint(8, b"\0eight\xff")
    assert await store.load_checkpoint(7) == Checkpoint(3, b"three")
    assert await store.load_checkpoint(2) is None
    await store.save_checkpoint(3, b"again")
    assert await store.load_checkpoint(3) == Checkpoint(3, b"again")
    for seq in (0, 13):
        with pytest.raises(JournalError, match=f"record {seq}: "):
            await store.save_checkpoint(seq, b"")


async def test_reopened_journal_has_all_data(open_store: OpenStore) -> None:
    first = await open_store()
    await first.claim("first", claimed_at_ns=1)
    await first.append(mixed(), written_at_ns=1)
    await first.save_checkpoint(2, b"two")
    head = await first.head()
    await first.close()
    await first.close()
    second = await open_store()
    assert await second.head() == head
    assert await everything(second) == mixed()
    assert await second.load_checkpoint() == Checkpoint(2, b"two")


@given(st.lists(st.lists(records(), min_size=1, max_size=4), min_size=1, max_size=4))
@settings(
    max_examples=examples(25),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
async def test_any_records_round_trip(store: JournalStore, batches: list[list[AnyRecord]]) -> None:
    """The same appends result in the same content and chain as in memory."""
    before = (await store.head()).seq
    for number, batch in enumerate(batches):
        await store.append(batch, written_at_ns=number)
    expected = [record for batch in batches for record in batch]
    assert [s.record async for s in store.read(before)] == expected
    assert await verified_head(store) == await store.head()


async def test_new_store_is_empty() -> None:
    first, second = MemoryStore(), MemoryStore()
    await first.claim("first", claimed_at_ns=1)
    await first.append(turn(1), written_at_ns=1)
    assert await second.head() == GENESIS


async def test_subjects_of_a_kind(store: JournalStore) -> None:
    await store.append(mixed(), written_at_ns=1)
    await store.append(turn(1, 3), written_at_ns=2)
    assert await store.subjects("pod") == [f"pod/default/web-{n}" for n in (0, 1, 2)]
    assert await store.subjects("node") == ["node/node-1"]
    assert await store.subjects("po") == []
    assert await store.subjects("service") == []


async def test_batch_ranges_equal_batches(store: JournalStore) -> None:
    for number in range(30):
        await store.append(turn(number, number % 4), written_at_ns=number)
    for after in (0, 7, 30):
        batch_ranges = [stretch async for stretch in store.batch_ranges(after)]
        sealed = [batch for stretch in batch_ranges for batch in stretch.split()]
        assert sealed == [batch async for batch in store.batches(after)]
        assert [s.batch.batch for s in sealed] == [*range(after + 1, 31)]
    head = GENESIS
    async for stretch in store.batch_ranges():
        head = verify_range(stretch, head)
    assert head == await store.head()
