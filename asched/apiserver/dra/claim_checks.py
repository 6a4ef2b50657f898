"""Validation of ResourceClaims, ResourceClaimTemplates and DeviceClasses."""

from __future__ import annotations

import re
from functools import partial
from typing import Any, Final

from asched.apiserver.dra.checks import (
    MAX_CONFIGS,
    MAX_SELECTORS,
    binding_condition_causes,
    configuration_causes,
    fully_qualified_name_causes,
    list_causes,
    name_of,
    node_selector_causes,
    pool_name_causes,
    raw_object_causes,
    selector_causes,
    set_causes,
    toleration_causes,
)
from asched.apiserver.errors import (
    Cause,
    Object,
    forbidden_value,
    immutable,
    invalid_value,
    not_supported,
    required,
    too_many,
)
from asched.apiserver.names import driver_name_causes, label_name_causes, subdomain_causes
from asched.model.requests import is_extended_resource

MAX_REQUESTS: Final = 32
"""Requests of a claim, devices of an allocation, and names in lists of requests."""
MAX_CONSUMERS: Final = 256
_MAX_ALTERNATIVES = 8
_MAX_CONSTRAINTS = 32
_MAX_TOLERATIONS = 16
_MAX_DEVICE_CONDITIONS = 8
_MAX_DEVICE_DATA_BYTES = 10 * 1024
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_REFERENCE_RULE = (
    "must be the name of a request in the claim or the name of a request and a subrequest separated"
    " by '/'"
)

RequestNames = dict[str, frozenset[str]]
"""The requests of a claim, each with its sub-requests."""


def claim_causes(claim: Object) -> list[Cause]:
    return claim_spec_causes("spec", claim.get("spec") or {})


def template_causes(template: Object) -> list[Cause]:
    spec = (template.get("spec") or {}).get("spec") or {}
    return claim_spec_causes("spec.spec", spec)


def claim_spec_causes(path: str, spec: Object) -> list[Cause]:
    devices, at = spec.get("devices") or {}, f"{path}.devices"
    names = request_names(devices)
    requests = devices.get("requests")
    causes = set_causes(f"{at}.requests", requests, MAX_REQUESTS, _request_causes, name_of)
    check_constraint = partial(_constraint_causes, names)
    causes += list_causes(
        f"{at}.constraints", devices.get("constraints"), _MAX_CONSTRAINTS, check_constraint
    )
    check_config = partial(_claim_configuration_causes, names)
    return causes + list_causes(f"{at}.config", devices.get("config"), MAX_CONFIGS, check_config)


def request_names(devices: Object) -> RequestNames:
    return {
        name_of(request): frozenset(name_of(sub) for sub in request.get("firstAvailable") or ())
        for request in devices.get("requests") or ()
    }


def _request_causes(path: str, request: Object) -> list[Cause]:
    causes = label_name_causes(f"{path}.name", name_of(request))
    exactly, alternatives = request.get("exactly"), request.get("firstAvailable")
    if exactly is None and not alternatives:
        rule = "exactly one of `exactly` or `firstAvailable` is required"
        causes.append(required(path, rule))
    elif exactly is not None and alternatives:
        rule = (
            "exactly one of `exactly` or `firstAvailable` is required, but multiple fields are set"
        )
        causes.append(Cause("FieldValueInvalid", f"Invalid value: null: {rule}", path))
    elif alternatives:
        at = f"{path}.firstAvailable"
        causes += set_causes(at, alternatives, _MAX_ALTERNATIVES, _sub_request_causes, name_of)
    else:
        causes += _device_request_causes(f"{path}.exactly", exactly or {})
    return causes


def _sub_request_causes(path: str, request: Object) -> list[Cause]:
    name = label_name_causes(f"{path}.name", name_of(request))
    return name + _device_request_causes(path, request)


def _device_request_causes(path: str, request: Object) -> list[Cause]:
    class_name, at = request.get("deviceClassName") or "", f"{path}.deviceClassName"
    causes = subdomain_causes(at, class_name) if class_name else [required(at)]
    causes += list_causes(
        f"{path}.selectors", request.get("selectors"), MAX_SELECTORS, selector_causes
    )
    mode, count = request.get("allocationMode") or "", request.get("count") or 0
    if mode == "All":
        if count:
            rule = "must not be specified when allocationMode is 'All'"
            causes.append(invalid_value(f"{path}.count", count, rule))
    elif mode != "ExactCount":
        causes.append(not_supported(f"{path}.allocationMode", mode, ("All", "ExactCount")))
    elif count <= 0:
        causes.append(invalid_value(f"{path}.count", count, "must be greater than zero"))
    tolerations = request.get("tolerations")
    return causes + list_causes(
        f"{path}.tolerations", tolerations, _MAX_TOLERATIONS, toleration_causes
    )


def _constraint_causes(names: RequestNames, path: str, constraint: Object) -> list[Cause]:
    causes = _reference_list_causes(names, path, constraint)
    match, distinct = constraint.get("matchAttribute"), constraint.get("distinctAttribute")
    if match is not None:
        causes += fully_qualified_name_causes(f"{path}.matchAttribute", match)
    elif distinct is not None:
        causes += fully_qualified_name_causes(f"{path}.distinctAttribute", distinct)
    else:
        rule = (
            'exactly one of "matchAttribute" or "distinctAttribute" is required, but multiple '
            "fields are set"
        )
        causes.append(required(path, rule))
    return causes


def _claim_configuration_causes(names: RequestNames, path: str, config: Object) -> list[Cause]:
    return _reference_list_causes(names, path, config) + configuration_causes(path, config)


def _reference_list_causes(names: RequestNames, path: str, holder: Object) -> list[Cause]:
    check = partial(_reference_causes, names)
    return set_causes(f"{path}.requests", holder.get("requests"), MAX_REQUESTS, check)


def _reference_causes(names: RequestNames, path: str, reference: str) -> list[Cause]:
    request, *sub_requests = reference.split("/")
    if len(sub_requests) > 1:
        return [invalid_value(path, reference, _REFERENCE_RULE)]
    causes = [cause for part in (request, *sub_requests) for cause in label_name_causes(path, part)]
    known = names.get(request)
    if known is None or not known.issuperset(sub_requests):
        causes.append(invalid_value(path, reference, _REFERENCE_RULE))
    return causes


# -- classes --------------------------------------------------------------------------------------


def device_class_causes(device_class: Object) -> list[Cause]:
    spec = device_class.get("spec") or {}
    causes = list_causes("spec.selectors", spec.get("selectors"), MAX_SELECTORS, selector_causes)
    causes += list_causes("spec.config", spec.get("config"), MAX_CONFIGS, configuration_causes)
    name = spec.get("extendedResourceName")
    if name is not None and not is_extended_resource(name):
        rule = "must be a valid extended resource name"
        causes.append(invalid_value("spec.extendedResourceName", name, rule))
    return causes


# -- updates --------------------------------------------------------------------------------------


def spec_update_causes(new: Object, old: Object) -> list[Cause]:
    """The spec of a claim or template is immutable."""
    if new.get("spec") == old.get("spec"):
        return []
    return [immutable("spec", new.get("spec"))]


def claim_status_causes(new: Object, old: Object) -> list[Cause]:
    """An update of ``status``."""
    status, before = new.get("status") or {}, old.get("status") or {}
    allocation, consumers = status.get("allocation"), status.get("reservedFor")
    causes = set_causes("status.reservedFor", consumers, MAX_CONSUMERS, _consumer_causes, _uid_of)
    allocated = {_device_key(r) for r in _results(allocation)}
    check_device = partial(_device_status_causes, allocated)
    causes += set_causes("status.devices", status.get("devices"), None, check_device, _device_key)
    if consumers and allocation is None:
        rule = "may not be specified when `allocated` is not set"
        causes.append(forbidden_value("status.reservedFor", rule))
    elif consumers and new["metadata"].get("deletionTimestamp"):
        known = before.get("reservedFor") or ()
        if any(consumer not in known for consumer in consumers):
            rule = (
                "new entries may not be added while `deallocationRequested` or "
                "`deletionTimestamp` are set"
            )
            causes.append(forbidden_value("status.reservedFor", rule))
    if allocation is not None and before.get("allocation") is not None:
        if allocation != before["allocation"]:
            causes.append(immutable("status.allocation", allocation))
    elif allocation is not None:
        names = request_names((new.get("spec") or {}).get("devices") or {})
        causes += _allocation_causes(names, allocation)
    return causes


def without_deallocated_devices(new: Object, old: Object) -> Object:
    """``new`` without the status of devices that the update deallocates."""
    status = new.get("status") or {}
    if not status.get("devices"):
        return new
    was_allocated = {_device_key(r) for r in _results((old.get("status") or {}).get("allocation"))}
    gone = was_allocated - {_device_key(r) for r in _results(status.get("allocation"))}
    devices = [device for device in status["devices"] if _device_key(device) not in gone]
    kept = {key: value for key, value in status.items() if key != "devices"}
    if devices:
        kept["devices"] = devices
    return {**new, "status": kept}


def _results(allocation: Any) -> list[Object]:
    return ((allocation or {}).get("devices") or {}).get("results") or []


def _device_key(device: Object) -> tuple[str, ...]:
    return tuple(device.get(field) or "" for field in ("driver", "pool", "device", "shareID"))


def _uid_of(consumer: Object) -> str:
    return consumer.get("uid") or ""


def _consumer_causes(path: str, consumer: Object) -> list[Cause]:
    fields = ("resource", "name", "uid")
    return [required(f"{path}.{field}") for field in fields if not consumer.get(field)]


def _allocation_causes(names: RequestNames, allocation: Object) -> list[Cause]:
    path = "status.allocation"
    devices = allocation.get("devices") or {}
    check_result = partial(_result_causes, names)
    causes = list_causes(
        f"{path}.devices.results", devices.get("results"), MAX_REQUESTS, check_result
    )
    check_config = partial(_allocation_configuration_causes, names)
    causes += list_causes(
        f"{path}.devices.config", devices.get("config"), 2 * MAX_CONFIGS, check_config
    )
    if allocation.get("nodeSelector") is not None:
        causes += node_selector_causes(f"{path}.nodeSelector", allocation["nodeSelector"])
    return causes


def _result_causes(names: RequestNames, path: str, result: Object) -> list[Cause]:
    causes = _reference_causes(names, f"{path}.request", result.get("request") or "")
    causes += _allocated_device_causes(path, result)
    return causes + binding_condition_causes(path, result)


def _allocated_device_causes(path: str, device: Object) -> list[Cause]:
    causes = driver_name_causes(f"{path}.driver", device.get("driver") or "")
    causes += pool_name_causes(f"{path}.pool", device.get("pool") or "")
    causes += label_name_causes(f"{path}.device", device.get("device") or "")
    share_id = device.get("shareID")
    if share_id is not None and not _UUID.fullmatch(share_id):
        rule = (
            "uid must be in RFC 4122 normalized form, `xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx` with "
            "lowercase hexadecimal characters"
        )
        causes.append(invalid_value(f"{path}.shareID", share_id, rule))
    return causes


def _allocation_configuration_causes(names: RequestNames, path: str, config: Object) -> list[Cause]:
    source = config.get("source") or ""
    causes: list[Cause] = []
    if not source:
        causes.append(required(f"{path}.source"))
    elif source not in ("FromClaim", "FromClass"):
        causes.append(not_supported(f"{path}.source", source, ("FromClaim", "FromClass")))
    return causes + _claim_configuration_causes(names, path, config)


def _device_status_causes(
    allocated: set[tuple[str, ...]], path: str, device: Object
) -> list[Cause]:
    causes = _allocated_device_causes(path, device)
    key = _device_key(device)
    if key not in allocated:
        shown = "/".join(part for part in key if part)
        causes.append(invalid_value(path, shown, "must be an allocated device in the claim"))
    conditions = device.get("conditions") or ()
    if len(conditions) > _MAX_DEVICE_CONDITIONS:
        causes.append(too_many(f"{path}.conditions", len(conditions), _MAX_DEVICE_CONDITIONS))
    if device.get("data") is not None:
        causes += raw_object_causes(f"{path}.data", device["data"], _MAX_DEVICE_DATA_BYTES)
    return causes
