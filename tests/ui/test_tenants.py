"""Readers see the namespaces that the API server lets them see, in every answer."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from itertools import product
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import aiohttp
import pytest
import pytest_asyncio

from asched.apiserver.auth import ADMIN, User
from asched.audit.visibility import AnswerScope
from asched.journal.codec import object_subject
from asched.journal.opening import open_journal
from asched.ui import pages
from asched.ui.api import PREFIX, ROUTES
from asched.ui.app import NOTE_HEADER, SCOPES, make_app
from asched.ui.openapi import openapi
from asched.ui.security import Access
from tests.ui.serving import Client, pod_path, ui_on
from tests.ui.tenants import (
    CANARY,
    MINE,
    OPERATOR,
    OTHERS,
    STRANGER,
    TENANT,
    bearer,
    preempting_tenants,
    session_journal,
    stored,
    ui_in_cluster,
)

ABSENT = "absent"
FILLED = {
    "namespace": (MINE,),
    "name": ("web", "urgent", "waiting", "gang-0"),
    "attempt": ("1", "2"),
    "node": ("n0", "n1"),
    "queue": ("mine",),
    "kind": ("ReplicaSet", "Job"),
    "record": ("1",),
    "id": ("0" * 16,),
}
"""What the parameters of paths stand for; a new parameter needs an entry."""
QUERIES = ("", "format=csv", "seq={half}")
OTHER_QUERIES = ("q=", "q=canar", "q=canar&format=csv", "fromSeq=1", "fromSeq={half}&format=csv")
"""For paths without parameters."""


class Got(NamedTuple):
    address: str
    status: int
    text: str


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(params=["preemption", "sessions"], scope="module", loop_scope="module")
async def client(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Client]:
    """One server for all tests of a journal: they only read."""
    folder = tmp_path_factory.mktemp("tenants")
    if request.param == "sessions":
        journal = await session_journal(folder)
    else:
        journal = await stored(preempting_tenants(), folder / "journal.db")
    async with ui_in_cluster(journal, folder) as served:
        yield served


async def _names(client: Client) -> tuple[str, ...]:
    """Names of pods of the first tenant in the journal, and one that is absent."""
    async with open_journal(client.journal, read_only=True) as store:
        subjects = await store.subjects("pod")
    known = [name for name in FILLED["name"] if object_subject("Pod", f"{MINE}/{name}") in subjects]
    return (*known, ABSENT)


def _addresses(half: int, names_of_pods: tuple[str, ...]) -> Iterator[str]:
    """Every path of the OpenAPI document and of the pages, with names of the first tenant."""
    filled_with = {**FILLED, "name": names_of_pods}
    documented = [path for path, item in openapi()["paths"].items() if "get" in item]
    for path in (*documented, *pages.SCOPES, f"{PREFIX}/openapi.json", "/absent", "/login"):
        names = re.findall(r"{(\w+)}", path)
        for values in product(*(filled_with[name] for name in names)):
            filled = path.format(**{n: quote(v) for n, v in zip(names, values, strict=True)})
            for query in QUERIES if names else (*QUERIES, *OTHER_QUERIES):
                yield f"{filled}?{query.format(half=half)}"


async def _everything(client: Client, user: User) -> AsyncIterator[Got]:
    absent = set[str]()
    for address in _addresses(await client.head() // 2, await _names(client)):
        path, _, query = address.partition("?")
        if path in absent and query == "format=csv":
            continue  # the answer to the first query, which is about the same object
        async with client.session.get(address, headers=bearer(user)) as response:
            if response.status == 404 and not query:
                absent.add(path)
            yield Got(address, response.status, await response.text())
            yield Got(f"{address} headers", response.status, str(response.headers))
    async with client.session.get(f"{PREFIX}/events", headers=bearer(user)) as events:
        lines = [(await events.content.readline()).decode() for _ in range(2)]
        yield Got("events", events.status, "".join(lines))


@pytest.mark.parametrize("user", [TENANT, OPERATOR, STRANGER], ids=lambda user: user.name)
async def test_no_answer_names_another_tenant(client: Client, user: User) -> None:
    statuses: dict[int, int] = {}
    async for got in _everything(client, user):
        assert CANARY not in got.text, f"{got.address}: {got.status}"
        assert got.status < 500, f"{got.address}: {got.text}"
        statuses[got.status] = statuses.get(got.status, 0) + 1
    assert statuses[200] > (10 if user is STRANGER else 30)
    assert statuses[403] > 10


async def test_journal_names_the_other_tenant(client: Client) -> None:
    """What the previous test would find without a filter."""
    found: dict[str, set[str]] = {}
    async for got in _everything(client, ADMIN):
        assert got.status != 403, got.address
        for name in re.findall(rf"{CANARY}-\w+", got.text):
            found.setdefault(got.address.partition("?")[0], set()).add(name)
    names = set().union(*found.values())
    if "canary-gang" in names:
        assert {"canary-gang", "canary-ns"} <= names
    else:
        assert {"canary-pod", "canary-boss", "canary-hater", "canary-ns"} <= names
        for name, canary in (("urgent", "canary-pod"), ("web", "canary-boss")):
            assert canary in found[PREFIX + pod_path(MINE, name, "/timeline")]
        unblocking = found[PREFIX + pod_path(MINE, "waiting")]
        assert {"canary-boss", "canary-hater"} & unblocking
        assert "canary-pod" in found[PREFIX + pod_path(MINE, "urgent", "/decisions/1")]


async def test_foreign_namespace_is_forbidden_whether_or_not_its_pod_exists(
    client: Client,
) -> None:
    found = set()
    for name, rest in product(
        ("canary-pod", "canary-gang-0", "absent"), ("", "/decisions", "/decisions/1", "/timeline")
    ):
        path = PREFIX + pod_path(OTHERS, name, rest)
        async with client.session.get(path, headers=bearer(TENANT)) as response:
            found.add((response.status, await response.text()))
        if rest != "/decisions":
            page = pod_path(OTHERS, name, rest)
            async with client.session.get(page, headers=bearer(TENANT)) as response:
                assert response.status == 403
    ((status, text),) = found
    assert status == 403
    assert "you may not list pods in namespace canary-ns" in text


async def test_every_route_declares_its_scope() -> None:
    assert [name for name, route in ROUTES.items() if route.scope is None] == []
    assert [path for path in pages.SCOPES if path not in SCOPES] == []


async def test_every_path_of_the_server_declares_its_scope(tmp_path: Path) -> None:
    url = await stored(preempting_tenants(), tmp_path / "journal.db")
    async with ui_on(url) as client:
        app = make_app(client.view, Access())
        paths = {resource.canonical for resource in app.router.resources()}
    assert paths - SCOPES.keys() == set()
    public = {path for path, scope in SCOPES.items() if scope is AnswerScope.PUBLIC}
    assert public == {
        "/healthz",
        "/login",
        pages.STATIC,
        f"{PREFIX}/openapi.json",
        f"{PREFIX}/config-schema",
    }


async def test_restricted_answers_say_so(client: Client) -> None:
    note = f"Only namespaces that you may list pods in: {MINE}."
    for path in ("/search", "/", "/namespaces", f"{PREFIX}/search"):
        async with client.session.get(path, headers=bearer(TENANT)) as response:
            assert (response.status, response.headers[NOTE_HEADER]) == (200, note)
            assert (note in await response.text()) == (not path.startswith(PREFIX))
        async with client.session.get(path, headers=bearer(ADMIN)) as response:
            assert NOTE_HEADER not in response.headers
    async with client.session.get("/cluster", headers=bearer(TENANT)) as response:
        assert response.status == 403
        assert "you may not list nodes" in await response.text()
    async with client.session.get("/", headers=bearer(STRANGER)) as response:
        assert response.status == 200
        assert "There is no namespace for you" in await response.text()


async def test_search_counts_only_visible_names(client: Client) -> None:
    for text, least in (("", 3), ("canar", 0)):
        query = {"q": text, "limit": "1"}
        path = f"{PREFIX}/search"
        async with client.session.get(path, params=query, headers=bearer(TENANT)) as response:
            mine = await response.json()
        async with client.session.get(path, params=query, headers=bearer(ADMIN)) as response:
            every = await response.json()
        assert {found["namespace"] for found in mine["results"]} <= {MINE}
        assert mine["total"] >= least
        assert mine["total"] < every["total"]
    async with client.session.get(f"{PREFIX}/namespaces", headers=bearer(TENANT)) as response:
        found = await response.json()
    assert [one["namespace"] for one in found["namespaces"]] == [MINE]


async def test_token_of_nobody_is_rejected(client: Client) -> None:
    for value in ("", "Bearer unknown-token", "Bearer x", "Bearer " + "x" * 20000):
        try:
            async with client.session.get(
                f"{PREFIX}/search", headers={"Authorization": value}
            ) as response:
                assert response.status in (400, 401)
        except aiohttp.ClientError as error:
            pytest.fail(str(error))


async def test_readers_do_not_share_kept_answers(client: Client) -> None:
    """The tag of an answer depends on what its reader may see."""
    address, tags = f"{PREFIX}/cluster?seq=5", {}
    for user in (TENANT, OPERATOR):
        async with client.session.get(address, headers=bearer(user)) as response:
            tags[user] = response.headers.get("ETag")
    assert tags[OPERATOR] is not None
    assert tags[OPERATOR] != tags[TENANT]
    for user, known in ((TENANT, OPERATOR), (OPERATOR, OPERATOR)):
        headers = {**bearer(user), "If-None-Match": tags[known] or ""}
        async with client.session.get(address, headers=headers) as response:
            assert (response.status == 304) is (user is known)
