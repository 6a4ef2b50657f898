"""The API on the journal of a demo answers what the commands print."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from asched.journal.opening import open_journal
from asched.model.node import Node
from asched.state import records as r
from asched.state.cluster import ClusterState
from asched.state.fold import Fold
from tests.audit.recording import REGISTRY
from tests.ui.serving import Client, cli, pod_path, run_command, ui_on

pytestmark = pytest.mark.asyncio(loop_scope="module")

REJECTED, GATED = ("ops", "intolerant-0"), "gated"


async def folded(url: str, seq: int | None = None) -> tuple[ClusterState, list[r.AnyRecord]]:
    fold, seen = Fold(ClusterState(), REGISTRY.load), list[r.AnyRecord]()
    async with open_journal(url, read_only=True) as store:
        async for stored in store.read(0, seq):
            fold.apply(stored.record)
            seen.append(stored.record)
    return fold.state, seen


async def some_pods(url: str) -> dict[str, tuple[str, str]]:
    """A pod of each state, and one that was assigned."""
    state, seen = await folded(url)
    assigned = next(record for record in seen if isinstance(record, r.Assigned))
    gated = next(iter(state.queue.gated))
    keys = {"rejected": "/".join(REJECTED), "gated": gated, "assigned": assigned.key}
    return {name: tuple(key.split("/")) for name, key in keys.items()}  # type: ignore[misc]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(
    recorded_demo: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Client]:
    """One server for all tests: they only read."""
    index = tmp_path_factory.mktemp("index")
    async with ui_on(str(recorded_demo), index_dir=index) as served:
        await served.caught_up()
        yield served


@pytest.mark.parametrize("which", ["rejected", "gated", "assigned"])
async def test_pod_is_explained_as_by_the_command(client: Client, which: str) -> None:
    namespace, name = (await some_pods(client.journal))[which]
    explained = await cli("explain", f"{namespace}/{name}", "--journal", client.journal)
    found = await client.get(pod_path(namespace, name))
    path = pod_path(namespace, name, "/decisions/1")
    matrix: Any = None if which == GATED else await client.get(path)
    shared = found.keys() & explained.keys() - {"namespace", "name"}
    assert {field: found[field] for field in shared} == {
        field: explained[field] for field in shared
    }
    assert {"decision", "reasons", "unblocking", "reproduced", "preFilter"} <= shared
    assert found["status"]["state"] == {"rejected": "unschedulable", "assigned": "bound"}.get(
        which, which
    )
    assert found["status"]["uid"] == explained["uid"]
    if matrix is not None:
        assert matrix["explanation"] == explained


async def test_decision_without_nodes(client: Client) -> None:
    path = pod_path(*REJECTED, "/decisions/1")
    whole, brief = await client.get(path), await client.get(path, nodes="devices")
    assert whole["explanation"].pop("nodes")
    assert not brief["explanation"].pop("nodes")
    assert brief == whole


async def test_newest_entries_of_a_timeline(client: Client) -> None:
    path = pod_path(*REJECTED, "/timeline")
    whole, newest = await client.get(path), await client.get(path, limit="2")
    [pod], [cut] = whole["pods"], newest["pods"]
    assert cut == {**pod, "entries": pod["entries"][-2:]}
    assert newest["omitted"] == len(pod["entries"]) - 2 > 0
    assert whole["omitted"] == 0


async def test_sentence_says_why(client: Client) -> None:
    pods = await some_pods(client.journal)
    found = {name: await client.get(pod_path(*pod)) for name, pod in pods.items()}
    sentences = {name: answer["sentence"] for name, answer in found.items()}
    # Another node joins during the demo.
    rejected = r"The pod is unschedulable: 0/2[01] nodes are available: "
    assert re.match(rejected, sentences["rejected"])
    assert sentences["gated"].startswith("The pod is gated: ")
    node = found["assigned"]["status"]["node"]
    assert re.fullmatch(
        rf"The pod is bound to {node}: attempt 1 (selected it from \d+ feasible nodes with score"
        r" \d+(, one of \d+ with that score)?|found it as the only feasible node)\.",
        sentences["assigned"],
    )


async def test_matrix_names_winner_and_margin(client: Client) -> None:
    _, seen = await folded(client.journal)
    seq, record = next(
        (seq, record)
        for seq, record in enumerate(seen, 1)
        if isinstance(record, r.Assigned) and record.feasible_nodes > 1
    )
    namespace, name = record.key.split("/")
    path = pod_path(namespace, name, f"/decisions/{record.attempt}")
    found = await client.typed("decision", path)
    rows = await csv_rows(client, path)
    nodes = {node.name: node for node in found.explanation.nodes}
    assert found.winner == record.node
    assert nodes[found.winner].total == record.score
    assert len(found.ties) == record.ties
    assert found.margin == record.score - nodes[found.runner_up].total
    assert (found.margin == 0) == (record.ties > 1)
    assert found.explanation.reproduced is True
    assert found.stored.seq == seq
    assert found.stored.record["node"] == record.node
    assert [row["name"] for row in rows] == list(nodes)
    assert rows[0]["total"] == str(nodes[rows[0]["name"]].total)


@pytest.mark.parametrize("which", ["rejected", "assigned"])
async def test_timeline_is_the_history(client: Client, which: str) -> None:
    namespace, name = (await some_pods(client.journal))[which]
    history = await cli("history", f"{namespace}/{name}", "--journal", client.journal)
    found = await client.get(pod_path(namespace, name, "/timeline"))
    decisions = await client.get(pod_path(namespace, name, "/decisions"))
    assert found["pods"] == history["pods"]
    entries = history["pods"][-1]["entries"]
    kinds = ("assigned", "rejected", "failed")
    assert decisions["decisions"] == [entry for entry in entries if entry["event"] in kinds]
    spans = found["spans"]
    assert spans[0]["begin"] == entries[0]["at"]
    assert all(one["end"] == other["begin"] for one, other in pairwise(spans))
    last = {"rejected": "unschedulable", "assigned": "running"}[which]
    assert (spans[-1]["kind"], spans[-1]["end"]) == (last, None)


async def test_journal_is_reported_as_by_the_commands(client: Client) -> None:
    statistics = await cli("journal", "stats", "--journal", client.journal)
    _, verified, _ = await run_command("journal", "verify", "--journal", client.journal)
    await client.view.ask(lambda reader: reader.verifier.verify())
    found = await client.get("/journal")
    assert found["verification"]["statistics"] == statistics
    assert f"head {found['verification']['head']}\n" in verified
    assert found["verification"]["head"] == "{seq}:{hash}".format(**found["progress"]["head"])
    assert found["journalId"] == statistics["journalId"]
    assert (found["gap"], found["verification"]["problem"]) == ("", "")
    assert len(found["checkpoints"]) == statistics["checkpoints"]


@pytest.mark.parametrize("share", [0.3, 0.7, 1.0])
async def test_cluster_is_the_folded_state(client: Client, share: float) -> None:
    _, seen = await folded(client.journal)
    seq = round(share * len(seen))
    state, _ = await folded(client.journal, seq)
    found = await client.typed("cluster", "/cluster", seq=seq)
    name = max(found.nodes, key=lambda node: node.pods).name
    detail = await client.typed("node", f"/cluster/nodes/{name}", seq=seq)
    assert [node.name for node in found.nodes] == sorted(state.objects(Node))
    for node in found.nodes:
        here = [entry for entry in state.pods.values() if entry.node == node.name]
        assert node.pods == len(here)
        for resource in ("cpu", "memory", "nvidia.com/gpu"):
            used = sum(entry.info.shape.requests.get(resource, 0) for entry in here)
            assert node.requested.get(resource, 0) == used
    assert sum(found.queues.values()) == len(state.queue)
    assert {f"{pod.namespace}/{pod.name}" for pod in detail.pods} == {
        key for key, entry in state.pods.items() if entry.node == name
    }


async def test_difference_is_that_of_two_states(client: Client) -> None:
    _, seen = await folded(client.journal)
    first, last = len(seen) // 3, len(seen)
    old, new = (await folded(client.journal, first))[0], (await folded(client.journal, last))[0]
    found = await client.typed("difference", "/cluster/difference", fromSeq=first)
    back = await client.typed("difference", "/cluster/difference", fromSeq=last, toSeq=first)
    moved = {
        f"{placed.namespace}/{placed.name}": (placed.before, placed.after)
        for placed in found.placements
    }
    before = {key: entry.node for key, entry in old.pods.items()}
    after = {key: entry.node for key, entry in new.pods.items()}
    expected = {
        key: (before.get(key, ""), after.get(key, "")) for key in before.keys() | after.keys()
    }
    assert moved == {key: nodes for key, nodes in expected.items() if len({*nodes}) == 2}
    assert set(found.nodes_added) == set(new.objects(Node)) - set(old.objects(Node))
    assert back.nodes_removed == found.nodes_added
    assert [(p.after, p.before) for p in back.placements] == [
        (p.before, p.after) for p in found.placements
    ]


async def test_overview_counts_records(client: Client) -> None:
    state, seen = await folded(client.journal)
    kinds = Counter(type(record) for record in seen)
    found = await client.typed("overview", "/overview")
    rows = await csv_rows(client, "/overview")
    later = await client.typed("overview", "/overview", from_="2030-01-01T00:00:00Z")
    progress = client.view.progress
    assert sum(point.assigned for point in found.points) == kinds[r.Assigned]
    assert sum(point.rejected for point in found.points) == kinds[r.Rejected]
    assert sum(point.failed for point in found.points) == kinds[r.AttemptFailed]
    bound = sum(point.bound for point in found.points)
    assigned = {one.key for one in seen if isinstance(one, r.Assigned)}
    # A preemption of the demo deletes a pod that was bound.
    gone = sum(isinstance(one, r.ObjectDeleted) and one.key in assigned for one in seen)
    present = sum(1 for entry in state.pods.values() if entry.node)
    assert bound == progress.counts["bound"] == present + gone
    last = found.points[-1]
    assert last.nodes == len(state.objects(Node))
    assert last.queues["unschedulable"] == len(state.queue.unschedulable)
    waiting = Counter(
        p for q in state.queue.unschedulable.values() for p in q.unschedulable_plugins
    )
    assert last.pending_by_plugin == waiting
    waits = [point.wait_p50_s for point in found.points if point.bound]
    assert all(wait is not None and 0 < wait < 60 for wait in waits)
    assert len(rows) == len(found.points)
    assert rows[-1]["queues.unschedulable"] == str(last.queues["unschedulable"])
    assert later.points == ()


async def test_search_finds_pods_owners_and_nodes(client: Client) -> None:
    state, _ = await folded(client.journal)
    found = await client.typed("search", "/search", q="INTOLER")
    nodes = await client.typed("search", "/search", q="general-00", limit=3)
    every = await client.typed("search", "/search", limit=1000)
    rows = await csv_rows(client, "/search", q="intoler")
    assert [(hit.kind.value, hit.namespace, hit.name) for hit in found.results] == [
        ("pod", *REJECTED)
    ]
    assert found.results[0].state == "unschedulable"
    assert {hit.kind.value for hit in nodes.results} == {"node"}
    assert (len(nodes.results), nodes.total > 3) == (3, True)
    assert every.total >= len(state.pods) + len(state.objects(Node))
    assert rows == [
        {
            "kind": "pod", "name": REJECTED[1], "namespace": REJECTED[0],
            "state": "unschedulable", "lastSeq": str(found.results[0].last_seq),
        }
    ]  # fmt: skip


async def test_plugins_are_those_of_the_profile(client: Client) -> None:
    state, _ = await folded(client.journal)
    found = await client.typed("plugins", "/plugins")
    [profile] = state.profiles.values()
    assert [plugin.name for plugin in found.plugins] == list(profile.spec.plugin_names)
    weights = {
        plugin.name: place.weight
        for plugin in found.plugins
        for place in plugin.enabled
        if place.extension_point == "score"
    }
    assert weights == {plugin.name: plugin.weight for plugin in profile.spec.points["score"]}
    assert not any(plugin.differs for plugin in found.plugins)


async def test_openapi_describes_every_answer(client: Client) -> None:
    document = await client.get("/openapi.json")
    assert document["openapi"].startswith("3.1")
    schemas = document["components"]["schemas"]
    assert {"sentence", "status", "unblocking"} <= schemas["PodSummary"]["properties"].keys()
    for path, methods in document["paths"].items():
        assert list(methods) == ["get"] or path.startswith("/api/v1/lab/")
        for method in methods.values():
            named = [p["name"] for p in method["parameters"] if p["in"] == "path"]
            assert named == re.findall(r"{(\w+)}", path)
            answers = method["responses"]["200"]["content"]["application/json"]["schema"]
            assert answers["$ref"].removeprefix("#/components/schemas/") in schemas


async def csv_rows(client: Client, path: str, **query: str) -> list[dict[str, str]]:
    url = f"/api/v1{path}"
    async with client.session.get(url, params={**query, "format": "csv"}) as response:
        assert (response.status, response.content_type) == (200, "text/csv")
        return [*csv.DictReader(io.StringIO(await response.text()))]
