"""The cells of a pod's row: readiness, the status word and restarts (printers.go, ``printPod``)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from asched.sim.ages import human_duration, seconds_of

Object = dict[str, Any]


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
