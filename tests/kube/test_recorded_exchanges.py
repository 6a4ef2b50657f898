"""Recorded exchanges with a real 1.36 API server: lists, watches and writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import pytest

from asched.kube.events import EventRecorder
from asched.kube.pod_writer import PodTarget, PodWriter
from asched.kube.reflector import Reflector
from asched.kube.write_outcomes import BoundElsewhere, ObjectGone, WriteRejected, WriteSucceeded
from asched.model.resources import Resource
from tests.kube.harness import (
    BEGIN,
    Answer,
    Asked,
    ManualClock,
    Script,
    ScriptedServer,
    View,
    client_for,
    in_turn,
    json_bytes,
    running,
)

Exchanges = dict[str, dict[str, Any]]
HANG = Answer(body=[], hang=True)


@pytest.fixture(scope="session")
def exchanges(shared_dir: Path) -> Exchanges:
    recorded = json.loads((shared_dir / "apiserver-1.36" / "exchanges.json").read_bytes())
    return {exchange["name"]: exchange for exchange in recorded}


def replayed(exchange: dict[str, Any]) -> Answer:
    response = exchange["response"]
    headers = {"Content-Type": response["contentType"]}
    if "stream" in response:
        lines = [json_bytes(event) + b"\n" for event in response["stream"]]
        return Answer(response["status"], lines, headers)
    body = response["body"]
    raw = body.encode() if isinstance(body, str) else json_bytes(body)
    return Answer(response["status"], raw, headers)


async def reflect(script: Script, resource: Resource, done: int) -> tuple[View, Reflector]:
    """Run a reflector until its sink received so many batches."""
    view = View()
    async with (
        ScriptedServer(script).run() as server,
        client_for(server.url, ManualClock()) as client,
    ):
        reflector = Reflector(client, resource, view)
        async with running(reflector.run):
            await view.until(lambda: len(view.batches) >= done)
    return view, reflector


def alive(stream: list[dict[str, Any]]) -> dict[str, str]:
    known: dict[str, str] = {}
    for event in stream:
        meta = event["object"]["metadata"]
        if event["type"] == "DELETED":
            known.pop(meta.get("name"), None)
        elif event["type"] in ("ADDED", "MODIFIED"):
            known[meta["name"]] = meta["uid"]
    return known


@pytest.mark.parametrize(
    ("name", "resource"),
    [("list-pods", Resource.PODS), ("list-nodes-rv0", Resource.NODES)],
)
async def test_lists(name: str, resource: Resource, exchanges: Exchanges) -> None:
    def script(asked: Asked) -> Answer:
        return HANG if asked.is_watch else replayed(exchanges[name])

    view, reflector = await reflect(script, resource, 1)
    items = exchanges[name]["response"]["body"]["items"]
    assert items
    assert {o.uid for o in view.of(resource).values()} == {i["metadata"]["uid"] for i in items}
    assert reflector.decoder.counts.skipped == 0


async def test_pages(exchanges: Exchanges) -> None:
    first = exchanges["list-pods-limit-1"]
    token = first["response"]["body"]["metadata"]["continue"]
    last = exchanges["list-pods-continue"]["response"]["body"]
    last = last | {"metadata": {"resourceVersion": last["metadata"]["resourceVersion"]}}

    def script(asked: Asked) -> Answer:
        if asked.is_watch:
            assert asked.query["resourceVersion"] == "202"
            return HANG
        if "continue" not in asked.query:
            return replayed(first)
        assert asked.query["continue"] == token
        return Answer(body=json_bytes(last))

    view, _ = await reflect(script, Resource.PODS, 1)
    assert len(view.of(Resource.PODS)) == 2


@pytest.mark.parametrize(
    ("name", "resource"),
    [
        ("watch-pods-all-since", Resource.PODS),
        ("watch-field-selector-unassigned", Resource.PODS),
        ("watch-rv0", Resource.NODES),
        ("watch-list-send-initial-events", Resource.NODES),
    ],
)
async def test_watches(name: str, resource: Resource, exchanges: Exchanges) -> None:
    stream = exchanges[name]["response"]["stream"]
    before = Answer(body=json_bytes({"metadata": {"resourceVersion": "202"}, "items": []}))
    watches = in_turn(replayed(exchanges[name]), HANG)
    view, clock = View(), ManualClock()
    script = {True: watches, False: in_turn(before)}
    async with (
        ScriptedServer(lambda asked: script[asked.is_watch](asked)).run() as server,
        client_for(server.url, clock) as client,
    ):
        reflector = Reflector(client, resource, view)
        async with running(reflector.run):
            with anyio.fail_after(60):
                while sum(asked.is_watch for asked in server.asked) < 2:
                    await anyio.lowlevel.checkpoint()
        resumed = [asked.query["resourceVersion"] for asked in server.asked if asked.is_watch]
    assert {o.name: o.uid for o in view.of(resource).values()} == alive(stream)
    assert resumed[1] == stream[-1]["object"]["metadata"]["resourceVersion"]
    assert reflector.decoder.counts.skipped == 0
    assert reflector.decoder.counts.events == sum(e["type"] != "BOOKMARK" for e in stream)


@pytest.mark.parametrize("name", ["watch-expired-410", "watch-expired-410-bookmarks"])
async def test_expired_watch_is_relisted(name: str, exchanges: Exchanges) -> None:
    watches = in_turn(replayed(exchanges[name]), HANG)

    def script(asked: Asked) -> Answer:
        return watches(asked) if asked.is_watch else replayed(exchanges["list-nodes-rv0"])

    view, _ = await reflect(script, Resource.NODES, 2)
    assert view.listed == [Resource.NODES] * 2


async def test_expired_continue_token(exchanges: Exchanges) -> None:
    lists = in_turn(
        replayed(exchanges["list-pods-limit-1"]),
        replayed(exchanges["list-continue-expired-410"]),
        replayed(exchanges["list-pods"]),
    )
    view, _ = await reflect(
        lambda asked: HANG if asked.is_watch else lists(asked), Resource.PODS, 1
    )
    items = exchanges["list-pods"]["response"]["body"]["items"]
    assert len(view.of(Resource.PODS)) == len(items)


async def test_resource_not_served(exchanges: Exchanges) -> None:
    """A resource of an optional API group is empty."""
    view, reflector = await reflect(
        lambda asked: replayed(exchanges["crd-list-before"]), Resource.CSI_NODES, 1
    )
    assert view.listed == [Resource.CSI_NODES]
    assert reflector.synced


# -- writing ----------------------------------------------------------------------------------


async def bind(
    exchanges: Exchanges, name: str, node: str, uid: str = ""
) -> tuple[object, list[Asked]]:
    """Bind as in the exchange; a GET returns the recorded bound pod."""
    pod = exchanges["get-bound-pod"]["response"]["body"]
    ref = PodTarget("c", "p0", uid or pod["metadata"]["uid"])

    def script(asked: Asked) -> Answer:
        return replayed(exchanges["get-bound-pod" if asked.method == "GET" else name])

    async with (
        ScriptedServer(script).run() as server,
        client_for(server.url, ManualClock()) as client,
    ):
        return await PodWriter(client).bind(ref, node), server.asked


@pytest.mark.parametrize(
    ("name", "node", "outcome"),
    [
        ("bind-ok", "n0", WriteSucceeded()),
        ("bind-again-same-node", "n0", WriteSucceeded()),
        ("bind-again-other-node", "n1", BoundElsewhere("n0")),
        ("bind-missing-pod", "n0", ObjectGone()),
        ("forbidden", "n0", None),
    ],
)
async def test_bindings(name: str, node: str, outcome: object, exchanges: Exchanges) -> None:
    found, _ = await bind(exchanges, name, node)
    if outcome is None:
        assert isinstance(found, WriteRejected)
        assert found.message == exchanges[name]["response"]["body"]["message"]
    else:
        assert found == outcome


async def test_binding_with_other_uid(exchanges: Exchanges) -> None:
    found, _ = await bind(exchanges, "bind-wrong-uid", "n0", uid="00000000")
    assert isinstance(found, ObjectGone)


async def test_binding_equals_kube_schedulers_plus_uid(exchanges: Exchanges) -> None:
    _, (asked,) = await bind(exchanges, "bind-ok", "n0", uid="some-uid")
    recorded = exchanges["bind-ok"]["request"]
    assert (asked.method, asked.path) == (recorded["method"], recorded["path"])
    body = json.loads(asked.body)
    assert body["metadata"].pop("uid") == "some-uid"
    assert body == recorded["body"]


async def test_patches_equal_kube_schedulers_plus_uid(exchanges: Exchanges) -> None:
    answers = in_turn(
        replayed(exchanges["patch-status-strategic-unschedulable"]),
        replayed(exchanges["patch-status-disruption-target"]),
        replayed(exchanges["delete-precondition-uid"]),
    )
    async with (
        ScriptedServer(answers).run() as server,
        client_for(server.url, ManualClock()) as client,
    ):
        writer = PodWriter(client)
        pending = await writer.patch_unschedulable(
            PodTarget("c", "p2", "u2"),
            message="0/3 nodes are available: 3 Insufficient cpu.",
            reason="Unschedulable",
            last_transition=BEGIN,
        )
        evicted = await writer.evict(PodTarget("c", "p0", "u0"), now=BEGIN)
    assert pending == evicted == WriteSucceeded()
    names = ("patch-status-strategic-unschedulable", "patch-status-disruption-target")
    for asked, name in zip(server.asked, names, strict=False):
        recorded, body = exchanges[name]["request"], json.loads(asked.body)
        assert (asked.method, asked.path) == (recorded["method"], recorded["path"])
        assert asked.headers["Content-Type"] == recorded["contentType"]
        assert set(body.pop("metadata")) == {"uid"}
        for condition in (body | recorded["body"])["status"]["conditions"]:
            condition.setdefault("lastProbeTime", None)
        body["status"]["conditions"][0].setdefault("lastProbeTime", None)
        assert body == recorded["body"]
    deletion = json.loads(server.asked[2].body)
    assert deletion == {
        "kind": "DeleteOptions", "apiVersion": "v1", "preconditions": {"uid": "u0"},
    }  # fmt: skip


async def test_events_equal_kube_schedulers(exchanges: Exchanges) -> None:
    created = replayed(exchanges["event-create"])
    answers = in_turn(created, created, replayed(exchanges["event-series-patch"]))
    clock = ManualClock()
    async with (
        ScriptedServer(answers).run() as server,
        client_for(server.url, clock) as client,
        anyio.create_task_group() as tasks,
    ):
        recorder = EventRecorder(client, "asched", "asched-1")
        recorder.scheduled(PodTarget("c", "p0", "u"), "n0")
        tasks.start_soon(recorder.run)
        with anyio.fail_after(60):
            while recorder.counts.sent < 1:
                await anyio.lowlevel.checkpoint()
        recorder.failed_scheduling(PodTarget("c", "p0", "u"), "no")
        with anyio.fail_after(60):
            while recorder.counts.sent < 2:
                await anyio.lowlevel.checkpoint()
        clock.now_s = 10.0
        recorder.failed_scheduling(PodTarget("c", "p0", "u"), "no")
        await recorder.stop(deadline_s=10)
    asked, _, patched = server.asked
    body, recorded = json.loads(asked.body), exchanges["event-create"]["request"]
    assert asked.path == recorded["path"]
    assert body["metadata"].pop("name").startswith("p0.")
    assert body["regarding"].pop("uid") == "u"
    recorded_body = recorded["body"] | {"metadata": {"namespace": "c"}}
    assert body == recorded_body
    series = exchanges["event-series-patch"]["request"]
    assert json.loads(patched.body) == series["body"]
    assert patched.headers["Content-Type"] == series["contentType"]
