"""Workloads, PodGroups and CompositePodGroups of Kubernetes 1.37, and an upgrade from 1.36."""

from __future__ import annotations

from typing import Any

import pytest

from asched.apiserver.cluster import EmbeddedCluster
from asched.apiserver.errors import StatusError
from asched.apiserver.group_forms import KubernetesVersion

POD_GROUPS = "podgroups.scheduling.k8s.io"
COMPOSITES = "compositepodgroups.scheduling.k8s.io"
WORKLOADS = "workloads.scheduling.k8s.io"
GANG = {"gang": {"minCount": 3}}
TEMPLATE = {"name": "t", "schedulingPolicy": GANG}
REFERENCE = {"workloadName": "w", "templateName": "t"}


def newer() -> EmbeddedCluster:
    return EmbeddedCluster(seed=1, version=KubernetesVersion.V1_37)


def create(cluster: EmbeddedCluster, resource: str = POD_GROUPS, **spec: Any) -> dict[str, Any]:
    return cluster.create(resource, {"metadata": {"name": "x"}, "spec": spec})


def test_pod_group_gets_defaults_of_1_37() -> None:
    group = create(newer(), schedulingPolicy=GANG)
    assert group["apiVersion"] == "scheduling.k8s.io/v1beta1"
    assert group["spec"] == {
        "schedulingPolicy": GANG,
        "disruptionMode": {"single": {}},
        "priority": 0,
        "preemptionPolicy": "PreemptLowerPriority",
    }


@pytest.mark.parametrize("version", [KubernetesVersion.V1_36, KubernetesVersion.V1_37])
def test_priority_comes_from_its_class(version: KubernetesVersion) -> None:
    cluster = EmbeddedCluster(seed=1, version=version)
    high = {"metadata": {"name": "high"}, "value": 1000, "preemptionPolicy": "Never"}
    cluster.create("priorityclasses", high)
    spec = create(cluster, schedulingPolicy=GANG, priorityClassName="high")["spec"]
    assert spec["priority"] == 1000
    if version is KubernetesVersion.V1_37:
        assert spec["preemptionPolicy"] == "Never"
    with pytest.raises(StatusError, match="must not be provided"):
        create(cluster, schedulingPolicy=GANG, priorityClassName="high", priority=1)
    with pytest.raises(StatusError, match="no PriorityClass with name low was found"):
        create(cluster, schedulingPolicy=GANG, priorityClassName="low")


INVALID: dict[str, tuple[str, dict[str, Any], str]] = {
    "no policy": (POD_GROUPS, {}, "spec.schedulingPolicy: Invalid value"),
    "two policies": (
        POD_GROUPS,
        {"schedulingPolicy": {**GANG, "basic": {}}},
        "must specify exactly one of: `basic`, `gang`",
    ),
    "no minimum": (POD_GROUPS, {"schedulingPolicy": {"gang": {}}}, "minCount: Required value"),
    "negative": (POD_GROUPS, {"schedulingPolicy": {"gang": {"minCount": -1}}}, "greater than"),
    "text": (POD_GROUPS, {"schedulingPolicy": {"gang": {"minCount": "3"}}}, "Expected `int`"),
    "no mode": (POD_GROUPS, {"schedulingPolicy": GANG, "disruptionMode": {}}, "one of: `single`"),
    "old mode": (POD_GROUPS, {"schedulingPolicy": GANG, "disruptionMode": "Pod"}, "got `str`"),
    "levels": (
        POD_GROUPS,
        {
            "schedulingPolicy": GANG,
            "schedulingConstraints": {"topology": [{"key": "a"}, {"key": "b"}]},
        },
        "topology: Too many: 2",
    ),
    "preemption": (
        POD_GROUPS,
        {"schedulingPolicy": GANG, "preemptionPolicy": "No"},
        'Unsupported value: "No"',
    ),
    "parent": (
        POD_GROUPS,
        {"schedulingPolicy": GANG, "parentCompositePodGroupName": "c"},
        "spec.workloadRef: Required value",
    ),
    "composite minimum": (
        COMPOSITES,
        {"schedulingPolicy": {"gang": {"minCount": 2}}, "workloadRef": REFERENCE},
        "gang.minGroupCount: Required value",
    ),
    "no workload": (COMPOSITES, {"schedulingPolicy": {"basic": {}}}, "workloadRef: Required"),
    "no template": (WORKLOADS, {}, "must specify one of: `podGroupTemplates`"),
    "equal names": (
        WORKLOADS,
        {"podGroupTemplates": [TEMPLATE, TEMPLATE]},
        "spec.podGroupTemplates[1]: Duplicate value",
    ),
    "nine templates": (
        WORKLOADS,
        {"podGroupTemplates": [{**TEMPLATE, "name": f"t{n}"} for n in range(9)]},
        "Too many: 9",
    ),
}


@pytest.mark.parametrize("case", INVALID)
def test_invalid_objects_are_rejected(case: str) -> None:
    resource, spec, message = INVALID[case]
    with pytest.raises(StatusError) as refusal:
        create(newer(), resource, **spec)
    assert message in refusal.value.message


def test_unknown_mode_of_1_36_is_rejected() -> None:
    with pytest.raises(StatusError) as refusal:
        create(EmbeddedCluster(seed=1), schedulingPolicy=GANG, disruptionMode="All")
    assert 'Unsupported value: "All": supported values: "Pod", "PodGroup"' in refusal.value.message


def test_templates_have_at_most_four_levels() -> None:
    def nested(levels: int) -> dict[str, Any]:
        inner = {"podGroupTemplates": [TEMPLATE]} if levels == 1 else nested(levels - 1)
        policy = {"gang": {"minGroupCount": 1}}
        return {"compositePodGroupTemplates": [{"name": "c", "schedulingPolicy": policy, **inner}]}

    create(newer(), WORKLOADS, **nested(3))
    with pytest.raises(StatusError, match="at most 4 levels"):
        create(newer(), WORKLOADS, **nested(4))


def test_only_the_minimum_may_change() -> None:
    cluster = newer()
    create(cluster, schedulingPolicy=GANG)

    def patch(**spec: Any) -> dict[str, Any]:
        return cluster.patch(POD_GROUPS, "x", {"spec": spec}, namespace="default")

    fewer = patch(schedulingPolicy={"gang": {"minCount": 1}})
    assert fewer["spec"]["schedulingPolicy"] == {"gang": {"minCount": 1}}
    changes: list[dict[str, Any]] = [
        {"disruptionMode": {"single": None, "all": {}}},
        {"priority": 5},
        {"workloadRef": REFERENCE},
        {"schedulingPolicy": {"gang": None, "basic": {}}},
    ]
    for changed in changes:
        with pytest.raises(StatusError, match="field is immutable"):
            patch(**changed)


def test_minimum_of_1_36_is_immutable() -> None:
    cluster = EmbeddedCluster(seed=1)
    create(cluster, schedulingPolicy=GANG)
    changed = {"spec": {"schedulingPolicy": {"gang": {"minCount": 1}}}}
    with pytest.raises(StatusError, match="field is immutable"):
        cluster.patch(POD_GROUPS, "x", changed, namespace="default")


def test_upgrade_keeps_objects() -> None:
    """The same object in each version, whichever created it."""
    cluster = EmbeddedCluster(seed=1)
    reference = {"workloadName": "w", "podGroupTemplateName": "t"}
    old = create(
        cluster,
        schedulingPolicy=GANG,
        disruptionMode="PodGroup",
        podGroupTemplateRef={"workload": reference},
    )
    cluster.api.registry.serve_version(KubernetesVersion.V1_37)
    new = cluster.get(POD_GROUPS, "x", namespace="default")
    assert new["metadata"] == old["metadata"]
    assert new["apiVersion"] == "scheduling.k8s.io/v1beta1"
    assert new["spec"] == {
        "schedulingPolicy": GANG,
        "disruptionMode": {"all": {}},
        "workloadRef": REFERENCE,
    }
    assert cluster.api.registry.find("scheduling.k8s.io", "v1alpha2", "podgroups") is None
    cluster.api.registry.serve_version(KubernetesVersion.BOTH)
    registry = cluster.api.registry
    for version in ("v1alpha2", "v1alpha3", "v1beta1"):
        served = registry.find("scheduling.k8s.io", version, "podgroups")
        assert served is not None
        stored = cluster.api.get(served, "default", "x")
        shown = stored.obj if served.view is None else served.view(stored.obj)
        assert shown["metadata"]["uid"] == old["metadata"]["uid"]
        assert shown["apiVersion"] == f"scheduling.k8s.io/{version}"
        if version == "v1alpha2":
            assert shown == old


def test_update_in_the_old_version_drops_newer_fields() -> None:
    cluster = newer()
    create(
        cluster,
        schedulingPolicy=GANG,
        workloadRef=REFERENCE,
        parentCompositePodGroupName="root",
        preemptionPolicy="Never",
    )
    cluster.api.registry.serve_version(KubernetesVersion.V1_36)
    annotated = {"metadata": {"annotations": {"a": "b"}}}
    cluster.patch(POD_GROUPS, "x", annotated, namespace="default")
    cluster.api.registry.serve_version(KubernetesVersion.V1_37)
    spec = cluster.get(POD_GROUPS, "x", namespace="default")["spec"]
    assert not {"parentCompositePodGroupName", "preemptionPolicy"} & spec.keys()


def test_status_is_a_subresource() -> None:
    cluster = newer()
    reference = {"schedulingPolicy": {"basic": {}}, "workloadRef": REFERENCE}
    for resource, spec in ((POD_GROUPS, {"schedulingPolicy": GANG}), (COMPOSITES, reference)):
        create(cluster, resource, **spec)
        condition = {"type": "T", "status": "True", "reason": "R"}
        condition["lastTransitionTime"] = "2026-01-01T00:00:00Z"
        status = {"status": {"conditions": [condition]}}
        patched = cluster.patch(resource, "x", status, namespace="default")
        assert patched["status"] == {}
        patched = cluster.patch(resource, "x", status, namespace="default", subresource="status")
        assert patched["status"] == status["status"]
