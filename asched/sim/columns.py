"""The columns of each resource's table, as the printers of kube-apiserver define them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from asched.sim.ages import age, human_duration, seconds_of
from asched.sim.podcolumns import POD_CELLS
from asched.sim.resources import BUILT_IN

Object = dict[str, Any]
Cell = Callable[[Object, float], Any]
"""Makes a cell of an object at a time (seconds since the epoch)."""

_NONE, _UNKNOWN, _UNSET = "<none>", "<unknown>", "<unset>"


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its definition and how its cells are made."""

    name: str
    cell: Cell
    type: str = "string"
    priority: int = 0
    format: str = ""
    description: str = ""

    def definition(self) -> Object:
        return {
            "name": self.name,
            "type": self.type,
            "format": self.format,
            "description": self.description,
            "priority": self.priority,
        }


def row_cells(columns: tuple[Column, ...], obj: Object, now_s: float) -> list[Any]:
    return [column.cell(obj, now_s) for column in columns]


def _name(obj: Object, _: float) -> Any:
    return obj["metadata"]["name"]


def _age(obj: Object, now_s: float) -> Any:
    return age(obj["metadata"].get("creationTimestamp"), now_s)


def _created_at(obj: Object, _: float) -> Any:
    return obj["metadata"].get("creationTimestamp") or _UNKNOWN


def at(path: str, default: Any = "") -> Cell:
    """The value at a dotted path, or ``default`` where there is none."""
    parts = path.split(".")

    def cell(obj: Object, _: float) -> Any:
        value: Any = obj
        for part in parts:
            value = value.get(part) if isinstance(value, dict) else None
        return default if value is None else value

    return cell


def _shown(path: str, default: str) -> Cell:
    inner = at(path, default)
    return lambda obj, now_s: str(inner(obj, now_s))


NAME = Column("Name", _name, format="name")
AGE = Column("Age", _age)


def _joined(values: Any, empty: str = _NONE) -> str:
    return ",".join(str(value) for value in values) or empty


def _labels(labels: Any) -> str:
    return _joined(f"{key}={value}" for key, value in sorted((labels or {}).items()))


def _template_containers(field: str) -> Cell:
    def cell(obj: Object, _: float) -> Any:
        spec = ((obj.get("spec") or {}).get("template") or {}).get("spec") or {}
        return _joined((c.get(field, "") for c in spec.get("containers") or ()), "")

    return cell


def _selector(obj: Object, _: float) -> Any:
    selector = (obj.get("spec") or {}).get("selector") or {}
    if "matchLabels" not in selector and "matchExpressions" not in selector:
        return _labels(selector)
    parts = [f"{k}={v}" for k, v in sorted((selector.get("matchLabels") or {}).items())]
    for term in selector.get("matchExpressions") or ():
        operator, values = term["operator"], ",".join(sorted(term.get("values") or ()))
        if operator in ("In", "NotIn"):
            parts.append(f"{term['key']} {operator.lower()} ({values})")
        else:
            parts.append(term["key"] if operator == "Exists" else f"!{term['key']}")
    return _joined(parts)


_TEMPLATE = (
    Column("Containers", _template_containers("name"), priority=1),
    Column("Images", _template_containers("image"), priority=1),
)
_SELECTOR = Column("Selector", _selector, priority=1)


def _count(name: str, path: str) -> Column:
    return Column(name, at(path, 0), "integer")


# --- nodes ---------------------------------------------------------------------------------------


def _node_status(node: Object, _: float) -> Any:
    conditions = (node.get("status") or {}).get("conditions") or ()
    ready = next((c["status"] for c in conditions if c["type"] == "Ready"), None)
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
    return _joined(sorted(role for role in roles if role))


def _address(kind: str) -> Cell:
    def cell(node: Object, _: float) -> Any:
        addresses = (node.get("status") or {}).get("addresses") or ()
        return next((a["address"] for a in addresses if a["type"] == kind), _NONE)

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
    Column("OS-Image", _node_info("osImage", _UNKNOWN), priority=1),
    Column("Kernel-Version", _node_info("kernelVersion", _UNKNOWN), priority=1),
    Column("Container-Runtime", _node_info("containerRuntimeVersion", _UNKNOWN), priority=1),
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
    Column("Name", _name, priority=1, format="name"),
)

# --- storage -------------------------------------------------------------------------------------

_ACCESS = {
    "ReadWriteOnce": "RWO",
    "ReadOnlyMany": "ROX",
    "ReadWriteMany": "RWX",
    "ReadWriteOncePod": "RWOP",
}


def _modes(modes: Any) -> str:
    return ",".join(short for long, short in _ACCESS.items() if long in (modes or ()))


def _access_modes(obj: Object, _: float) -> Any:
    return _modes((obj.get("spec") or {}).get("accessModes"))


def _volume_claim(volume: Object, _: float) -> Any:
    claim = (volume.get("spec") or {}).get("claimRef")
    return f"{claim.get('namespace', '')}/{claim.get('name', '')}" if claim else ""


def _terminating(path: str) -> Cell:
    inner = at(path)

    def cell(obj: Object, now_s: float) -> Any:
        return "Terminating" if obj["metadata"].get("deletionTimestamp") else inner(obj, now_s)

    return cell


def _bound(inner: Cell) -> Cell:
    """Capacity and access modes of a claim show only once it is bound."""

    def cell(claim: Object, now_s: float) -> Any:
        return inner(claim, now_s) if (claim.get("spec") or {}).get("volumeName") else ""

    return cell


_VOLUME_MODE = Column("VolumeMode", at("spec.volumeMode", _UNSET), priority=1)
_VOLUMES = (
    NAME,
    Column("Capacity", at("spec.capacity.storage")),
    Column("Access Modes", _access_modes),
    Column("Reclaim Policy", at("spec.persistentVolumeReclaimPolicy")),
    Column("Status", _terminating("status.phase")),
    Column("Claim", _volume_claim),
    Column("StorageClass", at("spec.storageClassName")),
    Column("VolumeAttributesClass", at("spec.volumeAttributesClassName", _UNSET)),
    Column("Reason", at("status.reason")),
    AGE,
    _VOLUME_MODE,
)
_CLAIMS = (
    NAME,
    Column("Status", _terminating("status.phase")),
    Column("Volume", at("spec.volumeName")),
    Column("Capacity", _bound(at("status.capacity.storage"))),
    Column("Access Modes", _bound(lambda c, _: _modes((c.get("status") or {}).get("accessModes")))),
    Column("StorageClass", at("spec.storageClassName")),
    Column("VolumeAttributesClass", at("spec.volumeAttributesClassName", _UNSET)),
    AGE,
    _VOLUME_MODE,
)


def _class_name(storage_class: Object, _: float) -> Any:
    annotations = storage_class["metadata"].get("annotations") or {}
    default = annotations.get("storageclass.kubernetes.io/is-default-class") == "true"
    return f"{storage_class['metadata']['name']} (default)" if default else _name(storage_class, _)


def _expansion(storage_class: Object, _: float) -> Any:
    return bool(storage_class.get("allowVolumeExpansion"))


_CLASSES = (
    Column("Name", _class_name, format="name"),
    Column("Provisioner", at("provisioner")),
    Column("ReclaimPolicy", at("reclaimPolicy")),
    Column("VolumeBindingMode", at("volumeBindingMode")),
    Column("AllowVolumeExpansion", _expansion),
    AGE,
)
_CSI_NODES = (
    NAME,
    Column("Drivers", lambda o, _: len((o.get("spec") or {}).get("drivers") or ()), "integer"),
    AGE,
)
_CSI_DRIVERS = (
    NAME,
    Column("AttachRequired", at("spec.attachRequired", True), "boolean"),
    Column("PodInfoOnMount", at("spec.podInfoOnMount", False), "boolean"),
    Column("StorageCapacity", at("spec.storageCapacity", False)),
    Column("TokenRequests", _shown("spec.tokenRequests", _UNSET)),
    Column("RequiresRepublish", at("spec.requiresRepublish", False)),
    Column("Modes", lambda o, _: _joined((o.get("spec") or {}).get("volumeLifecycleModes") or ())),
    AGE,
)

# --- services and workloads ----------------------------------------------------------------------


def _service_ports(service: Object, _: float) -> Any:
    shown = []
    for port in (service.get("spec") or {}).get("ports") or ():
        node_port = f":{port['nodePort']}" if port.get("nodePort") else ""
        shown.append(f"{port.get('port')}{node_port}/{port.get('protocol', 'TCP')}")
    return _joined(shown)


_SERVICES = (
    NAME,
    Column("Type", at("spec.type")),
    Column("Cluster-IP", at("spec.clusterIP", _NONE)),
    Column("External-IP", lambda o, _: _joined((o.get("spec") or {}).get("externalIPs") or ())),
    Column("Port(s)", _service_ports),
    AGE,
    Column("Selector", lambda o, _: _labels((o.get("spec") or {}).get("selector")), priority=1),
)
_REPLICAS = (
    NAME,
    _count("Desired", "spec.replicas"),
    _count("Current", "status.replicas"),
    _count("Ready", "status.readyReplicas"),
    AGE,
    *_TEMPLATE,
    _SELECTOR,
)


def _ready_of(obj: Object, _: float) -> Any:
    ready = (obj.get("status") or {}).get("readyReplicas", 0)
    return f"{ready}/{(obj.get('spec') or {}).get('replicas', 0)}"


_DEPLOYMENTS = (
    NAME,
    Column("Ready", _ready_of),
    _count("Up-to-date", "status.updatedReplicas"),
    _count("Available", "status.availableReplicas"),
    AGE,
    *_TEMPLATE,
    _SELECTOR,
)
_STATEFUL_SETS = (NAME, Column("Ready", _ready_of), AGE, *_TEMPLATE)
_DAEMON_SETS = (
    NAME,
    _count("Desired", "status.desiredNumberScheduled"),
    _count("Current", "status.currentNumberScheduled"),
    _count("Ready", "status.numberReady"),
    _count("Up-to-date", "status.updatedNumberScheduled"),
    _count("Available", "status.numberAvailable"),
    Column(
        "Node Selector",
        lambda o, n: _labels(at("spec.template.spec.nodeSelector", {})(o, n)),
    ),
    AGE,
    *_TEMPLATE,
    _SELECTOR,
)


def _job_status(job: Object, _: float) -> Any:
    held = {c["type"] for c in (job.get("status") or {}).get("conditions") or ()
            if c.get("status") == "True"}  # fmt: skip
    for condition, shown in (("Complete", "Complete"), ("Failed", "Failed"),
                             ("Suspended", "Suspended"), ("FailureTarget", "FailureTarget")):  # fmt: skip
        if condition in held:
            return shown
    return "Terminating" if job["metadata"].get("deletionTimestamp") else "Running"


def _job_completions(job: Object, _: float) -> Any:
    spec, succeeded = job.get("spec") or {}, (job.get("status") or {}).get("succeeded", 0)
    if spec.get("completions") is not None:
        return f"{succeeded}/{spec['completions']}"
    parallelism = spec.get("parallelism") or 0
    return f"{succeeded}/1 of {parallelism}" if parallelism > 1 else f"{succeeded}/1"


def _job_duration(job: Object, now_s: float) -> Any:
    status = job.get("status") or {}
    start = seconds_of(status.get("startTime"))
    if start is None:
        return ""
    return human_duration((seconds_of(status.get("completionTime")) or now_s) - start)


_JOBS = (
    NAME,
    Column("Status", _job_status),
    Column("Completions", _job_completions),
    Column("Duration", _job_duration),
    AGE,
    *_TEMPLATE,
    _SELECTOR,
)

# --- the rest ------------------------------------------------------------------------------------

_BUDGETS = (
    NAME,
    Column("Min Available", _shown("spec.minAvailable", "N/A")),
    Column("Max Unavailable", _shown("spec.maxUnavailable", "N/A")),
    _count("Allowed Disruptions", "status.disruptionsAllowed"),
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
    Column("IP", lambda o, _: (o.get("status") or {}).get("podIP") or _NONE, priority=1),
    Column("Node", lambda o, _: (o.get("spec") or {}).get("nodeName") or _NONE, priority=1),
    Column("Nominated Node", at("status.nominatedNodeName", _NONE), priority=1),
    Column("Readiness Gates", POD_CELLS["gates"], priority=1),
)
_SIMPLE = (NAME, Column("Created At", _created_at))

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
    "services": _SERVICES,
    "persistentvolumes": _VOLUMES,
    "persistentvolumeclaims": _CLAIMS,
    "replicationcontrollers": _REPLICAS,
    "replicasets.apps": _REPLICAS,
    "deployments.apps": _DEPLOYMENTS,
    "statefulsets.apps": _STATEFUL_SETS,
    "daemonsets.apps": _DAEMON_SETS,
    "jobs.batch": _JOBS,
    "storageclasses.storage.k8s.io": _CLASSES,
    "csinodes.storage.k8s.io": _CSI_NODES,
    "csidrivers.storage.k8s.io": _CSI_DRIVERS,
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
