"""The columns of each resource's table, as the printers of kube-apiserver define them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from asched.apiserver.cells import (
    AGE,
    NAME,
    NONE,
    UNKNOWN,
    Cell,
    Column,
    Object,
    age,
    at,
    count,
    created_at,
    joined,
    name_of,
    shown,
)
from asched.apiserver.object_columns import (
    CLAIMS,
    CLASSES,
    CSI_DRIVERS,
    CSI_NODES,
    DAEMON_SETS,
    DEPLOYMENTS,
    JOBS,
    POD_CELLS,
    REPLICAS,
    SERVICES,
    STATEFUL_SETS,
    VOLUMES,
)
from asched.apiserver.resources import BUILT_IN

# --- nodes ---------------------------------------------------------------------------------------


def _node_status(node: Object, _: float) -> Any:
    conditions = (node.get("status") or {}).get("conditions") or ()
    ready = next((c.get("status") for c in conditions if c.get("type") == "Ready"), None)
    shown = ["Unknown" if ready is None else "Ready" if ready == "True" else "NotReady"]
    if (node.get("spec") or {}).get("unschedulable"):
        shown.append("SchedulingDisabled")
    return ",".join(shown)


def _node_roles(node: Object, _: float) -> Any:
    roles = set()
    for key, value in (node["metadata"].get("labels") or {}).items():
        if key.startswith("node-role.kubernetes.io/"):
            roles.add(key.removeprefix("node-role.kubernetes.io/"))
        elif key == "kubernetes.io/role" and value:
            roles.add(value)
    return joined(sorted(role for role in roles if role))


def _address(kind: str) -> Cell:
    def cell(node: Object, _: float) -> Any:
        addresses = (node.get("status") or {}).get("addresses") or ()
        return next((a.get("address", "") for a in addresses if a.get("type") == kind), NONE)

    return cell


def _node_info(field: str, empty: str) -> Cell:
    inner = at(f"status.nodeInfo.{field}")
    return lambda node, now_s: inner(node, now_s) or empty


_NODES = (
    NAME,
    Column("Status", _node_status),
    Column("Roles", _node_roles),
    AGE,
    Column("Version", at("status.nodeInfo.kubeletVersion")),
    Column("Internal-IP", _address("InternalIP"), priority=1),
    Column("External-IP", _address("ExternalIP"), priority=1),
    Column("OS-Image", _node_info("osImage", UNKNOWN), priority=1),
    Column("Kernel-Version", _node_info("kernelVersion", UNKNOWN), priority=1),
    Column("Container-Runtime", _node_info("containerRuntimeVersion", UNKNOWN), priority=1),
)

# --- events --------------------------------------------------------------------------------------


def _event_time(event: Object, *fields: str) -> Any:
    series = event.get("series") or {}
    for field in fields:
        value = series.get("lastObservedTime") if field == "series" else event.get(field)
        if value:
            return value
    return None


def _last_seen(event: Object, now_s: float) -> Any:
    return age(_event_time(event, "series", "lastTimestamp", "eventTime"), now_s)


def _first_seen(event: Object, now_s: float) -> Any:
    return age(_event_time(event, "firstTimestamp", "eventTime"), now_s)


def _event_object(event: Object, _: float) -> Any:
    about = event.get("involvedObject") or {}
    return f"{about.get('kind', '').lower()}/{about.get('name', '')}"


def _event_source(event: Object, _: float) -> Any:
    source = event.get("source") or {}
    if not source.get("component"):
        parts = (event.get("reportingComponent"), event.get("reportingInstance"))
    else:
        parts = (source["component"], source.get("host"))
    return ", ".join(part for part in parts if part)


def _event_count(event: Object, _: float) -> Any:
    series = event.get("series") or {}
    return series.get("count") or event.get("count") or 1


_EVENTS = (
    Column("Last Seen", _last_seen),
    Column("Type", at("type")),
    Column("Reason", at("reason")),
    Column("Object", _event_object),
    Column("Subobject", at("involvedObject.fieldPath"), priority=1),
    Column("Source", _event_source, priority=1),
    Column("Message", lambda event, _: str(event.get("message") or "").strip()),
    Column("First Seen", _first_seen, priority=1),
    Column("Count", _event_count, "integer", priority=1),
    Column("Name", name_of, priority=1, format="name"),
)

# --- the rest ------------------------------------------------------------------------------------

_BUDGETS = (
    NAME,
    Column("Min Available", shown("spec.minAvailable", "N/A")),
    Column("Max Unavailable", shown("spec.maxUnavailable", "N/A")),
    count("Allowed Disruptions", "status.disruptionsAllowed"),
    AGE,
)
_PRIORITY_CLASSES = (
    NAME,
    Column("Value", at("value", 0), "integer"),
    Column("Global-Default", lambda o, _: bool(o.get("globalDefault")), "boolean"),
    AGE,
    Column("PreemptionPolicy", at("preemptionPolicy")),
)
_PODS = (
    NAME,
    Column("Ready", POD_CELLS["ready"]),
    Column("Status", POD_CELLS["status"]),
    Column("Restarts", POD_CELLS["restarts"]),
    AGE,
    Column("IP", lambda o, _: (o.get("status") or {}).get("podIP") or NONE, priority=1),
    Column("Node", lambda o, _: (o.get("spec") or {}).get("nodeName") or NONE, priority=1),
    Column("Nominated Node", at("status.nominatedNodeName", NONE), priority=1),
    Column("Readiness Gates", POD_CELLS["gates"], priority=1),
)
_SIMPLE = (NAME, Column("Created At", created_at))

_COLUMNS: dict[str, tuple[Column, ...]] = {
    "pods": _PODS,
    "nodes": _NODES,
    "events": _EVENTS,
    "namespaces": (NAME, Column("Status", at("status.phase")), AGE),
    "configmaps": (
        NAME,
        Column("Data", lambda o, _: len(o.get("data") or ()) + len(o.get("binaryData") or ())),
        AGE,
    ),
    "secrets": (
        NAME,
        Column("Type", at("type")),
        Column("Data", lambda o, _: len(o.get("data") or ()), "integer"),
        AGE,
    ),
    "serviceaccounts": (
        NAME,
        Column("Secrets", lambda o, _: len(o.get("secrets") or ()), "integer"),
        AGE,
    ),
    "services": SERVICES,
    "persistentvolumes": VOLUMES,
    "persistentvolumeclaims": CLAIMS,
    "replicationcontrollers": REPLICAS,
    "replicasets.apps": REPLICAS,
    "deployments.apps": DEPLOYMENTS,
    "statefulsets.apps": STATEFUL_SETS,
    "daemonsets.apps": DAEMON_SETS,
    "jobs.batch": JOBS,
    "storageclasses.storage.k8s.io": CLASSES,
    "csinodes.storage.k8s.io": CSI_NODES,
    "csidrivers.storage.k8s.io": CSI_DRIVERS,
    "poddisruptionbudgets.policy": _BUDGETS,
    "priorityclasses.scheduling.k8s.io": _PRIORITY_CLASSES,
    "leases.coordination.k8s.io": (NAME, Column("Holder", at("spec.holderIdentity")), AGE),
    "runtimeclasses.node.k8s.io": (NAME, Column("Handler", at("handler")), AGE),
    "customresourcedefinitions.apiextensions.k8s.io": _SIMPLE,
}
_BUILT_IN_KEYS = frozenset(resource.storage_key for resource in BUILT_IN)


def columns_for(storage_key: str) -> tuple[Column, ...]:
    """The columns of a built-in resource; empty for a custom one."""
    if storage_key in _BUILT_IN_KEYS:
        return _COLUMNS.get(storage_key, _SIMPLE)
    return ()


_STEP = re.compile(
    r"\.(?P<key>[A-Za-z0-9_-]+|\\.[^.\[]+)"
    r"|\[(?P<index>\d+)\]"
    r"|\[\?\(@\.(?P<field>\w+)\s*==\s*[\"'](?P<value>[^\"']*)[\"']\)\]"
)


def _json_path(path: str) -> Callable[[Object], Any]:
    """The subset of JSONPath that printer columns use: keys, indexes, one equality filter."""
    steps = list(_STEP.finditer(path))

    def get(obj: Object) -> Any:
        value: Any = obj
        for step in steps:
            if step["key"] is not None:
                value = value.get(step["key"]) if isinstance(value, dict) else None
            elif not isinstance(value, list):
                return None
            elif step["index"] is not None:
                index = int(step["index"])
                value = value[index] if index < len(value) else None
            else:
                matching = (i for i in value if i.get(step["field"]) == step["value"])
                value = next(matching, None)
        return value

    return get


def custom_columns(declared: list[Object]) -> tuple[Column, ...]:
    """Columns of a custom resource: its additionalPrinterColumns, or NAME and AGE."""
    if not declared:
        return (NAME, AGE)
    columns = [NAME]
    for entry in declared:
        get = _json_path(entry.get("jsonPath", ""))
        columns.append(
            Column(
                entry["name"],
                _date_cell(get) if entry.get("type") == "date" else _plain_cell(get),
                "string" if entry.get("type") == "date" else entry.get("type", "string"),
                entry.get("priority", 0),
                description=entry.get("description", ""),
            )
        )
    return tuple(columns)


def _date_cell(get: Callable[[Object], Any]) -> Cell:
    return lambda obj, now_s: age(get(obj), now_s)


def _plain_cell(get: Callable[[Object], Any]) -> Cell:
    return lambda obj, _: get(obj)
