"""The table columns of each resource, as the printers of kube-apiserver define them.

Source: pkg/printers/internalversion/printers.go.
"""

from __future__ import annotations

from typing import Any

from asched.apiserver.errors import Object
from asched.apiserver.printer_columns import (
    AGE,
    NAME,
    NONE,
    SELECTOR,
    TEMPLATE,
    UNKNOWN,
    UNSET,
    Cell,
    Column,
    age,
    at,
    at_or,
    count,
    human_duration,
    joined,
    label_text,
    length,
    name_of,
    seconds_of,
    text_at,
    value_at,
)
from asched.apiserver.resources import BUILT_IN


def _statuses(pod: Object) -> list[Object]:
    return list(value_at(pod, "status.containerStatuses") or ())


def _ready(pod: Object, _: float) -> str:
    ready = sum(1 for status in _statuses(pod) if status.get("ready"))
    return f"{ready}/{len(value_at(pod, 'spec.containers') or ())}"


def _restarts(pod: Object, now_s: float) -> str:
    restarts, last = 0, 0.0
    for status in _statuses(pod):
        restarts += status.get("restartCount", 0)
        ended = value_at(status, "lastState.terminated.finishedAt")
        last = max(last, seconds_of(ended) or 0.0)
    if restarts and last:
        return f"{restarts} ({human_duration(now_s - last)} ago)"
    return str(restarts)


def _init_reason(pod: Object) -> str:
    """``Init:1/2`` and the like while init containers run, then empty."""
    total = len(value_at(pod, "spec.initContainers") or ())
    for index, container in enumerate(value_at(pod, "status.initContainerStatuses") or ()):
        state = container.get("state") or {}
        terminated, waiting = state.get("terminated"), state.get("waiting") or {}
        if terminated is not None and terminated.get("exitCode", 0) == 0:
            continue
        if terminated is not None:
            return f"Init:{terminated.get('reason') or _exit_reason(terminated)}"
        if waiting.get("reason") and waiting["reason"] != "PodInitializing":
            return f"Init:{waiting['reason']}"
        return f"Init:{index}/{total}"
    return ""


def _exit_reason(terminated: Object) -> str:
    if terminated.get("signal"):
        return f"Signal:{terminated['signal']}"
    return f"ExitCode:{terminated.get('exitCode', 0)}"


def _container_reason(pod: Object, reason: str) -> str:
    running = False
    for status in reversed(_statuses(pod)):
        state = status.get("state") or {}
        terminated, waiting = state.get("terminated"), state.get("waiting") or {}
        if waiting.get("reason"):
            reason = waiting["reason"]
        elif terminated is not None:
            reason = terminated.get("reason") or _exit_reason(terminated)
        elif status.get("ready") and "running" in state:
            running = True
    return "Running" if reason == "Completed" and running else reason


def _pod_status(pod: Object, _: float) -> str:
    status = pod.get("status") or {}
    reason = status.get("reason") or status.get("phase") or ""
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("reason") == "SchedulingGated":
            reason = "SchedulingGated"
    reason = _init_reason(pod) or _container_reason(pod, reason)
    if pod["metadata"].get("deletionTimestamp"):
        if status.get("reason") == "NodeLost":
            return "Unknown"
        if status.get("phase") not in ("Succeeded", "Failed"):
            return "Terminating"
    return str(reason)


def _true_conditions(obj: Object) -> set[Any]:
    conditions = value_at(obj, "status.conditions") or ()
    return {c.get("type") for c in conditions if c.get("status") == "True"}


def _readiness_gates(pod: Object, _: float) -> str:
    gates = value_at(pod, "spec.readinessGates") or ()
    if not gates:
        return NONE
    conditions = _true_conditions(pod)
    passed = sum(1 for gate in gates if gate.get("conditionType") in conditions)
    return f"{passed}/{len(gates)}"


def _node_status(node: Object, _: float) -> Any:
    conditions = value_at(node, "status.conditions") or ()
    ready = next((c.get("status") for c in conditions if c.get("type") == "Ready"), None)
    status = "Unknown" if ready is None else "Ready" if ready == "True" else "NotReady"
    return f"{status},SchedulingDisabled" if value_at(node, "spec.unschedulable") else status


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
        addresses = value_at(node, "status.addresses") or ()
        return next((a.get("address", "") for a in addresses if a.get("type") == kind), NONE)

    return cell


def _last_seen(event: Object, now_s: float) -> Any:
    seen = value_at(event, "series.lastObservedTime") or event.get("lastTimestamp")
    return age(seen or event.get("eventTime"), now_s)


def _first_seen(event: Object, now_s: float) -> Any:
    return age(event.get("firstTimestamp") or event.get("eventTime"), now_s)


def _event_count(event: Object, _: float) -> Any:
    return value_at(event, "series.count") or event.get("count") or 1


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


_ACCESS_MODES = {
    "ReadWriteOnce": "RWO",
    "ReadOnlyMany": "ROX",
    "ReadWriteMany": "RWX",
    "ReadWriteOncePod": "RWOP",
}


def _access_modes(path: str) -> Cell:
    def cell(obj: Object, _: float) -> Any:
        modes = value_at(obj, path) or ()
        return ",".join(short for mode, short in _ACCESS_MODES.items() if mode in modes)

    return cell


def _volume_claim(volume: Object, _: float) -> Any:
    claim = value_at(volume, "spec.claimRef")
    return f"{claim.get('namespace', '')}/{claim.get('name', '')}" if claim else ""


def _phase_or_terminating(obj: Object, _: float) -> Any:
    if obj["metadata"].get("deletionTimestamp"):
        return "Terminating"
    phase = value_at(obj, "status.phase")
    return "" if phase is None else phase


def _if_bound(inner: Cell) -> Cell:
    """A cell that is empty until the claim is bound."""
    return lambda claim, now_s: inner(claim, now_s) if value_at(claim, "spec.volumeName") else ""


def _class_name(storage_class: Object, _: float) -> Any:
    metadata = storage_class["metadata"]
    annotations = metadata.get("annotations") or {}
    default = annotations.get("storageclass.kubernetes.io/is-default-class") == "true"
    return f"{metadata['name']} (default)" if default else metadata["name"]


def _service_ports(service: Object, _: float) -> Any:
    ports = []
    for port in value_at(service, "spec.ports") or ():
        node_port = f":{port['nodePort']}" if port.get("nodePort") else ""
        ports.append(f"{port.get('port')}{node_port}/{port.get('protocol', 'TCP')}")
    return joined(ports)


def _labels_at(path: str) -> Cell:
    return lambda obj, _: label_text(value_at(obj, path))


def _joined_at(path: str) -> Cell:
    return lambda obj, _: joined(value_at(obj, path) or ())


def _ready_replicas(obj: Object, _: float) -> Any:
    status, spec = obj.get("status") or {}, obj.get("spec") or {}
    return f"{status.get('readyReplicas', 0)}/{spec.get('replicas', 0)}"


def _job_status(job: Object, _: float) -> Any:
    conditions = _true_conditions(job)
    for condition in ("Complete", "Failed", "Suspended", "FailureTarget"):
        if condition in conditions:
            return condition
    return "Terminating" if job["metadata"].get("deletionTimestamp") else "Running"


def _job_completions(job: Object, _: float) -> Any:
    spec, succeeded = job.get("spec") or {}, (job.get("status") or {}).get("succeeded", 0)
    if spec.get("completions") is not None:
        return f"{succeeded}/{spec['completions']}"
    parallelism = spec.get("parallelism") or 0
    return f"{succeeded}/1 of {parallelism}" if parallelism > 1 else f"{succeeded}/1"


def _job_duration(job: Object, now_s: float) -> Any:
    start = seconds_of(value_at(job, "status.startTime"))
    if start is None:
        return ""
    return human_duration((seconds_of(value_at(job, "status.completionTime")) or now_s) - start)


_VOLUME_MODE = Column("VolumeMode", at("spec.volumeMode", UNSET), priority=1)
_REPLICAS = (
    NAME,
    count("Desired", "spec.replicas"),
    count("Current", "status.replicas"),
    count("Ready", "status.readyReplicas"),
    AGE,
    *TEMPLATE,
    SELECTOR,
)


def _claim_state(claim: Object, _: float) -> Any:
    """``resourceClaimState``."""
    status = claim.get("status") or {}
    deleted = bool(claim["metadata"].get("deletionTimestamp"))
    states = ["deleted"] if deleted else []
    if not status.get("allocation"):
        states += [] if deleted else ["pending"]
    else:
        states.append("allocated")
        if status.get("reservedFor"):
            states.append("reserved")
    return ",".join(states)


_DEFAULT = (NAME, Column("Created At", at_or("metadata.creationTimestamp", UNKNOWN)))
_COLUMNS: dict[str, tuple[Column, ...]] = {
    "pods": (
        NAME,
        Column("Ready", _ready),
        Column("Status", _pod_status),
        Column("Restarts", _restarts),
        AGE,
        Column("IP", at_or("status.podIP", NONE), priority=1),
        Column("Node", at_or("spec.nodeName", NONE), priority=1),
        Column("Nominated Node", at("status.nominatedNodeName", NONE), priority=1),
        Column("Readiness Gates", _readiness_gates, priority=1),
    ),
    "nodes": (
        NAME,
        Column("Status", _node_status),
        Column("Roles", _node_roles),
        AGE,
        Column("Version", at("status.nodeInfo.kubeletVersion")),
        Column("Internal-IP", _address("InternalIP"), priority=1),
        Column("External-IP", _address("ExternalIP"), priority=1),
        Column("OS-Image", at_or("status.nodeInfo.osImage", UNKNOWN), priority=1),
        Column("Kernel-Version", at_or("status.nodeInfo.kernelVersion", UNKNOWN), priority=1),
        Column(
            "Container-Runtime",
            at_or("status.nodeInfo.containerRuntimeVersion", UNKNOWN),
            priority=1,
        ),
    ),
    "events": (
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
    ),
    "namespaces": (NAME, Column("Status", at("status.phase")), AGE),
    "configmaps": (NAME, Column("Data", length("data", "binaryData")), AGE),
    "secrets": (NAME, Column("Type", at("type")), Column("Data", length("data"), "integer"), AGE),
    "serviceaccounts": (NAME, Column("Secrets", length("secrets"), "integer"), AGE),
    "services": (
        NAME,
        Column("Type", at("spec.type")),
        Column("Cluster-IP", at("spec.clusterIP", NONE)),
        Column("External-IP", _joined_at("spec.externalIPs")),
        Column("Port(s)", _service_ports),
        AGE,
        Column("Selector", _labels_at("spec.selector"), priority=1),
    ),
    "persistentvolumes": (
        NAME,
        Column("Capacity", at("spec.capacity.storage")),
        Column("Access Modes", _access_modes("spec.accessModes")),
        Column("Reclaim Policy", at("spec.persistentVolumeReclaimPolicy")),
        Column("Status", _phase_or_terminating),
        Column("Claim", _volume_claim),
        Column("StorageClass", at("spec.storageClassName")),
        Column("VolumeAttributesClass", at("spec.volumeAttributesClassName", UNSET)),
        Column("Reason", at("status.reason")),
        AGE,
        _VOLUME_MODE,
    ),
    "persistentvolumeclaims": (
        NAME,
        Column("Status", _phase_or_terminating),
        Column("Volume", at("spec.volumeName")),
        Column("Capacity", _if_bound(at("status.capacity.storage"))),
        Column("Access Modes", _if_bound(_access_modes("status.accessModes"))),
        Column("StorageClass", at("spec.storageClassName")),
        Column("VolumeAttributesClass", at("spec.volumeAttributesClassName", UNSET)),
        AGE,
        _VOLUME_MODE,
    ),
    "replicationcontrollers": _REPLICAS,
    "replicasets.apps": _REPLICAS,
    "deployments.apps": (
        NAME,
        Column("Ready", _ready_replicas),
        count("Up-to-date", "status.updatedReplicas"),
        count("Available", "status.availableReplicas"),
        AGE,
        *TEMPLATE,
        SELECTOR,
    ),
    "statefulsets.apps": (NAME, Column("Ready", _ready_replicas), AGE, *TEMPLATE),
    "daemonsets.apps": (
        NAME,
        count("Desired", "status.desiredNumberScheduled"),
        count("Current", "status.currentNumberScheduled"),
        count("Ready", "status.numberReady"),
        count("Up-to-date", "status.updatedNumberScheduled"),
        count("Available", "status.numberAvailable"),
        Column("Node Selector", _labels_at("spec.template.spec.nodeSelector")),
        AGE,
        *TEMPLATE,
        SELECTOR,
    ),
    "jobs.batch": (
        NAME,
        Column("Status", _job_status),
        Column("Completions", _job_completions),
        Column("Duration", _job_duration),
        AGE,
        *TEMPLATE,
        SELECTOR,
    ),
    "storageclasses.storage.k8s.io": (
        Column("Name", _class_name, format="name"),
        Column("Provisioner", at("provisioner")),
        Column("ReclaimPolicy", at("reclaimPolicy")),
        Column("VolumeBindingMode", at("volumeBindingMode")),
        Column("AllowVolumeExpansion", lambda obj, _: bool(obj.get("allowVolumeExpansion"))),
        AGE,
    ),
    "csinodes.storage.k8s.io": (NAME, Column("Drivers", length("spec.drivers"), "integer"), AGE),
    "csidrivers.storage.k8s.io": (
        NAME,
        Column("AttachRequired", at("spec.attachRequired", True), "boolean"),
        Column("PodInfoOnMount", at("spec.podInfoOnMount", False), "boolean"),
        Column("StorageCapacity", at("spec.storageCapacity", False)),
        Column("TokenRequests", text_at("spec.tokenRequests", UNSET)),
        Column("RequiresRepublish", at("spec.requiresRepublish", False)),
        Column("Modes", _joined_at("spec.volumeLifecycleModes")),
        AGE,
    ),
    "poddisruptionbudgets.policy": (
        NAME,
        Column("Min Available", text_at("spec.minAvailable", "N/A")),
        Column("Max Unavailable", text_at("spec.maxUnavailable", "N/A")),
        count("Allowed Disruptions", "status.disruptionsAllowed"),
        AGE,
    ),
    "priorityclasses.scheduling.k8s.io": (
        NAME,
        Column("Value", at("value", 0), "integer"),
        Column("Global-Default", lambda obj, _: bool(obj.get("globalDefault")), "boolean"),
        AGE,
        Column("PreemptionPolicy", at("preemptionPolicy")),
    ),
    "resourceclaims.resource.k8s.io": (NAME, Column("State", _claim_state), AGE),
    "resourceclaimtemplates.resource.k8s.io": (NAME, AGE),
    "deviceclasses.resource.k8s.io": (NAME, AGE),
    "resourceslices.resource.k8s.io": (
        NAME,
        Column("Node", at("spec.nodeName")),
        Column("Driver", at("spec.driver")),
        Column("Pool", at("spec.pool.name")),
        AGE,
    ),
    "leases.coordination.k8s.io": (NAME, Column("Holder", at("spec.holderIdentity")), AGE),
    "runtimeclasses.node.k8s.io": (NAME, Column("Handler", at("handler")), AGE),
}
_BUILT_IN_KEYS = frozenset(resource.storage_key for resource in BUILT_IN)


def table_columns(storage_key: str) -> tuple[Column, ...]:
    """The columns of a built-in resource; empty for a custom one."""
    if storage_key in _BUILT_IN_KEYS:
        return _COLUMNS.get(storage_key, _DEFAULT)
    return ()
