"""Pods with many affinity terms: what one attempt costs, and what it leaves to others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from random import Random
from typing import Any

import msgspec
import pytest

from asched.cycle.decide import Decider
from asched.framework.events import QueueingHint
from asched.framework.nodes import BoolColumn, Int64Column
from asched.framework.pod_info import PodInfo
from asched.framework.pod_queries import TermKind
from asched.framework.term_table import TermTable
from asched.model.pod import (
    Affinity,
    Pod,
    PodAffinity,
    PodAffinityTerm,
    WeightedPodAffinityTerm,
)
from asched.model.selectors import LabelSelector, LabelSelectorRequirement
from asched.plugins.inter_pod_affinity.existing import ExistingTerms
from asched.plugins.inter_pod_affinity.plugin import InterPodAffinity
from asched.state import records as r
from asched.state.fold import Fold
from asched.state.observe import observe_object
from tests.cycle.default_profile import default_fold
from tests.state.objects import a_node, a_pod

_HOST = "kubernetes.io/hostname"
_PODS = 400
_TERMS = 300


def _terms(number: int, prefix: str = "x") -> tuple[PodAffinityTerm, ...]:
    """Terms with different selectors that each select nearly every pod."""
    return tuple(
        PodAffinityTerm(
            label_selector=LabelSelector(
                match_expressions=(
                    LabelSelectorRequirement(
                        key="app", operator="NotIn", values=(f"{prefix}{index}",)
                    ),
                )
            ),
            topology_key=_HOST,
        )
        for index in range(number)
    )


def _preferring(name: str, number: int) -> Pod:
    preferred = tuple(
        WeightedPodAffinityTerm(weight=1 + index % 100, pod_affinity_term=term)
        for index, term in enumerate(_terms(number, name))
    )
    return _with(name, PodAffinity(preferred=preferred))


def _requiring(name: str, number: int) -> Pod:
    return _with(name, PodAffinity(required=_terms(number)))


def _with(name: str, anti_affinity: PodAffinity) -> Pod:
    pod = a_pod(name, {"cpu": "1m"}, labels={"app": name})
    affinity = Affinity(pod_anti_affinity=anti_affinity)
    return msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, affinity=affinity))


def _cluster() -> Fold:
    fold = default_fold()
    for number in range(20):
        _observe(fold, a_node(f"n{number}", labels={_HOST: f"n{number}"}))
    for number in range(_PODS):
        pod = a_pod(f"p{number}", {"cpu": "1m"}, labels={"app": f"app-{number}"})
        _observe(
            fold,
            msgspec.structs.replace(
                pod, spec=msgspec.structs.replace(pod.spec, node_name=f"n{number % 20}")
            ),
        )
    return fold


def _observe(fold: Fold, item: object) -> None:
    record = observe_object(fold.state, item)  # type: ignore[arg-type]
    assert record is not None
    fold.apply(record)


def _decide(fold: Fold) -> list[r.AnyRecord]:
    decider = Decider(fold.state)
    made: list[r.AnyRecord] = []
    for decision in iter(decider.next, ()):
        for record in decision:
            fold.apply(record)
            made.append(record)
    return made


@contextmanager
def _counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Counts evaluations of a selector on one label set."""
    calls = [0]
    original = LabelSelector.matches

    def matches(self: LabelSelector, labels: dict[str, str]) -> bool:
        calls[0] += 1
        return original(self, labels)

    with monkeypatch.context() as patch:
        patch.setattr(LabelSelector, "matches", matches)
        yield calls


def test_attempt_does_not_evaluate_each_term_on_each_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    fold = _cluster()
    _observe(fold, _preferring("many", _TERMS))
    with _counted(monkeypatch) as calls:
        (assigned,) = [record for record in _decide(fold) if isinstance(record, r.Assigned)]
    assert assigned.key == "default/many"
    assert calls[0] < _PODS + 4 * _TERMS


def test_terms_of_existing_pods_are_not_evaluated_for_each_other_pod(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fold = _cluster()
    for number in range(10):
        _observe(fold, _preferring(f"many{number}", _TERMS))
    assert len(_decide(fold)) >= 10
    others = 50
    for number in range(others):
        _observe(fold, a_pod(f"other{number}", {"cpu": "1m"}, labels={"app": f"job-{number}"}))
    with _counted(monkeypatch) as calls:
        placed = [record for record in _decide(fold) if isinstance(record, r.Assigned)]
    assert len(placed) == others
    # The search by labels replaces 10 * 300 evaluations for each of the pods.
    assert calls[0] < 100 * others


def test_terms_of_existing_pods_share_one_column_for_each_topology_key() -> None:
    fold = _cluster()
    for number in range(10):
        _observe(fold, _preferring(f"many{number}", _TERMS))
    _decide(fold)
    table = fold.state.affinity_terms(TermKind.PREFERRED_ANTI_AFFINITY)
    assert len(table) == 10 * _TERMS
    info = PodInfo(a_pod("other", {}, labels={"app": "other"}))
    selected = table.selecting(info.label_set, {})
    assert table.keys(selected) == [_HOST]


def test_topology_keys_that_no_node_has_are_not_summed_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each pod may have 128 of its own."""
    summed: list[str] = []
    original = TermTable.sums

    def sums(
        table: TermTable, selected: BoolColumn, size: int, keys: Iterable[str] | None = None
    ) -> Mapping[str, Int64Column]:
        found = original(table, selected, size, keys)
        summed.extend(found)
        return found

    monkeypatch.setattr(TermTable, "sums", sums)
    fold = _cluster()
    for number in range(50):
        _bound(fold, f"p{number}", "podAntiAffinity", f"key-{number}", f"n{number % 3}")
    _bound(fold, "host", "podAntiAffinity", _HOST, "n1")
    _observe(fold, a_pod("app-1", {}, labels={"app": "app-1"}))
    _decide(fold)
    assert {*summed} == {_HOST}


_APPS_0_TO_3 = LabelSelectorRequirement(
    key="app", operator="In", values=tuple(f"app-{number}" for number in range(4))
)


def _bound(
    fold: Fold,
    name: str,
    kind: str,
    key: str,
    node: str,
    requirement: LabelSelectorRequirement = _APPS_0_TO_3,
) -> None:
    """A pod with one term."""
    term = PodAffinityTerm(
        label_selector=LabelSelector(match_expressions=(requirement,)), topology_key=key
    )
    weighted = (WeightedPodAffinityTerm(weight=10, pod_affinity_term=term),)
    rule = PodAffinity(required=(term,)) if kind == "required" else PodAffinity(preferred=weighted)
    pod = _with(name, rule)
    spec = msgspec.structs.replace(pod.spec, node_name=node)
    _observe(fold, msgspec.structs.replace(pod, spec=spec))


def _some_apps(random: Random) -> LabelSelectorRequirement:
    operator = random.choice(("In", "In", "NotIn"))
    values = tuple(f"app-{number}" for number in random.sample(range(6), random.randrange(1, 6)))
    return LabelSelectorRequirement(key="app", operator=operator, values=values)


def _decide_among_terms(seed: int) -> tuple[list[r.AnyRecord], int]:
    """Decisions about pods without terms, while pods with terms come. How many called PreScore."""
    random, fold, made = Random(seed), default_fold(), list[r.AnyRecord]()
    for number in range(12):
        zone = {"zone": f"z{number % 3}"} if number else {}
        _observe(fold, a_node(f"n{number}", labels={_HOST: f"n{number}", **zone}))
    decider = Decider(fold.state)
    kinds, keys = ("preferred", "preferred", "preferred", "required"), (_HOST, "zone", "zone")
    calls = [0]
    original = InterPodAffinity.pre_score

    def pre_score(*args: Any) -> Any:
        calls[0] += 1
        return original(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(InterPodAffinity, "pre_score", pre_score)
        for number in range(60):
            if random.random() < 0.1:
                node, kind, key = (
                    f"n{random.randrange(12)}",
                    random.choice(kinds),
                    random.choice(keys),
                )
                _bound(fold, f"b{number}", kind, key, node, _some_apps(random))
            app = f"app-{random.randrange(6)}"
            _observe(fold, a_pod(f"p{number}", {"cpu": "100m"}, labels={"app": app}))
            for decision in decider.next():
                fold.apply(decision)
                made.append(decision)
    return made, calls[0]


@pytest.mark.parametrize("seed", range(8))
def test_kept_scores_lead_to_the_same_decisions(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    made, calls = _decide_among_terms(seed)
    monkeypatch.setattr(InterPodAffinity, "common_answer", lambda *_: None)
    expected, usual_calls = _decide_among_terms(seed)
    assert made == expected
    assert calls < usual_calls or not usual_calls


@pytest.mark.parametrize("seed", range(8))
def test_counts_of_a_label_set_alone_lead_to_the_same_decisions(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, _ = _decide_among_terms(seed)
    monkeypatch.setattr(
        TermTable, "distinguished", lambda _, labels: tuple(sorted(labels.labels.items()))
    )
    expected, _ = _decide_among_terms(seed)
    assert made == expected


def test_pods_that_the_same_terms_select_share_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    updates = [0]
    original = ExistingTerms.update

    def update(*args: Any) -> None:
        updates[0] += 1
        original(*args)

    monkeypatch.setattr(ExistingTerms, "update", update)
    fold = _cluster()
    for number in range(5):
        unnamed = LabelSelectorRequirement(key="app", operator="NotIn", values=(f"x{number}",))
        _bound(fold, f"b{number}", "required", _HOST, f"n{number}", unnamed)
        for job in range(20):
            _observe(fold, a_pod(f"p{number}-{job}", {"cpu": "1m"}, labels={"app": f"job-{job}"}))
        assert len(_decide(fold)) == 20
    assert updates[0] == 5


@pytest.mark.parametrize(("terms", "expected"), [(8, QueueingHint.SKIP), (9, QueueingHint.QUEUE)])
def test_hint_evaluates_few_terms(terms: int, expected: QueueingHint) -> None:
    fold = _cluster()
    profile = next(iter(fold.state.profiles.values()))
    plugin = next(p for p in profile.cluster_scope.filter if isinstance(p[1], InterPodAffinity))[1]
    assert isinstance(plugin, InterPodAffinity)
    pending = _requiring("pending", terms)
    bound = a_pod("bound", {}, labels={"app": "bound"})
    bound = msgspec.structs.replace(bound, spec=msgspec.structs.replace(bound.spec, node_name="n1"))
    hints = [event.hint for event in plugin.events_to_register() if event.hint is not None]
    assert hints[0](pending, None, bound) is expected
