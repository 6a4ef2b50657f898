"""Objects about devices, as the API server returns them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import msgspec

from asched.model.node import Node
from asched.model.pod import Pod
from asched.model.resource_claims import DeviceClass, ResourceClaim, ResourceSlice
from tests.plugins.volume_clusters import a_node, api

DRIVER = "gpu.example.com"
OWN_DRIVER = f'device.driver == "{DRIVER}"'


def a_device_node(name: str, **status: Any) -> Node:
    return cast(Node, a_node(name, **status))


def a_class(name: str = "gpu", expression: str = OWN_DRIVER, **spec: Any) -> DeviceClass:
    selectors = [{"cel": {"expression": expression}}] if expression else []
    return cast(DeviceClass, api("DeviceClass", name, spec={"selectors": selectors, **spec}))


def a_slice(node: str, *devices: str | dict[str, Any], name: str = "") -> ResourceSlice:
    listed = [{"name": each} if isinstance(each, str) else each for each in devices]
    spec = {
        "driver": DRIVER,
        "nodeName": node,
        "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
        "devices": listed,
    }
    return cast(ResourceSlice, api("ResourceSlice", name or f"{node}-gpus", spec=spec))


def a_request(name: str = "r", count: int = 1, **exactly: Any) -> dict[str, Any]:
    return {"name": name, "exactly": {"deviceClassName": "gpu", "count": count, **exactly}}


def a_claim(
    name: str, *requests: dict[str, Any], allocation: Any = None, **fields: Any
) -> ResourceClaim:
    status = fields.pop("status", {})
    if allocation is not None:
        status = {"allocation": allocation, **status}
    spec = {"devices": {"requests": requests or [a_request()]}}
    claim = api("ResourceClaim", name, "d", spec=spec, status=status, **fields)
    return cast(ResourceClaim, claim)


def a_special_claim(pod: str) -> ResourceClaim:
    """The claim for the extended resources of a pod."""
    owner = {"kind": "Pod", "name": pod, "uid": f"Pod-{pod}", "controller": True}
    marked = {"resource.kubernetes.io/extended-resource-claim": "true"}
    owners = [{"apiVersion": "v1", **owner}]
    return a_claim("x", annotations=marked, ownerReferences=owners)


def an_allocation(node: str, *devices: str) -> dict[str, Any]:
    here = {"key": "metadata.name", "operator": "In", "values": [node]}
    results = [{"request": "r", "driver": DRIVER, "pool": node, "device": d} for d in devices]
    return {
        "devices": {"results": results},
        "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [here]}]},
        "allocationTimestamp": "2026-01-01T00:00:00Z",
    }


def a_pod(name: str, *claims: str, resources: Iterable[dict[str, str]] = (), **spec: Any) -> Pod:
    """A pod of namespace ``d`` with these claims, and a container for each of ``resources``."""
    entries = [{"name": claim, "resourceClaimName": claim} for claim in claims]
    containers = [
        {"name": f"c{number}", "resources": {"requests": requests}}
        for number, requests in enumerate(resources)
    ]
    pod = api("Pod", name, "d", spec={"resourceClaims": entries, "containers": containers, **spec})
    return cast(Pod, pod)


def with_allocation(claim: ResourceClaim, allocation: Any) -> ResourceClaim:
    plain = msgspec.to_builtins(claim)
    plain["status"] = {"allocation": msgspec.to_builtins(allocation)}
    return msgspec.convert(plain, ResourceClaim)
