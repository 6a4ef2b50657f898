"""Columns of the cluster give the picture that a fold gives."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from asched.model.node import Node
from asched.state.records import AnyRecord, ObjectDeleted, ObjectObserved
from asched.ui.cluster import ClusterPicture, picture, picture_of
from asched.ui.columns import ClusterHistory
from asched.ui.node_facts import FactsHistory, StoredFacts
from tests.audit.recording import Recording, node, pod

STEPS = st.lists(
    st.tuples(st.sampled_from(("node", "gpu", "drop", "pod", "end", "decide")), st.integers(0, 3)),
    max_size=25,
)


class _Followed(Recording):
    """A recording, and the pictures and columns after each record."""

    def __init__(self) -> None:
        self.stored: dict[int, bytes] = {}
        self.pictures: dict[int, ClusterPicture] = {}
        self.facts = FactsHistory()
        self.cluster: ClusterHistory | None = None
        super().__init__()

    def add(self, record: AnyRecord) -> int:
        seq = super().add(record)
        if self.cluster is None:
            self.cluster = ClusterHistory(self.stored.__getitem__, chunk_records=5)
            self.cluster.begin(seq, self.state)
        match record:
            case ObjectObserved(object=Node() as seen):
                self.facts.observe(seq, seen)
            case ObjectDeleted(kind="Node"):
                self.facts.delete(seq, record.key)
        self.cluster.apply(seq, self.state)
        self.pictures[seq] = picture(self.state, seq)
        if seq % 7 == 0:
            self.stored.update(self.cluster.take_closed())
        return seq


def _record(steps: list[tuple[str, int]]) -> _Followed:
    recording, nodes, pods = _Followed(), dict[str, Node](), 0
    for number, (what, which) in enumerate(steps):
        recording.turn(number / 4)
        name = f"n{which}"
        if what == "node":
            nodes[name] = node(
                name, str(1 + number % 5), taint="x" * (number % 2), zone=f"z{which}"
            )
            recording.see(nodes[name])
        elif what == "gpu":
            offered = node(name, "4")
            offered.status.allocatable["example.com/gpu"] = "2"
            nodes[name] = offered
            recording.see(offered)
        elif what == "drop" and name in nodes:
            del nodes[name]
            recording.add(ObjectDeleted("Node", name, f"uid-{name}"))
        elif what == "pod":
            pods += 1
            recording.see(pod(f"p{pods}", str(1 + which)))
        elif what == "end" and f"default/p{which}" in recording.state.pods:
            recording.lose(recording.state.pods[f"default/p{which}"].info.pod)
        elif what == "decide":
            recording.bind(recording.decide())
    return recording


@given(STEPS)
def test_columns_equal_the_fold_after_every_record(steps: list[tuple[str, int]]) -> None:
    recording = _record(steps)
    followed, last = recording.cluster, len(recording.records)
    assert followed is not None
    _check(recording, followed, recording.facts)
    followed.end(last, recording.state)
    recording.stored.update(followed.take_closed())
    restored = ClusterHistory(recording.stored.__getitem__)
    restored.restore(followed.names, followed.bases, last)
    _check(recording, restored, recording.facts)


def _check(recording: _Followed, cluster: ClusterHistory, facts: FactsHistory) -> None:
    for seq, expected in recording.pictures.items():
        assert picture_of(cluster.at(seq), facts.table(seq), {}, seq) == expected


def test_facts_that_are_stored_out_of_order_of_nodes_are_found_by_record() -> None:
    recording = _record([("node", 0), ("node", 1), ("drop", 0), ("node", 0)])
    copied = FactsHistory()
    changes = sorted(recording.facts.unsaved, key=lambda change: (change.name, change.seq))
    for change in changes:
        copied.add(StoredFacts(*change))
    for seq in recording.pictures:
        assert copied.table(seq) == recording.facts.table(seq)
