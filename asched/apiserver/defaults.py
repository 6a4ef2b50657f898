"""Defaulting on write, as far as it is visible to schedulers and kubectl.

Sources: pkg/apis/core/v1/defaults.go and its counterparts of policy, storage and scheduling. The
functions change their argument.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from asched.apiserver.dra.defaults import default_claim, default_template
from asched.apiserver.errors import Object
from asched.apiserver.group_forms import default_group
from asched.model.quantity import QuantityError, milli_value, value

NODE_TOLERATION_SECONDS = 300
"""DefaultTolerationSeconds admission: how long a pod stays on an unreachable node."""

_NODE_INFO_FIELDS = (
    "machineID systemUUID bootID kernelVersion osImage containerRuntimeVersion kubeletVersion "
    "kubeProxyVersion operatingSystem architecture"
)
_DEFAULT_MODE = 420  # 0644
_MODE_VOLUMES = ("secret", "configMap", "downwardAPI", "projected")


def apply_defaults(storage_key: str, obj: Object) -> None:
    """Set the defaults of an object of this storage."""
    default = _DEFAULT_FUNCS.get(storage_key)
    if default is not None:
        default(obj)
    else:
        _set_missing(obj, _DEFAULT_VALUES.get(storage_key, {}))


def _set_missing(obj: Object, defaults: Object) -> None:
    for field, default in defaults.items():
        if isinstance(default, dict):
            _set_missing(obj.setdefault(field, {}), default)
        else:
            obj.setdefault(field, default)


def containers_of(spec: Object) -> list[Object]:
    """Init containers, then containers."""
    return [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]


def _pull_policy(image: str) -> str:
    """Always for ``:latest`` or no tag, unless a digest pins the image."""
    if "@" in image:
        return "IfNotPresent"
    tag = image.rpartition("/")[2].partition(":")[2]
    return "Always" if tag in ("", "latest") else "IfNotPresent"


def _default_container(container: Object, host_network: bool) -> None:
    resources = container.setdefault("resources", {})
    limits = resources.get("limits")
    if limits:
        resources["requests"] = {**limits, **(resources.get("requests") or {})}
    for port in container.get("ports") or ():
        port.setdefault("protocol", "TCP")
        if host_network and not port.get("hostPort"):
            port["hostPort"] = port.get("containerPort", 0)
    container.setdefault("terminationMessagePath", "/dev/termination-log")
    container.setdefault("terminationMessagePolicy", "File")
    container.setdefault("imagePullPolicy", _pull_policy(container.get("image") or ""))
    for probe_name in ("livenessProbe", "readinessProbe", "startupProbe"):
        probe = container.get(probe_name)
        if isinstance(probe, dict):
            _set_missing(probe, _PROBE_DEFAULTS)
            if "httpGet" in probe:
                _set_missing(probe["httpGet"], {"path": "/", "scheme": "HTTP"})


_PROBE_DEFAULTS = {
    "timeoutSeconds": 1,
    "periodSeconds": 10,
    "successThreshold": 1,
    "failureThreshold": 3,
}


def _default_volume(volume: Object) -> None:
    if volume.keys() == {"name"}:
        volume["emptyDir"] = {}
    for source in _MODE_VOLUMES:
        if isinstance(volume.get(source), dict):
            volume[source].setdefault("defaultMode", _DEFAULT_MODE)
    if isinstance(volume.get("hostPath"), dict):
        volume["hostPath"].setdefault("type", "")
    ephemeral = volume.get("ephemeral")
    if isinstance(ephemeral, dict) and "volumeClaimTemplate" in ephemeral:
        ephemeral["volumeClaimTemplate"].setdefault("spec", {}).setdefault(
            "volumeMode", "Filesystem"
        )


def default_pod_spec(spec: Object) -> None:
    """Set the defaults of a pod spec, also in a pod template."""
    spec.setdefault("restartPolicy", "Always")
    spec.setdefault("terminationGracePeriodSeconds", 30)
    spec.setdefault("dnsPolicy", "ClusterFirst")
    spec.setdefault("securityContext", {})
    spec.setdefault("schedulerName", "default-scheduler")
    host_network = bool(spec.get("hostNetwork"))
    for container in containers_of(spec):
        _default_container(container, host_network)
    for volume in spec.get("volumes") or ():
        _default_volume(volume)


_OMITTED_WHEN_EMPTY = (
    "initContainers nodeSelector schedulingGates tolerations topologySpreadConstraints volumes"
)


def drop_empty(holder: Object, *fields: str) -> None:
    """Remove empty fields that the typed API omits (``omitempty``)."""
    for field in fields:
        if field in holder and not holder[field]:
            del holder[field]


def _default_pod(pod: Object) -> None:
    spec = pod.setdefault("spec", {})
    default_pod_spec(spec)
    drop_empty(spec, *_OMITTED_WHEN_EMPTY.split())
    spec.setdefault("enableServiceLinks", True)
    labels = pod["metadata"].get("labels") or {}
    for constraint in spec.get("topologySpreadConstraints") or ():
        _merge_label_keys(constraint, constraint.get("matchLabelKeys"), "In", labels)
    for term in _affinity_terms(spec.get("affinity") or {}):
        _merge_label_keys(term, term.get("matchLabelKeys"), "In", labels)
        _merge_label_keys(term, term.get("mismatchLabelKeys"), "NotIn", labels)


def _affinity_terms(affinity: Object) -> list[Object]:
    terms: list[Object] = []
    for kind in ("podAffinity", "podAntiAffinity"):
        group = affinity.get(kind) or {}
        terms.extend(group.get("requiredDuringSchedulingIgnoredDuringExecution") or ())
        terms.extend(
            weighted["podAffinityTerm"]
            for weighted in group.get("preferredDuringSchedulingIgnoredDuringExecution") or ()
            if "podAffinityTerm" in weighted
        )
    return terms


def _merge_label_keys(holder: Object, keys: Any, operator: str, labels: Object) -> None:
    """Add the pod's values of ``keys`` to a label selector, if any (KEP-3633, KEP-3243)."""
    selector = holder.get("labelSelector")
    if not keys or selector is None:
        return
    added = [
        {"key": key, "operator": operator, "values": [labels[key]]} for key in keys if key in labels
    ]
    if added:
        selector["matchExpressions"] = [*(selector.get("matchExpressions") or ()), *added]


def add_default_tolerations(spec: Object) -> None:
    """DefaultTolerationSeconds admission: tolerate not-ready and unreachable nodes for 300 s."""
    tolerations = spec.get("tolerations") or []
    added = []
    for key in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"):
        tolerated = any(
            toleration.get("key") in (key, None, "")
            and toleration.get("effect") in ("NoExecute", None, "")
            for toleration in tolerations
        )
        if not tolerated:
            added.append(
                {
                    "key": key,
                    "operator": "Exists",
                    "effect": "NoExecute",
                    "tolerationSeconds": NODE_TOLERATION_SECONDS,
                }
            )
    if added:
        spec["tolerations"] = [*tolerations, *added]


def qos_class(spec: Object) -> str:
    """BestEffort, Burstable or Guaranteed (pkg/apis/core/v1/helper/qos)."""
    guaranteed = True
    anything = False
    for container in containers_of(spec):
        resources = container.get("resources") or {}
        requests = _positive(resources.get("requests"))
        limits = _positive(resources.get("limits"))
        anything = anything or bool(requests or limits)
        if limits.keys() != {"cpu", "memory"} or requests != limits:
            guaranteed = False
    if not anything:
        return "BestEffort"
    return "Guaranteed" if guaranteed else "Burstable"


def _positive(quantities: Any) -> dict[str, int]:
    """CPU in thousandths and memory in bytes, if greater than zero."""
    found: dict[str, int] = {}
    for name in ("cpu", "memory"):
        quantity = (quantities or {}).get(name)
        if quantity is None:
            continue
        try:
            amount = milli_value(quantity) if name == "cpu" else value(quantity)
        except QuantityError:
            continue
        if amount > 0:
            found[name] = amount
    return found


def _default_node(node: Object) -> None:
    drop_empty(node.setdefault("spec", {}), "taints", "unschedulable")
    status = node.setdefault("status", {})
    if status.get("capacity") and not status.get("allocatable"):
        status["allocatable"] = dict(status["capacity"])
    status.setdefault("daemonEndpoints", {"kubeletEndpoint": {"Port": 0}})
    empty = dict.fromkeys(_NODE_INFO_FIELDS.split(), "")
    status["nodeInfo"] = {**empty, **(status.get("nodeInfo") or {})}


def _default_namespace(namespace: Object) -> None:
    metadata = namespace["metadata"]
    labels = dict(metadata.get("labels") or {})
    labels["kubernetes.io/metadata.name"] = metadata["name"]
    metadata["labels"] = labels
    namespace.setdefault("spec", {}).setdefault("finalizers", ["kubernetes"])
    namespace.setdefault("status", {}).setdefault("phase", "Active")


def _default_service(service: Object) -> None:
    spec = service.setdefault("spec", {})
    spec.setdefault("type", "ClusterIP")
    spec.setdefault("sessionAffinity", "None")
    spec.setdefault("internalTrafficPolicy", "Cluster")
    for port in spec.get("ports") or ():
        port.setdefault("protocol", "TCP")
        port.setdefault("targetPort", port.get("port"))
    service.setdefault("status", {"loadBalancer": {}})


def _default_replicated(workload: Object) -> None:
    workload.setdefault("spec", {}).setdefault("replicas", 1)
    _default_templated(workload)
    workload["status"].setdefault("replicas", 0)


def _default_deployment(deployment: Object) -> None:
    _default_replicated(deployment)
    spec = deployment["spec"]
    spec.setdefault("revisionHistoryLimit", 10)
    spec.setdefault("progressDeadlineSeconds", 600)
    strategy = spec.setdefault("strategy", {})
    if strategy.setdefault("type", "RollingUpdate") == "RollingUpdate":
        rolling = strategy.setdefault("rollingUpdate", {})
        rolling.setdefault("maxUnavailable", "25%")
        rolling.setdefault("maxSurge", "25%")


def _default_stateful_set(stateful_set: Object) -> None:
    _default_replicated(stateful_set)
    spec = stateful_set["spec"]
    spec.setdefault("podManagementPolicy", "OrderedReady")
    spec.setdefault("revisionHistoryLimit", 10)
    strategy = spec.setdefault("updateStrategy", {})
    if strategy.setdefault("type", "RollingUpdate") == "RollingUpdate":
        strategy.setdefault("rollingUpdate", {}).setdefault("partition", 0)
    kept = {"whenDeleted": "Retain", "whenScaled": "Retain"}
    spec.setdefault("persistentVolumeClaimRetentionPolicy", kept)


def _default_daemon_set(daemon_set: Object) -> None:
    _default_templated(daemon_set)
    spec = daemon_set["spec"]
    spec.setdefault("revisionHistoryLimit", 10)
    strategy = spec.setdefault("updateStrategy", {})
    if strategy.setdefault("type", "RollingUpdate") == "RollingUpdate":
        rolling = strategy.setdefault("rollingUpdate", {})
        rolling.setdefault("maxUnavailable", 1)
        rolling.setdefault("maxSurge", 0)


def _default_job(job: Object) -> None:
    """Defaults, and the selector that the API server generates with the labels of the pods."""
    _default_templated(job)
    spec, metadata = job["spec"], job["metadata"]
    if spec.get("completions") is None and spec.get("parallelism") is None:
        spec["completions"] = 1
    for field, default in (
        ("parallelism", 1),
        ("backoffLimit", 6),
        ("completionMode", "NonIndexed"),
        ("suspend", False),
        ("podReplacementPolicy", "TerminatingOrFailed"),
    ):
        spec.setdefault(field, default)
    template = spec.get("template")
    if spec.get("manualSelector") or not isinstance(template, dict):
        return
    uid, name = metadata.get("uid"), metadata.get("name")
    generated = {
        "batch.kubernetes.io/controller-uid": uid,
        "batch.kubernetes.io/job-name": name,
        "controller-uid": uid,
        "job-name": name,
    }
    labels = {**(template["metadata"].get("labels") or {}), **generated}
    template["metadata"]["labels"] = labels
    selected = {"batch.kubernetes.io/controller-uid": uid}
    spec.setdefault("selector", {"matchLabels": selected})


def _default_templated(workload: Object) -> None:
    template = workload.setdefault("spec", {}).get("template")
    if isinstance(template, dict):
        template.setdefault("metadata", {})
        default_pod_spec(template.setdefault("spec", {}))
    workload.setdefault("status", {})


def _default_definition(definition: Object) -> None:
    spec = definition.setdefault("spec", {})
    names = spec.setdefault("names", {})
    kind = names.get("kind", "")
    names.setdefault("listKind", f"{kind}List")
    names.setdefault("singular", kind.lower())
    spec.setdefault("conversion", {"strategy": "None"})
    storage = [version["name"] for version in spec.get("versions") or () if version.get("storage")]
    definition.setdefault(
        "status",
        {
            "conditions": None,
            "acceptedNames": {"plural": "", "kind": ""},
            "storedVersions": storage,
        },
    )


_DEFAULT_FUNCS: dict[str, Callable[[Object], None]] = {
    "pods": _default_pod,
    "nodes": _default_node,
    "namespaces": _default_namespace,
    "services": _default_service,
    "replicationcontrollers": _default_replicated,
    "replicasets.apps": _default_replicated,
    "deployments.apps": _default_deployment,
    "statefulsets.apps": _default_stateful_set,
    "daemonsets.apps": _default_daemon_set,
    "jobs.batch": _default_job,
    "customresourcedefinitions.apiextensions.k8s.io": _default_definition,
    "podgroups.scheduling.k8s.io": default_group,
    "compositepodgroups.scheduling.k8s.io": default_group,
    "resourceclaims.resource.k8s.io": default_claim,
    "resourceclaimtemplates.resource.k8s.io": default_template,
}
_DEFAULT_VALUES: dict[str, Object] = {
    "persistentvolumeclaims": {
        "spec": {"volumeMode": "Filesystem"},
        "status": {"phase": "Pending"},
    },
    "persistentvolumes": {
        "spec": {"persistentVolumeReclaimPolicy": "Retain", "volumeMode": "Filesystem"},
        "status": {"phase": "Pending"},
    },
    "secrets": {"type": "Opaque"},
    "storageclasses.storage.k8s.io": {
        "reclaimPolicy": "Delete",
        "volumeBindingMode": "Immediate",
    },
    "csidrivers.storage.k8s.io": {
        "spec": {
            "attachRequired": True,
            "podInfoOnMount": False,
            "storageCapacity": False,
            "fsGroupPolicy": "ReadWriteOnceWithFSType",
            "volumeLifecycleModes": ["Persistent"],
            "requiresRepublish": False,
        }
    },
    "priorityclasses.scheduling.k8s.io": {
        "preemptionPolicy": "PreemptLowerPriority",
        "value": 0,
    },
    "poddisruptionbudgets.policy": {
        "status": {
            "disruptionsAllowed": 0,
            "currentHealthy": 0,
            "desiredHealthy": 0,
            "expectedPods": 0,
        }
    },
}


def complete_status(storage_key: str, obj: Object) -> None:
    """Set the fields of conditions that the typed API always returns (no ``omitempty``)."""
    times = _CONDITION_TIMES.get(storage_key)
    status = obj.get("status")
    if times is None or not isinstance(status, dict):
        return
    conditions = status.get("conditions")
    if not conditions:
        return
    always = {"type": "", "status": "", **dict.fromkeys(times)}
    if all(field in condition for condition in conditions for field in always):
        return
    obj["status"] = {**status, "conditions": [{**always, **c} for c in conditions]}


_CONDITION_TIMES = {
    "pods": ("lastProbeTime", "lastTransitionTime"),
    "nodes": ("lastHeartbeatTime", "lastTransitionTime"),
    "persistentvolumeclaims": ("lastProbeTime", "lastTransitionTime"),
}
