"""The log of pod changes keeps few large pods in memory."""

from __future__ import annotations

import gc

import msgspec

from asched.framework.pod_info import LabelSet, PodShape
from asched.model.node import Node
from asched.model.pod import Affinity, Pod, PodAffinity, PodAffinityTerm
from asched.model.selectors import LabelSelector
from asched.state.observe import observe_object
from tests.cycle.default_profile import default_fold
from tests.state.objects import a_node, a_pod, bound

_LABELS = 250
_UPDATES = 3000


def _count(kind: type) -> int:
    """Other tests leave some in caches."""
    gc.collect()
    return sum(1 for item in gc.get_objects() if type(item) is kind)


def test_label_updates_are_not_kept() -> None:
    fold, before = default_fold(), _count(LabelSet)
    for item in (a_node("n1"), bound(a_pod("p", {"cpu": "1m"}), "n1")):
        record = observe_object(fold.state, item)
        assert record is not None
        fold.apply(record)
    for number in range(_UPDATES):
        labels = {f"key-{index}": f"{number}" for index in range(_LABELS)}
        record = observe_object(fold.state, bound(a_pod("p", {"cpu": "1m"}, labels=labels), "n1"))
        assert record is not None
        fold.apply(record)
    kept = _count(LabelSet) - before
    assert kept * _LABELS < 600_000


def test_updates_of_large_pods_are_not_kept() -> None:
    """120 affinity terms are few labels, but take 80 KiB."""
    fold, before = default_fold(), _count(PodShape)
    terms = tuple(
        PodAffinityTerm(
            topology_key="zone", label_selector=LabelSelector(match_labels={"app": f"{i}" * 20})
        )
        for i in range(120)
    )
    affinity = Affinity(pod_anti_affinity=PodAffinity(required=terms))

    def large(cpu: int) -> Pod:
        pod = bound(a_pod("p", {"cpu": f"{cpu}m"}), "n1")
        return msgspec.structs.replace(
            pod, spec=msgspec.structs.replace(pod.spec, affinity=affinity)
        )

    observed: list[Node | Pod] = [a_node("n1")]
    observed += [large(cpu) for cpu in range(_UPDATES)]
    for item in observed:
        record = observe_object(fold.state, item)
        assert record is not None
        fold.apply(record)
    assert _count(PodShape) - before < 1_500
