"""The columns of volumes, services and workloads.

The cells of a pod's row: readiness, the status word and restarts (printers.go, ``printPod``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from asched.apiserver.cells import (
    AGE,
    NAME,
    NONE,
    SELECTOR,
    TEMPLATE,
    UNSET,
    Cell,
    Column,
    Object,
    at,
    count,
    human_duration,
    joined,
    label_text,
    name_of,
    seconds_of,
    shown,
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


_VOLUME_MODE = Column("VolumeMode", at("spec.volumeMode", UNSET), priority=1)
VOLUMES = (
    NAME,
    Column("Capacity", at("spec.capacity.storage")),
    Column("Access Modes", _access_modes),
    Column("Reclaim Policy", at("spec.persistentVolumeReclaimPolicy")),
    Column("Status", _terminating("status.phase")),
    Column("Claim", _volume_claim),
    Column("StorageClass", at("spec.storageClassName")),
    Column("VolumeAttributesClass", at("spec.volumeAttributesClassName", UNSET)),
    Column("Reason", at("status.reason")),
    AGE,
    _VOLUME_MODE,
)
CLAIMS = (
    NAME,
    Column("Status", _terminating("status.phase")),
    Column("Volume", at("spec.volumeName")),
    Column("Capacity", _bound(at("status.capacity.storage"))),
    Column("Access Modes", _bound(lambda c, _: _modes((c.get("status") or {}).get("accessModes")))),
    Column("StorageClass", at("spec.storageClassName")),
    Column("VolumeAttributesClass", at("spec.volumeAttributesClassName", UNSET)),
    AGE,
    _VOLUME_MODE,
)


def _class_name(storage_class: Object, _: float) -> Any:
    annotations = storage_class["metadata"].get("annotations") or {}
    default = annotations.get("storageclass.kubernetes.io/is-default-class") == "true"
    return (
        f"{storage_class['metadata']['name']} (default)" if default else name_of(storage_class, _)
    )


def _expansion(storage_class: Object, _: float) -> Any:
    return bool(storage_class.get("allowVolumeExpansion"))


CLASSES = (
    Column("Name", _class_name, format="name"),
    Column("Provisioner", at("provisioner")),
    Column("ReclaimPolicy", at("reclaimPolicy")),
    Column("VolumeBindingMode", at("volumeBindingMode")),
    Column("AllowVolumeExpansion", _expansion),
    AGE,
)
CSI_NODES = (
    NAME,
    Column("Drivers", lambda o, _: len((o.get("spec") or {}).get("drivers") or ()), "integer"),
    AGE,
)
CSI_DRIVERS = (
    NAME,
    Column("AttachRequired", at("spec.attachRequired", True), "boolean"),
    Column("PodInfoOnMount", at("spec.podInfoOnMount", False), "boolean"),
    Column("StorageCapacity", at("spec.storageCapacity", False)),
    Column("TokenRequests", shown("spec.tokenRequests", UNSET)),
    Column("RequiresRepublish", at("spec.requiresRepublish", False)),
    Column("Modes", lambda o, _: joined((o.get("spec") or {}).get("volumeLifecycleModes") or ())),
    AGE,
)

# --- services and workloads ----------------------------------------------------------------------


def _service_ports(service: Object, _: float) -> Any:
    shown = []
    for port in (service.get("spec") or {}).get("ports") or ():
        node_port = f":{port['nodePort']}" if port.get("nodePort") else ""
        shown.append(f"{port.get('port')}{node_port}/{port.get('protocol', 'TCP')}")
    return joined(shown)


SERVICES = (
    NAME,
    Column("Type", at("spec.type")),
    Column("Cluster-IP", at("spec.clusterIP", NONE)),
    Column("External-IP", lambda o, _: joined((o.get("spec") or {}).get("externalIPs") or ())),
    Column("Port(s)", _service_ports),
    AGE,
    Column("Selector", lambda o, _: label_text((o.get("spec") or {}).get("selector")), priority=1),
)
REPLICAS = (
    NAME,
    count("Desired", "spec.replicas"),
    count("Current", "status.replicas"),
    count("Ready", "status.readyReplicas"),
    AGE,
    *TEMPLATE,
    SELECTOR,
)


def _ready_of(obj: Object, _: float) -> Any:
    ready = (obj.get("status") or {}).get("readyReplicas", 0)
    return f"{ready}/{(obj.get('spec') or {}).get('replicas', 0)}"


DEPLOYMENTS = (
    NAME,
    Column("Ready", _ready_of),
    count("Up-to-date", "status.updatedReplicas"),
    count("Available", "status.availableReplicas"),
    AGE,
    *TEMPLATE,
    SELECTOR,
)
STATEFUL_SETS = (NAME, Column("Ready", _ready_of), AGE, *TEMPLATE)
DAEMON_SETS = (
    NAME,
    count("Desired", "status.desiredNumberScheduled"),
    count("Current", "status.currentNumberScheduled"),
    count("Ready", "status.numberReady"),
    count("Up-to-date", "status.updatedNumberScheduled"),
    count("Available", "status.numberAvailable"),
    Column(
        "Node Selector",
        lambda o, n: label_text(at("spec.template.spec.nodeSelector", {})(o, n)),
    ),
    AGE,
    *TEMPLATE,
    SELECTOR,
)


def _job_status(job: Object, _: float) -> Any:
    held = {c.get("type") for c in (job.get("status") or {}).get("conditions") or ()
            if c.get("status") == "True"}  # fmt: skip
    for condition in ("Complete", "Failed", "Suspended", "FailureTarget"):
        if condition in held:
            return condition
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


JOBS = (
    NAME,
    Column("Status", _job_status),
    Column("Completions", _job_completions),
    Column("Duration", _job_duration),
    AGE,
    *TEMPLATE,
    SELECTOR,
)


def _statuses(pod: Object) -> list[Object]:
    return list((pod.get("status") or {}).get("containerStatuses") or ())


def _ready(pod: Object, _: float) -> str:
    containers = (pod.get("spec") or {}).get("containers") or ()
    ready = sum(1 for status in _statuses(pod) if status.get("ready"))
    return f"{ready}/{len(containers)}"


def _restarts(pod: Object, now_s: float) -> str:
    count, last = 0, 0.0
    for status in _statuses(pod):
        count += status.get("restartCount", 0)
        ended = ((status.get("lastState") or {}).get("terminated") or {}).get("finishedAt")
        last = max(last, seconds_of(ended) or 0.0)
    if count and last:
        return f"{count} ({human_duration(now_s - last)} ago)"
    return str(count)


def _init_reason(pod: Object) -> str:
    """``Init:1/2`` and its kin while init containers run; empty when they are done."""
    status, spec = pod.get("status") or {}, pod.get("spec") or {}
    total = len(spec.get("initContainers") or ())
    for index, container in enumerate(status.get("initContainerStatuses") or ()):
        state = container.get("state") or {}
        terminated, waiting = state.get("terminated"), state.get("waiting") or {}
        if terminated is not None and terminated.get("exitCode", 0) == 0:
            continue
        if terminated is not None:
            return f"Init:{terminated.get('reason') or _exit(terminated)}"
        if waiting.get("reason") and waiting["reason"] != "PodInitializing":
            return f"Init:{waiting['reason']}"
        return f"Init:{index}/{total}"
    return ""


def _exit(terminated: Object) -> str:
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
            reason = terminated.get("reason") or _exit(terminated)
        elif status.get("ready") and "running" in state:
            running = True
    if reason == "Completed" and running:
        return "Running"
    return reason


def _status(pod: Object, _: float) -> str:
    status = pod.get("status") or {}
    reason = status.get("reason") or status.get("phase") or ""
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("reason") == "SchedulingGated":
            reason = "SchedulingGated"
    initializing = _init_reason(pod)
    reason = initializing or _container_reason(pod, reason)
    if pod["metadata"].get("deletionTimestamp"):
        if status.get("reason") == "NodeLost":
            return "Unknown"
        if status.get("phase") not in ("Succeeded", "Failed"):
            return "Terminating"
    return str(reason)


def _gates(pod: Object, _: float) -> str:
    gates = (pod.get("spec") or {}).get("readinessGates") or ()
    if not gates:
        return "<none>"
    conditions = (pod.get("status") or {}).get("conditions") or ()
    held = {c.get("type") for c in conditions if c.get("status") == "True"}
    passed = sum(1 for gate in gates if gate.get("conditionType") in held)
    return f"{passed}/{len(gates)}"


POD_CELLS: dict[str, Callable[[Object, float], Any]] = {
    "ready": _ready,
    "status": _status,
    "restarts": _restarts,
    "gates": _gates,
}
