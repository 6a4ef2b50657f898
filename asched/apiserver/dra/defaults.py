"""Defaulting of ``resource.k8s.io/v1``: pkg/apis/resource/v1/defaults.go, and tags of its types.

The functions change their argument.
"""

from __future__ import annotations

from collections.abc import Iterable

from asched.apiserver.errors import Object


def default_claim(claim: Object) -> None:
    default_claim_spec(claim.get("spec") or {})
    default_allocation(claim)


def default_template(template: Object) -> None:
    default_claim_spec((template.get("spec") or {}).get("spec") or {})


def default_claim_spec(spec: Object) -> None:
    for request in (spec.get("devices") or {}).get("requests") or ():
        if isinstance(request.get("exactly"), dict):
            _default_request(request["exactly"])
        for alternative in request.get("firstAvailable") or ():
            _default_request(alternative)


def default_allocation(claim: Object) -> None:
    """The tolerations that an allocation copies."""
    allocation = (claim.get("status") or {}).get("allocation") or {}
    for result in (allocation.get("devices") or {}).get("results") or ():
        _default_tolerations(result.get("tolerations") or ())


def _default_request(request: Object) -> None:
    if not request.get("allocationMode"):
        request["allocationMode"] = "ExactCount"
    if request["allocationMode"] == "ExactCount" and not request.get("count"):
        request["count"] = 1
    _default_tolerations(request.get("tolerations") or ())


def _default_tolerations(tolerations: Iterable[Object]) -> None:
    for toleration in tolerations:
        if not toleration.get("operator"):
            toleration["operator"] = "Equal"


def default_taint_times(item: Object, now: str) -> None:
    """The taints of the devices of a slice."""
    for device in (item.get("spec") or {}).get("devices") or ():
        for taint in device.get("taints") or ():
            taint.setdefault("timeAdded", now)
