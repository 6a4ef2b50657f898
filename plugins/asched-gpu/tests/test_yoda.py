"""Yoda on columns compared with a reference implementation for single nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from asched_gpu.scv import Card, Scv, ScvStatus
from asched_gpu.yoda import Yoda, YodaArgs
from hypothesis import given, settings
from hypothesis import strategies as st

from asched.model import CustomObject, Object, ObjectMeta, Pod
from asched.state.records import Assigned, Rejected
from asched.testing import from_api, node, pod, profile, run_filter, schedule, scores


def scv(name: str, cards: Sequence[Card], **sums: int) -> Object:
    """The Scv object of a node."""
    status = ScvStatus(
        card_list=tuple(cards),
        card_number=len(cards),
        free_memory_sum=sums.get("free", sum(card.free_memory for card in cards)),
        total_memory_sum=sums.get("total", sum(card.total_memory for card in cards)),
    )
    return CustomObject.of(Scv(metadata=ObjectMeta(name=name), status=status))


# -- Yoda-Scheduler, as its Go reads --------------------------------------------------------------


def number_fits(labels: Mapping[str, str], status: ScvStatus) -> tuple[bool, int]:
    if "scv/number" in labels:
        number = int(labels["scv/number"])
        return number <= status.card_number, number
    return status.card_number > 0, 1


def fits(labels: Mapping[str, str], status: ScvStatus) -> bool:
    enough, number = number_fits(labels, status)
    healthy = [card for card in status.card_list if card.health == "Healthy"]
    if "scv/memory" in labels:
        memory = int(labels["scv/memory"])
        enough &= sum(card.free_memory >= memory for card in healthy) >= number
    if "scv/clock" in labels:
        clock = int(labels["scv/clock"])
        enough &= sum(card.clock == clock for card in healthy) >= number
    return enough


def counted(labels: Mapping[str, str], status: ScvStatus) -> list[Card]:
    if not fits(labels, status):
        return []
    memory, clock = (int(labels.get(f"scv/{name}", "0")) for name in ("memory", "clock"))
    return [c for c in status.card_list if c.free_memory >= memory and c.clock >= clock]


def expected_scores(
    labels: Mapping[str, str], reports: Mapping[str, ScvStatus], asked: Mapping[str, int]
) -> dict[str, int]:
    """Scores of the feasible nodes, scaled to 0 to 100."""
    best = {"bandwidth": 1, "core": 1, "power": 1, "free_memory": 1, "total_memory": 1}
    for status in reports.values():
        for card in counted(labels, status):
            best = {name: max(high, getattr(card, name)) for name, high in best.items()}
    raw = {}
    for name, status in reports.items():
        if not fits(labels, status):
            continue
        score = 0
        for card in counted(labels, status):
            score += card.bandwidth * 100 // best["bandwidth"]
            score += card.clock * 100 // best["bandwidth"]
            score += card.core * 100 // best["core"]
            score += card.power * 100 // best["power"]
            score += card.free_memory * 100 // best["free_memory"] * 2
            score += card.total_memory * 100 // best["total_memory"]
        total = status.total_memory_sum
        score += status.free_memory_sum * 100 // total * 2
        if total >= asked.get(name, 0):
            score += (total - asked.get(name, 0)) * 100 // total * 3
        raw[name] = score
    if not raw:
        return {}
    lowest, highest = min(raw.values()), max(raw.values())
    if lowest == highest:
        lowest -= 1
    return {name: (score - lowest) * 100 // (highest - lowest) for name, score in raw.items()}


cards = st.builds(
    Card,
    health=st.sampled_from(["Healthy", "Healthy", "Sick"]),
    clock=st.sampled_from([5000, 5705]),
    core=st.integers(1000, 5000),
    bandwidth=st.integers(100, 900),
    power=st.integers(100, 400),
    free_memory=st.integers(0, 16_000),
    total_memory=st.just(16_000),
)
labels_of_pods = st.fixed_dictionaries(
    {},
    optional={
        "scv/number": st.sampled_from(["0", "1", "2", "3"]),
        "scv/memory": st.sampled_from(["1000", "8000"]),
        "scv/clock": st.sampled_from(["5000", "5705"]),
    },
)


@settings(max_examples=60)
@given(
    labels_of_pods,
    st.lists(st.lists(cards, min_size=1, max_size=3), min_size=1, max_size=4),
    st.lists(st.sampled_from([0, 4000, 60_000]), min_size=4, max_size=4),
)
def test_filter_and_scores_equal_reference(
    labels: dict[str, str], of_nodes: list[list[Card]], asked: list[int]
) -> None:
    names = [f"n{number}" for number in range(len(of_nodes))]
    cluster: list[Object] = [node(name) for name in [*names, "without-report"]]
    cluster += [scv(name, cards) for name, cards in zip(names, of_nodes, strict=True)]
    on_nodes = {name: memory for name, memory in zip(names, asked, strict=False) if memory}
    cluster += [
        pod(f"on-{name}", node=name, labels={"scv/memory": str(memory)})
        for name, memory in on_nodes.items()
    ]
    waiting = pod("p", labels=labels)
    reports = {
        name: item.typed(Scv).status  # type: ignore[union-attr]  # it was just made of one
        for name, item in zip(
            names, (c for c in cluster if isinstance(c, CustomObject)), strict=True
        )
    }
    said = run_filter(Yoda, waiting, cluster)
    assert not said["without-report"].is_success
    passing = [name for name in names if said[name].is_success]
    assert passing == [name for name in names if fits(labels, reports[name])]
    found = scores(Yoda, waiting, cluster)
    assert {name: found[name] for name in passing} == expected_scores(labels, reports, on_nodes)


BIG = [Card(health="Healthy", clock=5705, bandwidth=900, free_memory=16_000, total_memory=16_000)]
SLOW = [Card(health="Healthy", clock=5000, bandwidth=900, free_memory=16_000, total_memory=16_000)]


@pytest.mark.parametrize(("exact", "passing"), [(True, {"slow"}), (False, {"slow", "fast"})])
def test_exact_argument_controls_clock_match(exact: bool, passing: set[str]) -> None:
    cluster = [node("fast"), node("slow"), scv("fast", BIG), scv("slow", SLOW)]
    waiting = pod("p", labels={"scv/clock": "5000"})
    said = run_filter(Yoda, waiting, cluster, args=YodaArgs(exact=exact))
    assert {name for name, status in said.items() if status.is_success} == passing


def with_priority(name: str, priority: str) -> Pod:
    return pod(name, labels={"scv/priority": priority} if priority else {})


def test_queue_is_ordered_by_priority_label() -> None:
    """Four pods compete for one place. An invalid priority counts as 0."""
    setup = profile(Yoda, without=("PrioritySort",))
    waiting = [
        with_priority("none", ""),
        with_priority("less", "-3"),
        with_priority("more", "12"),
        with_priority("word", "high"),
    ]
    found = schedule(setup, [node("n", max_pods=1), scv("n", BIG)], waiting)
    assert found["more"].node == "n"
    order = [record.key for record in found.records if isinstance(record, Assigned | Rejected)]
    assert [key.rpartition("/")[2] for key in order][:4] == ["more", "none", "word", "less"]
    assert found.divergence() is None


REPORT: dict[str, Any] = {
    "apiVersion": "core.run-linux.com/v1",
    "kind": "Scv",
    "metadata": {"name": "n"},
    "status": {
        "cardNumber": 1,
        "cardList": [{"id": 0, "health": "Healthy", "freeMemory": 8000, "model": "V100"}],
        "updateTime": "2026-01-31T12:00:00Z",
    },
}


def test_unused_report_fields_are_dropped() -> None:
    """Neither the time of the report nor the card model is decoded."""
    kept = from_api(REPORT, Scv)
    assert isinstance(kept, CustomObject)
    assert kept.content == {
        "status": {"cardNumber": 1, "cardList": [{"health": "Healthy", "freeMemory": 8000}]}
    }
