"""The scenario format and its expansion."""

from __future__ import annotations

import copy
from collections.abc import Callable
from statistics import mean, median
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asched.model.node import ZONE_LABEL, Node
from asched.model.pod import Pod
from asched.model.quantity import NS_PER_S
from asched.model.workloads import PodDisruptionBudget, PriorityClass
from asched.simulator.expansion import expand
from asched.simulator.loop import SchedulerSettings, simulate
from asched.simulator.scenario import ScenarioError, read_scenario
from asched.simulator.trace import (
    NodeDrained,
    ObjectRemoved,
    ObjectSet,
    PodCreated,
    PodDeleted,
    WorkloadTrace,
)
from tests.cycle.default_profile import default_profiles, installed
from tests.run_size import examples
from tests.simulator.simulate import BEGIN_NS, account

Document = dict[str, Any]


def group(name: str, count: int = 1, cpu: str = "1", **fields: Any) -> Document:
    container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": cpu}}}
    return {
        "name": name,
        "count": count,
        "template": {"spec": {"containers": [container]}},
    } | fields


def scenario(*pods: Document, **fields: Any) -> Document:
    nodes = [{"name": "n", "count": 3, "allocatable": {"cpu": 4, "memory": "8Gi", "pods": "20"}}]
    head = {"apiVersion": "asched.dev/v1", "kind": "Scenario", "nodes": nodes}
    return head | {"pods": list(pods)} | fields


def expanded(*pods: Document, **fields: Any) -> WorkloadTrace:
    return expand(read_scenario(scenario(*pods, **fields)))


def created(history: WorkloadTrace) -> list[PodCreated]:
    return [event for event in history.events if isinstance(event, PodCreated)]


def times(history: WorkloadTrace) -> list[float]:
    return [(event.at_ns - BEGIN_NS) / NS_PER_S for event in created(history)]


def lifetimes(**lifetime: Any) -> list[float]:
    history = expanded(group("a", 2000, lifetime=lifetime))
    return [(event.run_ns or 0) / NS_PER_S for event in created(history)]


# -- nodes and objects ---


def test_nodes_join_in_round_robin_zones() -> None:
    nodes = [
        {
            "name": "n",
            "count": 3,
            "zones": ["a", "b"],
            "labels": {"x": "y"},
            "joins": "1m30s",
            "taints": [{"key": "k", "effect": "NoSchedule"}],
            "allocatable": {"cpu": 4},
        }
    ]
    history = expanded(group("a"), nodes=nodes)
    found = [e for e in history.events if isinstance(e, ObjectSet) and isinstance(e.object, Node)]
    assert {event.at_ns for event in found} == {BEGIN_NS + 90 * NS_PER_S}
    joined = [event.object for event in found if isinstance(event.object, Node)]
    assert [n.name for n in joined] == ["n-0", "n-1", "n-2"]
    assert [n.labels[ZONE_LABEL] for n in joined] == ["a", "b", "a"]
    assert joined[0].labels["x"] == "y"
    assert [str(taint) for taint in joined[0].spec.taints] == ["{k: }"]
    assert joined[0].status.allocatable == {"cpu": "4"}
    assert joined[0].ready


def test_objects_get_api_server_defaults() -> None:
    urgent = group("a", namespace="team")
    urgent["template"]["spec"]["priorityClassName"] = "high"
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "b", "namespace": "team"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"a": "b"}}},
    }
    history = expanded(urgent, group("b"), priorityClasses={"high": 77}, objects=[budget])
    pods = {event.pod.key: event.pod for event in created(history)}
    assert pods["team/a-0"].spec.priority == 77
    assert {t.key for t in pods["default/b-0"].spec.tolerations} == {
        "node.kubernetes.io/not-ready",
        "node.kubernetes.io/unreachable",
    }
    objects = [event.object for event in history.events if isinstance(event, ObjectSet)]
    assert {o.name for o in objects if isinstance(o, PriorityClass)} >= {"high"}
    assert [o.key for o in objects if isinstance(o, PodDisruptionBudget)] == ["team/b"]
    assert "team" in {o.name for o in objects}


def test_pods_without_scheduler_name_get_the_simulated_one() -> None:
    other = group("b")
    other["template"]["spec"]["schedulerName"] = "other"
    history = expand(read_scenario(scenario(group("a"), other)), "mine")
    assert [e.pod.spec.scheduler_name for e in created(history)] == ["mine", "other"]


# -- arrivals and lifetimes ---


def test_arrivals() -> None:
    assert times(expanded(group("a", 3))) == [0, 0, 0]
    assert times(expanded(group("a", 3, arrival={"after": "5s", "every": "2s"}))) == [5, 7, 9]
    together = {"every": "10s", "together": 2}
    assert times(expanded(group("a", 5, arrival=together))) == [0, 0, 10, 10, 20]


def test_poisson_arrivals_have_their_mean_and_depend_on_the_seed() -> None:
    pods = group("a", 4000, arrival={"poisson": "3s"})
    first = times(expanded(pods))
    assert first == sorted(first)
    assert first[0] > 0
    assert 2.8 < first[-1] / 4000 < 3.2
    assert times(expanded(pods)) == first
    assert times(expanded(pods, seed=1)) != first
    # Another group does not change the draws.
    both = expanded(group("other", 10, arrival={"poisson": "1s"}), pods)
    own = [e.at_ns for e in created(both) if e.pod.name.startswith("a-")]
    assert [(at_ns - BEGIN_NS) / NS_PER_S for at_ns in own] == first


def test_lifetimes() -> None:
    assert created(expanded(group("a")))[0].run_ns is None
    assert set(lifetimes(fixed="90s")) == {90}
    assert 56 < mean(lifetimes(exponential="1m")) < 64
    uniform = lifetimes(uniform={"low": "10s", "high": "20s"})
    assert 10 <= min(uniform) < 10.1
    assert 19.9 < max(uniform) <= 20
    lognormal = lifetimes(lognormal={"median": "1m", "sigma": 1})
    assert 54 < median(lognormal) < 66
    assert 85 < mean(lognormal) < 115  # the median times the root of e
    assert min(lognormal) >= 0


# -- events ---


def test_events() -> None:
    history = expanded(
        group("a", 2, arrival={"every": "1h"}),
        events=[
            {"at": "1m", "drain": "n-0"},
            {"at": "2m", "uncordon": "n-0"},
            {"at": "3m", "cordon": "n-1"},
            {"at": "4m", "remove": "n-2"},
            {"at": "5m", "deletePods": "a"},
        ],
        duration="10m",
    )
    later = [event for event in history.events if event.at_ns > BEGIN_NS]
    minutes = [(type(event), (event.at_ns - BEGIN_NS) // (60 * NS_PER_S)) for event in later]
    assert minutes == [
        (NodeDrained, 1),
        (ObjectSet, 2),
        (ObjectSet, 3),
        (ObjectRemoved, 4),
        # Only the pod that is there by then.
        (PodDeleted, 5),
        (PodCreated, 60),
    ]
    cordons = [e.object for e in later if isinstance(e, ObjectSet)]
    assert [isinstance(n, Node) and n.spec.unschedulable for n in cordons] == [False, True]
    assert history.end_ns == BEGIN_NS + 600 * NS_PER_S


_UNDECODABLE = 'pods[0].template: Pod in version "v1" cannot be handled as a Pod'

# -- mistakes ---


def _without_template(document: Document) -> None:
    del document["pods"][0]["template"]


def _set(*path: str | int, to: Any) -> Callable[[Document], None]:
    def change(document: Any) -> None:
        for step in path[:-1]:
            document = document[step]
        document[path[-1]] = to

    return change


_CONTAINER = ("pods", 0, "template", "spec", "containers", 0)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (_set("kind", to="Scenari"), "expected apiVersion asched.dev/v1 and kind Scenario, got "),
        (_set("start", to="2026-01-01"), "start: Invalid RFC3339 encoded datetime"),
        (_set("duration", to="0s"), "duration: expected more than 0s"),
        (_set("start", to="1900-01-01T00:00:00Z"), "start: expected a time from 1970 to 2099"),
        (_set("start", to="9999-12-31T00:00:00Z"), "start: expected a time from 1970 to 2099"),
        (
            _set("pods", 0, "arrival", to={"after": "2000000h"}),
            "pods[0].arrival: after: expected at most 876000h, which are 100 years",
        ),
        (
            _set("pods", 0, to=group("a") | {"count": 3, "arrival": {"every": "800000h"}}),
            "pods[0].arrival: expected that the last pod arrives within 100 years",
        ),
        (_set("node", to=[]), "node: unknown field; did you mean nodes?"),
        (_set("nodes", 0, "count", to=0), "nodes[0].count: must be at least 1, got 0"),
        (_set("nodes", 0, "joins", to="-1s"), "nodes[0]: joins: expected no less than 0s"),
        (_set("nodes", to=[{"name": "n"}]), "nodes[0].allocatable: required"),
        (_without_template, "pods[0].template: required"),
        (
            _set("pods", 0, "arrival", to={"every": "1s", "poisson": "1s"}),
            "pods[0].arrival: expected one of every and poisson, got both",
        ),
        (
            _set("pods", 0, "lifetime", to={}),
            "pods[0].lifetime: expected one of fixed, exponential, uniform and lognormal, got none",
        ),
        (
            _set("pods", 0, "lifetime", to={"uniform": {"low": "2s", "high": "1s"}}),
            "pods[0].lifetime.uniform: high: expected no less than low",
        ),
        (_set("pods", 1, to=group("a")), 'pods[1].name: "a" is given twice in namespace default'),
        (
            _set("events", to=[{"at": "1s"}]),
            "events[0]: expected at and exactly one of drain, remove, cordon, uncordon, deletePods",
        ),
        (
            _set("events", to=[{"at": "1s", "drain": "n-3"}]),
            'events[0].drain: unknown node "n-3"; expected GROUP-NUMBER, numbered from 0',
        ),
        (
            _set("events", to=[{"at": "1s", "drain": "n-00"}]),
            'events[0].drain: unknown node "n-00"',
        ),
        (
            _set("events", to=[{"at": "1s", "deletePods": "c"}]),
            'events[0].deletePods: unknown pod group "c"',
        ),
        (
            _set(*_CONTAINER, "imag", to="x"),
            f"{_UNDECODABLE}: strict decoding error",
        ),
        (
            _set(*_CONTAINER, "resources", "requests", to={"cpu": "many"}),
            f"{_UNDECODABLE}: quantities must match",
        ),
        (
            _set("pods", 0, "template", "spec", "priorityClassName", to="p"),
            'pods[0].template: pods "a-0" is forbidden: no PriorityClass with name p was found',
        ),
        (
            _set("pods", 0, "template", "sepc", to={}),
            "pods[0].template.sepc: unknown field; expected one of metadata, spec",
        ),
        (_set("pods", 0, "name", to="A b"), 'pods[0].template: Pod "A b-0" is invalid: '),
        (_set("nodes", 0, "name", to="N"), 'nodes[0]: Node "N-0" is invalid: '),
        (
            _set(
                "pods",
                0,
                "template",
                "spec",
                "resourceClaims",
                to=[{"name": "gpu", "resourceClaimTemplateName": "t"}],
            ),
            "pods[0].template.spec.resourceClaims[0]: ResourceClaimTemplate default/t is not in",
        ),
        (
            _set(
                "pods",
                0,
                "template",
                "spec",
                "resourceClaims",
                to=[{"name": "gpu", "resourceClaimName": "c"}],
            ),
            "pods[0].template.spec.resourceClaims[0]: ResourceClaim default/c is not in objects",
        ),
        (
            _set("objects", to=[{"apiVersion": "v1", "kind": "Pod"}]),
            "objects[0].kind: expected a Pod in a group under pods",
        ),
        (
            _set("objects", to=[{"apiVersion": "v1", "kind": "Secret"}]),
            'objects[0].kind: "v1" "Secret" is not a kind that affects scheduling',
        ),
        (
            _set("objects", to=[{"apiVersion": "v1", "kind": "Service", "metadata": {}}]),
            'objects[0]: Service "" is invalid: ',
        ),
    ],
)
def test_error_names_its_location(change: Callable[[Document], None], problem: str) -> None:
    document = copy.deepcopy(scenario(group("a"), group("b")))
    change(document)
    with pytest.raises(ScenarioError) as caught:
        expand(read_scenario(document))
    assert any(str(found).startswith(problem) for found in caught.value.problems), str(caught.value)


def test_all_errors_are_reported_together() -> None:
    one, other = group("a"), group("b", cpu="x")
    one["template"]["spec"]["priorityClassName"] = "p"
    with pytest.raises(ScenarioError) as caught:
        expanded(one, other, objects=[{"kind": "Pod", "apiVersion": "v1"}])
    assert [found.path[0] for found in caught.value.problems] == ["objects", "pods", "pods"]


# -- random scenarios ---

_durations = st.integers(1, 300).map(lambda seconds: f"{seconds}s")
_arrivals = st.fixed_dictionaries(
    {}, optional={"after": _durations, "together": st.integers(1, 4)}
) | st.fixed_dictionaries({"poisson": _durations})
_lifetimes = (
    st.none()
    | st.fixed_dictionaries({"exponential": _durations})
    | st.fixed_dictionaries({"fixed": _durations})
)
_groups = st.lists(
    st.builds(
        lambda name, count, cpu, arrival, lifetime, restarts: group(
            name, count, cpu, arrival=arrival, lifetime=lifetime, restarts=restarts
        ),
        st.sampled_from(["a", "b", "c", "d"]),
        st.integers(1, 12),
        st.sampled_from(["250m", "1", "3", "5"]),
        _arrivals,
        _lifetimes,
        st.booleans(),
    ),
    min_size=1,
    max_size=4,
    unique_by=lambda made: str(made["name"]),
)
_events = st.lists(
    st.fixed_dictionaries(
        {"at": _durations},
    ).flatmap(
        lambda base: st.sampled_from(["drain", "remove", "cordon", "uncordon"]).flatmap(
            lambda what: st.sampled_from(["n-0", "n-1", "n-2"]).map(
                lambda node: base | {what: node}
            )
        )
    ),
    max_size=4,
)


@settings(max_examples=examples(40))
@given(_groups, _events, st.integers(0, 5), st.none() | _durations)
def test_random_scenarios_are_reproducible(
    groups: list[Document], events: list[Document], seed: int, duration: str | None
) -> None:
    fields = {"events": events, "seed": seed, "duration": duration}
    history = expanded(*groups, **fields)
    assert len(created(history)) == sum(made["count"] for made in groups)
    run = simulate(history, SchedulerSettings(default_profiles(), seed=seed), installed().load)
    account(run)
    if duration is None:
        assert len(run.pods) == len(created(history))
        for found in run.pods:
            assert isinstance(found.pod, Pod)
            assert found.end is not None or found.placements or found.message
    same = expanded(*groups, **fields)
    again = simulate(same, SchedulerSettings(default_profiles(), seed=seed), installed().load)
    assert msgspec.json.encode(again) == msgspec.json.encode(run)
