"""Results that pods share although terms of existing pods reject them from some nodes."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec
import pytest

from asched.cycle import shape_cache
from asched.cycle.decide import Decider
from asched.cycle.shape_filters import ShapeFilters
from asched.framework.pod_queries import TermKind
from asched.model.node import Node, Taint
from asched.model.pod import (
    Affinity,
    Pod,
    PodAffinity,
    PodAffinityTerm,
    WeightedPodAffinityTerm,
)
from asched.model.quantity import NS_PER_S
from asched.model.selectors import LabelSelector, LabelSelectorRequirement
from asched.plugins.inter_pod_affinity.plugin import InterPodAffinity
from asched.state import records as r
from asched.state.fold import Fold
from asched.state.observe import observe_deletion, observe_object
from tests.cycle.default_profile import default_fold
from tests.state.objects import a_node, a_pod, bound

_HOST = "kubernetes.io/hostname"
_NODES = 12
_APPS = tuple(f"app-{number}" for number in range(4))


def _observe(fold: Fold, item: object) -> None:
    record = observe_object(fold.state, item)  # type: ignore[arg-type]
    if record is not None:
        fold.apply(record)


def _delete(fold: Fold, item: object) -> None:
    gone = observe_deletion(fold.state, item)  # type: ignore[arg-type]
    if gone is not None:
        fold.apply(gone)


def _term(apps: tuple[str, ...], key: str) -> PodAffinityTerm:
    requirement = LabelSelectorRequirement(key="app", operator="In", values=apps)
    return PodAffinityTerm(
        label_selector=LabelSelector(match_expressions=(requirement,)), topology_key=key
    )


def _repelling(name: str, node: str, term: PodAffinityTerm, *, preferred: bool = False) -> Pod:
    """A pod on the node with an anti-affinity term."""
    pod = a_pod(name, {"cpu": "100m"}, labels={"app": "other"})
    weighted = (WeightedPodAffinityTerm(weight=10, pod_affinity_term=term),)
    rule = PodAffinity(required=(term,), preferred=weighted if preferred else ())
    spec = msgspec.structs.replace(pod.spec, affinity=Affinity(pod_anti_affinity=rule))
    return bound(msgspec.structs.replace(pod, spec=spec), node)


def _node(random: Random, number: int, tainted: float) -> Node:
    zone = {"zone": f"z{random.randrange(3)}"} if random.random() < 0.9 else {}
    node = a_node(f"n{number}", labels={_HOST: f"n{number}", **zone})
    avoided = Taint(key="busy", effect="PreferNoSchedule")
    taints = (avoided,) if random.random() < tainted else ()
    spec = msgspec.structs.replace(node.spec, taints=taints)
    return msgspec.structs.replace(node, spec=spec)


def _decide_in_random_cluster(seed: int) -> list[r.AnyRecord]:
    """With an even seed, scores do not depend on which nodes are left."""
    tainted = 0.3 * (seed % 2)
    random, fold, made = Random(seed), default_fold(), list[r.AnyRecord]()
    for number in range(_NODES):
        _observe(fold, _node(random, number, tainted))
    decider, repelling = Decider(fold.state), list[Pod]()
    for number in range(120):
        change = random.random()
        at = random.randrange(_NODES)
        if change < 0.08:
            apps = _APPS if random.random() < 0.7 else (random.choice(_APPS),)
            term = _term(apps, random.choice((_HOST, _HOST, "zone")))
            pod = _repelling(f"b{number}", f"n{at}", term, preferred=random.random() < 0.3)
            repelling.append(pod)
            _observe(fold, pod)
        elif change < 0.12 and repelling:
            _delete(fold, repelling.pop(random.randrange(len(repelling))))
        elif change < 0.16:
            _observe(fold, _node(random, at, tainted))
        elif change < 0.18:
            _delete(fold, a_node(f"n{at}"))
        _observe(fold, a_pod(f"p{number}", {"cpu": "100m"}, labels={"app": random.choice(_APPS)}))
        for decision in decider.next():
            fold.apply(decision)
            made.append(decision)
    return made


def _count_results(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each of the created results includes a common answer."""
    created: list[bool] = []
    original = ShapeFilters.__init__

    def init(self: ShapeFilters, *args: Any) -> None:
        created.append(len(args) > 3 and args[3] is not None)
        original(self, *args)

    monkeypatch.setattr(ShapeFilters, "__init__", init)
    return created


@pytest.mark.parametrize("seed", range(20))
def test_decisions_are_those_without_common_answers(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shape_cache, "_MIN_COMMON_ATTEMPTS", 1)
    with monkeypatch.context() as patch:
        created = _count_results(patch)
        made = _decide_in_random_cluster(seed)
    assert (True in created) or not seed % 2
    monkeypatch.setattr(InterPodAffinity, "common_answer", lambda *_: None)
    assert made == _decide_in_random_cluster(seed)


def _decide_about_apps(fold: Fold, apps: int, pods: int) -> list[str]:
    """Place pods of as many applications; their nodes."""
    decider, nodes = Decider(fold.state), list[str]()
    for number in range(pods):
        labels = {"app": f"app-{number % apps}"}
        _observe(fold, a_pod(f"p{number}", {"cpu": "10m"}, labels=labels))
        for decision in decider.next():
            assert isinstance(decision, r.Assigned)
            nodes.append(decision.node)
            fold.apply(decision)
    return nodes


def _cluster(apps: int, *, steady: bool = True) -> Fold:
    """One node repels all. ``steady``: scores do not depend on which nodes are left."""
    fold = default_fold()
    for number in range(_NODES):
        node = a_node(f"n{number}", labels={_HOST: f"n{number}"})
        avoided = (Taint(key="busy", effect="PreferNoSchedule"),)
        if not number and not steady:
            node = msgspec.structs.replace(
                node, spec=msgspec.structs.replace(node.spec, taints=avoided)
            )
        _observe(fold, node)
    every = tuple(f"app-{number}" for number in range(apps))
    _observe(fold, _repelling("all", "n0", _term(every, _HOST)))
    return fold


@pytest.mark.parametrize("steady", [True, False])
def test_applications_that_the_same_nodes_reject_share_results(
    steady: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    fold, created = _cluster(40, steady=steady), _count_results(monkeypatch)
    for number in range(40):
        # Selects all: the terms differ, the nodes do not.
        term = _term((f"app-{number}",), _HOST)
        _observe(fold, _repelling(f"b{number}", "n1", term))
    nodes = _decide_about_apps(fold, 40, 200)
    assert len(nodes) == 200
    assert not {*nodes} & {"n0", "n1"}
    assert created.count(True) == 1


def test_applications_that_other_nodes_reject_share_scores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shape_cache, "_MAX_COUNTED", 4)
    fold, created, calls = _cluster(200), _count_results(monkeypatch), [0]
    for number in range(200):
        term = _term((f"app-{number}",), _HOST)
        _observe(fold, _repelling(f"b{number}", f"n{1 + number % 11}", term))
    original = InterPodAffinity.pre_filter

    def pre_filter(*args: Any) -> Any:
        calls[0] += 1
        return original(*args)

    monkeypatch.setattr(InterPodAffinity, "pre_filter", pre_filter)
    nodes = _decide_about_apps(fold, 200, 400)
    assert all(node not in ("n0", f"n{1 + number % 200 % 11}") for number, node in enumerate(nodes))
    assert created == [False]
    assert calls[0] == 1


def test_results_for_few_pods_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Computing them takes as long as tens of attempts without them."""
    fold, created = _cluster(_NODES), _count_results(monkeypatch)
    for number in range(_NODES):
        _observe(fold, _repelling(f"b{number}", f"n{number}", _term((f"app-{number}",), _HOST)))
    _decide_about_apps(fold, _NODES, 9 * _NODES)
    assert created.count(True) == 0


def test_first_pod_of_a_group_sees_a_node_that_gains_the_topology_key() -> None:
    """No pod matches its term before or after; the node joins a domain."""
    fold = default_fold()
    _observe(fold, a_node("n1", labels={_HOST: "n1"}))
    pod = a_pod("first", {"cpu": "10m"}, labels={"app": "app-0"})
    rule = PodAffinity(required=(_term(("app-0",), "zone"),))
    spec = msgspec.structs.replace(pod.spec, affinity=Affinity(pod_affinity=rule))
    _observe(fold, msgspec.structs.replace(pod, spec=spec))
    decider = Decider(fold.state)
    (rejected,) = decider.next()
    assert isinstance(rejected, r.Rejected)
    fold.apply(rejected)
    _observe(fold, a_node("n1", labels={_HOST: "n1", "zone": "z1"}))
    fold.apply(r.TurnStarted(60 * NS_PER_S))
    (assigned,) = decider.next()
    assert isinstance(assigned, r.Assigned)


def test_terms_of_deleted_pods_are_forgotten_with_their_table(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The table starts over after more changes than the node table remembers."""
    remembered = 64
    monkeypatch.setattr("asched.state.node_table_view.LOG_LENGTH", remembered)
    fold = default_fold()
    _observe(fold, a_node("n", labels={_HOST: "n"}))
    repelling = _repelling("b", "n", _term(_APPS, _HOST))
    _observe(fold, repelling)
    preference = WeightedPodAffinityTerm(weight=1, pod_affinity_term=_term(_APPS, _HOST))
    waiting = a_pod("p", {"cpu": "100m"}, labels={"app": _APPS[0]})
    own = Affinity(pod_affinity=PodAffinity(preferred=(preference,)))
    spec = msgspec.structs.replace(waiting.spec, affinity=own)
    _observe(fold, msgspec.structs.replace(waiting, spec=spec))
    decider = Decider(fold.state)
    (rejected,) = decider.next()
    assert isinstance(rejected, r.Rejected)
    fold.apply(rejected)
    _delete(fold, repelling)
    for number in range(remembered // 2 + 1):
        other = bound(a_pod(f"c{number}"), "n")
        _observe(fold, other)
        _delete(fold, other)
    assert not fold.state.affinity_terms(TermKind.REQUIRED_ANTI_AFFINITY).size
    fold.apply(r.TurnStarted(fold.state.now_ns + 60 * NS_PER_S))
    (assigned,) = decider.next()
    assert isinstance(assigned, r.Assigned), assigned


@pytest.mark.parametrize("common", [False, True])
def test_profile_without_pre_score_of_the_plugin(
    common: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its Score fails, as in kube-scheduler, also where a common answer would need no score."""
    monkeypatch.setattr(shape_cache, "_MIN_COMMON_ATTEMPTS", 0)
    if not common:
        monkeypatch.setattr(InterPodAffinity, "common_answer", lambda *_: None)
    fold = default_fold(preScore={"disabled": [{"name": "InterPodAffinity"}]})
    for number in range(3):
        _observe(fold, a_node(f"n{number}", labels={_HOST: f"n{number}"}))
    _observe(fold, _repelling("b", "n0", _term(_APPS, _HOST)))
    _observe(fold, a_pod("p", {"cpu": "100m"}, labels={"app": _APPS[0]}))
    (decision,) = Decider(fold.state).next()
    assert isinstance(decision, r.AttemptFailed)
