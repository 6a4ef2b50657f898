"""Replays in segments give the result of one replay."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from random import Random
from shutil import copy

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from asched import planning
from asched.audit.replay import Divergence, ReplayReport, ReplaySegment, replay, replay_segment
from asched.journal.checkpoints import write_checkpoints
from asched.journal.memory import MemoryStore
from asched.journal.opening import open_journal
from asched.planning.verification import merged, plan, segments
from asched.planning.worker import answer_to
from asched.state.checkpoint import checkpoint_of, restore
from asched.state.records import DECISIONS, AnyRecord, Assigned, TurnStarted
from tests.audit.recording import REGISTRY
from tests.audit.test_explain import busy_history
from tests.planning.journals import stored
from tests.run_size import examples

WHOLE = 10**9


@given(
    marks=st.sets(st.integers(1, 120), max_size=20),
    after=st.integers(0, 60),
    length=st.integers(0, 80),
    most=st.integers(1, 10),
)
def test_segments_cover_all_records_once(
    marks: set[int], after: int, length: int, most: int
) -> None:
    checkpoints, last = sorted(marks), after + length
    found = segments(after, last, checkpoints, most)
    assert 1 <= len(found) <= most
    assert (found[0].after_seq, found[-1].last_seq) == (after, last)
    assert [one.last_seq for one in found[:-1]] == [one.after_seq for one in found[1:]]
    assert all(one.after_seq in marks for one in found[1:]), "segments begin at checkpoints"
    compared = [seq for one in found for seq in one.checkpoints]
    assert compared == [seq for seq in checkpoints if after < seq <= last]
    assert [one.continued for one in found] == [True] * (len(found) - 1) + [False]


async def in_segments(store: MemoryStore, most: int) -> ReplayReport:
    marks = [mark.seq for mark in await store.checkpoint_marks()]
    last = (await store.head()).seq
    parts = segments(0, last, marks, most)
    return merged([await replay_segment(store, REGISTRY, part) for part in parts])


async def at_once(store: MemoryStore) -> ReplayReport:
    return await in_segments(store, most=1)


@settings(max_examples=examples(25))
@given(seed=st.integers(0, 20), every=st.integers(1, 40), most=st.integers(2, 60))
async def test_segments_agree_with_one_replay(seed: int, every: int, most: int) -> None:
    store = await stored(busy_history(Random(seed)).records)
    await write_checkpoints(store, REGISTRY.load, every=every)
    whole = await at_once(store)
    assert whole.equal, whole.divergence
    assert whole.checkpoints == len(await store.checkpoint_marks())
    assert await in_segments(store, most) == whole
    plain = await replay(store, REGISTRY)
    assert msgspec.structs.replace(whole, checkpoints=0) == plain


def altered(records: Sequence[AnyRecord], random: Random) -> list[AnyRecord]:
    """The records with a decision that is changed, removed or repeated."""
    changed = list(records)
    places = [place for place, record in enumerate(records) if isinstance(record, DECISIONS)]
    place = random.choice(places)
    match random.choice(["change", "remove", "repeat"]):
        case "change":
            record = records[place]
            if isinstance(record, Assigned):
                changed[place] = msgspec.structs.replace(record, score=record.score + 1)
            else:
                del changed[place]
        case "remove":
            del changed[place]
        case _:
            changed.insert(place, records[place])
    return changed


@settings(max_examples=examples(25))
@given(seed=st.integers(0, 40), every=st.integers(1, 30), most=st.integers(2, 60))
async def test_segments_find_the_first_divergence(seed: int, every: int, most: int) -> None:
    random = Random(seed)
    store = await stored(altered(busy_history(random).records, random))
    try:
        await write_checkpoints(store, REGISTRY.load, every=every)
    except Exception:  # noqa: BLE001  some altered records cannot be folded
        return
    whole = await at_once(store)
    assert not whole.equal
    assert await in_segments(store, most) == whole


async def test_decisions_of_one_group_may_end_in_the_next_segment() -> None:
    """A decision that is missing at the end of a segment is found there, not accepted."""
    records = busy_history(Random(5)).records
    places = [place for place, record in enumerate(records) if isinstance(record, DECISIONS)]
    place = next(p for p in places if not isinstance(records[p + 1], DECISIONS))
    store = await stored([*records[:place], *records[place + 1 :]])
    whole = await at_once(store)
    assert not whole.equal
    for every in range(1, place + 2):
        copied = await stored([*records[:place], *records[place + 1 :]])
        await write_checkpoints(copied, REGISTRY.load, every=every)
        found = await in_segments(copied, WHOLE)
        assert found.divergence == whole.divergence, every


async def test_forged_checkpoint_is_found() -> None:
    """A checkpoint is not trusted, also if the records after it agree with it."""
    records = busy_history(Random(3)).records
    store = await stored(records)
    await write_checkpoints(store, REGISTRY.load, every=20)
    forged = restore(await blob_at(store, 40), REGISTRY.load)
    forged.state.engine.seed += 1
    await store.save_checkpoint(40, checkpoint_of(forged.state))
    found = await in_segments(store, WHOLE)
    assert found.divergence == Divergence(40, "checkpoint differs from the state of the records")
    assert found == await at_once(store)
    assert found.last_seq == 40
    plain = await replay(store, REGISTRY)
    assert plain.equal, "a replay of all records reads no checkpoint"


async def blob_at(store: MemoryStore, seq: int) -> bytes:
    found = await store.load_checkpoint(seq)
    assert found is not None
    assert found.seq == seq
    return found.blob


async def test_checkpoint_of_another_format_is_not_compared() -> None:
    store = await stored(busy_history(Random(3)).records)
    await write_checkpoints(store, REGISTRY.load, every=20)
    _, _, packed = (await blob_at(store, 40)).partition(b"\n")
    await store.save_checkpoint(40, b"asched-checkpoint 0\n" + packed)
    whole = await at_once(store)
    assert whole.equal
    assert whole.checkpoints == len(await store.checkpoint_marks()) - 1
    assert await in_segments(store, WHOLE) == whole


async def test_segment_in_the_middle_counts_its_own_decisions() -> None:
    records = busy_history(Random(5)).records
    store = await stored(records)
    await write_checkpoints(store, REGISTRY.load, every=25)
    part = await replay_segment(store, REGISTRY, ReplaySegment(25, 50, (50,), continued=True))
    assert (part.first_seq, part.last_seq, part.records, part.checkpoints) == (26, 50, 25, 1)
    assert part.decisions == sum(isinstance(record, DECISIONS) for record in records[25:50])


def test_executors_agree(journal: Path, processes: Executor) -> None:
    history = planning.open(journal)
    with ThreadPoolExecutor(1) as thread:
        serial = planning.verify(history, thread)
    assert serial.equal, serial.divergence
    assert serial.checkpoints > 10
    assert planning.verify(history, processes, max_segments=WHOLE) == serial


async def test_altered_journal_is_found_by_processes(
    journal: Path, tmp_path: Path, processes: Executor
) -> None:
    """The altered records are hashed again, so that the chain is intact."""
    async with open_journal(str(journal), read_only=True) as store:
        records = [one.record async for one in store.read()]
    place = max(p for p, record in enumerate(records) if isinstance(record, Assigned))
    record = records[place]
    assert isinstance(record, Assigned)
    records[place] = msgspec.structs.replace(record, score=record.score + 1)
    path = tmp_path / "altered.db"
    async with open_journal(str(path)) as store:
        await store.claim("forger", claimed_at_ns=1)
        turns = [p for p, one in enumerate(records) if isinstance(one, TurnStarted)]
        for begin, end in zip([0, *turns[1:]], [*turns[1:], len(records)], strict=True):
            await store.append(records[begin:end], written_at_ns=begin + 1)
        await write_checkpoints(store, REGISTRY.load, every=50)
    found = planning.verify(planning.open(path), processes, max_segments=WHOLE)
    assert found.divergence is not None
    assert (found.divergence.seq, found.divergence.reason) == (place + 1, "different decision")


def test_checkpoint_that_is_replaced_meanwhile_is_an_error(journal: Path, tmp_path: Path) -> None:
    path = Path(copy(journal, tmp_path / "copy.db"))
    history = planning.open(path)
    items = plan(history, max_segments=WHOLE)
    item = next(one for one in items if len(one.checkpoints) > 1)
    (seq, _), *rest = item.checkpoints
    foreign = msgspec.structs.replace(item, checkpoints=((seq, "0" * 64), *rest))
    assert "deleted or replaced" in answer_to(foreign).error
    assert answer_to(item).error == ""
