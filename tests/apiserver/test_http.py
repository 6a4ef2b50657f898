"""HTTP server: representations, permissions, watches and faults over real connections."""

from __future__ import annotations

import io
import json
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from asched.apiserver.auth import ADMIN, SCHEDULER
from asched.apiserver.cluster import EmbeddedCluster
from asched.apiserver.faults import Faults
from asched.apiserver.http import MAX_BODY_BYTES, ApiServer
from tests.apiserver.objects import node, pod

TABLE = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"}
PODS = "/api/v1/namespaces/default/pods"


@pytest.fixture
def cluster() -> EmbeddedCluster:
    return EmbeddedCluster(seed=1)


@pytest.fixture
async def server(cluster: EmbeddedCluster) -> AsyncIterator[ApiServer]:
    async with ApiServer(cluster, bookmark_interval_s=0.02).run() as running:
        yield running


@pytest.fixture
async def client(server: ApiServer) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(server.url) as session:
        yield session


async def body_of(response: aiohttp.ClientResponse) -> dict[str, Any]:
    decoded: dict[str, Any] = json.loads(await response.read())
    return decoded


async def fetched(client: aiohttp.ClientSession, path: str, **options: Any) -> dict[str, Any]:
    async with client.get(path, **options) as response:
        assert response.status == 200, await response.text()
        return await body_of(response)


async def test_objects_round_trip(client: aiohttp.ClientSession) -> None:
    async with client.post(PODS, json=pod("p")) as response:
        assert response.status == 201
    target = {"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n"}}
    async with client.post(f"{PODS}/p/binding", json=target) as response:
        assert response.status == 201
    got = await fetched(client, f"{PODS}/p")
    assert (got["kind"], got["apiVersion"], got["spec"]["nodeName"]) == ("Pod", "v1", "n")
    got["metadata"]["labels"] = {"a": "b"}
    async with client.put(f"{PODS}/p", json=got) as response:
        assert (await body_of(response))["metadata"]["labels"] == {"a": "b"}
    listed = await fetched(client, "/api/v1/pods")
    assert listed["kind"] == "PodList"
    assert [item["metadata"]["name"] for item in listed["items"]] == ["p"]
    assert "kind" not in listed["items"][0]
    async with client.delete(f"{PODS}/p", json={"gracePeriodSeconds": 0}) as response:
        assert response.status == 200
    assert (await fetched(client, "/api/v1/pods"))["items"] == []


async def test_scale_subresource(client: aiohttp.ClientSession, cluster: EmbeddedCluster) -> None:
    labels = {"app": "web"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c"}]}}
    spec = {"replicas": 2, "selector": {"matchLabels": labels}, "template": template}
    made = {"metadata": {"name": "web"}, "spec": spec}
    cluster.create("deployments", made, namespace="default")
    url = "/apis/apps/v1/namespaces/default/deployments/web/scale"
    scale = await fetched(client, url)
    assert (scale["kind"], scale["apiVersion"]) == ("Scale", "autoscaling/v1")
    assert (scale["spec"], scale["status"]) == (
        {"replicas": 2},
        {"replicas": 0, "selector": "app=web"},
    )
    scale["spec"]["replicas"] = 5
    async with client.put(url, json=scale) as response:
        assert (await body_of(response))["spec"] == {"replicas": 5}
    async with client.put(url, json=scale) as response:
        assert response.status == 409
    merge = {"Content-Type": "application/merge-patch+json"}
    async with client.patch(url, json={"spec": {"replicas": 1}}, headers=merge) as response:
        assert (await body_of(response))["spec"] == {"replicas": 1}
    for bad in (-1, "many"):
        async with client.patch(url, json={"spec": {"replicas": bad}}, headers=merge) as response:
            assert response.status == 422, bad
            assert "spec.replicas" in (await body_of(response))["message"]
    assert cluster.get("deployments", "web", namespace="default")["spec"]["replicas"] == 1
    async with client.get("/apis/apps/v1/namespaces/default/daemonsets/web/scale") as response:
        assert response.status == 404


@pytest.mark.parametrize("subresource", ["log", "exec", "attach", "portforward"])
async def test_what_needs_containers_says_so(
    client: aiohttp.ClientSession, cluster: EmbeddedCluster, subresource: str
) -> None:
    cluster.create("pods", pod("p"))
    async with client.get(f"{PODS}/p/{subresource}") as response:
        status = await body_of(response)
    assert (status["code"], status["reason"]) == (501, "NotImplemented")
    assert "run no containers" in status["message"]


async def test_dry_run_changes_nothing(
    client: aiohttp.ClientSession, cluster: EmbeddedCluster
) -> None:
    before = cluster.revision
    async with client.post(f"{PODS}?dryRun=All", json=pod("p")) as response:
        assert response.status == 201
    assert cluster.revision == before


async def test_collections_are_deleted_by_selector(
    client: aiohttp.ClientSession, cluster: EmbeddedCluster
) -> None:
    for name, label in (("a", "1"), ("b", "2")):
        made = pod(name)
        made["metadata"]["labels"] = {"x": label}
        cluster.create("pods", made)
    async with client.delete(f"{PODS}?labelSelector=x%3D1") as response:
        assert [item["metadata"]["name"] for item in (await body_of(response))["items"]] == ["a"]
    assert cluster.count("pods") == 1


@pytest.mark.parametrize(
    ("method", "path", "content", "code"),
    [
        ("POST", PODS, b"{not json", 400),
        ("POST", PODS, b"[]", 400),
        ("POST", PODS, b"", 400),
        ("POST", PODS, b"\xff\xfe", 400),
        ("PUT", f"{PODS}/none", b"{}", 404),
        ("POST", f"{PODS}/none/exec", b"{}", 404),
        ("GET", "/api/v1/nothings", None, 404),
        ("GET", "/apis/none.example.com/v1/things", None, 404),
        ("GET", "/nowhere", None, 404),
        ("GET", f"{PODS}?limit=many", None, 400),
        ("GET", f"{PODS}?watch=1&resourceVersion=abc", None, 500),
        ("GET", f"{PODS}?watch=1&timeoutSeconds=soon", None, 400),
        ("GET", f"{PODS}?fieldSelector=spec.image%3Dx", None, 400),
        ("TRACE", PODS, None, 405),
    ],
)
async def test_bad_requests_get_a_status(
    client: aiohttp.ClientSession, method: str, path: str, content: bytes | None, code: int
) -> None:
    async with client.request(method, path, data=content) as response:
        assert response.status == code
    assert (await fetched(client, "/api/v1/nodes"))["items"] == []


@pytest.mark.parametrize(("size", "code"), [(MAX_BODY_BYTES, 400), (MAX_BODY_BYTES + 1, 413)])
async def test_body_size_is_limited(client: aiohttp.ClientSession, size: int, code: int) -> None:
    async with client.post(PODS, data=io.BytesIO(b" " * size)) as response:
        assert (response.status, (await body_of(response))["code"]) == (code, code)


async def test_tables_have_kube_apiserver_columns(
    client: aiohttp.ClientSession, cluster: EmbeddedCluster
) -> None:
    cluster.create("nodes", node("n"))
    cluster.create("pods", pod("p"))
    cluster.bind("default", "p", "n")
    table = await fetched(client, PODS, headers=TABLE)
    assert [column["name"] for column in table["columnDefinitions"]] == [
        "Name",
        "Ready",
        "Status",
        "Restarts",
        "Age",
        "IP",
        "Node",
        "Nominated Node",
        "Readiness Gates",
    ]
    cells = table["rows"][0]["cells"]
    assert cells[:4] == ["p", "0/1", "Pending", "0"]
    assert cells[5:] == ["<none>", "n", "<none>", "<none>"]
    assert table["rows"][0]["object"]["kind"] == "PartialObjectMetadata"


@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/events",
        "/api/v1/persistentvolumes",
        "/api/v1/persistentvolumeclaims",
        "/api/v1/services",
        "/apis/apps/v1/replicasets",
        "/apis/apps/v1/deployments",
        "/apis/batch/v1/jobs",
        "/apis/policy/v1/poddisruptionbudgets",
        "/apis/storage.k8s.io/v1/storageclasses",
        "/apis/storage.k8s.io/v1/csinodes",
        "/apis/coordination.k8s.io/v1/leases",
        "/apis/scheduling.k8s.io/v1/priorityclasses",
    ],
)
async def test_minimal_object_of_each_kind_has_a_row(
    client: aiohttp.ClientSession, cluster: EmbeddedCluster, path: str
) -> None:
    group = "" if path.startswith("/api/") else path.split("/")[2]
    plural = path.rpartition("/")[2]
    bare: dict[str, Any] = {"metadata": {"name": "x"}}
    if plural == "events":
        bare |= {
            "eventTime": "2026-01-01T00:00:00.000000Z",
            "type": "Normal",
            "involvedObject": {"namespace": "default"},
        }
    if plural != "priorityclasses":
        cluster.create(f"{plural}.{group}" if group else plural, bare)
    table = await fetched(client, path, headers=TABLE)
    assert table["rows"]
    assert all(len(row["cells"]) == len(table["columnDefinitions"]) for row in table["rows"])


async def lines_of(response: aiohttp.ClientResponse, count: int) -> list[dict[str, Any]]:
    return [json.loads(await response.content.readline()) for _ in range(count)]


async def test_watch_streams_changes_and_bookmarks(
    client: aiohttp.ClientSession, cluster: EmbeddedCluster
) -> None:
    cluster.create("nodes", node("a"))
    query = "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=1"
    async with client.get(f"/api/v1/nodes?{query}") as response:
        initial = await lines_of(response, 2)
        assert [event["type"] for event in initial] == ["ADDED", "BOOKMARK"]
        end = initial[1]["object"]["metadata"]
        assert end["annotations"] == {"k8s.io/initial-events-end": "true"}
        assert int(end["resourceVersion"]) == cluster.revision
        (bookmark,) = await lines_of(response, 1)
        assert bookmark["type"] == "BOOKMARK"
        cluster.create("nodes", node("b"))
        while True:
            (event,) = await lines_of(response, 1)
            if event["type"] != "BOOKMARK":
                break
        assert event["object"]["metadata"]["name"] == "b"


async def test_watch_ends_after_its_timeout(client: aiohttp.ClientSession) -> None:
    async with client.get("/api/v1/nodes?watch=1&timeoutSeconds=1") as response:
        assert await response.read() == b""


async def test_watch_of_expired_history_gets_410_in_the_stream(
    client: aiohttp.ClientSession, cluster: EmbeddedCluster
) -> None:
    cluster.create("nodes", node("a"))
    cluster.expire_history()
    async with client.get("/api/v1/nodes?watch=1&resourceVersion=3") as response:
        assert response.status == 200
        (event,) = [json.loads(line) for line in (await response.read()).splitlines()]
    assert (event["type"], event["object"]["code"]) == ("ERROR", 410)


async def test_first_table_of_a_watch_defines_the_columns(
    client: aiohttp.ClientSession, cluster: EmbeddedCluster
) -> None:
    for name in ("a", "b"):
        cluster.create("nodes", node(name))
    async with client.get("/api/v1/nodes?watch=1", headers=TABLE) as response:
        first, second = await lines_of(response, 2)
    assert first["object"]["columnDefinitions"]
    assert second["object"]["columnDefinitions"] is None
    assert second["object"]["rows"][0]["cells"][0] == "b"


async def test_stopping_server_ends_its_watches(cluster: EmbeddedCluster) -> None:
    server = ApiServer(cluster)
    async with aiohttp.ClientSession() as client, server.run():
        response = await client.get(f"{server.url}/api/v1/nodes?watch=1")
    assert await response.read() == b""
    assert server.url == ""


async def test_server_listens_on_loopback_only(cluster: EmbeddedCluster) -> None:
    with pytest.raises(ValueError, match="not a loopback address"):
        async with ApiServer(cluster).run("0.0.0.0"):
            pass


# --- who may do what ---------------------------------------------------------------------------


@pytest.fixture
async def guarded(cluster: EmbeddedCluster) -> AsyncIterator[ApiServer]:
    async with ApiServer(cluster, tokens={"root": ADMIN, "sched": SCHEDULER}).run() as running:
        yield running


async def code_of(server: ApiServer, token: str, method: str, path: str) -> int:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with (
        aiohttp.ClientSession(server.url, headers=headers) as session,
        session.request(method, path, json={}) as response,
    ):
        return response.status


@pytest.mark.parametrize(
    ("token", "method", "path", "code"),
    [
        ("", "GET", "/api/v1/nodes", 403),
        ("", "GET", "/healthz", 200),
        ("", "GET", "/apis", 403),
        ("wrong", "GET", "/healthz", 401),
        ("root", "GET", "/api/v1/secrets", 200),
        ("sched", "GET", "/apis", 200),
        ("sched", "GET", "/api/v1/nodes", 200),
        ("sched", "GET", "/apis/storage.k8s.io/v1/storageclasses", 200),
        ("sched", "GET", "/api/v1/secrets", 403),
        ("sched", "DELETE", "/api/v1/nodes/n", 403),
        ("sched", "PATCH", "/api/v1/namespaces/default/pods/p", 403),
        ("sched", "DELETE", "/api/v1/namespaces/default/pods/p", 404),
        ("sched", "PUT", "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/other", 403),
        (
            "sched",
            "PUT",
            "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/kube-scheduler",
            404,
        ),
    ],
)
async def test_permissions(
    guarded: ApiServer, token: str, method: str, path: str, code: int
) -> None:
    assert await code_of(guarded, token, method, path) == code


async def test_kubeconfig_is_private_and_has_credentials(
    guarded: ApiServer, tmp_path: Path
) -> None:
    path = guarded.kubeconfig(tmp_path / "config", user=SCHEDULER)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    config = yaml.safe_load(path.read_text())
    async with aiohttp.ClientSession() as session:
        url = config["clusters"][0]["cluster"]["server"]
        async with session.get(f"{url}/api/v1/secrets") as response:
            assert "system:kube-scheduler" in (await body_of(response))["message"]
    assert config["users"][0]["user"] == {}


# --- faults ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("code", "retry_after"), [(429, "7"), (500, None), (504, None)])
async def test_injected_responses_do_not_execute_requests(
    server: ApiServer,
    client: aiohttp.ClientSession,
    cluster: EmbeddedCluster,
    code: int,
    retry_after: str | None,
) -> None:
    server.faults.respond(code, count=2, verb="create", resource="pods", retry_after_s=7)
    codes = []
    for _ in range(3):
        async with client.post(PODS, json=pod("p")) as response:
            codes.append(response.status)
            if response.status == code:
                assert response.headers.get("Retry-After") == retry_after
                assert (await body_of(response))["code"] == code
    assert codes == [code, code, 201]
    assert server.faults.injected == 2


@pytest.mark.parametrize("after_effect", [False, True])
async def test_dropped_connections(
    server: ApiServer, client: aiohttp.ClientSession, cluster: EmbeddedCluster, after_effect: bool
) -> None:
    server.faults.drop(resource="pods", after_effect=after_effect)
    with pytest.raises(aiohttp.ClientError):
        await client.post(PODS, json=pod("p"))
    assert cluster.count("pods") == int(after_effect)


async def test_delayed_requests_are_executed(
    server: ApiServer, client: aiohttp.ClientSession
) -> None:
    server.faults.delay(0.01, resource="nodes")
    assert (await fetched(client, "/api/v1/nodes"))["items"] == []
    assert server.faults.injected == 1


async def test_injected_watch_faults(
    server: ApiServer, client: aiohttp.ClientSession, cluster: EmbeddedCluster
) -> None:
    for name in ("a", "b", "c"):
        cluster.create("nodes", node(name))
    server.faults.watch_closes_after_events = 2
    server.faults.malform_watch_lines()
    async with client.get("/api/v1/nodes?watch=1") as response:
        lines = (await response.read()).splitlines()
    with pytest.raises(json.JSONDecodeError):
        json.loads(lines[0])
    assert [json.loads(line)["object"]["metadata"]["name"] for line in lines[1:]] == ["a", "b"]


def test_faults_parse() -> None:
    faults = Faults.parse(
        "429*2@pods/binding, drop, drop-after@pods,delay=0.5*3,malformed*2,watch-close=5"
    )
    assert faults.watch_closes_after_events == 5
    first = faults.take("create", "pods/binding")
    assert first is not None
    assert (first.kind, first.code, first.remaining) == ("status", 429, 1)
    assert faults.take_malformed_line()
    faults.clear()
    assert faults.take("create", "pods/binding") is None
    assert not faults.take_malformed_line()


@pytest.mark.parametrize(
    "text",
    [
        *("explode", "429*x", "429*0", "20", "delay", "delay=soon", "delay=nan", "delay=-1"),
        *("watch-close", "watch-close=0", "drop*-1"),
    ],
)
def test_invalid_faults_are_named(text: str) -> None:
    with pytest.raises(ValueError, match="is not a fault: expected CODE"):
        Faults.parse(text)
