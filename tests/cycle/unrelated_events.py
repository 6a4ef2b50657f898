"""Frequent events of a busy cluster that help no pending pod."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from asched.model.pod import Pod
from asched.model.resources import AnyObject
from asched.state.records import ObjectDeleted
from tests.cycle.scheduling import Scheduling
from tests.plugins.volume_clusters import api

BUSY = "busy"

Flood = Callable[[Scheduling, int], None]
"""Applies events; the number is different each time."""


def made(kind: str, name: str, namespace: str = "", **fields: Any) -> AnyObject:
    """An object from API fields."""
    found = api(kind, name, namespace, **fields)
    assert isinstance(found, AnyObject)
    return found


def gone(s: Scheduling, item: AnyObject) -> None:
    s.apply(ObjectDeleted(type(item).__name__, item.key, item.metadata.uid))


def a_node(
    name: str = "n", labels: dict[str, str] | None = None, spec: Any = None, **status: Any
) -> AnyObject:
    """A node with 4 cores and two label domains."""
    offered = {"cpu": "4", "memory": "8Gi", "pods": "10", **status.pop("allocatable", {})}
    own = {"kubernetes.io/hostname": name, "zone": "z1", **(labels or {})}
    status = {"allocatable": offered, **status}
    return made("Node", name, labels=own, spec=spec or {}, status=status)


def busy_node(labels: dict[str, str] | None = None, spec: Any = None, **status: Any) -> AnyObject:
    """The node of the events. No pod can be scheduled there."""
    status["allocatable"] = {"cpu": "0", **status.get("allocatable", {})}
    own = {"zone": "z0", **(labels or {})}
    return a_node(BUSY, own, {"unschedulable": True, **(spec or {})}, **status)


def a_pod(name: str, *, cpu: str = "1", labels: dict[str, str] | None = None, **spec: Any) -> Pod:
    """A pod of namespace ``d``."""
    container = {"name": "c", "resources": {"requests": {"cpu": cpu}}}
    pod = api("Pod", name, "d", labels=labels or {}, spec={"containers": [container], **spec})
    assert isinstance(pod, Pod)
    return pod


def _come_and_go(s: Scheduling, *items: AnyObject) -> None:
    for item in items:
        s.see(item)
        gone(s, item)


# -- the kinds ------------------------------------------------------------------------------------


def pending_pods_of_others(s: Scheduling, number: int) -> None:
    theirs: dict[str, Any] = {"schedulerName": "theirs"}
    s.see(a_pod("pending", labels={"app": "other"}, **theirs))
    s.see(a_pod("pending", labels={"app": f"other-{number}"}, **theirs))
    gone(s, a_pod("pending", **theirs))


def pods_come_to_nodes(s: Scheduling, number: int) -> None:
    s.see(a_pod(f"came-{number}", cpu="1m", labels={"app": "other"}, nodeName=BUSY))
    s.see(a_pod(f"came-{number}", cpu="1m", labels={"app": "changed"}, nodeName=BUSY))


def pods_leave_nodes(s: Scheduling, number: int) -> None:
    _come_and_go(s, a_pod(f"left-{number}", cpu="1m", labels={"app": "other"}, nodeName=BUSY))


def nodes_report_conditions(s: Scheduling, number: int) -> None:
    status = "True" if number % 2 else "False"
    conditions = [{"type": "DiskPressure", "status": status}]
    s.see(busy_node(conditions=conditions))


def nodes_are_labelled(s: Scheduling, number: int) -> None:
    s.see(busy_node({"checked": str(number)}))


def nodes_get_soft_taints(s: Scheduling, number: int) -> None:
    soft = {"key": "soft", "value": str(number), "effect": "PreferNoSchedule"}
    s.see(busy_node(spec={"taints": [soft]}))


def nodes_offer_more_of_something_else(s: Scheduling, number: int) -> None:
    s.see(busy_node(allocatable={"example.com/gpu": str(number + 1)}))


def useless_nodes_come_and_go(s: Scheduling, number: int) -> None:
    taint = {"key": "reserved", "effect": "NoSchedule"}
    node = made(
        "Node", f"useless-{number}", spec={"taints": [taint], "unschedulable": True},
        status={"allocatable": {"cpu": "1m", "pods": "10"}},
    )  # fmt: skip
    _come_and_go(s, node)


def workloads_come_and_go(s: Scheduling, number: int) -> None:
    selector = {"matchLabels": {"app": "other"}}
    _come_and_go(
        s,
        made("Namespace", f"ns-{number}", labels={"team": "other"}),
        made("Service", f"s-{number}", "d", spec={"selector": {"app": "other"}}),
        made("ReplicaSet", f"rs-{number}", "d", spec={"selector": selector}),
        made("PodDisruptionBudget", f"b-{number}", "d", spec={"selector": selector}),
        made("PriorityClass", f"c-{number}", value=number),
    )


def claims_of_others(s: Scheduling, number: int) -> None:
    name = f"claim-{number}"
    s.see(made("PersistentVolumeClaim", name, "d"))
    s.see(made("PersistentVolumeClaim", name, "d", status={"phase": "Bound"}))
    gone(s, made("PersistentVolumeClaim", name, "d"))


def volumes_come_and_go(s: Scheduling, number: int) -> None:
    _come_and_go(s, made("PersistentVolume", f"other-{number}"))


def storage_classes_come_and_go(s: Scheduling, number: int) -> None:
    _come_and_go(s, made("StorageClass", f"class-{number}", provisioner="other.example.com"))


def csi_nodes_come_and_go(s: Scheduling, number: int) -> None:
    _come_and_go(s, made("CSINode", f"csi-{number}"))


def csi_drivers_and_attachments(s: Scheduling, number: int) -> None:
    driver = f"other-{number}.example.com"
    attached = {"attacher": driver, "nodeName": BUSY, "source": {"persistentVolumeName": "x"}}
    _come_and_go(
        s, made("CSIDriver", driver), made("VolumeAttachment", f"a-{number}", spec=attached)
    )


FLOODS: dict[str, Flood] = {
    flood.__name__: flood
    for flood in (
        pending_pods_of_others,
        pods_come_to_nodes,
        pods_leave_nodes,
        nodes_report_conditions,
        nodes_are_labelled,
        nodes_get_soft_taints,
        nodes_offer_more_of_something_else,
        useless_nodes_come_and_go,
        workloads_come_and_go,
        claims_of_others,
        volumes_come_and_go,
        storage_classes_come_and_go,
        csi_nodes_come_and_go,
        csi_drivers_and_attachments,
    )
}
