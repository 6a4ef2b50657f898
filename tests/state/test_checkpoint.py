"""Checkpoints: a restored state is the one that was kept, now and after whatever comes."""

from __future__ import annotations

import zlib
from hashlib import sha256
from typing import Any

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import rule

from asched.cycle.decide import Decider
from asched.framework.interface import Eviction, Victim
from asched.state import records as r
from asched.state.checkpoint import CheckpointError, checkpoint_of, restore
from asched.state.checkpoint_encoding import encoding, packed, sealed
from asched.state.checkpoint_form import FORMAT, Form, StateForm
from asched.state.checkpoint_image import image_of_state
from asched.state.cluster import ClusterState
from asched.state.fold import Fold
from asched.state.invariants import check
from asched.state.steps import STEP, Steps, in_one_go
from tests.state.description import describe
from tests.state.objects import a_node, a_pod
from tests.state.profiles import DEFAULT, Ledger, loader
from tests.state.test_fold import FoldMachine

MOST_DECISIONS = 20


class CheckpointMachine(FoldMachine):
    """The histories of the fold's own test, kept and restored at some of their moments."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[tuple[int, bytes, dict[str, Any]]] = []
        self.pictures: list[tuple[Steps[bytes], bytes]] = []

    @rule(keep=st.booleans())
    def checkpoint(self, keep: bool) -> None:
        blob = checkpoint_of(self.state)
        restored = restore(blob, loader(*DEFAULT)).state
        check(restored)
        assert describe(restored) == describe(self.state)
        assert checkpoint_of(restored) == blob
        assert books(restored) == books(self.state)
        self.pictures.append((encoding(image_of_state(self.state)), blob))
        if keep:
            self.kept.append((len(self.records), blob, describe(restored)))

    def teardown(self) -> None:
        for steps, blob in self.pictures:
            # What happened since is not in the picture.
            assert sealed(in_one_go(steps)) == blob
        for place, blob, description in self.kept:
            fold = restore(blob, loader(*DEFAULT))
            assert describe(fold.state) == description
            fold.apply_all(self.records[place:])
            assert describe(fold.state) == describe(self.state)
            whole = Fold(ClusterState(), loader(*DEFAULT))
            whole.apply_all(self.records)
            assert decisions(fold) == decisions(whole)
            assert checkpoint_of(fold.state) == checkpoint_of(whole.state)


def books(state: ClusterState) -> dict[str, Any]:
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
    while len(made) < MOST_DECISIONS and (found := decider.next()):
        fold.apply_all(found)
        made += found
    return made


class Things(Form):
    """With lists of all lengths, and others inside."""

    name: str
    numbers: tuple[int, ...]
    rows: tuple[tuple[str, tuple[int, ...]], ...]
    inner: InnerThings


class InnerThings(Form):
    words: tuple[str | None, ...]


@pytest.mark.parametrize("length", [0, 1, STEP - 1, STEP, STEP + 1, 15, 16, 70_000])
def test_packed_in_steps_as_in_one_go(length: int) -> None:
    numbers = tuple(range(length))
    things = Things(
        "x",
        numbers,
        tuple((str(n), numbers[: n % 20]) for n in numbers),
        InnerThings(tuple(None if n % 3 else str(n) for n in numbers)),
    )
    assert bytes(in_one_go(packed(things))) == msgspec.msgpack.encode(things)


def test_a_long_one_takes_many_steps() -> None:
    fold = Fold(ClusterState(), loader(*DEFAULT))
    fold.apply_all(r.ObjectSeen(a_node(f"n{i}")) for i in range(10 * STEP))
    # Rows, and nodes: to their forms, and to bytes.
    assert len([*encoding(image_of_state(fold.state))]) >= 3 * 10


CheckpointMachine.TestCase.settings = settings(stateful_step_count=50, deadline=None)
TestCheckpoint = CheckpointMachine.TestCase


def test_free_rows_are_filled_in_the_same_order() -> None:
    fold = Fold(ClusterState(), loader(*DEFAULT))
    fold.apply_all(r.ObjectSeen(a_node(f"n{i}")) for i in range(5))
    fold.apply(r.ObjectSeen(a_pod("p", on="n3")))
    fold.apply_all(r.ObjectGone("Node", f"n{i}") for i in (3, 1))
    again = restore(checkpoint_of(fold.state), loader(*DEFAULT))
    assert again.state.nodes.names == ["n0", "", "n2", "", "n4"]
    for each in (fold, again):
        each.apply_all(r.ObjectSeen(a_node(name)) for name in ("x", "n3"))
        assert each.state.nodes.names == ["n0", "x", "n2", "n3", "n4"]
        assert [pod.key for pod in each.state.nodes.pods(3)] == ["default/p"]


def test_for_whom_room_was_made_and_who_has_no_use_for_it() -> None:
    """Nobody can tell from the rest of the state: a pod that was turned away later by whoever makes
    room has had none made."""
    fold = Fold(ClusterState(), loader(*DEFAULT))
    evictions = fold.state.evictions
    for victim, preemptor in (("v1", "late"), ("v2", "early"), ("v3", "gone"), ("v4", "gone")):
        evictions.begin(
            Eviction(Victim(f"ns/{victim}", victim), Victim(f"ns/{preemptor}", preemptor), "n0")
        )
    for victim in ("v2", "v1", "v3"):
        evictions.end(victim)
    evictions.forget("gone")
    again = restore(checkpoint_of(fold.state), loader(*DEFAULT)).state.evictions
    assert [*again.done_for.items()] == [("early", "ns/early"), ("late", "ns/late")]
    again.end("v4")
    assert [*again.done_for] == ["early", "late"]


def test_an_empty_state() -> None:
    blob = checkpoint_of(ClusterState())
    assert describe(restore(blob, loader()).state) == describe(ClusterState())


@pytest.mark.parametrize(
    ("blob", "complaint"),
    [
        (b"", "no checkpoint"),
        (b"\x00" * 100, "no checkpoint"),
        (b"asched-checkpoint 999\nxyz", "it has format 999, this asched reads"),
        (b"asched-checkpoint %d\nxyz" % FORMAT, "damaged"),
        (checkpoint_of(ClusterState())[:-9], "damaged"),
    ],
)
def test_what_cannot_be_used_says_why(blob: bytes, complaint: str) -> None:
    with pytest.raises(CheckpointError, match=complaint):
        restore(blob, loader())


def test_a_changed_form_has_a_new_number() -> None:
    """Whoever changes what a checkpoint holds raises FORMAT, and writes the new digest here."""
    fields = [
        f"{form.__name__}.{field.name}: {field.type}"
        for form in Form.__subclasses__()
        if form.__module__ == Form.__module__
        for field in msgspec.structs.fields(form)
    ]
    digest = sha256("\n".join(fields).encode()).hexdigest()[:16]
    assert (FORMAT, digest) == (9, "c9243e9c8f35fa1c")


def test_one_that_contradicts_itself_says_so() -> None:
    fold = Fold(ClusterState(), loader(*DEFAULT))
    fold.apply(r.ObjectSeen(a_pod("p")))
    header, _, packed = checkpoint_of(fold.state).partition(b"\n")
    form = msgspec.msgpack.decode(zlib.decompress(packed), type=StateForm)
    without_pods = msgspec.structs.replace(form, whole_pods=(), copied_pods=())
    blob = header + b"\n" + zlib.compress(msgspec.msgpack.encode(without_pods))
    with pytest.raises(CheckpointError, match="contradicts itself"):
        restore(blob, loader(*DEFAULT))
