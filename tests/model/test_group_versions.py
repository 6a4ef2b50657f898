"""Groups of every version of scheduling.k8s.io decode to one form."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asched.apiserver.group_forms import GROUP, stored_form, view_of
from asched.model.group_versions import scheduled_condition
from asched.model.groups import CompositePodGroup, PodGroup, Workload
from asched.model.meta import Object
from asched.model.resources import DecodeError, GroupResource, decode

VERSIONS = ("v1alpha2", "v1alpha3", "v1beta1")
ONLY_NEWER = ("parentCompositePodGroupName", "preemptionPolicy")
NAMES = st.sampled_from(("a", "b-0", "workers"))
MODES: st.SearchStrategy[dict[str, Any]] = st.sampled_from(({"single": {}}, {"all": {}}))
GANGS = st.integers(1, 2**31 - 1).map(lambda count: {"gang": {"minCount": count}})
CONDITIONS = st.fixed_dictionaries(
    {
        "status": st.sampled_from(("True", "False")),
        "reason": st.just("Unschedulable"),
        "message": st.text(max_size=9),
    }
)


@st.composite
def pod_groups(draw: st.DrawFn) -> dict[str, Any]:
    """PodGroups in the form of v1alpha3, as an API server has them after defaulting."""
    optional = {
        "schedulingConstraints": st.just({"topology": [{"key": "rack"}]}),
        "disruptionMode": MODES,
        "priority": st.integers(-5, 5),
        "priorityClassName": NAMES,
        "preemptionPolicy": st.sampled_from(("Never", "PreemptLowerPriority")),
        "workloadRef": st.fixed_dictionaries({"workloadName": NAMES, "templateName": NAMES}),
        "parentCompositePodGroupName": NAMES,
    }
    policy: st.SearchStrategy[dict[str, Any]] = st.one_of(GANGS, st.just({"basic": {}}))
    spec = draw(st.fixed_dictionaries({"schedulingPolicy": policy}, optional=optional))
    target = {"type": "DisruptionTarget", "reason": "PreemptionByScheduler"}
    scheduled = {"type": "PodGroupInitiallyScheduled"}
    types = draw(st.sampled_from(([], [scheduled], [target, scheduled])))
    return {
        "apiVersion": f"{GROUP}/v1alpha3",
        "kind": "PodGroup",
        "metadata": {"name": draw(NAMES), "namespace": "ns", "uid": "u"},
        "spec": spec,
        "status": {"conditions": [{**draw(CONDITIONS), **kind} for kind in types]},
    }


def shown(stored: dict[str, Any], version: str) -> dict[str, Any]:
    """The object as that version serves it, with the version's name of the condition."""
    view = view_of(version)
    found: dict[str, Any] = json.loads(json.dumps(view(stored) if view else stored))
    for condition in found.get("status", {}).get("conditions", ()):
        if condition["type"] == "PodGroupInitiallyScheduled":
            condition["type"] = scheduled_condition("PodGroup", version)
    return found


def decoded(resource: GroupResource, raw: Any) -> Object:
    return decode(resource, json.dumps(raw).encode())


@given(pod_groups())
def test_versions_decode_to_one_form(group: dict[str, Any]) -> None:
    forms = [decoded(GroupResource.POD_GROUPS, shown(group, v)) for v in VERSIONS[1:]]
    assert forms[0] == forms[1]
    old = {**group, "spec": {k: v for k, v in group["spec"].items() if k not in ONLY_NEWER}}
    assert decoded(GroupResource.POD_GROUPS, shown(old, "v1alpha2")) == decoded(
        GroupResource.POD_GROUPS, old
    )


@given(pod_groups(), st.sampled_from(VERSIONS[1:]))
def test_stored_form_survives_each_version(group: dict[str, Any], version: str) -> None:
    assert stored_form(shown(group, version), version)["spec"] == group["spec"]


@given(pod_groups())
def test_every_field_is_read(group: dict[str, Any]) -> None:
    found = decoded(GroupResource.POD_GROUPS, group)
    assert isinstance(found, PodGroup)
    spec, raw = found.spec, group["spec"]
    assert found.min_count == raw["schedulingPolicy"].get("gang", {}).get("minCount", 0)
    assert spec.disruption_mode.lower() == "".join(raw.get("disruptionMode", {}))
    assert (spec.priority, spec.priority_class_name) == (
        raw.get("priority"),
        raw.get("priorityClassName", ""),
    )
    assert spec.preemption_policy == raw.get("preemptionPolicy", "")
    assert spec.parent_composite_pod_group_name == raw.get("parentCompositePodGroupName", "")
    assert (spec.workload_ref is None) is ("workloadRef" not in raw)
    assert (spec.scheduling_constraints is None) is ("schedulingConstraints" not in raw)
    assert not spec.unsupported
    types = [condition["type"] for condition in group["status"]["conditions"]]
    names = [condition.type for condition in found.status.conditions]
    assert [name.replace("InitiallyScheduled", "Scheduled") for name in types] == names


UNSUPPORTED: dict[str, tuple[dict[str, Any], str]] = {
    '"Pack"': ({"disruptionMode": "Pack"}, "disruptionMode"),
    "no mode": ({"disruptionMode": {}}, "disruptionMode"),
    "new mode": ({"disruptionMode": {"half": {}}}, "disruptionMode"),
    "both modes": ({"disruptionMode": {"all": {}, "single": {}}}, "disruptionMode"),
    "policy": ({"schedulingPolicy": {"elastic": {}}}, "schedulingPolicy"),
    "both policies": ({"schedulingPolicy": {"basic": {}, "gang": {}}}, "schedulingPolicy"),
    "preemption": ({"preemptionPolicy": "Sometimes"}, "preemptionPolicy"),
}


@pytest.mark.parametrize("case", UNSUPPORTED)
def test_unknown_values_are_named(case: str) -> None:
    changed, field = UNSUPPORTED[case]
    spec = {"schedulingPolicy": {"gang": {"minCount": 2}}, **changed}
    found = decoded(GroupResource.POD_GROUPS, {"metadata": {"name": "g"}, "spec": spec})
    assert isinstance(found, PodGroup)
    assert found.spec.unsupported.startswith(f"spec.{field}: ")
    assert "known" in found.spec.unsupported


def test_claims_of_a_group_are_named() -> None:
    """In each version: the members would wait for claims of their own."""
    claims = [{"name": "gpus", "resourceClaimTemplateName": "large"}, {"name": "nic"}]
    spec = {"schedulingPolicy": {"gang": {"minCount": 2}}, "resourceClaims": claims}
    found = decoded(GroupResource.POD_GROUPS, {"metadata": {"name": "g"}, "spec": spec})
    assert isinstance(found, PodGroup)
    assert found.spec.unsupported == (
        "spec.resourceClaims: claims of a group are not supported (gpus, nic); use claims of pods"
    )


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)
FIELDS = st.sampled_from(
    ("schedulingPolicy", "disruptionMode", "priority", "workloadRef", "podGroupTemplateRef")
)


@given(st.dictionaries(FIELDS, JSON | st.dictionaries(st.sampled_from(("gang", "all")), JSON)))
def test_any_specification_decodes_or_is_refused(spec: dict[str, Any]) -> None:
    for resource in (
        GroupResource.POD_GROUPS,
        GroupResource.COMPOSITE_POD_GROUPS,
        GroupResource.WORKLOADS,
    ):
        try:
            decoded(resource, {"metadata": {"name": "g"}, "spec": spec})
        except DecodeError:
            continue


def test_newer_condition_replaces_older_one() -> None:
    """After an upgrade a group may have both."""
    conditions = [
        {"type": "PodGroupScheduled", "status": "False"},
        {"type": "PodGroupInitiallyScheduled", "status": "True"},
    ]
    raw = {"metadata": {"name": "g"}, "status": {"conditions": conditions}}
    found = decoded(GroupResource.POD_GROUPS, raw)
    assert isinstance(found, PodGroup)
    assert [(c.type, c.status) for c in found.status.conditions] == [("PodGroupScheduled", "True")]


def test_composite_groups_and_templates() -> None:
    template = {"name": "t", "schedulingPolicy": {"gang": {"minCount": 2}}}
    composite = {
        "name": "c",
        "schedulingPolicy": {"gang": {"minGroupCount": 3}},
        "podGroupTemplates": [template],
    }
    raw = {"metadata": {"name": "w"}, "spec": {"compositePodGroupTemplates": [composite]}}
    workload = decoded(GroupResource.WORKLOADS, raw)
    assert isinstance(workload, Workload)
    (outer,) = workload.spec.composite_pod_group_templates
    assert outer.pod_group_templates[0].name == "t"
    spec = {
        "schedulingPolicy": {"gang": {"minGroupCount": 3}},
        "parentCompositePodGroupName": "root",
        "workloadRef": {"workloadName": "w", "templateName": "c"},
    }
    conditions = [{"type": "CompositePodGroupInitiallyScheduled", "status": "True"}]
    raw = {"metadata": {"name": "c"}, "spec": spec, "status": {"conditions": conditions}}
    found = decoded(GroupResource.COMPOSITE_POD_GROUPS, raw)
    assert isinstance(found, CompositePodGroup)
    assert found.min_group_count == 3
    assert found.spec.parent_composite_pod_group_name == "root"
    assert found.status.conditions[0].type == "PodGroupScheduled"
