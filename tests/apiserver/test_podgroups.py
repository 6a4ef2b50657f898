"""PodGroups and Workloads of scheduling.k8s.io, by the recorded exchanges."""

from __future__ import annotations

import pytest

from asched.apiserver.cluster import EmbeddedCluster
from asched.apiserver.errors import StatusError

POD_GROUPS = "podgroups.scheduling.k8s.io"


def test_pod_group_gets_defaults() -> None:
    cluster = EmbeddedCluster(seed=1)
    spec = {"schedulingPolicy": {"gang": {"minCount": 3}}}
    group = cluster.create(POD_GROUPS, {"metadata": {"name": "pg"}, "spec": spec})
    assert group["spec"] == {
        "podGroupTemplateRef": None,
        "schedulingPolicy": {"gang": {"minCount": 3}},
        "disruptionMode": "Pod",
    }
    assert group["status"] == {}


def test_gang_without_members_is_rejected() -> None:
    spec = {"schedulingPolicy": {"gang": {"minCount": 0}}}
    with pytest.raises(StatusError) as refusal:
        EmbeddedCluster(seed=1).create(POD_GROUPS, {"metadata": {"name": "bad"}, "spec": spec})
    assert refusal.value.message == (
        'PodGroup.scheduling.k8s.io "bad" is invalid: '
        "spec.schedulingPolicy.gang.minCount: Required value"
    )
