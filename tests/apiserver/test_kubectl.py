"""kubectl with default flags against the embedded cluster."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from asched.apiserver.auth import ADMIN, SCHEDULER
from asched.apiserver.cluster import EmbeddedCluster
from asched.apiserver.controllers.manager import Controllers
from asched.apiserver.http import ApiServer
from asched.apiserver.kubelet import Kubelets, KubeletTimings
from asched.apiserver.storage import ADDED, StoreChange
from tests.apiserver.kubectl import KUBECTL, Kubectl, needs_kubectl
from tests.apiserver.objects import node, pod

pytestmark = needs_kubectl

MANIFEST = """
apiVersion: v1
kind: Namespace
metadata: {name: team}
---
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: team, labels: {app: web}}
spec:
  containers:
  - {name: c, image: "registry/x:1", resources: {requests: {cpu: 100m}}}
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: queues.example.com}
spec:
  group: example.com
  scope: Cluster
  names: {plural: queues, singular: queue, kind: Queue}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
"""


@pytest.fixture
async def kubectl(tmp_path: Path) -> AsyncIterator[Kubectl]:
    cluster = EmbeddedCluster()
    cluster.create("nodes", node("n0"))
    tokens = {"admin-token": ADMIN, "scheduler-token": SCHEDULER}
    async with ApiServer(cluster, tokens=tokens).run() as server:
        yield Kubectl(server, tmp_path)


async def test_apply_twice_change_and_delete(kubectl: Kubectl) -> None:
    created = await kubectl.run("apply", "-f", "-", stdin=MANIFEST)
    assert created.splitlines() == [
        "namespace/team created",
        "pod/web created",
        "customresourcedefinition.apiextensions.k8s.io/queues.example.com created",
    ]
    again = await kubectl.run("apply", "-f", "-", stdin=MANIFEST)
    assert again.count("unchanged") == 3
    changed = await kubectl.run("apply", "-f", "-", stdin=MANIFEST.replace("app: web", "app: v2"))
    assert "pod/web configured" in changed
    labels = await kubectl.run(
        "get", "pod", "web", "-n", "team", "-o", "jsonpath={.metadata.labels}"
    )
    assert labels == '{"app":"v2"}'
    queue = "apiVersion: example.com/v1\nkind: Queue\nmetadata: {name: q}\nspec: {weight: 1}\n"
    assert await kubectl.run("create", "-f", "-", stdin=queue) == "queue.example.com/q created\n"
    assert (await kubectl.columns("get", "queues")) == ["NAME", "AGE"]
    # The namespace takes its pod along before kubectl gets to it.
    await kubectl.run("delete", "--ignore-not-found", "-f", "-", stdin=MANIFEST)
    code, _, said = await kubectl.tried("get", "pod", "web", "-n", "team")
    assert (code, said) == (1, 'Error from server (NotFound): namespaces "team" not found\n')


async def test_server_side_apply(kubectl: Kubectl) -> None:
    for _ in range(2):
        applied = await kubectl.run("apply", "--server-side", "-f", "-", stdin=MANIFEST)
        assert "pod/web serverside-applied" in applied


async def test_protobuf_objects_are_created(kubectl: Kubectl) -> None:
    assert await kubectl.run("create", "namespace", "x") == "namespace/x created\n"
    await kubectl.run("create", "configmap", "m", "--from-literal=a=b")
    assert await kubectl.run("get", "configmap", "m", "-o", "jsonpath={.data.a}") == "b"
    await kubectl.run("create", "priorityclass", "high", "--value=7", "--description=d")
    assert await kubectl.run("get", "priorityclass", "high", "-o", "jsonpath={.value}") == "7"
    await kubectl.run("create", "pdb", "b", "--selector=app=web", "--min-available=50%")
    assert await kubectl.run("get", "pdb", "b", "-o", "jsonpath={.spec.minAvailable}") == "50%"


async def test_protobuf_that_is_not_read_asks_for_json(kubectl: Kubectl) -> None:
    code, _, said = await kubectl.tried("debug", "node/n0", "--image=x", "--profile=general")
    assert code == 1
    assert "this API server does not read a Pod in protobuf; send application/json" in said


@pytest.mark.parametrize(
    ("what", "shown"),
    [
        ("pod", "spec\t<Object>"),
        ("pod.spec.containers", "image\t<string>"),
        ("pod.spec.initContainers.resources.requests", "<map[string]string>"),
        ("node.spec.taints", "effect\t<string>"),
        ("deployment.spec.template.spec.tolerations", "tolerationSeconds\t<integer>"),
        ("podgroup.spec", "<Object>"),
    ],
)
async def test_explain_prints_the_known_fields(kubectl: Kubectl, what: str, shown: str) -> None:
    printed = await kubectl.run("explain", what)
    assert shown in printed
    stated = "without descriptions" in " ".join(printed.split())
    assert stated is ("." not in what)


async def test_deployment_is_scaled_updated_and_rolled_back(kubectl: Kubectl) -> None:
    cluster = kubectl.server.cluster
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(Controllers(cluster).run)
        tasks.start_soon(Kubelets(cluster, KubeletTimings(start_s=0.0, terminate_s=0.0)).run)

        def on_pod(change: StoreChange) -> None:
            tasks.start_soon(_bind, cluster, change)

        cluster.listen("pods", on_pod)
        await kubectl.run("create", "deployment", "web", "--image=x:1", "--replicas=2")
        await kubectl.run("rollout", "status", "deploy/web", "--timeout=60s")
        assert await kubectl.run("scale", "deploy/web", "--replicas=3") == (
            "deployment.apps/web scaled\n"
        )
        await kubectl.run("set", "image", "deploy/web", "x=x:2")
        await kubectl.run("rollout", "status", "deploy/web", "--timeout=60s")
        await kubectl.run("rollout", "undo", "deploy/web")
        await kubectl.run("rollout", "status", "deploy/web", "--timeout=60s")
        assert "NewReplicaSet" in await kubectl.run("describe", "deploy/web")
        tasks.cancel_scope.cancel()
    sizes = sorted(one["spec"]["replicas"] for one in cluster.list("replicasets"))
    assert sizes == [0, 3]
    assert {pod["spec"]["containers"][0]["image"] for pod in cluster.list("pods")} == {"x:1"}
    code, _, said = await kubectl.tried("logs", "deploy/web")
    assert code == 1
    assert "run no containers" in said


async def _bind(cluster: EmbeddedCluster, change: StoreChange) -> None:
    if change.type == ADDED:
        cluster.bind("default", change.new.obj["metadata"]["name"], "n0")


async def test_nodes_are_cordoned_tainted_labelled_and_annotated(kubectl: Kubectl) -> None:
    await kubectl.run("cordon", "n0")
    assert "Ready,SchedulingDisabled" in await kubectl.run("get", "nodes")
    await kubectl.run("uncordon", "n0")
    await kubectl.run("taint", "node", "n0", "a=b:NoSchedule", "c=d:NoExecute")
    await kubectl.run("taint", "node", "n0", "a-")
    taints = await kubectl.run("get", "node", "n0", "-o", "jsonpath={.spec.taints[*].key}")
    assert taints == "c"
    await kubectl.run("label", "node", "n0", "x=1")
    await kubectl.run("annotate", "node", "n0", "y=2")
    await kubectl.run(
        "patch",
        "node",
        "n0",
        "--type=json",
        "-p",
        '[{"op":"replace","path":"/metadata/labels/x","value":"3"}]',
    )
    metadata = await kubectl.run("get", "node", "n0", "-o", "jsonpath={.metadata.labels.x}")
    assert metadata == "3"


async def test_drain_node(kubectl: Kubectl) -> None:
    kubectl.server.cluster.create("pods", pod("p"))
    kubectl.server.cluster.bind("default", "p", "n0")
    code, printed, _ = await kubectl.tried(
        "drain", "n0", "--force", "--grace-period=0", "--timeout=20s"
    )
    assert code == 0
    assert "pod/p evicted" in printed
    assert kubectl.server.cluster.count("pods") == 0


async def test_tables_come_from_the_server(kubectl: Kubectl) -> None:
    cluster = kubectl.server.cluster
    cluster.create("pods", pod("p"))
    cluster.bind("default", "p", "n0")
    assert await kubectl.columns("get", "pods", "-o", "wide") == [
        "NAME",
        "READY",
        "STATUS",
        "RESTARTS",
        "AGE",
        "IP",
        "NODE",
        "NOMINATED NODE",
        "READINESS GATES",
    ]
    assert await kubectl.columns("get", "nodes") == ["NAME", "STATUS", "ROLES", "AGE", "VERSION"]
    row = (await kubectl.run("get", "pods", "-A", "-o", "wide")).splitlines()[1].split()
    assert row[:5] == ["default", "p", "0/1", "Pending", "0"]
    assert row[7] == "n0"


async def test_describe_shows_events_and_pods_of_a_node(kubectl: Kubectl) -> None:
    cluster = kubectl.server.cluster
    made = cluster.create("pods", pod("p"))
    cluster.bind("default", "p", "n0")
    cluster.create(
        "events.events.k8s.io",
        {
            "metadata": {"name": "e", "namespace": "default"},
            "eventTime": "2026-01-01T00:00:00.000000Z",
            "type": "Normal",
            "reason": "Scheduled",
            "action": "Binding",
            "reportingController": "asched",
            "reportingInstance": "asched-1",
            "note": "Successfully assigned default/p to n0",
            "regarding": {
                "kind": "Pod",
                "namespace": "default",
                "name": "p",
                "uid": made["metadata"]["uid"],
            },
        },
    )
    assert "Successfully assigned default/p to n0" in await kubectl.run("describe", "pod", "p")
    assert "default                     p" in await kubectl.run("describe", "node", "n0")
    assert "pod/p" in await kubectl.run("get", "events")


async def test_watch_shows_changes_as_rows(kubectl: Kubectl) -> None:
    cluster = kubectl.server.cluster
    cluster.create("pods", pod("p"))
    assert KUBECTL is not None
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(kubectl.home),
        "KUBECONFIG": str(kubectl.config),
    }
    async with await anyio.open_process(
        [KUBECTL, "get", "pods", "-o", "wide", "-w"],
        stdin=subprocess.DEVNULL,
        stderr=sys.stderr,
        env=environment,
    ) as process:
        assert process.stdout is not None
        seen = ""
        with anyio.fail_after(60):
            while "Pending" not in seen:
                seen += (await process.stdout.receive()).decode()
            cluster.bind("default", "p", "n0")
            while "n0" not in seen:
                seen += (await process.stdout.receive()).decode()
        process.terminate()
    assert seen.count("READINESS GATES") == 1, "one header for the whole watch"


async def test_errors_have_kube_apiserver_messages(kubectl: Kubectl) -> None:
    misspelt = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containerz: []}\n"
    code, _, said = await kubectl.tried("apply", "-f", "-", stdin=misspelt)
    assert code == 1
    assert 'strict decoding error: unknown field "spec.containerz"' in said
    code, _, said = await kubectl.tried(
        "create", "-f", "-", stdin=MANIFEST.replace("web,", "We_b,")
    )
    assert code == 1
    assert 'The Pod "We_b" is invalid: metadata.name: Invalid value: "We_b"' in said


async def test_permissions_of_the_scheduler(kubectl: Kubectl, tmp_path: Path) -> None:
    config = kubectl.server.kubeconfig(tmp_path / "scheduler", user=SCHEDULER)
    assert "n0" in await kubectl.run("get", "nodes", config=config)
    code, _, said = await kubectl.tried("delete", "node", "n0", config=config)
    assert code == 1
    assert 'User "system:kube-scheduler" cannot delete resource "nodes"' in said


async def test_diff_of_unchanged_manifest_is_empty(kubectl: Kubectl) -> None:
    await kubectl.run("apply", "-f", "-", stdin=MANIFEST)
    code, printed, said = await kubectl.tried("diff", "-f", "-", stdin=MANIFEST)
    assert (code, printed) == (0, ""), said
