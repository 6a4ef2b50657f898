"""Readers that the API server reviews: tokens, logins, caches, and failures of the reviews."""

from __future__ import annotations

import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import anyio
import msgspec
import pytest
from anyio.streams.text import TextReceiveStream

from asched.apiserver.auth import User
from asched.apiserver.cluster import EmbeddedCluster
from asched.apiserver.faults import Fault, FaultKind
from asched.apiserver.http import ApiServer
from asched.audit.visibility import HIDDEN_TEXT, Redaction, Visible
from asched.cli.ui import UiReviewer
from asched.kube.connection import connect
from asched.kube.reviews import AccessQuestion, ApiReviewer, ReviewedUser, ReviewError
from asched.ui import cluster_access
from asched.ui.api import PREFIX
from asched.ui.cluster_access import ClusterAccess
from asched.ui.errors import BusyError
from asched.ui.review_cache import Lifetimes, ReviewCache
from asched.ui.security import COOKIE
from tests.ui.serving import Client, run_command, ui_on
from tests.ui.tenants import (
    MINE,
    OPERATOR,
    OTHERS,
    TENANT,
    TOKENS,
    UI_SERVER,
    bearer,
    preempting_tenants,
    reviewing,
    stored,
)

ROOT = Path(__file__).resolve().parents[2]


class Cluster:
    """The browser interface, the API server that reviews its readers, and the time."""

    def __init__(self, client: Client, server: ApiServer) -> None:
        self.client = client
        self.server = server
        self.now_s = 0.0

    async def status(self, user: User, path: str = f"{PREFIX}/search") -> int:
        async with self.client.session.get(path, headers=bearer(user)) as response:
            return response.status


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    url = await stored(preempting_tenants(), tmp_path / "journal.db")
    clock: list[Cluster] = []
    async with reviewing(tmp_path) as (server, reviewer):
        access = ClusterAccess(
            UiReviewer(reviewer), secure=True, monotonic_s=lambda: clock[0].now_s if clock else 0.0
        )
        async with ui_on(url, access) as client:
            await client.caught_up()
            clock.append(Cluster(client, server))
            yield clock[0]


async def test_reviews_are_kept_for_a_time(cluster: Cluster) -> None:
    assert await cluster.status(TENANT) == 200
    asked = cluster.server.requests_served
    # The token; pods in all namespaces and in two; nodes.
    assert asked == 5
    cluster.now_s = 29.0
    assert await cluster.status(TENANT) == 200
    assert cluster.server.requests_served == asked
    cluster.now_s = 31.0  # denials have expired: pods everywhere and in one namespace, and nodes
    assert await cluster.status(TENANT) == 200
    assert cluster.server.requests_served == asked + 3
    cluster.now_s = 61.0  # and so has the token, and the denials again
    assert await cluster.status(TENANT) == 200
    assert cluster.server.requests_served == asked + 7


async def test_deleted_token_and_right_end(cluster: Cluster) -> None:
    assert await cluster.status(OPERATOR, f"{PREFIX}/cluster") == 200
    token = bearer(OPERATOR)["Authorization"].removeprefix("Bearer ")
    cluster.server.auth.tokens[token] = without_rights(OPERATOR)
    cluster.now_s = 301.0
    assert await cluster.status(OPERATOR, f"{PREFIX}/cluster") == 403
    del cluster.server.auth.tokens[token]
    cluster.now_s = 400.0
    assert await cluster.status(OPERATOR, f"{PREFIX}/cluster") == 401


def without_rights(user: User) -> User:
    """The user without rights."""
    return User(user.name, ())


async def test_login_keeps_the_token_on_the_server(cluster: Cluster) -> None:
    session = cluster.client.session
    token = bearer(TENANT)["Authorization"].removeprefix("Bearer ")
    async with session.get("/cluster?seq=3", allow_redirects=False) as response:
        assert response.headers["Location"] == "/login?next=/cluster?seq%3D3"
    async with session.get("/login") as response:
        assert "kubectl create token NAME" in await response.text()
    async with session.post("/login", data={"token": "wrong-token", "next": "/"}) as response:
        assert (response.status, COOKIE in response.cookies) == (403, False)
    form = {"token": token, "next": "/search"}
    async with session.post("/login", data=form, allow_redirects=False) as response:
        assert (response.status, response.headers["Location"]) == (303, "/search")
        cookie = response.cookies[COOKIE]
    assert (cookie["httponly"], cookie["secure"], cookie["samesite"]) == (True, True, "Strict")
    assert token not in cookie.value
    headers = {"Cookie": f"{COOKIE}={cookie.value}"}
    for now_s, name, status in (
        (0.0, cookie.value, 200),
        (0.0, cookie.value + "x", 401),
        (cluster_access.SESSION_S - 1.0, cookie.value, 200),
        (cluster_access.SESSION_S + 0.0, cookie.value, 401),
    ):
        cluster.now_s = now_s
        headers = {"Cookie": f"{COOKIE}={name}"}
        async with session.get(f"{PREFIX}/search", headers=headers) as response:
            assert response.status == status


async def test_nobody_is_admitted_while_reviews_fail(cluster: Cluster) -> None:
    fault = Fault(FaultKind.STATUS, 100, "create", "tokenreviews", code=503)
    cluster.server.faults.add(fault)
    async with cluster.client.session.get(f"{PREFIX}/search", headers=bearer(TENANT)) as response:
        found = await response.json()
    assert response.status == 503
    assert found["error"] == "the API server rejects a TokenReview: 503 ServiceUnavailable"
    async with cluster.client.session.get("/healthz") as response:
        assert (response.status, await response.text()) == (200, "ok")
    async with cluster.client.session.get(f"{PREFIX}/search") as response:
        assert response.status == 401


async def test_sessions_are_bounded(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_access, "MAX_SESSIONS", 2)
    session = aiohttp.ClientSession(cluster.client.url, cookie_jar=aiohttp.DummyCookieJar())
    cookies = []
    async with session:
        for _ in range(3):
            form = {"token": bearer(TENANT)["Authorization"].removeprefix("Bearer ")}
            async with session.post("/login", data=form, allow_redirects=False) as response:
                cookies.append(response.cookies[COOKIE].value)
        statuses = []
        for value in cookies:
            headers = {"Cookie": f"{COOKIE}={value}"}
            async with session.get(f"{PREFIX}/search", headers=headers) as response:
                statuses.append(response.status)
    assert statuses == [401, 200, 200]


async def test_too_many_namespaces_stay_hidden(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_access, "MAX_NAMESPACES", 1)
    session = cluster.client.session
    async with session.get(f"{PREFIX}/search", headers=bearer(TENANT)) as response:
        assert (await response.json())["results"] == []
        note = response.headers["Asched-Visible"]
    assert note == "You may not list pods in any namespace of this journal."


async def test_account_needs_the_right_to_ask(tmp_path: Path) -> None:
    tokens = {**TOKENS, "token-of-ui-server": User("powerless", ())}
    async with ApiServer(EmbeddedCluster(), tokens=tokens).run() as server:
        kubeconfig = server.kubeconfig(tmp_path / "ui.yaml", user=User("powerless", ()))
        async with connect(kubeconfig) as client:
            reviewer = ApiReviewer(client)
            with pytest.raises(ReviewError, match="rejects a TokenReview: 403 Forbidden"):
                await reviewer.authenticate("token-of-tenant")


async def test_reviews_of_the_embedded_server(tmp_path: Path) -> None:
    async with reviewing(tmp_path) as (_, reviewer):
        assert await reviewer.authenticate("token-of-no-user") is None
        user = await reviewer.authenticate("token-of-tenant")
        assert user == ReviewedUser("tenant", "uid-of-tenant", ("system:authenticated",))
        for question, allowed in (
            (AccessQuestion("list", "pods", MINE), True),
            (AccessQuestion("list", "pods", OTHERS), False),
            (AccessQuestion("list", "pods"), False),
            (AccessQuestion("delete", "pods", MINE), False),
            (AccessQuestion("list", "nodes"), False),
        ):
            assert await reviewer.allows(user, question) == allowed
        assert not await reviewer.allows(ReviewedUser("absent"), AccessQuestion("list", "pods"))


async def test_token_must_be_for_the_audience(tmp_path: Path) -> None:
    async with (
        ApiServer(EmbeddedCluster(), tokens=dict(TOKENS)).run() as server,
        connect(server.kubeconfig(tmp_path / "ui.yaml", user=UI_SERVER)) as client,
    ):
        foreign = ApiReviewer(client, ("https://elsewhere.example",))
        assert await foreign.authenticate("token-of-tenant") is None
        own = ApiReviewer(client, ("https://kubernetes.default.svc",))
        assert await own.authenticate("token-of-tenant") is not None


async def test_cache_loads_once_and_is_bounded() -> None:
    now_s, loads = [0.0], list[str]()
    cache: ReviewCache[str, bool] = ReviewCache(Lifetimes(10.0, 2.0, 2, 1), lambda: now_s[0])
    release = anyio.Event()

    async def load(key: str, result: bool) -> bool:
        loads.append(key)
        await release.wait()
        return result

    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(cache.get, "a", lambda: load("a", True))
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(BusyError, match="1 reviews are in progress"):
            await cache.get("b", lambda: load("b", True))
        release.set()
    assert loads == ["a"]
    for number in range(5):
        assert not await cache.get(f"no{number}", lambda n=number: load(f"no{n}", False))  # type: ignore[misc]
    assert await cache.get("a", lambda: load("a", False))
    assert len(cache) == 3
    now_s[0] = 10.0
    assert not await cache.get("a", lambda: load("a", False))

    async def fail() -> bool:
        raise ValueError("no answer")

    for _ in range(2):
        with pytest.raises(ValueError, match="no answer"):
            await cache.get("failing", fail)


async def test_command_reviews_readers(tmp_path: Path) -> None:
    url = await stored(preempting_tenants(), tmp_path / "journal.db")
    async with ApiServer(EmbeddedCluster(), tokens=dict(TOKENS)).run() as server:
        kubeconfig = server.kubeconfig(tmp_path / "ui.yaml", user=UI_SERVER)
        command = [
            *(sys.executable, "-m", "asched", "ui", "--journal", url, "--listen", "127.0.0.1:0"),
            *("--authentication", "kubernetes", "--kubeconfig", str(kubeconfig)),
        ]
        environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)}
        async with await anyio.open_process(command, env=environment, stderr=None) as process:
            assert process.stdout is not None
            line = await TextReceiveStream(process.stdout).receive()
            address = line.split()[3].rstrip(",")
            found = await _searched(address)
            process.send_signal(signal.SIGTERM)
            assert await process.wait() == 0
    assert found == {MINE}


async def _searched(address: str) -> set[str]:
    """The namespaces that the tenant finds, once the journal has been read."""
    retry = aiohttp.ClientTimeout(total=60)
    async with aiohttp.ClientSession(address, timeout=retry) as session:
        with anyio.fail_after(60):
            while True:
                async with session.get(f"{PREFIX}/search", headers=bearer(TENANT)) as response:
                    if response.status != 503:
                        results = (await response.json())["results"]
                        return {found["namespace"] for found in results}
                await anyio.sleep(0.05)


class Item(msgspec.Struct, frozen=True):
    namespace: str
    name: str = ""


class Holder(msgspec.Struct, frozen=True):
    needed: Item
    maybe: Item | None = None


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("evicted for b/x, a/y.", f"evicted for {HIDDEN_TEXT}, a/y."),
        ("b/x", HIDDEN_TEXT),
        ("unknown/x", HIDDEN_TEXT),
        ("pod/b/x was deleted", f"{HIDDEN_TEXT} was deleted"),
        ("scheduling.k8s.io/b/x", HIDDEN_TEXT),
        ("0/5 nodes are available", "0/5 nodes are available"),
        ("example.com/gpu", "example.com/gpu"),
        ("ReplicaSet/b", "ReplicaSet/b"),
        ("claim/request: driver/pool/dev", "claim/request: driver/pool/dev"),
        ([Item("a", "x"), Item("b", "y"), Item("")], [Item("a", "x"), Item("")]),
        (Holder(Item("a"), Item("b")), Holder(Item("a"))),
        ([Holder(Item("b"))], []),
        ({"b/x": 1, "a/x": 2, "n": 3}, {"a/x": 2, "n": 3}),
        ({"victims": [{"key": "b/x", "uid": "u"}]}, {"victims": []}),
        (("a/x", "b/y"), ("a/x", HIDDEN_TEXT)),
    ],
)
def test_redaction(value: object, expected: object) -> None:
    redaction = Redaction(Visible(namespaces=frozenset({"a"})), frozenset({"a", "b"}))
    assert redaction.apply(value) == expected
    assert redaction.apply(expected) == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--listen", "0.0.0.0:0", "--authentication", "kubernetes"], "beyond loopback give --tls"),
        (["--authentication", "kubernetes", "--token-file", "t"], "exclude each other"),
        (["--token-audience", "x"], "need --authentication kubernetes"),
        (["--authentication", "kubernetes", "--kubeconfig", "absent"], "absent"),
    ],
)
async def test_wrong_options_are_one_line(tmp_path: Path, options: list[str], message: str) -> None:
    url = await stored(preempting_tenants(), tmp_path / "journal.db")
    (tmp_path / "t").write_text("0123456789abcdef")
    options = [str(tmp_path / "t") if option == "t" else option for option in options]
    code, _, err = await run_command("ui", "--journal", url, *options)
    assert code in (1, 2)
    assert message in err
    assert err.count("\n") == 1
