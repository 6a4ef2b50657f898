"""DaemonSets: a pod on every node that its template permits."""

from __future__ import annotations

from typing import Final

import msgspec

from asched.apiserver.controllers.dependents import (
    Dependents,
    counted,
    is_active,
    is_finished,
    is_ready,
    pod_of,
    template_hash,
)
from asched.apiserver.controllers.stateful_sets import REVISION_LABEL
from asched.apiserver.errors import Object, StatusError
from asched.model.node import Taint
from asched.model.pod import PodSpec, Toleration

DAEMON_SETS = "daemonsets"
DAEMON_TOLERATIONS: Final = (
    ("node.kubernetes.io/not-ready", "NoExecute"),
    ("node.kubernetes.io/unreachable", "NoExecute"),
    ("node.kubernetes.io/disk-pressure", "NoSchedule"),
    ("node.kubernetes.io/memory-pressure", "NoSchedule"),
    ("node.kubernetes.io/pid-pressure", "NoSchedule"),
    ("node.kubernetes.io/unschedulable", "NoSchedule"),
)
"""Key and effect of the taints that all pods of DaemonSets tolerate
(``AddOrUpdateDaemonPodTolerations``)."""


def sync_daemon_set(dependents: Dependents, daemon_set: Object, nodes: list[Object]) -> None:
    """Create, replace and delete pods, then report. ``nodes`` are all of the cluster."""
    template = daemon_set["spec"]["template"]
    revision = template_hash(template)
    spec = msgspec.convert(template["spec"], PodSpec)
    by_node: dict[str, list[Object]] = {}
    for pod in dependents.controlled("pods", daemon_set):
        if is_finished(pod):
            dependents.remove("pods", pod)
        else:
            by_node.setdefault(_node_of(pod), []).append(pod)
    wanted = [node["metadata"]["name"] for node in nodes if _permits(spec, node)]
    for name in wanted:
        if name not in by_node:
            made = _create(dependents, daemon_set, name, revision)
            by_node[name] = [made] if made is not None else []
    for name, pods in by_node.items():
        surplus = pods[1:] if name in wanted else pods
        for pod in filter(is_active, surplus):
            dependents.remove("pods", pod)
    first = {name: pods[0] for name, pods in by_node.items() if pods and name in wanted}
    _replace_old(dependents, daemon_set, first, revision)
    ready = sum(map(is_ready, first.values()))
    status = {
        "observedGeneration": daemon_set["metadata"].get("generation", 0),
        "desiredNumberScheduled": len(wanted),
        "currentNumberScheduled": len(first),
        "updatedNumberScheduled": sum(_revision(pod) == revision for pod in first.values()),
        "numberReady": ready,
        "numberAvailable": ready,
        "numberUnavailable": len(wanted) - ready,
        "numberMisscheduled": sum(len(p) for name, p in by_node.items() if name not in wanted),
    }
    dependents.set_status(DAEMON_SETS, daemon_set, status)


def _replace_old(
    dependents: Dependents, daemon_set: Object, pods: dict[str, Object], revision: str
) -> None:
    """Delete pods of an earlier template, at most ``maxUnavailable`` at a time."""
    strategy = daemon_set["spec"].get("updateStrategy") or {}
    if strategy.get("type") == "OnDelete":
        return
    most = (strategy.get("rollingUpdate") or {}).get("maxUnavailable", 1)
    allowed = max(1, counted(most, len(pods), up=True))
    old = [pod for pod in pods.values() if _revision(pod) != revision and is_active(pod)]
    allowed -= sum(not (is_ready(pod) and is_active(pod)) for pod in pods.values())
    unready = [pod for pod in old if not is_ready(pod)]
    serving = [pod for pod in old if is_ready(pod)]
    for pod in (*unready, *serving[: max(0, allowed)]):
        dependents.remove("pods", pod)


def _create(dependents: Dependents, daemon_set: Object, node: str, revision: str) -> Object | None:
    """The pod for this node, which the scheduler places there; None if it is refused."""
    pod = pod_of(daemon_set["spec"]["template"], prefix=f"{daemon_set['metadata']['name']}-")
    labels = {**(pod["metadata"].get("labels") or {}), REVISION_LABEL: revision}
    pod["metadata"]["labels"] = labels
    spec = pod["spec"]
    affinity = {**(spec.get("affinity") or {})}
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    node_affinity = {**(affinity.get("nodeAffinity") or {})}
    node_affinity["requiredDuringSchedulingIgnoredDuringExecution"] = {
        "nodeSelectorTerms": [{"matchFields": [field]}]
    }
    affinity["nodeAffinity"] = node_affinity
    spec["affinity"] = affinity
    added = [
        {"key": key, "operator": "Exists", "effect": effect} for key, effect in DAEMON_TOLERATIONS
    ]
    spec["tolerations"] = [*(spec.get("tolerations") or ()), *added]
    try:
        return dependents.make("pods", daemon_set, pod)
    except StatusError:
        return None


def _node_of(pod: Object) -> str:
    """The node of a pod, or the one that it is for."""
    bound = pod["spec"].get("nodeName")
    if bound:
        return str(bound)
    required = pod["spec"]["affinity"]["nodeAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]
    return str(required["nodeSelectorTerms"][0]["matchFields"][0]["values"][0])


def _permits(spec: PodSpec, node: Object) -> bool:
    """Whether the node has the labels that the template asks for, and no taint against it."""
    name, labels = node["metadata"]["name"], node["metadata"].get("labels") or {}
    if any(labels.get(key) != value for key, value in (spec.node_selector or {}).items()):
        return False
    affinity = spec.affinity.node_affinity if spec.affinity is not None else None
    required = None if affinity is None else affinity.required
    if required is not None and not required.matches(labels, name):
        return False
    tolerations = [
        *spec.tolerations,
        *(
            Toleration(key=key, operator="Exists", effect=effect)
            for key, effect in DAEMON_TOLERATIONS
        ),
    ]
    taints = msgspec.convert(node["spec"].get("taints") or (), tuple[Taint, ...])
    return all(
        taint.effect == "PreferNoSchedule" or any(each.tolerates(taint) for each in tolerations)
        for taint in taints
    )


def _revision(pod: Object) -> str:
    return str((pod["metadata"].get("labels") or {}).get(REVISION_LABEL, ""))
