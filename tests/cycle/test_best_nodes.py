"""The fast paths find the nodes with the highest total."""

from __future__ import annotations

import msgspec
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from asched.cycle.attempt import Attempt
from asched.cycle.node_selection import highest
from asched.cycle.shape_cache import ShapeCache
from asched.framework.interface import Plugin
from asched.framework.pod_info import PodInfo
from asched.framework.runtime.profile import Profile, ProfileSpec
from asched.model.node import Node, Taint
from asched.model.pod import Affinity, Pod, PodAffinity, PodAffinityTerm, WeightedPodAffinityTerm
from asched.model.selectors import LabelSelector
from asched.plugins.inter_pod_affinity.plugin import InterPodAffinity
from asched.plugins.taint_toleration import TaintToleration
from asched.state import records as r
from asched.state.cluster import ClusterState
from asched.state.fold import Fold
from tests.cycle.plugins import (
    ByLabel,
    Crowd,
    EmptiestForAll,
    FewPods,
    Gatekeeper,
    NoScoring,
    RoomForAll,
)
from tests.state.objects import a_node, a_pod
from tests.state.profiles import loader, profile_of

NODES = tuple(f"n{i}" for i in range(8))
SHARED: tuple[type[Plugin], ...] = (
    EmptiestForAll,
    FewPods,
    ByLabel,
    TaintToleration,  # its scores are steady where all nodes are to be avoided alike
)
OWN: tuple[tuple[type[Plugin], ...], ...] = (
    (),
    (NoScoring,),
    (InterPodAffinity,),  # scores by class
    (Gatekeeper,),  # may leave few nodes
    (Crowd,),  # filters and scores
    (Crowd, Gatekeeper, NoScoring, InterPodAffinity),
)
PLUGINS: tuple[type[Plugin], ...] = (RoomForAll, *SHARED, *OWN[-1])
AVOIDED = Taint(key="worn", effect="PreferNoSchedule")
CLOSED = Taint(key="closed", effect="NoSchedule")
ZONE = "topology.kubernetes.io/zone"
_replace = msgspec.structs.replace


@st.composite
def profiles(draw: st.DrawFn) -> ProfileSpec:
    shared = draw(st.lists(st.sampled_from(SHARED), unique=True))
    chosen: tuple[type[Plugin], ...] = (RoomForAll, *shared, *draw(st.sampled_from(OWN)))
    weights = {plugin.name: draw(st.integers(1, 3)) for plugin in chosen}
    return profile_of(*chosen, weights=weights, percentage=draw(st.sampled_from((0, 0, 0, 50))))


nodes = st.builds(
    lambda name, cpu, labels, zone, taints: a_node(
        name,
        {"cpu": cpu, "pods": "110"},
        labels={**labels, ZONE: zone},
        taints=taints,
    ),
    st.sampled_from(NODES),
    st.sampled_from(("0", "4", "4", "8")),
    st.dictionaries(st.just("score"), st.sampled_from(("1", "9")), max_size=1),
    st.sampled_from(("a", "b")),
    st.sampled_from(((), (), (), (AVOIDED,), (CLOSED,))),
)


class Asked(msgspec.Struct, frozen=True):
    """A pod, and the parameters of its attempt."""

    near_red: bool
    only: frozenset[str]
    nominated: str
    bonus: tuple[int, ...]

    @property
    def pod(self) -> PodInfo:
        pod = a_pod(
            "asked", {"cpu": "1"}, labels={"only": ".".join(self.only)} if self.only else {}
        )
        if not self.near_red:
            return PodInfo(pod)
        term = PodAffinityTerm(
            label_selector=LabelSelector(match_labels={"team": "red"}), topology_key=ZONE
        )
        wish = WeightedPodAffinityTerm(weight=10, pod_affinity_term=term)
        affinity = Affinity(pod_affinity=PodAffinity(preferred=(wish,)))
        return PodInfo(_replace(pod, spec=_replace(pod.spec, affinity=affinity)))


asked = st.builds(
    Asked,
    near_red=st.booleans(),
    only=st.just(frozenset[str]()) | st.frozensets(st.sampled_from(NODES), min_size=2),
    nominated=st.sampled_from((*[""] * 20, *NODES)),
    bonus=st.sampled_from(((), (), (), (0, 100, 50, 7, 100))),
)
guests = st.builds(
    lambda on, red: a_pod("", on=on, labels={"team": "red"} if red else {}),
    st.sampled_from(NODES),
    st.booleans(),
)
gone = st.builds(lambda name: r.ObjectDeleted("Node", name), st.sampled_from(NODES))
news = st.lists(st.one_of(nodes, guests, guests, gone), max_size=12)


def _fold(spec: ProfileSpec) -> Fold:
    fold = Fold(ClusterState(), loader(*PLUGINS))
    fold.apply(r.EngineStarted("test", 1))
    fold.apply(r.ProfilesLoaded((spec,)))
    return fold


def _tell(fold: Fold, item: Node | Pod | r.ObjectDeleted, number: int) -> None:
    if isinstance(item, Pod):
        name = f"guest-{number}"
        item = _replace(item, metadata=_replace(item.metadata, name=name, uid=name))
    fold.apply(item if isinstance(item, r.ObjectDeleted) else r.ObjectObserved(item))


def _check(state: ClusterState, profile: Profile, asked: Asked, cache: ShapeCache) -> None:
    attempt = Attempt(state, profile, asked.pod, cache)
    screening = attempt.find_feasible_nodes(nominated=asked.nominated)
    if not screening.count:
        return
    bonus = np.resize(np.array(asked.bonus, np.int64), state.nodes.size) if asked.bonus else None
    best = attempt.best(screening, bonus)
    fresh = Attempt(state, profile, asked.pod, ShapeCache(state.nodes))
    totals = fresh.score(fresh.find_feasible_nodes(nominated=asked.nominated)).total
    if bonus is not None:
        totals = totals + bonus[screening.rows]
    expected = highest(totals)
    assert (best.score, best.count) == (expected.score, expected.count)
    assert best.rows.tolist() == screening.rows[expected.mask].tolist()


@given(
    spec=profiles(),
    first=st.lists(nodes, min_size=2, max_size=8),
    steps=st.lists(st.tuples(news, asked), min_size=1, max_size=5),
)
def test_best_nodes_have_the_highest_total(
    spec: ProfileSpec,
    first: list[Node],
    steps: list[tuple[list[Node | Pod | r.ObjectDeleted], Asked]],
) -> None:
    fold = _fold(spec)
    for node in first:
        _tell(fold, node, 0)
    state = fold.state
    profile, cache = state.profiles[spec.scheduler_name], ShapeCache(state.nodes)
    for number, (changes, question) in enumerate(steps):
        for place, item in enumerate(changes):
            _tell(fold, item, number * 100 + place)
        if not state.nodes.cluster_size:
            return
        # Scores by class are used when the same totals are requested again.
        for _ in range(2):
            _check(state, profile, question, cache)


def test_totals_depend_on_the_feasible_nodes() -> None:
    """No raw score changes: the best node is cordoned and uncordoned."""
    spec = profile_of(TaintToleration, EmptiestForAll, FewPods)
    fold = _fold(spec)
    profile, cache = fold.state.profiles[spec.scheduler_name], ShapeCache(fold.state.nodes)
    question = Asked(near_red=False, only=frozenset(), nominated="", bonus=())
    for name, cpu in (("small", "2"), ("middle", "4"), ("large", "8")):
        _tell(fold, a_node(name, {"cpu": cpu, "pods": "110"}), 0)
    scores = []
    for taints in ((), (CLOSED,), ()):
        _tell(fold, a_node("large", {"cpu": "8", "pods": "110"}, taints=taints), 0)
        _check(fold.state, profile, question, cache)
        attempt = Attempt(fold.state, profile, question.pod, cache)
        best = attempt.best(attempt.find_feasible_nodes())
        scores.append([(fold.state.nodes.names[row], best.score) for row in best.rows])
    assert scores == [[("large", 300)], [("middle", 300)], [("large", 300)]]
