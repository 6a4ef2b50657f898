"""Sessions with the action: better than greedy where that is possible, and never worse."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from gangs import gang, outcome, placed
from hypothesis import given, settings
from hypothesis import strategies as st

from asched.model.groups import VolcanoPodGroup
from asched.model.node import Node
from asched.model.resources import AnyObject
from asched.testing.builders import node

ZONE = "topology.kubernetes.io/zone"
HOST = "kubernetes.io/hostname"


def term(kind: str, key: str, name: str = "g") -> dict[str, Any]:
    """A required affinity (or anti-affinity) of the gang's pods to each other."""
    selector = {"matchLabels": {"gang": name}}
    required = [{"labelSelector": selector, "topologyKey": key}]
    return {kind: {"requiredDuringSchedulingIgnoredDuringExecution": required}}


def test_gang_that_greedy_splits_wrongly_is_complete() -> None:
    """Small pods first: greedy puts one on the node that the large pod needs."""
    nodes = [node("a", cpu="2"), node("b", cpu="3")]
    members = [{"cpu": "1"}, {"cpu": "1"}, {"cpu": "3"}]
    objects = [*nodes, *gang("g", members)]
    assert placed(objects, "allocate") == {}
    found = placed(objects, "optimal", "allocate")
    assert found == {"g-0": "a", "g-1": "a", "g-2": "b"}


def test_gang_is_in_one_zone_if_it_fits_there() -> None:
    nodes = [
        node(f"{zone}{n}", cpu=cpu, zone=zone)
        for zone, cpu in (("x", "8"), ("y", "4"))
        for n in range(2 if zone == "x" else 4)
    ]
    objects = [*nodes, *gang("g", [{"cpu": "4"}] * 4, topology=f"region,{ZONE}")]
    found = placed(objects, "optimal")
    assert len(found) == 4
    assert len({name[0] for name in found.values()}) == 1
    assert set(found.values()) == {"x0", "x1"}


def test_anti_affinity_between_members_is_part_of_the_program() -> None:
    """Large pods need the large nodes; the pods must be on different nodes."""
    affinity = term("podAntiAffinity", HOST)
    nodes = [node("a", cpu="4"), node("b", cpu="2"), node("c", cpu="1")]
    members = [{"cpu": cpu, "affinity": affinity} for cpu in ("1", "2", "4")]
    found = placed([*nodes, *gang("g", members)], "optimal")
    assert found == {"g-0": "c", "g-1": "b", "g-2": "a"}


def test_affinity_between_members_is_part_of_the_program() -> None:
    affinity = term("podAffinity", ZONE)
    nodes = [node("x0", cpu="8", zone="x"), *(node(f"y{n}", cpu="3", zone="y") for n in range(3))]
    members = [{"cpu": "3", "affinity": affinity} for _ in range(3)]
    found = placed([*nodes, *gang("g", members)], "optimal")
    assert set(found.values()) == {"y0", "y1", "y2"}


def test_gang_that_does_not_fit_keeps_nothing() -> None:
    objects = [node("a", cpu="2"), *gang("g", [{"cpu": "1"}] * 3)]
    assert placed(objects, "optimal") == {}


def messages(objects: Sequence[AnyObject], *actions: str) -> set[str]:
    return {pod.message for pod in outcome(objects, *actions).unschedulable}


def test_message_says_why_a_gang_gets_no_node() -> None:
    """As that of ``allocate``, which has it for the task that does not fit after the others."""
    nodes = [node("a", cpu="2"), node("b", cpu="1", labels={"pool": "x"})]
    members = [{"cpu": "1", "node_selector": {"pool": "x"}}] * 3
    found = messages([*nodes, *gang("g", members)], "optimal")
    assert found == messages([*nodes, *gang("g", members)], "allocate")
    assert len(found) == 1
    assert "1 Insufficient cpu" in found.pop()


def test_later_gangs_use_what_is_left() -> None:
    nodes = [node("a", cpu="2"), node("b", cpu="2")]
    objects = [*nodes, *gang("g", [{"cpu": "1"}] * 2), *gang("h", [{"cpu": "2"}])]
    found = placed(objects, "optimal")
    assert found["g-0"] == found["g-1"] != found["h-0"]


def test_solver_is_used_up_to_a_size_for_all_jobs_of_a_session(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each program has two kinds of tasks times four nodes. No gang fits greedily."""
    nodes = [node("a", cpu="2"), node("b", cpu="3"), node("c", cpu="2"), node("d", cpu="3")]
    sizes = [{"cpu": "1"}, {"cpu": "1"}, {"cpu": "3"}]
    objects = [*nodes, *gang("g", sizes), *gang("h", sizes)]
    assert len(placed(objects, "optimal")) == 6
    monkeypatch.setattr("asched_optimal.action.MAX_SESSION_VARIABLES", 8)
    assert {name[0] for name in placed(objects, "optimal")} == {"g"}
    monkeypatch.setattr("asched_optimal.action.MAX_VARIABLES", 7)
    assert {name[0] for name in placed(objects, "optimal")} == set()


# -- properties ----------------------------------------------------------------------------------

AFFINITIES = [
    {},
    term("podAntiAffinity", HOST),
    term("podAntiAffinity", ZONE),
    term("podAffinity", ZONE),
]


@st.composite
def worlds(draw: st.DrawFn) -> list[AnyObject]:
    nodes = [
        node(f"n{n}", cpu=str(draw(st.integers(1, 6))), zone=draw(st.sampled_from("xy")))
        for n in range(draw(st.integers(1, 4)))
    ]
    affinity = draw(st.sampled_from(AFFINITIES))
    members: Sequence[Mapping[str, Any]] = [
        {"cpu": str(draw(st.integers(1, 3))), **({"affinity": affinity} if affinity else {})}
        for _ in range(draw(st.integers(1, 4)))
    ]
    topology = draw(st.sampled_from(["", ZONE]))
    return [*nodes, *gang("g", members, minimum=1, topology=topology)]


@settings(max_examples=60, derandomize=True, deadline=None)
@given(worlds())
def test_never_fewer_pods_than_allocate(objects: list[AnyObject]) -> None:
    found = placed(objects, "optimal", "allocate")
    assert len(found) >= len(placed(objects, "allocate"))
    assert placed(objects, "optimal", "allocate") == found


@settings(max_examples=60, derandomize=True, deadline=None)
@given(worlds())
def test_never_worse_than_greedy_by_its_own_objective(objects: list[AnyObject]) -> None:
    found = placed(objects, "optimal")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("asched_optimal.action.solve", lambda program: None)
        greedy = placed(objects, "optimal")
    assert worth(objects, found) >= worth(objects, greedy)


def worth(objects: list[AnyObject], places: dict[str, str]) -> tuple[int, int, int]:
    zones = {each.name: each.metadata.labels[ZONE] for each in objects if isinstance(each, Node)}
    (group,) = (each for each in objects if isinstance(each, VolcanoPodGroup))
    by_zone = bool(group.metadata.annotations.preferred_topology)
    domains = {zones[name] for name in places.values()} if by_zone else set()
    return len(places), -len(domains), -len(set(places.values()))
