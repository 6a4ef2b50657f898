"""Two tenants of one cluster: journals that hold both, and users who may see one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from asched.apiserver.auth import ADMIN, AuthRule, User
from asched.apiserver.cluster import EmbeddedCluster
from asched.apiserver.http import ApiServer
from asched.cli.ui import UiReviewer
from asched.journal.opening import open_journal
from asched.kube.connection import connect
from asched.kube.reviews import ApiReviewer
from asched.ui.cluster_access import ClusterAccess
from tests.audit.recording import Recording, node, pod
from tests.batch_world.jobs import BATCH, GROUP, POD_GROUPS, QUEUES
from tests.batch_world.manifests import install_crds
from tests.daemon.world import World, world
from tests.ui.serving import Client, ui_on

MINE = "team-a"
OTHERS = "canary-ns"
CANARY = "canary"
"""In every name of the other tenant, and in none of the first one."""

UI_SERVER = User(
    "system:serviceaccount:asched:ui",
    (
        AuthRule(frozenset({"create"}), "authentication.k8s.io", frozenset({"tokenreviews"})),
        AuthRule(
            frozenset({"create"}), "authorization.k8s.io", frozenset({"subjectaccessreviews"})
        ),
    ),
)


def _lists(resource: str, *namespaces: str) -> AuthRule:
    verbs = frozenset({"get", "list"})
    return AuthRule(verbs, "", frozenset({resource}), namespaces=frozenset(namespaces))


TENANT = User("tenant", (_lists("pods", MINE),))
OPERATOR = User("operator", (_lists("pods", MINE), _lists("nodes")))
STRANGER = User("stranger", ())
TOKENS = {
    "token-of-admin": ADMIN,
    "token-of-ui-server": UI_SERVER,
    "token-of-tenant": TENANT,
    "token-of-operator": OPERATOR,
    "token-of-stranger": STRANGER,
}


def bearer(user: User) -> dict[str, str]:
    token = next(text for text, known in TOKENS.items() if known == user)
    return {"Authorization": f"Bearer {token}"}


@asynccontextmanager
async def reviewing(folder: Path) -> AsyncIterator[tuple[ApiServer, ApiReviewer]]:
    """An API server with the users, and the reviews that the interface's account may ask for."""
    async with ApiServer(EmbeddedCluster(), tokens=dict(TOKENS)).run() as server:
        kubeconfig = server.kubeconfig(folder / "ui.yaml", user=UI_SERVER)
        async with connect(kubeconfig) as client:
            yield server, ApiReviewer(client)


@asynccontextmanager
async def ui_in_cluster(url: str, folder: Path) -> AsyncIterator[Client]:
    """The browser interface with the users of an API server."""
    async with (
        reviewing(folder) as (_, reviewer),
        ui_on(url, ClusterAccess(UiReviewer(reviewer))) as client,
    ):
        await client.caught_up()
        yield client


ANTI_AFFINITY = {
    "podAntiAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": [
            {
                "topologyKey": "kubernetes.io/hostname",
                "labelSelector": {},
                "namespaceSelector": {},
            }
        ]
    }
}


def _other(name: str, cpu: str, **spec: Any) -> Any:
    return pod(name, cpu, namespace=OTHERS, **spec)


def preempting_tenants() -> Recording:
    """Each tenant evicts a pod of the other one; ``waiting`` would have to evict one again."""
    recording = Recording()
    recording.see(node("n1", "4"), node("n2", "4"), node("n3", "2"))
    victim = _other("canary-pod", "4", priority=0)
    web = pod("web", "4", namespace=MINE, priority=50)
    recording.see(victim)
    recording.bind(recording.decide())
    recording.see(web)
    recording.bind(recording.decide())
    recording.turn(1.0)
    recording.see(pod("urgent", "4", namespace=MINE, priority=100))
    recording.decide()
    recording.turn(2.0)
    recording.lose(victim)
    recording.turn(4.0)
    recording.bind(recording.decide())
    recording.turn(5.0)
    recording.see(_other("canary-boss", "4", priority=1000))
    recording.decide()
    recording.turn(6.0)
    recording.lose(web)
    recording.turn(9.0)
    recording.bind(recording.decide())
    recording.see(_other("canary-hater", "1", affinity=ANTI_AFFINITY, priority=1000))
    recording.bind(recording.decide())
    recording.see(_other("canary-late", "64"))
    recording.see(pod("waiting", "4", namespace=MINE, priority=5000, preemptionPolicy="Never"))
    recording.see(pod("shy", "1", namespace=MINE, priority=5))
    recording.decide()
    recording.turn(10.0)
    return recording


async def stored(recording: Recording, path: Path) -> str:
    async with open_journal(str(path)) as store:
        await recording.store_in(store)
    return str(path)


async def session_journal(folder: Path) -> str:
    """The gangs of both tenants wait for one node, in queues of their own; one is reclaimed."""
    async with world(folder, nodes=1, cpu="4") as w:
        install_crds(w.cluster, GROUP)
        for namespace in (MINE, OTHERS):
            w.cluster.create("namespaces", {"metadata": {"name": namespace}})
        for name in ("mine", "canary-queue"):
            w.cluster.create(QUEUES, {"metadata": {"name": name}, "spec": {"weight": 1}})
        conf = folder / "conf.yaml"
        conf.write_text(RECLAIM)
        configuration = BATCH.replace("{period", f"{{conf: {conf}, period")
        _gang(w, OTHERS, "canary-gang", "canary-queue", 4)
        async with w.daemon(configuration):
            await w.until(lambda: _bound(w, OTHERS) == 4)
            _run(w)
            _gang(w, MINE, "gang", "mine", 4)
            await w.until(lambda: _bound(w, OTHERS) < 4)
    return str(w.journal)


RECLAIM = """\
actions: "reclaim, allocate, backfill, preempt"
tiers:
- plugins: [{name: priority}, {name: gang}]
- plugins: [{name: drf}, {name: predicates}, {name: proportion}, {name: nodeorder}]
"""


def _gang(w: World, namespace: str, name: str, queue: str, pods: int) -> None:
    metadata = {"name": name, "namespace": namespace}
    w.cluster.create(POD_GROUPS, {"metadata": metadata, "spec": {"minMember": 1, "queue": queue}})
    container = {"name": "c", "image": "app", "resources": {"requests": {"cpu": "1"}}}
    for number in range(pods):
        annotations = {"scheduling.k8s.io/group-name": name}
        of_pod = {"name": f"{name}-{number}", "namespace": namespace, "annotations": annotations}
        owner = {
            "apiVersion": "batch/v1", "kind": "Job", "name": f"{name}-owner", "uid": "u",
            "controller": True,
        }  # fmt: skip
        spec = {"schedulerName": "kube-batch", "containers": [container]}
        w.cluster.create("pods", {"metadata": {**of_pod, "ownerReferences": [owner]}, "spec": spec})


def _bound(w: World, namespace: str) -> int:
    pods = w.cluster.list("pods", namespace=namespace, fields="spec.nodeName!=")
    return sum("deletionTimestamp" not in found["metadata"] for found in pods)


def _run(w: World) -> None:
    for found in w.cluster.list("pods", fields="spec.nodeName!="):
        metadata = found["metadata"]
        w.cluster.patch(
            "pods", metadata["name"], {"status": {"phase": "Running"}},
            namespace=metadata["namespace"], subresource="status",
        )  # fmt: skip
