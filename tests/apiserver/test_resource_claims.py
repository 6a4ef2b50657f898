"""Rules of ``resource.k8s.io/v1``: defaults, validation and tables."""

from __future__ import annotations

from typing import Any

import pytest

from asched.apiserver.cluster import EmbeddedCluster
from asched.apiserver.dra import checks
from asched.apiserver.dra.strategy import ADMIN_LABEL
from asched.apiserver.errors import StatusError
from asched.apiserver.printers import table_columns
from tests.apiserver.objects import FakeClock

Object = dict[str, Any]

RESULT = {"request": "r", "driver": "d.example.com", "pool": "n", "device": "gpu-0"}


def exactly(**fields: Any) -> Object:
    return {"name": "r", "exactly": {"deviceClassName": "gpu", **fields}}


def claim(*requests: Object, **devices: Any) -> Object:
    metadata = {"name": "c", "namespace": "default"}
    return {"metadata": metadata, "spec": {"devices": {"requests": [*requests], **devices}}}


def a_slice(*devices: Object, **spec: Any) -> Object:
    pool = {"name": "n", "resourceSliceCount": 1, "generation": 0}
    made = {"driver": "d.example.com", "pool": pool, "nodeName": "n", **spec}
    if devices:
        made["devices"] = [*devices]
    return {"metadata": {"name": "s"}, "spec": made}


@pytest.fixture
def cluster() -> EmbeddedCluster:
    return EmbeddedCluster(clock=FakeClock(), seed=1)


def refused(cluster: EmbeddedCluster, resource: str, obj: Object) -> list[str]:
    """The causes without the field's name in front of the message."""
    with pytest.raises(StatusError) as raised:
        cluster.create(resource, obj)
    assert raised.value.code == 422
    details = raised.value.details or {}
    return [f"{cause['field']}: {cause['message']}" for cause in details["causes"]]


def test_defaults(cluster: EmbeddedCluster) -> None:
    requests = [
        exactly(tolerations=[{"key": "k", "value": "v"}]),
        {"name": "all", "exactly": {"deviceClassName": "gpu", "allocationMode": "All"}},
        {"name": "any", "firstAvailable": [{"name": "a", "deviceClassName": "gpu", "count": 2}]},
    ]
    made = cluster.create("resourceclaims", claim(*requests) | {"status": {"allocation": {}}})
    first, every, alternatives = made["spec"]["devices"]["requests"]
    assert first["exactly"] == {
        "deviceClassName": "gpu",
        "allocationMode": "ExactCount",
        "count": 1,
        "tolerations": [{"key": "k", "value": "v", "operator": "Equal"}],
    }
    assert every["exactly"] == {"deviceClassName": "gpu", "allocationMode": "All"}
    assert alternatives["firstAvailable"][0]["allocationMode"] == "ExactCount"
    assert "status" not in made
    template = {
        "metadata": {"name": "t"},
        "spec": {"spec": {"devices": {"requests": [exactly()]}}},
    }
    made = cluster.create("resourceclaimtemplates", template, namespace="default")
    assert made["spec"]["spec"]["devices"]["requests"][0]["exactly"]["count"] == 1
    taint = {"key": "k", "effect": "NoSchedule"}
    made = cluster.create("resourceslices", a_slice({"name": "gpu-0", "taints": [taint]}))
    (stored,) = made["spec"]["devices"][0]["taints"]
    assert stored["timeAdded"] == made["metadata"]["creationTimestamp"]
    assert made["metadata"]["generation"] == 1


@pytest.mark.parametrize(
    ("obj", "cause"),
    [
        (
            claim({"name": "r"}),
            (
                "spec.devices.requests[0]: Required value: exactly one of `exactly` or "
                "`firstAvailable` is required"
            ),
        ),
        (
            claim(exactly() | {"firstAvailable": [{"name": "a", "deviceClassName": "gpu"}]}),
            (
                "spec.devices.requests[0]: Invalid value: null: exactly one of `exactly` or "
                "`firstAvailable` is required, but multiple fields are set"
            ),
        ),
        (
            claim(exactly(deviceClassName="")),
            "spec.devices.requests[0].exactly.deviceClassName: Required value",
        ),
        (
            claim(exactly(count=-1)),
            "spec.devices.requests[0].exactly.count: Invalid value: -1: must be greater than zero",
        ),
        (
            claim(exactly(allocationMode="All", count=2)),
            (
                "spec.devices.requests[0].exactly.count: Invalid value: 2: must not be "
                "specified when "
                "allocationMode is 'All'"
            ),
        ),
        (
            claim(exactly(allocationMode="Some")),
            (
                "spec.devices.requests[0].exactly.allocationMode: Unsupported value: "
                '"Some": supported '
                'values: "All", "ExactCount"'
            ),
        ),
        (claim(exactly(), exactly()), 'spec.devices.requests[1]: Duplicate value: "r"'),
        (
            claim(*[exactly() | {"name": f"r{i}"} for i in range(33)]),
            "spec.devices.requests: Too many: 33: must have at most 32 items",
        ),
        (
            claim(exactly(selectors=[{}])),
            "spec.devices.requests[0].exactly.selectors[0].cel: Required value",
        ),
        (
            claim(exactly(selectors=[{"cel": {"expression": "x" * 10241}}])),
            (
                "spec.devices.requests[0].exactly.selectors[0].cel.expression: Too long: "
                "may not be "
                "more than 10240 bytes"
            ),
        ),
        (
            claim(exactly(tolerations=[{"operator": "Exists", "value": "v"}])),
            (
                'spec.devices.requests[0].exactly.tolerations[0].value: Invalid value: "v": '
                "must be "
                "empty for operator `Exists`"
            ),
        ),
        (
            claim(exactly(), constraints=[{"matchAttribute": "model"}]),
            (
                'spec.devices.constraints[0].matchAttribute: Invalid value: "model": a '
                "fully qualified "
                "name must be a domain and a name separated by a slash"
            ),
        ),
        (
            claim(exactly(), config=[{"requests": ["r"]}]),
            "spec.devices.config[0].opaque: Required value",
        ),
    ],
)
def test_invalid_claims(cluster: EmbeddedCluster, obj: Object, cause: str) -> None:
    assert cause in refused(cluster, "resourceclaims", obj)


@pytest.mark.parametrize(
    ("obj", "cause"),
    [
        (
            a_slice(allNodes=True),
            (
                'spec: Invalid value: "{`nodeName`, `allNodes`}": exactly one of `nodeName`, '
                "`nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required, but "
                "multiple fields "
                "are set"
            ),
        ),
        (
            a_slice(*[{"name": f"d{i}"} for i in range(129)]),
            "spec.devices: Too many: 129: must have at most 128 items",
        ),
        (
            a_slice(
                *[
                    {"name": f"d{i}", "taints": [{"key": "k", "effect": "NoExecute"}]}
                    for i in range(65)
                ]
            ),
            "spec.devices: Too many: 65: must have at most 64 items",
        ),
        (a_slice({"name": "d"}, {"name": "d"}), 'spec.devices[1]: Duplicate value: "d"'),
        (
            a_slice({"name": "d", "attributes": {"a": {"int": 1, "string": "x"}}}),
            'spec.devices[0].attributes[a]: Invalid value: "": exactly one value must be specified',
        ),
        (
            a_slice({"name": "d", "attributes": {"a": {"version": "1.2"}}}),
            (
                'spec.devices[0].attributes[a].version: Invalid value: "1.2": must be a string '
                "compatible with semver.org spec 2.0.0"
            ),
        ),
        (
            a_slice({"name": "d", "attributes": {f"a{i}": {"int": i} for i in range(33)}}),
            (
                "spec.devices[0]: Invalid value: 33: the total number of attributes and capacities "
                "must not exceed 32"
            ),
        ),
        (
            a_slice({"name": "d", "capacity": {"m": {"value": "1", "requestPolicy": {}}}}),
            (
                "spec.devices[0].capacity[m].requestPolicy: Forbidden: "
                "allowMultipleAllocations must "
                "be true"
            ),
        ),
        (
            a_slice(
                {
                    "name": "d",
                    "allowMultipleAllocations": True,
                    "capacity": {
                        "m": {
                            "value": "4",
                            "requestPolicy": {"default": "5", "validRange": {"min": "1"}},
                        }
                    },
                },
                pool={"name": "n", "resourceSliceCount": 0},
            ),
            "spec.pool.resourceSliceCount: Invalid value: 0: must be greater than zero",
        ),
        (
            a_slice({"name": "d", "bindingConditions": ["Attached"]}),
            (
                'spec.devices[0].bindingFailureConditions: Invalid value: "null": '
                "bindingFailureConditions are required to use bindingConditions"
            ),
        ),
        (
            a_slice({"name": "d", "nodeName": "n"}),
            (
                "spec.devices[0]: Invalid value: null: `nodeName`, `nodeSelector` and "
                "`allNodes` can "
                "only be set if `perDeviceNodeSelection` is set to true in the ResourceSlice spec"
            ),
        ),
        (
            a_slice({"name": "d"}, sharedCounters=[{"name": "s", "counters": {"c": {}}}]),
            'spec: Invalid value: "": only one of `sharedCounters` or `devices` is allowed',
        ),
    ],
)
def test_invalid_slices(cluster: EmbeddedCluster, obj: Object, cause: str) -> None:
    assert cause in refused(cluster, "resourceslices", obj)


EXPRESSIONS = {
    "device.driver == 'd.example.com'": "",
    "device.driver": "must evaluate to bool or the unknown type, not string",
    "device.size == 1": "compilation failed: ERROR: <input>:1:7: undefined field 'size'",
    "device.driver.": "compilation failed: ERROR: ",
}


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_expressions(cluster: EmbeddedCluster, expression: str) -> None:
    obj = claim(exactly(selectors=[{"cel": {"expression": expression}}]))
    problem = EXPRESSIONS[expression]
    if not problem:
        cluster.create("resourceclaims", obj)
        return
    (cause,) = refused(cluster, "resourceclaims", obj)
    assert cause.startswith("spec.devices.requests[0].exactly.selectors[0].cel.expression: ")
    assert problem in cause


def test_expensive_expressions(cluster: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "MAX_EXPRESSION_COST", -1)
    obj = claim(exactly(selectors=[{"cel": {"expression": "true"}}]))
    (cause,) = refused(cluster, "resourceclaims", obj)
    assert cause.endswith(".cel.expression: Forbidden: too complex, exceeds cost limit")


def test_ranges_of_requests(cluster: EmbeddedCluster) -> None:
    limits = {"min": "2", "max": "9", "step": "2"}
    policy = {"default": "5", "validRange": limits}
    device = {
        "name": "d",
        "allowMultipleAllocations": True,
        "capacity": {"m": {"value": "8", "requestPolicy": policy}},
    }
    where = "spec.devices[0].capacity[m].requestPolicy.validRange"
    step = "value is not a multiple of a given step (2) from (2)"
    assert refused(cluster, "resourceslices", a_slice(device)) == [
        f'{where}.max: Invalid value: "9": max is larger than capacity value: 8',
        f'{where}.step: Invalid value: "5": {step}',
        f'{where}.step: Invalid value: "9": {step}',
    ]


def test_invalid_classes(cluster: EmbeddedCluster) -> None:
    spec = {"extendedResourceName": "cpu", "selectors": [{"cel": {"expression": ""}}]}
    assert refused(cluster, "deviceclasses", {"metadata": {"name": "c"}, "spec": spec}) == [
        (
            'spec.selectors[0].cel.expression: Invalid value: "": compilation failed: ERROR: '
            "<input>:1:1: Syntax error: mismatched input '<EOF>'"
        ),
        'spec.extendedResourceName: Invalid value: "cpu": must be a valid extended resource name',
    ]


@pytest.mark.parametrize(
    ("resource", "obj"),
    [
        ("resourceclaims", claim(exactly(capacity={"requests": {"m": "1 Gi"}}))),
        ("resourceclaims", claim(exactly(count="2"))),
        ("resourceslices", a_slice({"name": "d", "capacity": {"m": {"value": "x"}}})),
        ("resourceslices", a_slice({"name": "d", "attributes": {"m": {"int": "x"}}})),
    ],
)
def test_wrong_types_and_quantities(cluster: EmbeddedCluster, resource: str, obj: Object) -> None:
    with pytest.raises(StatusError) as raised:
        cluster.create(resource, obj)
    assert raised.value.code == 400


def test_admin_access_needs_a_label_of_the_namespace(cluster: EmbeddedCluster) -> None:
    obj = claim(exactly(adminAccess=True))
    assert refused(cluster, "resourceclaims", obj) == [
        (
            "spec.devices.requests[0].adminAccess: Forbidden: admin access to devices requires the "
            "`resource.kubernetes.io/admin-access: true` label on the containing namespace"
        )
    ]
    cluster.patch("namespaces", "default", {"metadata": {"labels": {ADMIN_LABEL: "true"}}})
    cluster.create("resourceclaims", obj)


# -- updates --------------------------------------------------------------------------------------


def allocated(cluster: EmbeddedCluster, **status: Any) -> Object:
    body = {"allocation": {"devices": {"results": [RESULT]}}, **status}
    return cluster.patch(
        "resourceclaims", "c", {"status": body}, namespace="default", subresource="status"
    )


def status_refused(cluster: EmbeddedCluster, status: Object) -> str:
    with pytest.raises(StatusError) as raised:
        cluster.patch(
            "resourceclaims", "c", {"status": status}, namespace="default", subresource="status"
        )
    assert raised.value.code == 422
    return raised.value.message


def consumers(count: int) -> list[Object]:
    return [{"resource": "pods", "name": f"p{i}", "uid": f"u{i}"} for i in range(count)]


def test_specs_are_immutable(cluster: EmbeddedCluster) -> None:
    cluster.create("resourceclaims", claim(exactly()))
    with pytest.raises(StatusError, match=r"spec: Invalid value: \{.*\}: field is immutable"):
        cluster.patch(
            "resourceclaims", "c", {"spec": {"devices": {"requests": []}}}, namespace="default"
        )
    cluster.patch("resourceclaims", "c", {"metadata": {"labels": {"a": "b"}}}, namespace="default")
    cluster.create("resourceslices", a_slice({"name": "d"}))
    with pytest.raises(StatusError, match=r"spec.nodeName: .*field is immutable"):
        cluster.patch("resourceslices", "s", {"spec": {"nodeName": "m"}})
    patch = {"spec": {"devices": [{"name": "e"}]}}
    assert cluster.patch("resourceslices", "s", patch)["metadata"]["generation"] == 2


def test_allocation_is_immutable(cluster: EmbeddedCluster) -> None:
    cluster.create("resourceclaims", claim(exactly()))
    allocated(cluster, reservedFor=consumers(256))
    prefix = 'ResourceClaim.resource.k8s.io "c" is invalid: '
    stamped = {"allocation": {"allocationTimestamp": "2026-01-01T00:00:00Z"}}
    assert status_refused(cluster, stamped).startswith(f"{prefix}status.allocation: Invalid value:")
    assert status_refused(cluster, {"reservedFor": consumers(257)}) == (
        f"{prefix}status.reservedFor: Too many: 257: must have at most 256 items"
    )
    assert status_refused(cluster, {"allocation": None}) == (
        f"{prefix}status.reservedFor: Forbidden: may not be specified when `allocated` is not set"
    )
    freed = {"status": {"allocation": None, "reservedFor": None}}
    cluster.patch("resourceclaims", "c", freed, namespace="default", subresource="status")


def test_new_allocations_are_checked(cluster: EmbeddedCluster) -> None:
    cluster.create("resourceclaims", claim(exactly()))
    results = [RESULT | {"request": "other", "pool": "", "shareID": "x"}]
    message = status_refused(cluster, {"allocation": {"devices": {"results": results}}})
    assert 'results[0].request: Invalid value: "other": must be the name of a request' in message
    assert "results[0].pool: Required value" in message
    assert 'results[0].shareID: Invalid value: "x": uid must be in RFC 4122' in message
    results = [RESULT] * 33
    assert "results: Too many: 33: must have at most 32 items" in status_refused(
        cluster, {"allocation": {"devices": {"results": results}}}
    )


def test_reservation_of_a_deleted_claim(cluster: EmbeddedCluster) -> None:
    obj = claim(exactly())
    obj["metadata"]["finalizers"] = ["example.com/keep"]
    cluster.create("resourceclaims", obj)
    allocated(cluster, reservedFor=consumers(1))
    cluster.delete("resourceclaims", "c", namespace="default")
    assert "new entries may not be added while `deallocationRequested`" in status_refused(
        cluster, {"reservedFor": consumers(2)}
    )
    allocated(cluster, reservedFor=None)


def test_status_of_devices(cluster: EmbeddedCluster) -> None:
    cluster.create("resourceclaims", claim(exactly()))
    device = {field: RESULT[field] for field in ("driver", "pool", "device")}
    other = device | {"device": "gpu-1"}
    allocated(cluster, devices=[device])
    assert "status.devices[0]: Invalid value: " in status_refused(cluster, {"devices": [other]})
    freed = {"status": {"allocation": None}}
    found = cluster.patch("resourceclaims", "c", freed, namespace="default", subresource="status")
    assert found["status"] == {}


@pytest.mark.parametrize(
    ("metadata", "status", "state"),
    [
        ({}, {}, "pending"),
        ({}, {"allocation": {"devices": {}}}, "allocated"),
        ({}, {"allocation": {"devices": {}}, "reservedFor": [{}]}, "allocated,reserved"),
        ({"deletionTimestamp": "x"}, {"allocation": {"devices": {}}}, "deleted,allocated"),
        ({"deletionTimestamp": "x"}, {}, "deleted"),
    ],
)
def test_state_in_tables(metadata: Object, status: Object, state: str) -> None:
    columns = {c.name: c for c in table_columns("resourceclaims.resource.k8s.io")}
    assert [*columns] == ["Name", "State", "Age"]
    obj = {"metadata": metadata, "status": status}
    assert columns["State"].cell(obj, 0.0) == state


def test_columns_of_other_kinds() -> None:
    slices = table_columns("resourceslices.resource.k8s.io")
    assert [column.name for column in slices] == ["Name", "Node", "Driver", "Pool", "Age"]
    for plural in ("deviceclasses", "resourceclaimtemplates"):
        assert [c.name for c in table_columns(f"{plural}.resource.k8s.io")] == ["Name", "Age"]
