"""Jobs: pods until enough of them succeed."""

from __future__ import annotations

from typing import Final

from asched.apiserver.controllers.dependents import (
    Dependents,
    is_active,
    is_ready,
    pod_of,
    removal_order,
)
from asched.apiserver.errors import Object, StatusError

JOBS = "jobs"
_INDEX: Final = "batch.kubernetes.io/job-completion-index"
_DEFAULT_BACKOFF_LIMIT: Final = 6


def sync_job(dependents: Dependents, job: Object) -> None:
    """Create and delete pods, then report."""
    spec, status = job["spec"], job.get("status") or {}
    if any(c["type"] in ("Complete", "Failed") for c in status.get("conditions") or ()):
        return
    pods = dependents.controlled("pods", job)
    succeeded = [pod for pod in pods if pod["status"].get("phase") == "Succeeded"]
    failed = [pod for pod in pods if pod["status"].get("phase") == "Failed"]
    active = [pod for pod in pods if is_active(pod)]
    done = _completed(job, succeeded, active)
    over = len(failed) > spec.get("backoffLimit", _DEFAULT_BACKOFF_LIMIT)
    condition = None
    if spec.get("suspend") or over or done:
        for pod in active:
            dependents.remove("pods", pod)
        active = []
    else:
        active = _with_new_pods(dependents, job, active, succeeded)
    if done:
        condition = _condition("Complete", "CompletionsReached", "Reached expected number of")
        condition["message"] += " succeeded pods"
    elif over:
        condition = _condition("Failed", "BackoffLimitExceeded", "Job has reached the specified")
        condition["message"] += " backoff limit"
    reported: Object = {
        "active": len(active),
        "ready": sum(map(is_ready, active)),
        "succeeded": len(succeeded),
        "failed": len(failed),
        "terminating": 0,
        "uncountedTerminatedPods": {},
    }
    reported = {field: value for field, value in reported.items() if value or field == "ready"}
    if not spec.get("suspend"):
        reported["startTime"] = status.get("startTime") or dependents.now
    if spec.get("completionMode") == "Indexed" and succeeded:
        reported["completedIndexes"] = _ranges(sorted({_index(pod) for pod in succeeded}))
    if condition is not None:
        times = {"lastProbeTime": dependents.now, "lastTransitionTime": dependents.now}
        reported["conditions"] = [{**condition, **times}]
        if done:
            reported["completionTime"] = dependents.now
    dependents.set_status(JOBS, job, reported)


def _completed(job: Object, succeeded: list[Object], active: list[Object]) -> bool:
    completions = job["spec"].get("completions")
    if job["spec"].get("completionMode") == "Indexed":
        return len({_index(pod) for pod in succeeded}) >= (completions or 0)
    if completions is None:
        # A work queue: when one pod succeeds the queue is empty, and the others end.
        return bool(succeeded) and not active
    return len(succeeded) >= int(completions)


def _with_new_pods(
    dependents: Dependents, job: Object, active: list[Object], succeeded: list[Object]
) -> list[Object]:
    spec = job["spec"]
    parallelism, completions = spec.get("parallelism", 1), spec.get("completions")
    if completions is None:
        wanted = parallelism if not succeeded else min(parallelism, len(active))
    elif spec.get("completionMode") == "Indexed":
        wanted = min(parallelism, completions - len({_index(pod) for pod in succeeded}))
    else:
        wanted = min(parallelism, completions - len(succeeded))
    for pod in removal_order(active)[: max(0, len(active) - wanted)]:
        dependents.remove("pods", pod)
        active = [one for one in active if one is not pod]
    indices = _free_indices(job, [*active, *succeeded])
    for _ in range(wanted - len(active)):
        try:
            made = _create(dependents, job, next(iter(indices), None))
        except StatusError:
            break  # tried again with the next change
        active = [*active, made]
        indices = indices[1:]
    return active


def _free_indices(job: Object, pods: list[Object]) -> list[int]:
    if job["spec"].get("completionMode") != "Indexed":
        return []
    taken = {_index(pod) for pod in pods}
    return [index for index in range(job["spec"].get("completions") or 0) if index not in taken]


def _create(dependents: Dependents, job: Object, index: int | None) -> Object:
    name = job["metadata"]["name"]
    suffix = "" if index is None else f"{index}-"
    pod = pod_of(job["spec"]["template"], prefix=f"{name}-{suffix}")
    if index is not None:
        for field in ("labels", "annotations"):
            pod["metadata"][field] = {**(pod["metadata"].get(field) or {}), _INDEX: str(index)}
    return dependents.make("pods", job, pod)


def _index(pod: Object) -> int:
    return int((pod["metadata"].get("annotations") or {}).get(_INDEX) or 0)


def _ranges(numbers: list[int]) -> str:
    """``1,3-5`` for 1, 3, 4, 5."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and parts[-1][-1] == number - 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ",".join(str(p[0]) if len(p) == 1 else f"{p[0]}-{p[-1]}" for p in parts)


def _condition(kind: str, reason: str, message: str) -> Object:
    return {"type": kind, "status": "True", "reason": reason, "message": message}
