"""A watch event becomes a record only if a decision may depend on it."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asched.model.meta import ObjectMeta
from asched.model.node import NodeCondition
from asched.model.pod import (
    ContainerStatus,
    Pod,
    PodCondition,
    ResourceRequirements,
)
from asched.model.resources import AnyObject, Resource
from asched.model.workloads import Service
from asched.state import records as r
from asched.state.cluster import PlacementState
from asched.state.fold import FoldError
from asched.state.observe import (
    RefusedPod,
    UnlistedObjects,
    observe_deletion,
    observe_list,
    observe_object,
)
from tests.state.description import describe
from tests.state.objects import a_node, a_pod, bound, deleted, in_phase, labelled
from tests.state.profiles import DEFAULT, a_fold

WHEN = datetime(2026, 1, 1, tzinfo=UTC)


def _status(
    pod: Pod,
    *,
    resources: dict[str, str] | None = None,
    allocated: dict[str, str] | None = None,
    conditions: tuple[PodCondition, ...] = (),
) -> Pod:
    container = ContainerStatus(
        name="main",
        resources=None if resources is None else ResourceRequirements(requests=dict(resources)),
        allocated_resources=None if allocated is None else dict(allocated),
    )
    replace = msgspec.structs.replace
    status = replace(pod.status, container_statuses=(container,), conditions=conditions)
    return replace(pod, status=status)


def test_list_yields_deletions_and_additions() -> None:
    fold = a_fold(*DEFAULT)
    state = fold.state
    kept, gone, changed = a_pod("kept"), a_pod("gone"), a_pod("changed")
    unreadable, new = a_pod("unreadable"), a_pod("new")
    for number, pod in enumerate((kept, gone, changed, unreadable), 1):
        fold.apply(r.ObjectObserved(pod, number))
    listed = (kept, labelled(changed, app="x"), new)
    changes = []
    for record in observe_list(state, Resource.PODS, listed, {"default/unreadable"}):
        fold.apply(record)
        changes.append(record)
    assert changes == [
        r.ObjectDeleted("Pod", "default/gone", "pod-gone"),
        r.PodUpdated("default/changed", "pod-changed", labels={"app": "x"}, phase="Pending"),
        r.PodObserved(
            "default/new", "pod-new", state.pods["default/new"].template, phase="Pending"
        ),
    ]
    assert sorted(state.pods) == [f"default/{n}" for n in ("changed", "kept", "new", "unreadable")]
    assert not [*observe_list(state, Resource.PODS, listed, {"default/unreadable"})]


def test_list_of_nodes_deletes_nodes_only() -> None:
    fold = a_fold(*DEFAULT)
    fold.apply_all([r.ObjectObserved(a_node("n0")), r.ObjectObserved(a_pod("p"))])
    assert [*observe_list(fold.state, Resource.NODES, ())] == [
        r.ObjectDeleted("Node", "n0", "node-n0")
    ]


def test_list_yields_deletion_of_replaced_object() -> None:
    fold = a_fold(*DEFAULT)
    fold.apply_all([r.ObjectObserved(a_node("n0")), r.ObjectObserved(a_pod("p", on="n0"), 1)])
    again = a_pod("p", uid="second")
    changes = []
    for record in observe_list(fold.state, Resource.PODS, (again,), {"default/q"}):
        fold.apply(record)
        changes.append(record)
    assert changes[0] == r.ObjectDeleted("Pod", "default/p", "pod-p")
    assert fold.state.pods["default/p"].info.pod == again
    assert not [*observe_list(fold.state, Resource.PODS, (again,))]
    finished = in_phase(a_pod("p", uid="third"), "Succeeded")
    last = observe_list(fold.state, Resource.PODS, (finished,))
    gone = next(last)
    assert gone == r.ObjectDeleted("Pod", "default/p", "second")
    fold.apply(gone)
    assert not [*last]


def test_parts_of_a_list_delete_what_no_part_has() -> None:
    fold = a_fold(*DEFAULT)
    names = ("kept", "gone", "replaced", "unreadable")
    for number, pod in enumerate(map(a_pod, names), 1):
        fold.apply(r.ObjectObserved(pod, number))
    again, unlisted = a_pod("replaced", uid="2"), UnlistedObjects(fold.state, Resource.PODS)
    changes: list[object] = []
    for objects, ends in (((again,), False), ((a_pod("kept"),), True)):
        for record in observe_list(
            fold.state, Resource.PODS, objects, {"default/unreadable"}, unlisted=unlisted, ends=ends
        ):
            fold.apply(record)
            changes.append(record)
    template = fold.state.pods["default/replaced"].template
    assert changes == [
        r.ObjectDeleted("Pod", "default/replaced", "pod-replaced"),
        r.PodObserved("default/replaced", "2", template, phase="Pending"),
        r.ObjectDeleted("Pod", "default/gone", "pod-gone"),
    ]


def test_replaced_node_is_deleted_and_added() -> None:
    fold = a_fold(*DEFAULT)
    fold.apply(r.ObjectObserved(a_node("n0")))
    another = msgspec.structs.replace(a_node("n0"), metadata=ObjectMeta(name="n0", uid="another"))
    assert [*observe_list(fold.state, Resource.NODES, (another,))] == [
        r.ObjectDeleted("Node", "n0", "node-n0"),
        r.ObjectObserved(another),
    ]


def test_recreated_pod_replaces_old_pod() -> None:
    fold = a_fold(*DEFAULT)
    fold.apply(r.ObjectObserved(a_node("n0")))
    fold.apply(r.ObjectObserved(a_pod("p", on="n0"), 1))
    again = a_pod("p", uid="second")
    record = observe_object(fold.state, again)
    assert record == r.PodObserved("default/p", "second", 1, phase="Pending")
    fold.apply(record)
    assert fold.state.pods["default/p"].info.pod == again
    assert fold.state.nodes.pod_count.tolist() == [0]
    assert observe_deletion(fold.state, a_pod("p")) is None
    assert observe_deletion(fold.state, again) == r.ObjectDeleted("Pod", "default/p", "second")


@pytest.mark.parametrize(
    "noise",
    [
        a_pod("p", conditions=(PodCondition(type="Ready", status="True"),)),
        _status(a_pod("p"), resources={"cpu": "500m"}, allocated={"cpu": "500m"}),
        _status(a_pod("p")),
    ],
)
def test_container_progress_is_not_recorded(noise: Pod) -> None:
    fold = a_fold(*DEFAULT)
    assert observe_object(fold.state, noise) == r.ObjectObserved(a_pod("p"), 1)
    fold.apply(r.ObjectObserved(a_pod("p"), 1))
    assert observe_object(fold.state, noise) is None


@pytest.mark.parametrize(
    "resized",
    [
        _status(a_pod("p"), resources={"cpu": "1"}),
        _status(a_pod("p"), resources={"cpu": "500m"}, allocated={"cpu": "1"}),
    ],
)
def test_pod_resized_in_place_counts_allocated_resources(resized: Pod) -> None:
    fold = a_fold(*DEFAULT)
    fold.apply(r.ObjectObserved(a_node("n0")))
    fold.apply(r.ObjectObserved(a_pod("p", on="n0")))
    change = observe_object(fold.state, bound(resized, "n0"))
    assert isinstance(change, r.ObjectObserved)
    fold.apply(change)
    assert fold.state.nodes.requested("cpu").tolist() == [1000]
    in_step = observe_object(fold.state, _status(a_pod("p", on="n0"), resources={"cpu": "500m"}))
    assert in_step is not None
    fold.apply(in_step)
    assert fold.state.nodes.requested("cpu").tolist() == [500]


def test_heartbeat_is_not_recorded_but_readiness_is() -> None:
    fold = a_fold(*DEFAULT)
    ready = NodeCondition(type="Ready", status="True")
    pressure = NodeCondition(type="MemoryPressure", status="False")
    first = observe_object(fold.state, a_node("n0", conditions=(pressure, ready)))
    assert first == r.ObjectObserved(a_node("n0", conditions=(ready,)))
    fold.apply(r.ObjectObserved(a_node("n0", conditions=(ready,))))
    more = NodeCondition(type="DiskPressure", status="True")
    assert observe_object(fold.state, a_node("n0", conditions=(more, ready))) is None
    unready = NodeCondition(type="Ready", status="False")
    assert observe_object(fold.state, a_node("n0", conditions=(unready,))) is not None


def test_finished_pod_is_deleted() -> None:
    fold = a_fold(*DEFAULT)
    pod = a_pod("p", on="n0")
    assert observe_object(fold.state, in_phase(pod, "Succeeded")) is None
    fold.apply(r.ObjectObserved(pod))
    assert observe_object(fold.state, in_phase(pod, "Failed")) == r.ObjectDeleted(
        "Pod", pod.key, pod.uid
    )
    recreated = in_phase(a_pod("p", uid="second"), "Succeeded")
    change = observe_object(fold.state, recreated)
    assert change is not None
    fold.apply(change)
    assert not fold.state.pods


def test_unchanged_object_is_recorded_once() -> None:
    fold = a_fold(*DEFAULT)
    service = Service(metadata=a_pod("s", uid="one").metadata)
    assert observe_deletion(fold.state, service) is None
    fold.apply(r.ObjectObserved(service))
    assert observe_object(fold.state, service) is None
    late = Service(metadata=a_pod("s", uid="before").metadata)
    assert observe_deletion(fold.state, late) is None
    assert observe_deletion(fold.state, service) == r.ObjectDeleted("Service", "default/s", "one")


pictures = st.builds(
    lambda on, phase, nominated, at, conditions, app: labelled(
        deleted(a_pod("p", on=on, phase=phase, nominated=nominated, conditions=conditions), at)
        if at
        else a_pod("p", on=on, phase=phase, nominated=nominated, conditions=conditions),
        app=app,
    ),
    st.sampled_from(("", "n0")),
    st.sampled_from(("Pending", "Running")),
    st.sampled_from(("", "n0", "n1")),
    st.sampled_from((None, WHEN)),
    st.lists(
        st.builds(
            PodCondition,
            type=st.sampled_from(("PodScheduled", "DisruptionTarget", "Ready")),
            status=st.sampled_from(("True", "False")),
        ),
        max_size=2,
    ).map(tuple),
    st.sampled_from(("a", "a", "b")),
)


@given(first=pictures, second=pictures)
def test_pod_updated_equals_object_observed(first: Pod, second: Pod) -> None:
    """Both records of a pod give the same state."""
    start: list[AnyObject] = [a_node("n0"), a_node("n1"), first]
    by_change, by_object = a_fold(*DEFAULT), a_fold(*DEFAULT)
    for item in (*start, second):
        change = observe_object(by_change.state, item)
        if change is not None:
            by_change.apply(change)
            whole = change
            if isinstance(change, r.PodUpdated):
                entry = by_change.state.pods["default/p"]
                whole = r.ObjectObserved(entry.info.pod)
                read = {
                    c
                    for c in second.status.conditions
                    if c.type != "Ready" and (c.type, c.status) != ("PodScheduled", "True")
                }
                assert {*entry.info.pod.status.conditions} == read
                assert entry.info.labels == second.labels
            by_object.apply(whole)
    assert describe(by_change.state) == describe(by_object.state)


copies = st.builds(
    lambda picture, name, cpu: msgspec.structs.replace(
        picture,
        metadata=msgspec.structs.replace(picture.metadata, name=name, uid=f"pod-{name}"),
        spec=msgspec.structs.replace(
            picture.spec, containers=a_pod("p", {"cpu": cpu}).spec.containers
        ),
    ),
    pictures,
    st.sampled_from(["a", "b", "c"]),
    st.sampled_from(["100m", "200m"]),
)


@given(seen=st.lists(st.tuples(copies, st.booleans()), max_size=12))
def test_pod_observed_equals_object_observed(seen: list[tuple[Pod, bool]]) -> None:
    """``PodObserved`` leaves the state that ``ObjectObserved`` of the same pod leaves, and no
    template outlives its last pod."""
    by_change, by_object = a_fold(*DEFAULT), a_fold(*DEFAULT)
    for fold in (by_change, by_object):
        fold.apply_all([r.ObjectObserved(a_node("n0")), r.ObjectObserved(a_node("n1"))])
    for pod, goes in seen:
        change = (
            observe_deletion(by_change.state, pod) if goes else observe_object(by_change.state, pod)
        )
        if change is None:
            continue
        by_change.apply(change)
        if isinstance(change, r.PodObserved):
            change = r.ObjectObserved(by_change.state.pods[change.key].info.pod)
        by_object.apply(change)
    assert describe(by_change.state) == describe(by_object.state)
    assert len({e.template for e in by_change.state.pods.values()}) == len(
        by_change.state.templates
    )


def test_pod_observed_with_unknown_template_is_rejected() -> None:
    with pytest.raises(FoldError, match="template 7, which is unknown"):
        a_fold(*DEFAULT).apply(r.PodObserved("default/p", "pod-p", 7))


def test_pod_updated_of_unknown_pod_is_rejected() -> None:
    with pytest.raises(FoldError, match="was updated but is unknown"):
        a_fold(*DEFAULT).apply(r.PodUpdated("default/p", "pod-p"))


ZONE, REGION = "topology.kubernetes.io/zone", "topology.kubernetes.io/region"
UNSCHEDULABLE = PodCondition(type="PodScheduled", status="False", reason="Unschedulable")


@pytest.mark.parametrize("answered_first", [False, True])
@pytest.mark.parametrize("copied", [(), (ZONE,), (ZONE, REGION)])
@pytest.mark.parametrize("conditions", [(), (UNSCHEDULABLE,)])
def test_observed_binding_is_recorded_once_as_bound(
    conditions: tuple[PodCondition, ...], copied: tuple[str, ...], answered_first: bool
) -> None:
    of_node = dict.fromkeys(copied, "a") | {"other": "b"}
    pod = labelled(_status(a_pod("p"), conditions=conditions), app="x")
    pod = msgspec.structs.replace(
        pod, status=msgspec.structs.replace(pod.status, container_statuses=())
    )
    fold = a_fold(*DEFAULT)
    fold.apply(r.ObjectObserved(a_node("n", labels=of_node)))
    fold.apply(r.ObjectObserved(pod, 1))
    fold.apply(r.Assigned("default/p", "pod-p", "n", 1, 1))
    if answered_first:
        fold.apply(r.Bound("default/p", "pod-p", "n"))
    seen = bound(labelled(pod, app="x", **{name: of_node[name] for name in copied}), "n")
    seen = msgspec.structs.replace(seen, status=msgspec.structs.replace(seen.status, conditions=()))
    record = observe_object(fold.state, seen)
    assert record == r.Bound("default/p", "pod-p", "n", observed=True, topology_labels=bool(copied))
    fold.apply(record)
    assert fold.state.pods["default/p"].info.pod == seen
    assert fold.state.pods["default/p"].placement_state is PlacementState.BOUND
    assert observe_object(fold.state, seen) is None


@pytest.mark.parametrize(
    "seen",
    [
        bound(a_pod("p"), "elsewhere"),
        bound(labelled(a_pod("p"), new="x"), "n"),
        in_phase(bound(a_pod("p"), "n"), "Running"),
        deleted(bound(a_pod("p"), "n"), WHEN),
    ],
    ids=["elsewhere", "labelled", "running", "deleted"],
)
def test_observed_binding_with_other_changes_is_recorded_in_full(seen: Pod) -> None:
    fold = a_fold(*DEFAULT)
    for name in ("n", "elsewhere"):
        fold.apply(r.ObjectObserved(a_node(name)))
    fold.apply(r.ObjectObserved(a_pod("p"), 1))
    fold.apply(r.Assigned("default/p", "pod-p", "n", 1, 1))
    record = observe_object(fold.state, seen)
    assert isinstance(record, r.PodUpdated)
    fold.apply(record)
    assert fold.state.pods["default/p"].info.pod == seen


def test_binding_observed_on_another_node_is_rejected() -> None:
    fold = a_fold(*DEFAULT)
    fold.apply(r.ObjectObserved(a_pod("p"), 1))
    with pytest.raises(FoldError, match="was not assigned"):
        fold.apply(r.Bound("default/p", "pod-p", "n", observed=True))


def test_second_pod_of_a_uid_is_refused() -> None:
    fold = a_fold()
    fold.apply(r.ObjectObserved(a_node("n0")))
    first, second = (bound(a_pod(name, uid="same"), "n0") for name in ("p", "q"))
    refused: list[RefusedPod] = []
    for record in observe_list(
        fold.state, Resource.PODS, (first, second, first), refuse=refused.append
    ):
        fold.apply(record)
    assert observe_object(fold.state, second, refused.append) is None
    assert refused == [RefusedPod("default/q", "same", "default/p")] * 2
    assert [*fold.state.pods] == ["default/p"]
    deleted_second = observe_deletion(fold.state, second)
    assert deleted_second is None
    for record in observe_list(fold.state, Resource.PODS, (second,), refuse=refused.append):
        fold.apply(record)
    assert [*fold.state.pods] == ["default/q"], "the first pod is gone"
    assert len(refused) == 2
