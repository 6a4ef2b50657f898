"""Checkpoints: a restored state equals the original, now and after any further records."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from hashlib import sha256
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import rule

from asched.cycle.decide import Decider
from asched.framework.cluster import Eviction, PodRef
from asched.state import records as r
from asched.state.checkpoint import (
    FORMAT,
    CheckpointContent,
    CheckpointError,
    KnownObjects,
    checkpoint_of,
    compress,
    encode,
    restore,
)
from asched.state.cluster import ClusterState
from asched.state.fold import Fold
from asched.state.stored_form import STEP, Steps, StoredForm, encode_in_steps, run
from asched.testing.invariants import check
from tests.state.description import describe
from tests.state.objects import a_node, a_pod
from tests.state.profiles import DEFAULT, Ledger, loader
from tests.state.test_fold import FoldMachine

MAX_DECISIONS = 20


class Encoding:
    """A checkpoint that is encoded step by step."""

    def __init__(self, steps: Steps[list[bytes]]) -> None:
        self.content: list[bytes] = []
        self.ended = False
        self._steps = steps

    def step(self) -> None:
        try:
            next(self._steps)
        except StopIteration as end:
            if not self.ended:
                self.content, self.ended = end.value, True


class CheckpointMachine(FoldMachine):
    """The histories of the fold's own test, with checkpoints at some of their records."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[tuple[int, bytes, dict[str, Any]]] = []
        self.unfinished: list[tuple[Encoding, bytes]] = []

    @rule(keep=st.booleans())
    def checkpoint(self, keep: bool) -> None:
        blob = checkpoint_of(self.state)
        restored = restore(blob, loader(*DEFAULT)).state
        check(restored)
        assert describe(restored) == describe(self.state)
        assert checkpoint_of(restored) == blob
        assert ledgers(restored) == ledgers(self.state)
        # Most objects are those of an earlier state, all are those of the same one.
        for earlier in (self.kept[-1][1] if self.kept else blob, blob):
            shared = restore(blob, loader(*DEFAULT), KnownObjects(earlier)).state
            check(shared)
            assert describe(shared) == describe(self.state)
            assert checkpoint_of(shared) == blob
        self.unfinished.append((Encoding(encode(self.state)), blob))
        if keep:
            self.kept.append((len(self.records), blob, describe(restored)))

    @rule(steps=st.integers(1, 10))
    def encode_further(self, steps: int) -> None:
        for encoding, _ in self.unfinished:
            for _ in range(steps):
                encoding.step()

    def teardown(self) -> None:
        for encoding, blob in self.unfinished:
            # A checkpoint does not contain later records.
            while not encoding.ended:
                encoding.step()
            assert compress(encoding.content) == blob
        for position, blob, description in self.kept:
            fold = restore(blob, loader(*DEFAULT), KnownObjects(blob))
            assert describe(fold.state) == description
            fold.apply_all(self.records[position:])
            assert describe(fold.state) == describe(self.state)
            whole = Fold(ClusterState(), loader(*DEFAULT))
            whole.apply_all(self.records)
            assert decisions(fold) == decisions(whole)
            assert checkpoint_of(fold.state) == checkpoint_of(whole.state)


def ledgers(state: ClusterState) -> dict[str, Any]:
    found = {}
    for name, profile in state.profiles.items():
        ledger = profile.plugins["Ledger"]
        assert isinstance(ledger, Ledger)
        found[name] = ledger.books
    return found


def decisions(fold: Fold) -> list[r.Decision]:
    """The next decisions, each folded."""
    made: list[r.Decision] = []
    decider = Decider(fold.state)
    while len(made) < MAX_DECISIONS and (found := decider.next()):
        fold.apply_all(found)
        made += found
    return made


class Outer(StoredForm):
    """Tuples of all lengths, some nested."""

    name: str
    numbers: tuple[int, ...]
    rows: tuple[tuple[str, tuple[int, ...]], ...]
    inner: Inner


class Inner(StoredForm):
    words: tuple[str | None, ...]


@pytest.mark.parametrize("length", [0, 1, STEP - 1, STEP, STEP + 1, 15, 16, 70_000])
def test_encoding_in_steps_equals_encoding_at_once(length: int) -> None:
    numbers = tuple(range(length))
    form = Outer(
        "x",
        numbers,
        tuple((str(n), numbers[: n % 20]) for n in numbers),
        Inner(tuple(None if n % 3 else str(n) for n in numbers)),
    )
    encoder = msgspec.msgpack.encode
    assert b"".join(run(encode_in_steps(form, encoder))) == encoder(form)


def test_large_state_is_encoded_in_many_steps() -> None:
    fold = Fold(ClusterState(), loader(*DEFAULT))
    fold.apply_all(r.ObjectObserved(a_node(f"n{i}")) for i in range(10 * STEP))
    # Node objects, row names and row ends.
    assert len([*encode(fold.state)]) >= 3 * 10


CheckpointMachine.TestCase.settings = settings(stateful_step_count=50, deadline=None)
TestCheckpoint = CheckpointMachine.TestCase


def test_restored_table_fills_free_rows_in_the_same_order() -> None:
    fold = Fold(ClusterState(), loader(*DEFAULT))
    fold.apply_all(r.ObjectObserved(a_node(f"n{i}")) for i in range(5))
    fold.apply(r.ObjectObserved(a_pod("p", on="n3")))
    fold.apply_all(r.ObjectDeleted("Node", f"n{i}") for i in (3, 1))
    again = restore(checkpoint_of(fold.state), loader(*DEFAULT))
    assert again.state.nodes.names == ["n0", "", "n2", "", "n4"]
    for each in (fold, again):
        each.apply_all(r.ObjectObserved(a_node(name)) for name in ("x", "n3"))
        assert each.state.nodes.names == ["n0", "x", "n2", "n3", "n4"]
        assert [pod.key for pod in each.state.nodes.pods(3)] == ["default/p"]


def test_states_share_known_objects_and_one_gets_the_table() -> None:
    fold = Fold(ClusterState(), loader(*DEFAULT))
    fold.apply_all(r.ObjectObserved(a_node(f"n{i}")) for i in range(3))
    blob = checkpoint_of(fold.state)
    fold.apply(r.ObjectObserved(a_pod("p", on="n1")))
    later = checkpoint_of(fold.state)
    fold.apply(r.ObjectObserved(a_node("n1", labels={"disk": "ssd"})))
    changed = checkpoint_of(fold.state)
    known = KnownObjects(blob)
    states = [restore(one, loader(*DEFAULT), known).state for one in (changed, later, later)]
    of_changed, *same = ([state.nodes.node(row) for row in range(3)] for state in states)
    for nodes in same:
        assert all(node is other for node, other in zip(nodes, same[0], strict=True))
    assert [node is other for node, other in zip(of_changed, same[0], strict=True)] == [
        True, False, True,
    ]  # fmt: skip
    assert len({id(state.nodes.columns) for state in states}) == 3
    assert [checkpoint_of(state) for state in states] == [changed, later, later]


def test_completed_and_unneeded_evictions_are_restored() -> None:
    """They do not follow from the rest of the state."""
    fold = Fold(ClusterState(), loader(*DEFAULT))
    evictions = fold.state.evictions
    for victim, preemptor in (("v1", "late"), ("v2", "early"), ("v3", "gone"), ("v4", "gone")):
        evictions.begin(
            Eviction(PodRef(f"ns/{victim}", victim), PodRef(f"ns/{preemptor}", preemptor), "n0")
        )
    for victim in ("v2", "v1", "v3"):
        evictions.end(victim)
    evictions.mark_unneeded("gone")
    again = restore(checkpoint_of(fold.state), loader(*DEFAULT)).state.evictions
    assert [*again.completed_preemptors.items()] == [("early", "ns/early"), ("late", "ns/late")]
    again.end("v4")
    assert [*again.completed_preemptors] == ["early", "late"]


def test_empty_state_is_restored() -> None:
    blob = checkpoint_of(ClusterState())
    assert describe(restore(blob, loader()).state) == describe(ClusterState())


@pytest.mark.parametrize(
    ("blob", "message"),
    [
        (b"", "not a checkpoint"),
        (b"\x00" * 100, "not a checkpoint"),
        (b"asched-checkpoint 999\nxyz", "it has format 999, this asched reads"),
        (b"asched-checkpoint %d\nxyz" % FORMAT, "damaged"),
        (checkpoint_of(ClusterState())[:-9], "damaged"),
    ],
)
def test_unreadable_checkpoint_is_rejected(blob: bytes, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        restore(blob, loader())


def stored_types() -> set[Any]:
    """All stored forms of asched, and other types of the state in their fields."""
    found: set[Any] = set()
    pending: list[Any] = [
        form for form in StoredForm.__subclasses__() if form.__module__.startswith("asched.")
    ]
    while pending:
        kind = pending.pop()
        if kind not in found:
            found.add(kind)
            for _, field in fields_of(kind):
                pending += [part for part in parts_of(field) if is_part(part)]
    return found


def is_part(kind: Any) -> bool:
    """A named tuple, or a struct of a store's own."""
    is_struct = isinstance(kind, type) and issubclass(kind, msgspec.Struct)
    own = (
        is_struct and kind.__module__.startswith("asched.state.") and not issubclass(kind, r.Record)
    )
    return hasattr(kind, "_fields") or own


def parts_of(annotation: Any) -> Iterator[Any]:
    yield annotation
    for part in get_args(annotation):
        yield from parts_of(part)


def fields_of(kind: Any) -> Iterator[tuple[str, Any]]:
    if issubclass(kind, msgspec.Struct):
        yield from ((field.name, field.type) for field in msgspec.structs.fields(kind))
    else:
        yield from kind.__annotations__.items()


def test_changed_form_needs_a_new_format_number() -> None:
    """After a change of a stored form: increment FORMAT and update the digest here."""
    lines = [
        f"{kind.__name__}.{name}: {type_}"
        for kind in sorted(stored_types(), key=lambda kind: kind.__name__)
        for name, type_ in fields_of(kind)
    ]
    digest = sha256("\n".join(lines).encode()).hexdigest()[:16]
    assert (FORMAT, digest) == (1, "df956e4b9a4c4ecf")


def test_contradictory_checkpoint_is_rejected() -> None:
    fold = Fold(ClusterState(), loader(*DEFAULT))
    fold.apply(r.ObjectObserved(a_pod("p")))
    header, _, content = checkpoint_of(fold.state).partition(b"\n")
    form = msgspec.msgpack.decode(zlib.decompress(content), type=CheckpointContent)
    without_pods = msgspec.structs.replace(form, full_pods=(), copied_pods=())
    blob = header + b"\n" + zlib.compress(msgspec.msgpack.encode(without_pods))
    with pytest.raises(CheckpointError, match="contradicts itself"):
        restore(blob, loader(*DEFAULT))
