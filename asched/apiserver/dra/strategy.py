"""What creating and updating objects of ``resource.k8s.io`` checks and completes.

Sources: pkg/registry/resource of Kubernetes 1.36, with the feature gates that are on by default.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import msgspec

from asched.apiserver.dra import claim_checks, defaults, slice_checks
from asched.apiserver.errors import Cause, Object, forbidden_value, invalid, undecodable
from asched.apiserver.resources import ServedResource
from asched.model.claim_limits import invalid_quantity
from asched.model.meta import Object as ModelObject
from asched.model.resource_claims import DeviceClass, ResourceClaim, ResourceSlice

if TYPE_CHECKING:
    from asched.apiserver.api import ObjectApi

GROUP: Final = "resource.k8s.io"
CLAIMS: Final = f"resourceclaims.{GROUP}"
TEMPLATES: Final = f"resourceclaimtemplates.{GROUP}"
SLICES: Final = f"resourceslices.{GROUP}"
CLASSES: Final = f"deviceclasses.{GROUP}"
BINDING: Final = "resourceclaims/binding"
"""Not served: a permission of its own for some fields of ``resourceclaims/status``."""
ADMIN_LABEL: Final = "resource.kubernetes.io/admin-access"

_TYPES: dict[str, type[ModelObject]] = {
    CLAIMS: ResourceClaim, SLICES: ResourceSlice, CLASSES: DeviceClass,
}  # fmt: skip
CHECKS: dict[str, Callable[[Object], list[Cause]]] = {
    CLAIMS: claim_checks.claim_causes,
    TEMPLATES: claim_checks.template_causes,
    CLASSES: claim_checks.device_class_causes,
    SLICES: slice_checks.slice_causes,
}
"""The validation of new objects."""
_UPDATE_CHECKS: dict[str, Callable[[Object, Object], list[Cause]]] = {
    CLAIMS: claim_checks.spec_update_causes,
    TEMPLATES: claim_checks.spec_update_causes,
    SLICES: slice_checks.slice_update_causes,
}


def check_types(resource: ServedResource, obj: Object) -> None:
    """Raises StatusError 400 for a field of a wrong type, or an invalid quantity."""
    object_type = _TYPES.get(resource.storage_key)
    if object_type is None:
        return
    try:
        decoded = msgspec.convert(_without_nulls(obj), object_type)
    except msgspec.ValidationError as error:
        raise undecodable(resource.kind, resource.version, str(error)) from None
    problem = invalid_quantity(decoded)
    if problem:
        raise undecodable(resource.kind, resource.version, problem)


def _without_nulls(json_value: Any) -> Any:
    if isinstance(json_value, dict):
        return {k: _without_nulls(v) for k, v in json_value.items() if v is not None}
    if isinstance(json_value, list):
        return [_without_nulls(v) for v in json_value]
    return json_value


def admit_new(api: ObjectApi, resource: ServedResource, obj: Object, now: str) -> None:
    """Complete a new object. Raises StatusError 422 for admin access in another namespace."""
    key = resource.storage_key
    if key == SLICES:
        defaults.default_taint_times(obj, now)
    elif key in (CLAIMS, TEMPLATES):
        spec = obj.get("spec") or {}
        devices = (spec if key == CLAIMS else spec.get("spec") or {}).get("devices") or {}
        for index, request in enumerate(devices.get("requests") or ()):
            if (request.get("exactly") or {}).get("adminAccess"):
                path = f"spec.devices.requests[{index}].adminAccess"
                _require_admin_namespace(api, resource, obj, path)
                return


def complete_update(resource: ServedResource, new: Object, now: str) -> None:
    if resource.storage_key == SLICES:
        defaults.default_taint_times(new, now)


def check_update(resource: ServedResource, new: Object, old: Object) -> None:
    """Raises StatusError 422 if an update changes an immutable field."""
    check = _UPDATE_CHECKS.get(resource.storage_key)
    causes = check(new, old) if check is not None else []
    if causes:
        raise invalid(resource.kind, resource.group, new["metadata"]["name"], causes)


def updated_status(api: ObjectApi, resource: ServedResource, new: Object, old: Object) -> Object:
    """``new`` as an update of the status stores it. Raises StatusError 400 and 422."""
    if resource.storage_key != CLAIMS:
        return new
    check_types(resource, new)
    new = claim_checks.without_deallocated_devices(new, old)
    defaults.default_allocation(new)
    before, allocation = old.get("status") or {}, (new.get("status") or {}).get("allocation")
    if allocation is not None and before.get("allocation") is None:
        results = (allocation.get("devices") or {}).get("results") or ()
        for index, result in enumerate(results):
            if result.get("adminAccess"):
                path = f"status.allocation.devices.results[{index}].adminAccess"
                _require_admin_namespace(api, resource, new, path)
                break
    causes = claim_checks.claim_status_causes(new, old)
    if causes:
        raise invalid(resource.kind, resource.group, new["metadata"]["name"], causes)
    return new


def check_binding(new: Object, old: Object, verb: str, *, may_bind: bool) -> None:
    """Raises StatusError 422 if the user may not change what a claim has and which pods use it
    (``AuthorizedForBinding``)."""
    status, before = new.get("status") or {}, old.get("status") or {}
    bound = ("allocation", "reservedFor")
    if may_bind or all((status.get(f) or None) == (before.get(f) or None) for f in bound):
        return
    rule = (
        "changing status.allocation or status.reservedFor requires "
        f'resource="{BINDING}", verb="{verb}" permission: permission denied'
    )
    name = old["metadata"]["name"]
    raise invalid("ResourceClaim", GROUP, name, [forbidden_value("status.allocation", rule)])


def _require_admin_namespace(
    api: ObjectApi, resource: ServedResource, obj: Object, path: str
) -> None:
    metadata = obj["metadata"]
    found = api.find("namespaces", "", metadata["namespace"])
    labels = (found.obj["metadata"].get("labels") or {}) if found is not None else {}
    if labels.get(ADMIN_LABEL) != "true":
        rule = (
            f"admin access to devices requires the `{ADMIN_LABEL}: true` label on the containing "
            "namespace"
        )
        name = metadata.get("name") or ""
        raise invalid(resource.kind, resource.group, name, [forbidden_value(path, rule)])
