"""Admission of new objects and checks of updates.

Implements the default admission plugins that affect scheduling: NamespaceLifecycle, Priority,
DefaultTolerationSeconds, RuntimeClass and, at binding, PodTopologyLabels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from asched.apiserver import workload_api
from asched.apiserver.defaults import (
    add_default_tolerations,
    apply_defaults,
    complete_status,
    qos_class,
)
from asched.apiserver.dra import strategy
from asched.apiserver.errors import (
    Cause,
    Object,
    StatusError,
    forbidden,
    forbidden_value,
    invalid,
    not_found,
)
from asched.apiserver.resources import ServedResource

if TYPE_CHECKING:
    from asched.apiserver.api import ObjectApi


TOPOLOGY_LABELS = ("topology.kubernetes.io/zone", "topology.kubernetes.io/region")
GATED_MESSAGE = "Scheduling is blocked due to non-empty scheduling gates"


def check_namespace(api: ObjectApi, resource: ServedResource, namespace: str, name: str) -> None:
    """NamespaceLifecycle: a new object's namespace is active. Raises StatusError 403 or 404."""
    if not resource.namespaced:
        return
    found = api.find("namespaces", "", namespace)
    if found is None:
        raise not_found("namespaces", "", namespace)
    if found.obj["metadata"].get("deletionTimestamp"):
        raise forbidden(
            resource.plural,
            resource.group,
            name,
            f"unable to create new content in namespace {namespace} because it is being terminated",
        )


def admit_new(api: ObjectApi, resource: ServedResource, obj: Object, now: str) -> None:
    """Reset, default and admit a new object in place. Raises StatusError 403."""
    key = resource.storage_key
    if key == "pods":
        _admit_pod(api, obj, now)
    else:
        # Kubelets register their nodes with a status.
        if resource.status and key != "nodes":
            obj.pop("status", None)
        apply_defaults(key, obj)
        complete_status(key, obj)
        if resource.group == strategy.GROUP:
            strategy.admit_new(api, resource, obj, now)
        workload_api.admit_new(api, resource, obj)


def _admit_pod(api: ObjectApi, pod: Object, now: str) -> None:
    spec = pod.setdefault("spec", {})
    _admit_priority(api, pod, spec)
    _admit_runtime_class(api, pod, spec)
    add_default_tolerations(spec)
    apply_defaults("pods", pod)
    status: Object = {"phase": "Pending"}
    if spec.get("schedulingGates"):
        status["conditions"] = [
            {
                "type": "PodScheduled",
                "status": "False",
                "lastProbeTime": None,
                "lastTransitionTime": now,
                "reason": "SchedulingGated",
                "message": GATED_MESSAGE,
            }
        ]
    status["qosClass"] = qos_class(spec)
    pod["status"] = status


def _default_priority_class(api: ObjectApi) -> Object | None:
    candidates = [
        stored.obj
        for stored in api.all_of("priorityclasses.scheduling.k8s.io")
        if stored.obj.get("globalDefault")
    ]
    # The lowest of several global defaults wins (plugin/pkg/admission/priority).
    return min(candidates, key=lambda found: int(found["value"]), default=None)


def _admit_priority(api: ObjectApi, pod: Object, spec: Object) -> None:
    name = spec.get("priorityClassName") or ""
    if name:
        stored = api.find("priorityclasses.scheduling.k8s.io", "", name)
        if stored is None:
            metadata = pod["metadata"]
            pod_name = metadata.get("name") or metadata.get("generateName") or ""
            raise forbidden("pods", "", pod_name, f"no PriorityClass with name {name} was found")
        chosen: Object | None = stored.obj
    else:
        chosen = _default_priority_class(api)
        if chosen is not None:
            spec["priorityClassName"] = chosen["metadata"]["name"]
    priority = int(chosen["value"]) if chosen else 0
    policy = (chosen or {}).get("preemptionPolicy") or "PreemptLowerPriority"
    given = spec.get("priority")
    if given is not None and given != priority:
        raise forbidden(
            "pods",
            "",
            pod["metadata"].get("name") or "",
            f"the integer value of priority ({given}) must not be provided in pod spec; priority "
            f"admission controller computed {priority} from the given PriorityClass name",
        )
    spec["priority"] = priority
    spec["preemptionPolicy"] = policy


def _admit_runtime_class(api: ObjectApi, pod: Object, spec: Object) -> None:
    name = spec.get("runtimeClassName")
    if not name:
        return
    stored = api.find("runtimeclasses.node.k8s.io", "", name)
    if stored is None:
        pod_name = pod["metadata"].get("name") or ""
        raise forbidden("pods", "", pod_name, f'pod rejected: RuntimeClass "{name}" not found')
    overhead = (stored.obj.get("overhead") or {}).get("podFixed")
    if overhead:
        spec["overhead"] = dict(overhead)
    scheduling = stored.obj.get("scheduling") or {}
    if scheduling.get("nodeSelector"):
        spec["nodeSelector"] = {**(spec.get("nodeSelector") or {}), **scheduling["nodeSelector"]}
    if scheduling.get("tolerations"):
        known = spec.get("tolerations") or []
        spec["tolerations"] = [
            *known,
            *(added for added in scheduling["tolerations"] if added not in known),
        ]


_MUTABLE_POD_FIELDS = (
    "`spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,"
    "`spec.tolerations` (only additions to existing tolerations),"
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)


def _without_mutable(spec: Object) -> Object:
    """The fields of a pod spec that an update may not change."""
    kept = {
        key: value
        for key, value in spec.items()
        if key not in ("activeDeadlineSeconds", "tolerations", "schedulingGates")
    }
    for field in ("containers", "initContainers"):
        if field in kept:
            kept[field] = [{**container, "image": ""} for container in kept[field]]
    return kept


def check_update(storage_key: str, new: Object, old: Object) -> None:
    """Raises StatusError 422 if an update changes an immutable field."""
    if storage_key == "pods":
        _check_pod_update(new, old)
    elif storage_key == "priorityclasses.scheduling.k8s.io":
        _check_priority_class_update(new, old)


def _check_priority_class_update(new: Object, old: Object) -> None:
    """``ValidatePriorityClassUpdate``: existing pods have copied the value."""
    causes = []
    if new.get("value") != old.get("value"):
        causes.append(forbidden_value("value", "may not be changed in an update."))
    if new.get("preemptionPolicy") != old.get("preemptionPolicy"):
        given = new.get("preemptionPolicy")
        message = f'Invalid value: "{given}": field is immutable'
        causes.append(Cause("FieldValueInvalid", message, "preemptionPolicy"))
    if causes:
        name = new["metadata"]["name"]
        raise invalid("PriorityClass", "scheduling.k8s.io", name, causes)


def _check_pod_update(new: Object, old: Object) -> None:
    """Most of a pod's spec is immutable. A gated pod may change its node selector and affinity
    (KEP-3838); whether they get narrower is not checked."""
    new_spec, old_spec = new.get("spec") or {}, old.get("spec") or {}
    if new_spec == old_spec:
        return
    name = new["metadata"]["name"]
    known_gates = {gate["name"] for gate in old_spec.get("schedulingGates") or ()}
    for index, gate in enumerate(new_spec.get("schedulingGates") or ()):
        gate_name = gate.get("name") or ""
        if gate_name not in known_gates:
            detail = f"only deletion is allowed, but found new scheduling gate '{gate_name}'"
            cause = forbidden_value(f"spec.schedulingGates[{index}].name", detail)
            raise invalid("Pod", "", name, [cause])
    comparable_new, comparable_old = _without_mutable(new_spec), _without_mutable(old_spec)
    if known_gates:
        for field in ("nodeSelector", "affinity"):
            comparable_new.pop(field, None)
            comparable_old.pop(field, None)
    old_tolerations = old_spec.get("tolerations") or []
    kept = all(toleration in (new_spec.get("tolerations") or []) for toleration in old_tolerations)
    if comparable_new != comparable_old or not kept:
        detail = f"pod updates may not change fields other than {_MUTABLE_POD_FIELDS}\n"
        raise invalid("Pod", "", name, [forbidden_value("spec", detail)])


def check_disruption_budgets(api: ObjectApi, pod: Object) -> None:
    """Raises StatusError 429 if a PodDisruptionBudget forbids the eviction of ``pod``."""
    labels = pod["metadata"].get("labels") or {}
    namespace = pod["metadata"]["namespace"]
    for stored in api.all_of("poddisruptionbudgets.policy"):
        budget = stored.obj
        wanted = ((budget.get("spec") or {}).get("selector") or {}).get("matchLabels") or {}
        if budget["metadata"]["namespace"] != namespace or not wanted:
            continue
        if any(labels.get(key) != value for key, value in wanted.items()):
            continue
        if (budget.get("status") or {}).get("disruptionsAllowed", 0) <= 0:
            detail = f"The disruption budget {budget['metadata']['name']} needs more healthy pods"
            raise StatusError(
                429,
                "TooManyRequests",
                "Cannot evict pod as it would violate the pod's disruption budget.",
                details={"causes": [{"reason": "DisruptionBudget", "message": detail}]},
            )
