"""A simulated history with gangs, queues, preemption, reclaim and owners."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from tests.ui.serving import invoke

NATIVE = "scheduling.k8s.io/v1alpha2"
CUSTOM = "scheduling.incubator.k8s.io/v1alpha1"
BATCH = "kube-batch"
CONF = """\
actions: "reclaim, allocate, backfill, preempt"
tiers:
- plugins: [{name: priority}, {name: gang}, {name: conformance}]
- plugins: [{name: drf}, {name: predicates}, {name: proportion}, {name: nodeorder}]
"""
CONFIG = """\
apiVersion: asched.dev/v1
kind: AschedConfiguration
batch: [{schedulerName: kube-batch, conf: conf.yaml}]
---
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
  - schedulerName: default-scheduler
    plugins:
      multiPoint:
        enabled: [{name: GangScheduling}]
      queueSort:
        disabled: [{name: "*"}]
        enabled: [{name: GangSort}]
"""


def native(name: str, minimum: int, namespace: str = "ml") -> dict[str, Any]:
    gang = {"schedulingPolicy": {"gang": {"minCount": minimum}}}
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": NATIVE, "kind": "PodGroup", "metadata": metadata, "spec": gang}


def custom(name: str, minimum: int, queue: str, priority: str = "") -> dict[str, Any]:
    spec = {"minMember": minimum, "queue": queue, "priorityClassName": priority}
    metadata = {"name": name, "namespace": "batch"}
    return {"apiVersion": CUSTOM, "kind": "PodGroup", "metadata": metadata, "spec": spec}


def queue(name: str, weight: int) -> dict[str, Any]:
    spec = {"weight": weight}
    return {"apiVersion": CUSTOM, "kind": "Queue", "metadata": {"name": name}, "spec": spec}


def nodes(name: str, count: int, cpu: int, pool: str) -> dict[str, Any]:
    allocatable = {"cpu": cpu, "memory": "64Gi", "pods": 110}
    return {"name": name, "count": count, "labels": {"pool": pool}, "allocatable": allocatable}


def pods(name: str, count: int, cpu: int, pool: str, **more: Any) -> dict[str, Any]:
    """``more``: gang, priority, owner (a pair), scheduler, grace_s, and fields of a pod group."""
    gang, priority = more.pop("gang", ""), more.pop("priority", "")
    owner, scheduler = more.pop("owner", None), more.pop("scheduler", "default-scheduler")
    container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": cpu}}}
    spec: dict[str, Any] = {
        "schedulerName": scheduler,
        "nodeSelector": {"pool": pool},
        "terminationGracePeriodSeconds": more.pop("grace_s", 5),
        "containers": [container],
    }
    metadata: dict[str, Any] = {}
    if priority:
        spec["priorityClassName"] = priority
    if gang and scheduler == BATCH:
        metadata["annotations"] = {"scheduling.k8s.io/group-name": gang}
    elif gang:
        spec["schedulingGroup"] = {"podGroupName": gang}
    if owner:
        kind, owner_name = owner
        reference = {"apiVersion": "apps/v1", "kind": kind, "name": owner_name, "controller": True}
        metadata["ownerReferences"] = [{**reference, "uid": f"uid-{owner_name}"}]
    template = {"metadata": metadata, "spec": spec}
    return {"name": name, "count": count, "template": template, **more}


def after(start: str, every: str = "") -> dict[str, str]:
    return {"after": start, **({"every": every} if every else {})}


SCENARIO: dict[str, Any] = {
    "apiVersion": "asched.dev/v1",
    "kind": "Scenario",
    "duration": "3m",
    "nodes": [
        nodes("svc", 4, 4, "svc"),
        nodes("bat", 3, 4, "bat"),
        nodes("few", 3, 1, "few"),
        nodes("one", 1, 4, "one"),
    ],
    "priorityClasses": {"high": 1000, "low": 10},
    "objects": [
        *(queue("research", 1), queue("production", 3), queue("default", 1), queue("solo", 1)),
        *(native("training", 3), native("huge", 6), native("late", 3), native("early", 3)),
        *(custom("sweep", 1, "research"), custom("serve", 4, "production")),
        *(custom("urgent", 2, "production", "high"), custom("stuck", 9, "production")),
        *(custom("meek", 1, "solo", "low"), custom("bold", 1, "solo", "high")),
    ],
    "pods": [
        # Preempted by the gang training, which waits until it has its minimum.
        pods("web", 12, 1, "svc", namespace="shop", priority="low",
             owner=("ReplicaSet", "web-5d8f")),
        pods("training", 4, 2, "svc", namespace="ml", gang="training", priority="high",
             arrival=after("20s", "2s")),
        # Does not fit.
        pods("huge", 6, 3, "svc", namespace="ml", gang="huge", arrival=after("40s")),
        pods("big", 2, 64, "svc", namespace="shop", owner=("StatefulSet", "big"),
             arrival=after("50s")),
        # late holds two nodes while a victim ends; early comes first and gets them.
        pods("filler", 1, 1, "few", namespace="ml", grace_s=30),
        pods("late", 3, 1, "few", namespace="ml", gang="late", priority="low",
             arrival=after("5s")),
        pods("early", 3, 1, "few", namespace="ml", gang="early", priority="low",
             arrival=after("10s")),
        # Jobs of batch sessions: reclaimed by other queues, and preempted in their queue.
        pods("sweep", 10, 1, "bat", namespace="batch", gang="sweep", scheduler=BATCH,
             arrival=after("1s")),
        pods("serve", 4, 1, "bat", namespace="batch", gang="serve", scheduler=BATCH,
             arrival=after("30s", "1s")),
        pods("urgent", 2, 2, "bat", namespace="batch", gang="urgent", priority="high",
             scheduler=BATCH, arrival=after("60s")),
        pods("stuck", 9, 4, "bat", namespace="batch", gang="stuck", scheduler=BATCH,
             arrival=after("70s")),
        pods("solo", 3, 1, "bat", namespace="batch", scheduler=BATCH, owner=("Job", "solo"),
             arrival=after("80s")),
        pods("meek", 4, 1, "one", namespace="batch", gang="meek", priority="low",
             scheduler=BATCH),
        pods("bold", 1, 2, "one", namespace="batch", gang="bold", priority="high",
             scheduler=BATCH, arrival=after("15s")),
    ],
}  # fmt: skip


def record(folder: Path, scenario: dict[str, Any] | None = None) -> Path:
    """A journal of the scenario in virtual time."""
    (folder / "conf.yaml").write_text(CONF)
    config = folder / "config.yaml"
    config.write_text(CONFIG.replace("conf.yaml", str(folder / "conf.yaml")))
    document = folder / "scenario.yaml"
    document.write_text(yaml.safe_dump(scenario or SCENARIO))
    journal = folder / "journal.db"
    arguments = "simulate", str(document), "--config", str(config), "--journal", str(journal)
    code, _, err = invoke(*arguments)
    assert code == 0, err
    return journal
