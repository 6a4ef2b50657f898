"""A differing field is named exactly where an observation would be recorded."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from asched.comparer.differences import MISSING, differing_field, first_difference, known_keys
from asched.model.pod import Pod
from asched.model.resources import AnyObject, Resource
from asched.state.observe import observe_object
from tests.state.objects import a_node, a_pod, bound, labelled
from tests.state.profiles import DEFAULT, a_fold
from tests.state.test_observe import copies

values = st.recursive(
    st.integers(0, 2), lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
)


@given(seen=st.lists(copies, max_size=8), last=copies)
def test_field_differs_exactly_if_a_record_is_due(seen: list[Pod], last: Pod) -> None:
    fold = a_fold(*DEFAULT)
    items: list[AnyObject] = [a_node("n0"), a_node("n1"), *seen, last]
    for item in items:
        record = observe_object(fold.state, item)
        assert bool(differing_field(fold.state, item)) == (record is not None)
        if record is not None:
            fold.apply(record)
        assert differing_field(fold.state, item) == ""
    assert known_keys(fold.state, Resource.PODS) == [*fold.state.pods]


@given(one=values, other=values)
def test_path_leads_to_a_difference(one: Any, other: Any) -> None:
    path = first_difference(one, other)
    if isinstance(one, dict) and isinstance(other, dict) and one != other:
        assert one.get(path) != other.get(path)
    else:
        assert path == ""


def test_fields_have_the_names_of_the_api() -> None:
    fold = a_fold(*DEFAULT)
    pod, node = a_pod("p"), a_node("n0")

    def field(item: AnyObject) -> str:
        return differing_field(fold.state, item)

    assert field(node) == field(pod) == MISSING
    items: list[AnyObject] = [node, pod]
    for item in items:
        record = observe_object(fold.state, item)
        assert record is not None
        fold.apply(record)
    assert field(a_node("n0", unschedulable=True)) == "spec.unschedulable"
    assert field(a_node("n0", {"cpu": "2"})) == "status.allocatable.cpu"
    assert field(a_node("n0", labels={"zone": "a"})) == "metadata.labels.zone"
    assert field(bound(pod, "n0")) == "spec.nodeName"
    assert field(labelled(pod, app="x")) == "metadata.labels"
    assert field(a_pod("p", phase="Running")) == "status.phase"
    assert field(a_pod("p", nominated="n0")) == "status.nominatedNodeName"
    assert field(a_pod("p", phase="Succeeded")) == "status.phase"
    assert field(a_pod("p", {"cpu": "2"})) == "spec.containers"
    assert field(a_pod("p", uid="other")) == "metadata.uid"
