"""The ClusterRole of the chart contains exactly the requests of the daemon."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio
import pytest

from asched.apiserver.auth import AuthRule, User
from asched.apiserver.http import ApiServer
from asched.config.file import parse
from asched.config.registry import PluginRegistry
from asched.daemon.daemon import running_daemon
from asched.daemon.startup import DaemonContext
from asched.framework.binding import ClaimRef
from asched.journal import open_journal
from asched.kube.claim_writer import ClaimWriter
from asched.kube.client import ApiClient
from asched.kube.connection import connect
from asched.kube.pod_writer import PodTarget
from asched.kube.write_outcomes import WriteSucceeded
from asched.model.resource_claims import AllocationResult, ResourceClaim
from asched.model.resources import Resource
from tests.daemon.test_devices import add_pods, devices
from tests.daemon.world import KUBE, World, world
from tests.helm.chart import VALUE_SETS, Values, permissions, rendered, templates
from tests.permissions import GANGS, REQUIRED, SESSIONS

PRIORITY_CLASSES = {
    (Resource.PRIORITY_CLASSES.value.group, Resource.PRIORITY_CLASSES.plural, verb)
    for verb in ("list", "watch")
}
SELECTED_NODE = "volume.kubernetes.io/selected-node"


@pytest.mark.parametrize(
    ("values", "used"),
    [
        ({}, REQUIRED),
        (VALUE_SETS["gangs"], REQUIRED | GANGS),
        (VALUE_SETS["batch"], REQUIRED | SESSIONS),
    ],
    ids=["pods", "gangs", "batch"],
)
def test_role_equals_requests_in_code(
    values: Values, used: frozenset[tuple[str, str, str]]
) -> None:
    assert permissions(rendered(values)) == {tuple(each) for each in used} | PRIORITY_CLASSES


@pytest.mark.parametrize("name", ["defaults", "postgres", "batch", "gangs", "everything"])
def test_role_has_no_wildcards_or_secrets(name: str) -> None:
    for group, resource, verb in permissions(rendered(VALUE_SETS[name])):
        assert "*" not in group + resource + verb
        assert "secret" not in resource
        assert verb not in ("escalate", "bind", "impersonate", "deletecollection")


@pytest.mark.parametrize("name", ["defaults", "gangs", "batch"])
def test_comment_justifies_each_verb(name: str) -> None:
    text = templates(VALUE_SETS[name])["clusterrole.yaml"].split("---")[0]
    rules = re.findall(r"((?:^  #[^\n]*\n)+)  - apiGroups:(.*?)verbs: \[(.*?)\]", text, re.M | re.S)
    assert len(rules) == text.count("- apiGroups:") > 0
    for comment, _, verbs in rules:
        for verb in verbs.split(", "):
            assert re.search(rf"\b{verb}\b[a-z, ]*:", comment), (verb, comment)


# -- what really is asked ---------------------------------------------------------------------


def _rules(objects: list[dict[str, Any]]) -> tuple[AuthRule, ...]:
    return tuple(
        AuthRule(frozenset({verb}), group, frozenset({resource}))
        for group, resource, verb in permissions(objects)
    )


def _claim(name: str, storage_class: str) -> dict[str, Any]:
    return {
        "metadata": {"name": name},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": storage_class,
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }


def _volumes(w: World) -> None:
    """An available volume, and a class with WaitForFirstConsumer."""
    for name in ("static", "dynamic"):
        provisioner = "kubernetes.io/no-provisioner" if name == "static" else "example.com/disks"
        w.cluster.create(
            "storageclasses",
            {
                "metadata": {"name": name},
                "provisioner": provisioner,
                "volumeBindingMode": "WaitForFirstConsumer",
            },
        )
        w.cluster.create("persistentvolumeclaims", _claim(name, name))
    w.cluster.create(
        "persistentvolumes",
        {
            "metadata": {"name": "disk"},
            "spec": {
                "capacity": {"storage": "1Gi"},
                "accessModes": ["ReadWriteOnce"],
                "storageClassName": "static",
                "hostPath": {"path": "/disk"},
            },
        },
    )
    available = {"status": {"phase": "Available"}}
    w.cluster.patch("persistentvolumes", "disk", available, subresource="status")


async def _scenario(w: World, asked: set[tuple[str, str]]) -> None:
    """Everything that the role is for."""
    # A binding, its answer lost, so that it is read back.
    w.faults.drop(count=1, resource="pods/binding")
    w.add_pod("plain")
    await w.until(lambda: w.node_of("plain") != "")
    # Rejected requests, and a repeated Event.
    w.add_pod("big", "100")
    await w.until(lambda: "Insufficient cpu" in w.message("big"))
    # Preempted.
    w.add_pod("low", "3500m", priorityClassName="low")
    await w.until(lambda: w.node_of("low") != "")
    w.add_pod("high", "3500m", priorityClassName="high")
    await w.until(lambda: "deletionTimestamp" in w.pod("low")["metadata"])
    w.cluster.delete("pods", "low", namespace="default", grace_period_s=0)
    await w.until(lambda: w.node_of("high") != "")
    await w.until(lambda: ("patch", "events") in asked)
    # Volumes: one is promised, for the other a node is chosen.
    for name in ("static", "dynamic"):
        volume = {"name": "v", "persistentVolumeClaim": {"claimName": name}}
        w.add_pod(f"with-{name}", "100m", volumes=[volume])
    await w.until(lambda: ("patch", "persistentvolumes") in asked)
    await w.until(lambda: ("patch", "persistentvolumeclaims") in asked)
    annotations = w.cluster.get("persistentvolumeclaims", "dynamic", namespace="default")
    assert SELECTED_NODE in annotations["metadata"]["annotations"]
    # A claim is allocated.
    async with devices(w, "1"):
        add_pods(w, "with-device")
        await w.until(lambda: ("update", "resourceclaims/status") in asked)


async def _write_claims(w: World, client: ApiClient) -> None:
    """The requests for extended resources, and after failures."""
    writer, pod = ClaimWriter(client), PodTarget("default", "with-device", "uid-of-pod")
    allocated = AllocationResult()
    made = await writer.create_special(pod, ResourceClaim())
    assert isinstance(made, ResourceClaim)
    claim = ClaimRef.of(made)
    now = datetime.fromtimestamp(w.cluster.api.clock(), UTC)
    for outcome in (
        await writer.allocate(claim, allocated, pod, now),
        await writer.release(claim, pod.uid),
        await writer.deallocate(claim, pod.uid),
        await writer.delete_special(claim),
    ):
        assert outcome == WriteSucceeded()


async def test_daemon_needs_exactly_this_role(tmp_path: Path) -> None:
    granted = rendered({})
    user = User("system:serviceaccount:kube-system:prod-asched", _rules(granted))
    asked: set[tuple[str, str]] = set()
    configuration = KUBE + "podMaxBackoffSeconds: 1\n"
    async with world(tmp_path, nodes=1) as w:
        server = ApiServer(w.cluster, tokens={"token": user}, faults=w.faults)

        def ask(verb: str, resource: str) -> None:
            asked.add((verb, resource))
            w.touch()

        w.faults.on_request = ask
        for name, value in (("low", 1), ("high", 100)):
            w.cluster.create("priorityclasses", {"metadata": {"name": name}, "value": value})
        _volumes(w)
        async with (
            server.run(),
            connect(server.kubeconfig(tmp_path / "as-user.yaml", user=user)) as client,
            open_journal(str(w.journal)) as store,
            running_daemon(
                DaemonContext(
                    parse(configuration, "test", PluginRegistry.discover()),
                    PluginRegistry.discover(),
                    client,
                    store,
                )
            ) as daemon,
        ):
            with anyio.fail_after(60):
                await daemon.engine.synced.wait()
            await _scenario(w, asked)
            await _write_claims(w, client)
    allowed = {(verb, resource) for _, resource, verb in permissions(granted)}
    # The API server checks these itself when it gets a change of resourceclaims/status.
    checked = {(verb, "resourceclaims/binding") for verb in ("patch", "update")}
    assert asked == allowed - checked
