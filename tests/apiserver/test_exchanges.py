"""Recorded exchanges of a 1.36 server, replayed in order against the embedded server."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from asched.apiserver.auth import ADMIN, SCHEDULER
from asched.apiserver.cluster import EmbeddedCluster
from asched.apiserver.http import ApiServer
from tests.apiserver.exchange_replay import Correspondence, decoded_token, encoded_token

pytestmark = pytest.mark.shared

Exchange = dict[str, Any]
TOKENS = {"admin": "admin-token", "scheduler": "scheduler-token"}

NOT_SERVED = {
    "componentstatuses": "deprecated since 1.19, and there is no etcd to ask about",
    "nodes/proxy": "no kubelet answers behind a simulated node",
    "pods/attach": "nothing runs in a simulated container",
    "pods/ephemeralcontainers": "nothing runs in a simulated container",
    "pods/exec": "nothing runs in a simulated container",
    "pods/log": "nothing runs in a simulated container",
    "pods/portforward": "nothing runs in a simulated container",
    "pods/proxy": "nothing runs in a simulated container",
    "replicationcontrollers/scale": "no controllers: workloads are data",
    "serviceaccounts/token": "two fixed bearer tokens are all the authentication there is",
    "services/proxy": "nothing runs behind a simulated service",
}
"""Resources of the recorded core group that are not served, with the reason."""


def _of_served(exchange: Exchange, ours: Any) -> tuple[Any, Any]:
    recorded = dict(exchange["response"]["body"])
    recorded["resources"] = [r for r in recorded["resources"] if r["name"] not in NOT_SERVED]
    return recorded, ours


def _version_numbers(exchange: Exchange, ours: Any) -> tuple[Any, Any]:
    """The fields that clients use; the others identify the recorded build."""
    keys = ("major", "minor", "emulationMajor", "minCompatibilityMinor")
    recorded = exchange["response"]["body"]
    return {key: recorded[key] for key in keys}, {key: ours[key] for key in keys}


def _without_diff(exchange: Exchange, ours: Any) -> tuple[Any, Any]:
    """The recorded message ends with a diff of Go structs, which is ignored."""
    recorded = json.loads(json.dumps(exchange["response"]["body"]))
    for part in (recorded, recorded["details"]["causes"][0]):
        part["message"] = part["message"].partition("@@")[0]
    return recorded, ours


ADJUSTED: dict[str, Callable[[Exchange, Any], tuple[Any, Any]]] = {
    "version": _version_numbers,
    "api-resources-core": _of_served,
    "patch-spec-immutable": _without_diff,
}
"""Exchanges that match partially; each function documents the exclusion."""


def _request_body(exchange: Exchange, seen: Correspondence) -> bytes | None:
    body = exchange["request"].get("body")
    if exchange["name"] == "lease-create":
        # The recorder kept the dictionary that it changed for its next request: what was sent
        # is what came back, without the system's part of the metadata.
        spec = exchange["response"]["body"]["spec"]
        body = {
            **body,
            "metadata": {"name": "kube-scheduler", "namespace": "kube-system"},
            "spec": spec,
        }
    return seen.body(body)


def _headers(exchange: Exchange) -> dict[str, str]:
    request = exchange["request"]
    headers = {}
    token = TOKENS.get(request["as"])
    if exchange["name"] == "bad-token":
        token = "no-such-token"
    if token:
        headers["Authorization"] = f"Bearer {token}"
    if "contentType" in request:
        headers["Content-Type"] = request["contentType"]
    if exchange["name"] == "list-nodes-metadata-only":
        headers["Accept"] = (
            "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io,application/json"
        )
    return headers


def _split_stream(raw: bytes) -> list[Any]:
    return [json.loads(line) for line in raw.splitlines() if line]


def _compare_bookmark(recorded: Exchange, ours: Exchange, seen: Correspondence) -> None:
    """Bookmarks have arbitrary revisions and zero values of Go structs."""
    for event in (recorded, ours):
        event["object"].pop("spec", None)
        event["object"].pop("status", None)
    newest = max(seen.revisions.values())
    if int(ours["object"]["metadata"].pop("resourceVersion")) < newest:
        seen.problems.append("bookmark: older than what the watch has shown")
    recorded["object"]["metadata"].pop("resourceVersion")


def _compare_stream(exchange: Exchange, raw: bytes, seen: Correspondence) -> None:
    recorded, ours = exchange["response"]["stream"], _split_stream(raw)
    for left, right in zip(recorded, ours, strict=False):
        if left.get("type") == "BOOKMARK" == right.get("type"):
            _compare_bookmark(left, right, seen)
    seen.compare(recorded, ours, "stream")


async def _replay(
    session: aiohttp.ClientSession, url: str, exchange: Exchange, seen: Correspondence
) -> None:
    request, response = exchange["request"], exchange["response"]
    async with session.request(
        request["method"],
        url + seen.path(request["path"]),
        data=_request_body(exchange, seen),
        headers=_headers(exchange),
    ) as answer:
        raw = await answer.read()
        if answer.status != response["status"]:
            seen.problems.append(f"status {answer.status}, recorded {response['status']}: {raw!r}")
        if answer.headers["Content-Type"] != response["contentType"]:
            seen.problems.append(f"content type {answer.headers['Content-Type']}")
        if answer.headers.get("Retry-After") != response.get("Retry-After"):
            seen.problems.append(f"Retry-After {answer.headers.get('Retry-After')}")
    if "stream" in response:
        _compare_stream(exchange, raw, seen)
    elif isinstance(response["body"], str):
        seen.compare(response["body"], raw.decode(), "body")
    else:
        ours = json.loads(raw)
        recorded = response["body"]
        adjust = ADJUSTED.get(exchange["name"])
        if adjust is not None:
            recorded, ours = adjust(exchange, ours)
        seen.compare(recorded, ours, "body")


def _with_a_token_of_ours(exchange: Exchange, seen: Correspondence) -> None:
    """A continue token of a revision of this run."""
    path, _, token = exchange["request"]["path"].rpartition("=")
    decoded = decoded_token(token)
    decoded["rv"] = max(seen.revisions)
    exchange["request"]["path"] = f"{path}={encoded_token(decoded)}"


async def test_every_recorded_exchange_matches(shared_dir: Path) -> None:
    exchanges: list[Exchange] = json.loads(
        (shared_dir / "apiserver-1.36" / "exchanges.json").read_text()
    )
    cluster = EmbeddedCluster()
    server = ApiServer(cluster, tokens={TOKENS["admin"]: ADMIN, TOKENS["scheduler"]: SCHEDULER})
    seen = Correspondence()
    different: dict[str, list[str]] = {}
    async with server.run(), aiohttp.ClientSession() as session:
        for exchange in exchanges:
            name = exchange["name"]
            if name == "watch-expired-410":
                # The recorded server was restarted here: its watch cache was empty.
                cluster.create("namespaces", {"metadata": {"name": "after"}})
                cluster.expire_history()
            if name == "list-continue-expired-410":
                _with_a_token_of_ours(exchange, seen)
            await _replay(session, server.url, exchange, seen)
            if seen.problems:
                different[name] = seen.problems
                seen.problems = []
    assert len(exchanges) >= 85
    assert different == {}
