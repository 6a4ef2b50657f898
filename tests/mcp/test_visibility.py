"""Tools answer a reader only about the namespaces that they may see."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp_types import CallToolResult
from typer.testing import CliRunner

from asched.audit.visibility import UnrestrictedViewer, Viewer
from asched.cli.main import app
from asched.cli.mcp import TokenViewer
from asched.cli.ui import UiReviewer
from asched.config.registry import PluginRegistry
from asched.journal.opening import open_journal
from asched.kube.reviews import ReviewError
from asched.mcp.access import NamespaceViewer
from asched.mcp.server import JournalServer
from asched.proof.keys import NO_KEYS
from asched.ui.cluster_access import ClusterAccess
from tests.audit.recording import pod
from tests.audit.whatif.histories import owned
from tests.mcp.test_server import text_of
from tests.ui.tenants import (
    CANARY,
    MINE,
    OPERATOR,
    OTHERS,
    STRANGER,
    TENANT,
    bearer,
    preempting_tenants,
    reviewing,
    stored,
)

POD = {
    "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "try", "namespace": MINE},
    "spec": {"containers": [
        {"name": "c", "image": "app", "resources": {"requests": {"cpu": "4"}}}
    ]},
}  # fmt: skip
ALLOWED: tuple[tuple[str, dict[str, Any]], ...] = (
    ("explain", {"pod": f"{MINE}/waiting"}),
    ("explain", {"pod": f"{MINE}/urgent", "attempt": 1}),
    ("decision", {"pod": f"{MINE}/urgent", "nodes": ["n1", "n3"]}),
    ("history", {"pod": f"{MINE}/web"}),
    ("history", {"pod": f"{MINE}/urgent"}),
    ("fit", {"manifest": POD}),
)
FORBIDDEN: tuple[tuple[str, dict[str, Any]], ...] = (
    ("explain", {"pod": f"{OTHERS}/canary-pod"}),
    ("explain", {"pod": f"{OTHERS}/absent"}),
    ("explain", {"group": f"{OTHERS}/canary-pod"}),
    ("decision", {"pod": f"{OTHERS}/canary-pod", "nodes": ["n1"]}),
    ("history", {"pod": f"{OTHERS}/canary-pod"}),
    ("history", {"node": "n1"}),
    ("fit", {"manifest": POD | {"metadata": {"name": "try", "namespace": OTHERS}}}),
    ("what_if", {"plugins": "ImageLocality=5"}),
)


@pytest.fixture
async def journal(tmp_path: Path) -> str:
    return await stored(preempting_tenants(), tmp_path / "journal.db")


@asynccontextmanager
async def asking(journal: str, viewer: Viewer) -> AsyncIterator[Client]:
    server = JournalServer(journal, PluginRegistry.discover(), NO_KEYS, viewer)
    async with Client(server.protocol) as client:
        yield client


async def text(client: Client, tool: str, arguments: dict[str, Any]) -> tuple[bool, str]:
    """Whether the call succeeds, and the answer or the error."""
    result = await client.call_tool(tool, arguments)
    assert isinstance(result, CallToolResult)
    return not result.is_error, text_of(result)


async def test_answers_do_not_name_another_tenant(journal: str) -> None:
    seen = set[str]()
    async with asking(journal, UnrestrictedViewer()) as client:
        for tool, arguments in ALLOWED:
            good, found = await text(client, tool, arguments)
            assert good, found
            seen |= {*re.findall(rf"{CANARY}-\w+", found)}
    assert {"canary-pod", "canary-boss"} <= seen, "the journal names the other tenant"
    async with asking(journal, NamespaceViewer(frozenset({MINE}))) as client:
        for tool, arguments in ALLOWED:
            good, found = await text(client, tool, arguments)
            assert good, found
            assert CANARY not in found, (tool, arguments)
        for tool, arguments in FORBIDDEN:
            good, found = await text(client, tool, arguments)
            assert not good
            assert "you may not list" in found
            assert "canary-pod" not in found
        good, found = await text(client, "explain", {"pod": f"{MINE}/canary-pod"})
        assert (good, CANARY in found.replace(f"{MINE}/canary-pod", "")) == (False, False)


async def test_name_without_namespace_is_rejected_for_a_restricted_reader(journal: str) -> None:
    async with asking(journal, NamespaceViewer(frozenset({MINE}))) as client:
        for name in ("web", "canary-pod", "absent"):
            good, found = await text(client, "explain", {"pod": name})
            assert (good, found) == (
                False,
                "give NAMESPACE/NAME; namespaces that you may see: team-a",
            )


async def test_owner_of_another_tenant_is_as_absent(tmp_path: Path) -> None:
    recording = preempting_tenants()
    recording.see(owned(pod("canary-owned", "1", namespace=OTHERS), "uid"))
    recording.turn(20.0)
    journal = await stored(recording, tmp_path / "owned.db")
    answers = []
    for viewer in (UnrestrictedViewer(), NamespaceViewer(frozenset({MINE}))):
        async with asking(journal, viewer) as client:
            answers.append(await text(client, "history", {"owner": "ReplicaSet/owner"}))
    assert [good for good, _ in answers] == [True, False]
    assert answers[1][1] == "no pod of ReplicaSet/owner is in the journal"


async def test_namespace_that_appears_later_is_hidden(journal: str) -> None:
    async with asking(journal, NamespaceViewer(frozenset({MINE}))) as client:
        await text(client, "history", {"pod": f"{MINE}/web"})
        later = preempting_tenants()
        later.see(pod("canary-new", "4", namespace="canary-later", priority=9000))
        later.decide()
        async with open_journal(journal) as store:
            head = (await store.head()).seq
            [last] = [one async for one in store.read(head - 1)]
            await store.claim("test", claimed_at_ns=last.written_at_ns)
            await store.append(later.records[head:], written_at_ns=last.written_at_ns)
        for tool, arguments in ALLOWED:
            good, found = await text(client, tool, arguments)
            assert good, found
            assert CANARY not in found, (tool, arguments)


async def test_token_of_the_cluster_decides(journal: str, tmp_path: Path) -> None:
    file = tmp_path / "token"
    async with reviewing(tmp_path) as (_, reviewer):
        viewer = TokenViewer(ClusterAccess(UiReviewer(reviewer)), file)
        async with asking(journal, viewer) as client:
            for user, mine, node in (
                (TENANT, True, False),
                (OPERATOR, True, True),
                (STRANGER, False, False),
            ):
                file.write_text(bearer(user)["Authorization"].removeprefix("Bearer ") + "\n")
                good, found = await text(client, "history", {"pod": f"{MINE}/web"})
                assert (good, CANARY in found) == (mine, False)
                good, found = await text(client, "history", {"node": "n1"})
                assert (good, CANARY in found) == (node, False)
            file.write_text("not-a-token-of-it")
            assert await text(client, "history", {"pod": f"{MINE}/web"}) == (
                False,
                f"{file}: not a valid token of the cluster",
            )
            file.unlink()
            good, found = await text(client, "history", {"pod": f"{MINE}/web"})
            assert found == f"{file}: cannot be read: No such file or directory"


async def test_access_review_without_answer_is_one_line(
    journal: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "token"
    file.write_text(bearer(TENANT)["Authorization"].removeprefix("Bearer "))

    async def unanswered(*_: object) -> bool:
        raise ReviewError("no answer to a SubjectAccessReview: timed out")

    async with reviewing(tmp_path) as (_, reviewer):
        monkeypatch.setattr(reviewer, "allows", unanswered)
        viewer = TokenViewer(ClusterAccess(UiReviewer(reviewer)), file)
        async with asking(journal, viewer) as client:
            assert await text(client, "history", {"pod": f"{MINE}/web"}) == (
                False,
                "no answer to a SubjectAccessReview: timed out; try again",
            )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--namespace", "a", "--token-file", "t"), "exclude each other"),
        (("--kubeconfig", "k"), "--kubeconfig needs --token-file"),
        (("--namespace", "a", "--namespace", ""), "--namespace is empty"),
    ],
)
def test_wrong_options(options: tuple[str, ...], message: str) -> None:
    result = CliRunner().invoke(app, ["mcp", "--journal", "j.db", *options], prog_name="asched")
    assert result.exit_code == 2
    assert message in result.stderr
