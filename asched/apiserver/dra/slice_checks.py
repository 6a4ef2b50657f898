"""Validation of ResourceSlices."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from asched.apiserver.dra.checks import (
    binding_condition_causes,
    list_causes,
    name_of,
    node_selector_causes,
    pool_name_causes,
    qualified_name_causes,
    set_causes,
    taint_causes,
)
from asched.apiserver.errors import (
    Cause,
    Object,
    forbidden_value,
    immutable,
    invalid_value,
    required,
    too_long,
    too_many,
)
from asched.apiserver.names import driver_name_causes, label_name_causes, subdomain_causes
from asched.model.quantity import thousandths, value

MAX_DEVICES: Final = 128
MAX_DEVICES_WITH_FEATURES: Final = 64
"""Devices of a slice if any has taints or consumes counters."""
_MAX_ATTRIBUTES = 32
_MAX_TAINTS = 16
_MAX_VALUE_BYTES = 64
_MAX_COUNTER_SETS = 8
_MAX_COUNTERS = 32
_MAX_CONSUMPTIONS = 2
_MAX_VALID_VALUES = 10
_SEMVER = re.compile(
    r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)"
    r"(-(0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)(\.(0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*))*)?"
    r"(\+[0-9a-zA-Z-]+(\.[0-9a-zA-Z-]+)*)?"
)
_NODE_FIELDS = ("nodeName", "nodeSelector", "allNodes")


def slice_causes(item: Object) -> list[Cause]:
    spec = item.get("spec") or {}
    causes = driver_name_causes("spec.driver", spec.get("driver") or "")
    causes += _pool_causes("spec.pool", spec.get("pool") or {})
    causes += _node_causes("spec", spec, (*_NODE_FIELDS, "perDeviceNodeSelection"))
    devices, counter_sets = spec.get("devices"), spec.get("sharedCounters")
    if devices is not None and counter_sets is not None:
        rule = "only one of `sharedCounters` or `devices` is allowed"
        causes.append(invalid_value("spec", "", rule))
    extended = any(d.get("taints") or d.get("consumesCounters") for d in devices or ())
    most = MAX_DEVICES_WITH_FEATURES if extended else MAX_DEVICES
    check_device = partial(_device_causes, bool(spec.get("perDeviceNodeSelection")))
    causes += set_causes("spec.devices", devices, most, check_device, name_of)
    return causes + set_causes(
        "spec.sharedCounters", counter_sets, _MAX_COUNTER_SETS, _counter_set_causes, name_of
    )


def slice_update_causes(new: Object, old: Object) -> list[Cause]:
    spec, before = new.get("spec") or {}, old.get("spec") or {}
    pool, pool_before = spec.get("pool") or {}, before.get("pool") or {}
    fields = (
        ("spec.pool.name", pool.get("name"), pool_before.get("name")),
        ("spec.driver", spec.get("driver"), before.get("driver")),
        ("spec.nodeName", spec.get("nodeName"), before.get("nodeName")),
    )
    return [immutable(path, now) for path, now, then in fields if now != then]


def _pool_causes(path: str, pool: Object) -> list[Cause]:
    causes = pool_name_causes(f"{path}.name", pool.get("name") or "")
    count, generation = pool.get("resourceSliceCount") or 0, pool.get("generation") or 0
    if count <= 0:
        at = f"{path}.resourceSliceCount"
        causes.append(invalid_value(at, count, "must be greater than zero"))
    if generation < 0:
        rule = "must be greater than or equal to zero"
        causes.append(invalid_value(f"{path}.generation", generation, rule))
    return causes


def _node_causes(path: str, holder: Object, fields: tuple[str, ...]) -> list[Cause]:
    """Exactly one of ``fields`` selects the nodes."""
    causes: list[Cause] = []
    given = []
    for field in fields:
        found, at = holder.get(field), f"{path}.{field}"
        if found is None:
            continue
        if found is False:
            causes.append(invalid_value(at, "false", "must be either unset or set to true"))
            continue
        if found == "":
            rule = "must be either unset or set to a non-empty string"
            causes.append(invalid_value(at, "", rule))
            continue
        given.append(f"`{field}`")
        if field == "nodeName":
            causes += subdomain_causes(at, found)
        elif field == "nodeSelector":
            causes += _single_term_causes(at, found)
    if len(given) == 1:
        return causes
    listed = ", ".join(f"`{field}`" for field in fields)
    rule = f"exactly one of {listed} is required"
    if not given:
        return [*causes, required(path, rule)]
    rule += ", but multiple fields are set"
    return [*causes, invalid_value(path, f"{{{', '.join(given)}}}", rule)]


def _single_term_causes(path: str, selector: Object) -> list[Cause]:
    causes = node_selector_causes(path, selector)
    if len(selector.get("nodeSelectorTerms") or ()) != 1:
        at = f"{path}.nodeSelectorTerms"
        causes.append(invalid_value(at, "", "must have exactly one node selector term"))
    return causes


def _device_causes(selects_nodes: bool, path: str, device: Object) -> list[Cause]:
    causes = label_name_causes(f"{path}.name", name_of(device))
    attributes, capacity = device.get("attributes") or {}, device.get("capacity") or {}
    count = len(attributes) + len(capacity)
    if count > _MAX_ATTRIBUTES:
        rule = f"the total number of attributes and capacities must not exceed {_MAX_ATTRIBUTES}"
        causes.append(invalid_value(path, count, rule))
    causes += _map_causes(
        f"{path}.attributes", attributes, qualified_name_causes, _attribute_causes
    )
    check_capacity = partial(_capacity_causes, bool(device.get("allowMultipleAllocations")))
    causes += _map_causes(f"{path}.capacity", capacity, qualified_name_causes, check_capacity)
    causes += list_causes(f"{path}.taints", device.get("taints"), _MAX_TAINTS, taint_causes)
    causes += set_causes(
        f"{path}.consumesCounters",
        device.get("consumesCounters"),
        _MAX_CONSUMPTIONS,
        _consumption_causes,
        lambda consumption: consumption.get("counterSet") or "",
    )
    if selects_nodes:
        causes += _node_causes(path, device, _NODE_FIELDS)
    elif any(device.get(field) is not None for field in _NODE_FIELDS):
        rule = (
            "`nodeName`, `nodeSelector` and `allNodes` can only be set if `perDeviceNodeSelection` "
            "is set to true in the ResourceSlice spec"
        )
        causes.append(Cause("FieldValueInvalid", f"Invalid value: null: {rule}", path))
    return causes + binding_condition_causes(path, device)


def _map_causes(
    path: str,
    items: Mapping[str, Any],
    check_key: Callable[[str, str], list[Cause]],
    check: Callable[[str, Any], list[Cause]],
) -> list[Cause]:
    causes: list[Cause] = []
    for key, item in items.items():
        causes += check_key(path, key) + check(f"{path}[{key}]", item)
    return causes


def _attribute_causes(path: str, attribute: Object) -> list[Cause]:
    causes: list[Cause] = []
    text, version = attribute.get("string"), attribute.get("version")
    if text is not None and len(text.encode()) > _MAX_VALUE_BYTES:
        causes.append(too_long(f"{path}.string", _MAX_VALUE_BYTES))
    if version is not None:
        if not _SEMVER.fullmatch(version):
            rule = "must be a string compatible with semver.org spec 2.0.0"
            causes.append(invalid_value(f"{path}.version", version, rule))
        if len(version.encode()) > _MAX_VALUE_BYTES:
            causes.append(too_long(f"{path}.version", _MAX_VALUE_BYTES))
    given = [f for f in ("bool", "int", "string", "version") if attribute.get(f) is not None]
    if len(given) != 1:
        causes.append(invalid_value(path, "", "exactly one value must be specified"))
    return causes


def _capacity_causes(multiple: bool, path: str, capacity: Object) -> list[Cause]:
    policy, at = capacity.get("requestPolicy"), f"{path}.requestPolicy"
    if policy is None:
        return []
    if not multiple:
        return [forbidden_value(at, "allowMultipleAllocations must be true")]
    values, limits = policy.get("validValues"), policy.get("validRange")
    if values and limits is not None:
        rule = (
            'exactly one policy can be specified, cannot specify "validValues" and "validRange" at '
            "the same time"
        )
        return [forbidden_value(at, rule)]
    if not values and limits is None:
        return []
    default, field = policy.get("default"), "validValues" if values else "validRange"
    if default is None:
        return [required(f"{at}.default", f"required when {field} is defined")]
    most = str(capacity.get("value") or "0")
    if values:
        return _valid_value_causes(f"{at}.validValues", values, str(default), most)
    return _range_causes(f"{at}.validRange", limits, str(default), most)


def _valid_value_causes(path: str, values: list[str], default: str, most: str) -> list[Cause]:
    amounts = [thousandths(each) for each in values]
    causes = [
        invalid_value(f"{path}[{i}]", values[i], "values must be sorted in ascending order")
        for i in range(1, len(values))
        if amounts[i - 1] > amounts[i]
    ]

    def check(at: str, option: str) -> list[Cause]:
        if thousandths(option) <= thousandths(most):
            return []
        return [invalid_value(at, option, f"option is larger than capacity value: {most}")]

    causes += set_causes(path, values, _MAX_VALID_VALUES, check, lambda each: str(value(each)))
    if thousandths(default) not in amounts:
        rule = "default value is not valid according to the requestPolicy"
        causes.append(invalid_value(path, default, rule))
    return causes


def _range_causes(path: str, limits: Object, default: str, most: str) -> list[Cause]:
    least, highest, step = limits.get("min"), limits.get("max"), limits.get("step")
    if least is None:
        return [required(f"{path}.min", "required when validRange is defined")]
    found: list[tuple[bool, str, str, str]] = [
        (_more(least, most), "min", least, f"min is larger than capacity value: {most}"),
        (_more(least, default), "min", default, f"default is less than min: {least}"),
    ]
    if highest is not None:
        found += [
            (_more(least, highest), "max", least, f"min is larger than max: {highest}"),
            (_more(highest, most), "max", highest, f"max is larger than capacity value: {most}"),
            (_more(default, highest), "max", default, f"default is more than max: {highest}"),
        ]
    for number in (default, highest) if step is not None and value(step) else ():
        if number is not None:
            off = (value(number) - value(least)) % value(step)
            rule = f"value is not a multiple of a given step ({step}) from ({least})"
            found.append((off != 0, "step", number, rule))
    return [invalid_value(f"{path}.{f}", shown, rule) for bad, f, shown, rule in found if bad]


def _more(first: str, second: str) -> bool:
    return thousandths(first) > thousandths(second)


def _counter_set_causes(path: str, counter_set: Object) -> list[Cause]:
    name, at = name_of(counter_set), f"{path}.name"
    causes = label_name_causes(at, name) if name else [required(at)]
    return causes + _counters_causes(f"{path}.counters", counter_set.get("counters"))


def _consumption_causes(path: str, consumption: Object) -> list[Cause]:
    name, at = consumption.get("counterSet") or "", f"{path}.counterSet"
    causes = label_name_causes(at, name) if name else [required(at)]
    return causes + _counters_causes(f"{path}.counters", consumption.get("counters"))


def _counters_causes(path: str, counters: Mapping[str, Object] | None) -> list[Cause]:
    if not counters:
        return [required(path)]
    if len(counters) > _MAX_COUNTERS:
        return [too_many(path, len(counters), _MAX_COUNTERS)]
    return [cause for name in counters for cause in label_name_causes(path, name)]
