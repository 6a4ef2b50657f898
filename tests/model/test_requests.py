"""Pod requests: cases computed by hand."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from asched.model.pod import Pod
from asched.model.quantity import MAX_INT64
from asched.model.requests import (
    DEFAULT_MEMORY_BYTES,
    host_ports,
    is_extended_resource,
    is_scalar_resource,
    pod_requests,
    pod_scoring_asks,
    pod_scoring_requests,
)

MI = 1024 * 1024
GPU: Any = {"x.io/gpu": 1}


def box(name: str = "c", *, sidecar: bool = False, **requests: Any) -> dict[str, Any]:
    container: dict[str, Any] = {"name": name, "resources": {"requests": requests}}
    return {**container, "restartPolicy": "Always"} if sidecar else container


def a_pod(*containers: dict[str, Any], init: Any = (), status: Any = None, **spec: Any) -> Pod:
    raw = {
        "metadata": {"name": "p"},
        "spec": {"containers": list(containers), "initContainers": list(init), **spec},
        "status": status or {},
    }
    return msgspec.convert(raw, Pod)


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        (a_pod(box()), {}),
        (a_pod(box(cpu="100m"), box(cpu="1", memory="1Mi")), {"cpu": 1100, "memory": MI}),
        # The sum of two halves is one whole: totals are rounded, not parts.
        (a_pod(box(memory="0.5"), box(memory="500m")), {"memory": 1}),
        (a_pod(box(memory="0.5"), box(memory="0.6")), {"memory": 2}),
        # An init container runs alone, so only the larger need counts, resource by resource.
        (
            a_pod(box(cpu="1", memory="2Mi"), init=[box(cpu="3", memory="1Mi")]),
            {"cpu": 3000, "memory": 2 * MI},
        ),
        (a_pod(box(cpu="1"), init=[box(cpu="2"), box(cpu="3")]), {"cpu": 3000}),
        # A sidecar keeps running with the containers and with later init containers.
        (a_pod(box(cpu="1"), init=[box(cpu="1", sidecar=True)]), {"cpu": 2000}),
        (a_pod(box(cpu="1"), init=[box(cpu="1", sidecar=True), box(cpu="5")]), {"cpu": 6000}),
        (a_pod(box(cpu="1"), init=[box(cpu="5"), box(cpu="1", sidecar=True)]), {"cpu": 5000}),
        (
            a_pod(
                box(cpu="1"),
                init=[box(cpu="2", sidecar=True), box(cpu="1"), box(cpu="3", sidecar=True)],
            ),
            {"cpu": 6000},
        ),
        (a_pod(box(cpu="1"), overhead={"cpu": "250m", "memory": "1Mi"}),
         {"cpu": 1250, "memory": MI}),
        # Pod-level requests replace sums of cpu, memory and huge pages only; overhead is on top.
        (
            a_pod(
                box(cpu="1", memory="1Mi", **GPU),
                resources={"requests": {"cpu": "4", "hugepages-2Mi": "4Mi", "x.io/gpu": "9"}},
                overhead={"cpu": "1"},
            ),
            {"cpu": 5000, "memory": MI, "hugepages-2Mi": 4 * MI, "x.io/gpu": 1},
        ),
        (a_pod(box(memory="8Ei"), box(memory="8Ei")), {"memory": MAX_INT64}),
    ],
)  # fmt: skip
def test_pod_requests(pod: Pod, expected: dict[str, int]) -> None:
    assert pod_requests(pod) == expected


def _status(
    name: str, actual: dict[str, str] | None, allocated: dict[str, str] | None
) -> dict[str, Any]:
    status: dict[str, Any] = {"name": name}
    if actual is not None:
        status["resources"] = {"requests": actual}
    if allocated is not None:
        status["allocatedResources"] = allocated
    return status


INFEASIBLE = {"type": "PodResizePending", "status": "True", "reason": "Infeasible"}
DEFERRED = {**INFEASIBLE, "reason": "Deferred"}


@pytest.mark.parametrize(
    ("asked", "actual", "allocated", "condition", "expected"),
    [
        ("1", {"cpu": "2"}, None, None, 2000),
        ("1", {"cpu": "2"}, {"cpu": "3"}, None, 3000),
        ("4", {"cpu": "2"}, {"cpu": "3"}, None, 4000),
        ("4", {"cpu": "2"}, {"cpu": "3"}, DEFERRED, 4000),
        ("4", {"cpu": "2"}, {"cpu": "3"}, INFEASIBLE, 3000),
        # Until the container reports what it has, only what is asked counts.
        ("1", None, {"cpu": "3"}, None, 1000),
        ("4", None, {"cpu": "3"}, INFEASIBLE, 4000),
    ],
)
def test_in_place_resize_uses_maximum(
    asked: str,
    actual: dict[str, str] | None,
    allocated: dict[str, str] | None,
    condition: dict[str, str] | None,
    expected: int,
) -> None:
    status = {
        "containerStatuses": [_status("a", actual, allocated)],
        "conditions": [condition] if condition else [],
    }
    containers = (box("a", cpu=asked), box("untouched", cpu="1"))
    placed = a_pod(*containers, status=status, nodeName="n0")
    assert pod_requests(placed) == {"cpu": expected + 1000}
    # The status of a pod that is to be scheduled does not count.
    pending = a_pod(*containers, status=status)
    assert pod_requests(pending) == pod_requests(a_pod(*containers))


@pytest.mark.parametrize(
    ("asked", "actual", "allocated", "condition", "expected"),
    [
        ({"cpu": "1"}, {"cpu": "2"}, None, None, {"cpu": 2000, "memory": 2 * MI}),
        ({"cpu": "1"}, {"cpu": "2"}, {"cpu": "3"}, None, {"cpu": 3000, "memory": 2 * MI}),
        ({"cpu": "4"}, {"cpu": "2"}, {"cpu": "3"}, DEFERRED, {"cpu": 4000, "memory": 2 * MI}),
        ({"cpu": "4"}, {"cpu": "2"}, {"cpu": "3"}, INFEASIBLE, {"cpu": 3000, "memory": 2 * MI}),
        # Actual resources that the pod does not request at pod level do not count.
        ({"cpu": "1"}, {"cpu": "2", "memory": "9Mi"}, None, None, {"cpu": 2000, "memory": 2 * MI}),
        # Without actual resources, only desired ones count.
        ({"cpu": "4"}, None, {"cpu": "9"}, INFEASIBLE, {"cpu": 4000, "memory": 2 * MI}),
        # Nothing counts, although the containers request some.
        ({"memory": "5Mi"}, {}, None, INFEASIBLE, {"cpu": 500, "memory": 0}),
        # Without requests at pod level, the status at pod level does not count.
        ({}, {"cpu": "9"}, {"cpu": "9"}, None, {"cpu": 500, "memory": 2 * MI}),
    ],
)
def test_in_place_resize_at_pod_level(
    asked: dict[str, str],
    actual: dict[str, str] | None,
    allocated: dict[str, str] | None,
    condition: dict[str, str] | None,
    expected: dict[str, int],
) -> None:
    status = _status("", actual, allocated) | {"conditions": [condition] if condition else []}
    spec = {"resources": {"requests": asked}, "nodeName": "n0", "overhead": {}}
    pod = a_pod(box(cpu="500m", memory="2Mi"), status=status, **spec)
    assert pod_requests(pod) == expected


def test_resize_applies_to_sidecars_not_init_containers() -> None:
    status = {
        "initContainerStatuses": [
            _status("side", {"cpu": "2"}, None),
            _status("once", {"cpu": "9"}, None),
        ]
    }
    init = [box("side", cpu="1", sidecar=True), box("once", cpu="3")]
    pod = a_pod(box(cpu="1"), init=init, status=status, nodeName="n0")
    assert pod_requests(pod) == {"cpu": 5000}


def test_scoring_uses_defaults_for_missing_requests() -> None:
    pod = a_pod(box(), box(cpu="1"), box(memory="1Mi"))
    cpu, memory = 1200, MI + 2 * DEFAULT_MEMORY_BYTES
    assert pod_scoring_requests(pod) == (cpu, memory)
    assert pod_scoring_asks(pod) == {"cpu": cpu, "memory": memory}
    assert pod_scoring_requests(a_pod(box(cpu="0", memory="0"))) == (0, 0)


def test_scoring_with_pod_level_requests() -> None:
    pod = a_pod(box(cpu="1"), box(), resources={"requests": {"cpu": "4"}})
    # On a node: the pod-level cpu, and default memory, which neither level asks for.
    assert pod_scoring_requests(pod) == (4000, 2 * DEFAULT_MEMORY_BYTES)
    # To be placed: as if there were no pod level.
    assert pod_scoring_asks(pod) == {"cpu": 1100, "memory": 2 * DEFAULT_MEMORY_BYTES}


def test_host_ports_of_containers_and_sidecars() -> None:
    def with_port(container: dict[str, Any], number: int) -> dict[str, Any]:
        return {**container, "ports": [{"hostPort": number}, {"containerPort": 1}]}

    pod = a_pod(with_port(box(), 80), init=[with_port(box(), 81), with_port(box(sidecar=True), 82)])
    assert [port.host_port for port in host_ports(pod)] == [80, 82]


@pytest.mark.parametrize(
    ("name", "extended", "scalar"),
    [
        ("nvidia.com/gpu", True, True),
        ("requests.nvidia.com/gpu", False, False),
        ("kubernetes.io/batch", False, True),
        ("hugepages-2Mi", False, True),
        ("attachable-volumes-csi-x", False, True),
        ("cpu", False, False),
        ("pods", False, False),
    ],
)
def test_resource_name_kinds(name: str, extended: bool, scalar: bool) -> None:
    assert is_extended_resource(name) is extended
    assert is_scalar_resource(name) is scalar
