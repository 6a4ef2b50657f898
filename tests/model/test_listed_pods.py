from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asched.framework.feature_gates import FeatureGates, without_gated_fields
from asched.model.listed_pods import ListedPodDecoder
from asched.model.pod import Pod, reduced_pod
from asched.model.resources import DecodeError, Resource, decode
from tests.run_size import examples

Json = dict[str, Any]


def pod(number: int, **spec: Any) -> Json:
    """A running pod as the API server returns it."""
    token = f"kube-api-access-{number:05}"
    container = {
        "name": "main",
        "resources": {"requests": {"cpu": "100m"}},
        "volumeMounts": [{"name": token, "mountPath": "/var"}],
    }
    return {
        "metadata": {"name": f"web-{number}", "namespace": "default", "uid": f"uid-{number}"},
        "spec": {
            "volumes": [{"name": token, "projected": {}}],
            "containers": [container],
            "nodeName": f"node-{number}",
        }
        | spec,
        "status": {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": "True"}],
            "containerStatuses": [{"name": "main", "allocatedResources": {"cpu": "100m"}}],
        },
    }


def listed(*pods: Json) -> list[Pod]:
    decoder = ListedPodDecoder()
    return [decoder.decode(_encoded(each)) for each in pods]


def _encoded(value: Json) -> bytes:
    return msgspec.json.encode(value)


def _expected(value: Json) -> Pod:
    decoded = decode(Resource.PODS, _encoded(value))
    assert isinstance(decoded, Pod)
    return decoded


def test_neighbours_of_a_template_share_their_specification() -> None:
    pods = listed(*[pod(number) for number in range(4)])
    assert [each.spec.node_name for each in pods] == [f"node-{n}" for n in range(4)]
    assert pods[2].spec.containers is pods[3].spec.containers
    assert pods[0] == reduced_pod(_expected(pod(0)))


def test_unrecorded_statuses_are_dropped_and_messages_kept() -> None:
    waiting = pod(1, nodeName="")
    waiting["status"] = {
        "conditions": [{"type": "PodScheduled", "status": "False", "message": "no node fits"}]
    }
    running, pending = listed(pod(0), waiting)
    assert not running.status.conditions
    assert not running.status.container_statuses
    assert pending.status.conditions[0].message == "no node fits"


def test_a_resized_pod_keeps_its_statuses() -> None:
    resized = pod(3)
    resized["status"]["containerStatuses"][0]["allocatedResources"] = {"cpu": "200m"}
    pods = listed(pod(1), pod(2), resized)
    assert pods[2].status.container_statuses == _expected(resized).status.container_statuses


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param(lambda n: {"nodeSelector": {"nodeName": f"n{n}"}}, id="selector"),
        pytest.param(
            lambda n: {"other": {"nodeName": f"node-{n}"}, "nodeName": "node-0"}, id="unknown-field"
        ),
        pytest.param(
            lambda n: {"schedulerName": f"kube-api-access-{n:05}"}, id="token-in-another-field"
        ),
        pytest.param(lambda n: {"nodeName": f'a"{n}'}, id="quote"),
        pytest.param(lambda n: {"nodeName": f"b\\{n}"}, id="backslash"),
        pytest.param(lambda n: {"nodeName": f"\N{LATIN SMALL LETTER E WITH ACUTE}{n}"}, id="é"),
        pytest.param(lambda n: {"nodeName": "node" * (n % 2)}, id="sometimes-a-node"),
        pytest.param(lambda n: {"priority": n // 2}, id="others"),
        pytest.param(
            lambda n: {
                "volumes": [
                    {
                        "name": f"kube-api-access-{n:05}",
                        "persistentVolumeClaim": {"claimName": f"c-{n}"},
                    }
                ]
            },
            id="claim",
        ),
    ],
)
def test_what_differs_between_neighbours_is_read(spec: Any) -> None:
    pods = [pod(number, **spec(number)) for number in range(6)]
    # Unknown fields may precede the node.
    for each in pods:
        each["spec"] = dict(sorted(each["spec"].items(), key=lambda item: item[0] == "nodeName"))
    assert listed(*pods) == [reduced_pod(_expected(each)) for each in pods]


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.booleans()), max_size=12))
@settings(max_examples=examples(60))
def test_lists_are_decoded_as_single_pods(drawn: list[tuple[int, int, bool]]) -> None:
    pods = []
    for number, (template, node, level) in enumerate(drawn):
        each = pod(number, priority=template, nodeName=f"n{node}" if node else "")
        if level:
            each["spec"]["resources"] = {"requests": {"cpu": "1"}}
            each["status"]["allocatedResources"] = {"cpu": "1"}
        pods.append(each)
    for gates in (FeatureGates(), FeatureGates(pod_level_resources=False)):
        assert [reduced_pod(without_gated_fields(each, gates)) for each in listed(*pods)] == [
            reduced_pod(without_gated_fields(_expected(each), gates)) for each in pods
        ]


def test_a_pod_that_cannot_be_decoded_does_not_affect_the_next() -> None:
    decoder = ListedPodDecoder()
    for number in range(3):
        decoder.decode(_encoded(pod(number)))
    wrong = pod(3)
    wrong["status"]["containerStatuses"][0]["allocatedResources"] = {"cpu": "much"}
    for raw in (_encoded(wrong), _encoded(pod(3))[:-1], b'{"metadata":{"name":""}}', b"[]"):
        with pytest.raises(DecodeError):
            decoder.decode(raw)
    assert decoder.decode(_encoded(pod(4))) == reduced_pod(_expected(pod(4)))


def test_null_fields_are_absent() -> None:
    value: Json = {"metadata": {"name": "a", "labels": None}, "spec": None, "status": None}
    assert listed(value) == [_expected(value)]
