"""Nothing may be kept of deleted pods after many rollouts."""

from __future__ import annotations

import gc
import sys
from collections import Counter, deque
from collections.abc import Callable
from types import BuiltinFunctionType, FunctionType, ModuleType

import msgspec
import pytest

from asched.cycle.decide import Decider
from asched.cycle.shape_cache import ApplicabilityCache
from asched.framework.caching import ChangeLog
from asched.framework.pod_info import PodInfo
from asched.framework.pod_queries import PodQuery, Selector
from asched.model.meta import ObjectMeta
from asched.model.pod import (
    DEFAULT_SCHEDULER_NAME,
    Affinity,
    Pod,
    PodAffinity,
    PodAffinityTerm,
    PodSpec,
    TopologySpreadConstraint,
    WeightedPodAffinityTerm,
)
from asched.model.resources import AnyObject
from asched.model.selectors import LabelSelector
from asched.model.workloads import PodDisruptionBudget, PodDisruptionBudgetSpec
from asched.plugins.default_preemption import budgets as budgets_module
from asched.plugins.default_preemption.budgets import Budgets
from asched.plugins.inter_pod_affinity import states as affinity_states
from asched.plugins.inter_pod_affinity.states import AffinityState
from asched.state import pod_index
from asched.state import records as r
from asched.state.fold import Fold
from asched.state.observe import observe_deletion, observe_object
from tests.cycle.default_profile import default_fold
from tests.state.objects import a_node, a_pod, bound

_HOST = "kubernetes.io/hostname"
_NODES = 12
_APPS = 5
_KEPT = 20
"""Concurrent rollouts."""
_OWN_TERMS = 20
_ROUND = 1024
"""A multiple of the cache limits: after whole rounds, caches hold as much as before."""
_SETTLED = 256
_SLACK = 0.05
"""Python's tables grow in steps, even if as many entries are removed as added."""

_NO_PART_OF_IT = (type, ModuleType, FunctionType, BuiltinFunctionType, ChangeLog)
"""Code, and logs with a fixed number of changes."""


class Rollouts:
    """A cluster in which each pod has a new template and is deleted after later ones exist."""

    def __init__(self, make_pod: Callable[[int], Pod]) -> None:
        self._make_pod = make_pod
        self.fold: Fold = default_fold()
        self.decider = Decider(self.fold.state)
        self._here: deque[Pod] = deque()
        self._done = 0
        for number in range(_NODES):
            self._observe(a_node(f"n{number}", labels={_HOST: f"n{number}"}))

    def go_on(self, rollouts: int) -> None:
        for number in range(self._done, self._done + rollouts):
            pod = self._make_pod(number)
            self._observe(pod)
            for decision in iter(self.decider.next, ()):
                for record in decision:
                    self.fold.apply(record)
                    if isinstance(record, r.Assigned):
                        pod = bound(pod, record.node)
            assert pod.node_name, "there is room for each"
            self._observe(pod)
            self._here.append(pod)
            if len(self._here) > _KEPT:
                gone = observe_deletion(self.fold.state, self._here.popleft())
                assert gone is not None
                self.fold.apply(gone)
        self._done += rollouts

    def held_bytes(self) -> Counter[str]:
        """Bytes of the state and the decider by type."""
        held: Counter[str] = Counter()
        for part in _parts_of(self.fold, self.decider):
            held[type(part).__name__] += sys.getsizeof(part)
        return held

    def _observe(self, item: AnyObject) -> None:
        record = observe_object(self.fold.state, item)
        assert record is not None
        self.fold.apply(record)


def _parts_of(*wholes: object) -> list[object]:
    """These objects and all objects that they keep alive."""
    gc.collect()
    parts = [*wholes]
    seen = {id(part) for part in parts}
    for part in parts:
        for other in gc.get_referents(part):
            if id(other) not in seen and not isinstance(other, _NO_PART_OF_IT):
                seen.add(id(other))
                parts.append(other)
    return parts


def _pod(number: int) -> Pod:
    """A pod with its own labels and image."""
    app = LabelSelector(match_labels={"app": f"app-{number % _APPS}"})
    labels = {**app.match_labels, "pod-template-hash": f"{number:x}"}
    pod = a_pod(f"pod-{number}", {"cpu": f"{100 + number % 7}m"}, labels=labels)
    apart = PodAffinityTerm(label_selector=app, topology_key=_HOST)
    spread = TopologySpreadConstraint(
        max_skew=5, topology_key=_HOST, when_unsatisfiable="DoNotSchedule", label_selector=app
    )
    replace = msgspec.structs.replace
    spec = replace(
        pod.spec,
        containers=(replace(pod.spec.containers[0], image=f"app:v{number}"),),
        topology_spread_constraints=(spread,) if number % 2 else (),
        affinity=Affinity(
            pod_anti_affinity=PodAffinity(
                preferred=(WeightedPodAffinityTerm(weight=1, pod_affinity_term=apart),)
            )
        ),
    )
    return replace(pod, spec=spec)


def test_deleted_templates_leave_nothing_behind() -> None:
    cluster = Rollouts(_pod)
    cluster.go_on(_ROUND + _SETTLED)
    before = cluster.held_bytes()
    cluster.go_on(_ROUND)
    after = cluster.held_bytes()
    assert after.total() < before.total() * (1 + _SLACK), (after - before).most_common(5)


def _pod_with_own_terms(number: int) -> Pod:
    """A pod with terms that no other pod has, each with a column of its own."""
    own = LabelSelector(match_labels={"app": f"app-{number}"})
    terms = tuple(
        PodAffinityTerm(label_selector=own, topology_key=f"key-{index}")
        for index in range(_OWN_TERMS)
    )
    pod = a_pod(f"pod-{number}")
    affinity = Affinity(pod_anti_affinity=PodAffinity(required=terms))
    return msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, affinity=affinity))


def test_affinity_states_are_limited_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A state has a column for each term, so few states of many terms are kept."""
    kept = 10
    size_bytes = (1 + _OWN_TERMS) * affinity_states.STATE_BYTES
    monkeypatch.setattr(affinity_states, "CACHE_BYTES", (kept + 1) * size_bytes)
    cluster = Rollouts(_pod_with_own_terms)
    cluster.go_on(3 * kept)
    states = [p for p in _parts_of(cluster.decider) if isinstance(p, AffinityState)]
    assert len(states) == kept


@pytest.mark.parametrize("nodes", [1, 12, 300])
def test_queries_are_limited_in_bytes(nodes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    limit_bytes = 1 << 20
    monkeypatch.setattr(pod_index, "_MAX_COUNTED", limit_bytes // 8)
    fold = default_fold()
    for number in range(nodes):
        fold.apply(r.ObjectObserved(a_node(f"n{number}")))
    before = sum(map(sys.getsizeof, _parts_of(fold)))
    for number in range(2000):
        selector = Selector(LabelSelector(match_labels={"app": f"app-{number}"}))
        fold.state.count_pods(PodQuery((selector,), frozenset({"default"})))
    assert sum(map(sys.getsizeof, _parts_of(fold))) - before < limit_bytes


def test_templates_with_same_plugins_share_applicable_plugins() -> None:
    state = default_fold().state
    concerns = ApplicabilityCache(state.profiles[DEFAULT_SCHEDULER_NAME])
    said = {id(concerns.plugins(PodInfo(_pod(number)))) for number in range(0, 2000, 2)}
    assert len(said) == 1
    specifications = [p for p in _parts_of(*gc.get_referents(concerns)) if isinstance(p, PodSpec)]
    assert 0 < len(specifications) <= 256


def test_budget_cache_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budgets_module, "_MAX_LABEL_SETS", _ROUND)
    selector = LabelSelector(match_labels={"app": "app-0"})
    budget = PodDisruptionBudget(
        metadata=ObjectMeta(name="b", namespace="default"),
        spec=PodDisruptionBudgetSpec(selector=selector),
    )
    budgets = Budgets([budget])
    held = []
    for first in (0, _ROUND, 2 * _ROUND):
        for number in range(first, first + _ROUND):
            violating, _ = budgets.split([PodInfo(_pod(number))])
            assert bool(violating) is (number % _APPS == 0)
        held.append(sum(map(sys.getsizeof, _parts_of(*gc.get_referents(budgets)))))
    assert held[2] < held[0] * (1 + _SLACK)
