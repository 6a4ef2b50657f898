"""Plans carried out in a cluster: the embedded API server over HTTP, and a scheduling daemon."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import anyio
import pytest
from msgspec.structs import replace

from asched.apiserver.storage import DELETED, StoreChange
from asched.audit.replay import replay
from asched.config.registry import PluginRegistry
from asched.journal import open_journal
from asched.kube.disruption_writer import CONSOLIDATION_ANNOTATION
from asched.state.consolidation_records import ConsolidationDecided, ConsolidationEnded
from tests.daemon.processes import commands
from tests.daemon.world import TIMEOUT_S, World, world


class ReplicaSets:
    """Creates a pod for each pod that is deleted, as the controller of a ReplicaSet does."""

    def __init__(self, w: World) -> None:
        self._world = w
        self._number = 0
        self.active = True
        self.on_deleted: Callable[[str], None] = lambda name: None
        w.cluster.listen("pods", self._on_pod)

    def create(self, app: str, cpu: str, node: str = "", **spec: Any) -> str:
        self._number += 1
        name = f"{app}-{self._number}"
        owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": app, "uid": f"rs-{app}"}
        container = {"name": "c", "image": "app", "resources": {"requests": {"cpu": cpu}}}
        metadata = {
            "name": name,
            "labels": {"app": app, "cpu": cpu},
            "ownerReferences": [{**owner, "controller": True}],
        }
        # No kubelet would end the pod.
        fields = {"containers": [container], "terminationGracePeriodSeconds": 0, **spec}
        if node:
            fields["nodeName"] = node
        self._world.cluster.create("pods", {"metadata": metadata, "spec": fields})
        return name

    def _on_pod(self, change: StoreChange) -> None:
        if change.type != DELETED:
            return
        metadata = change.new.obj["metadata"]
        self.on_deleted(metadata["name"])
        if self.active:
            self.create(metadata["labels"]["app"], metadata["labels"]["cpu"])


async def consolidate(w: World, *arguments: str) -> tuple[int, str]:
    """The exit code and the output of a command, with its errors."""
    folder = Path(mkdtemp(dir=w.folder))  # commands of one folder share an output
    async with commands(folder) as started:
        command = await started.start(*given(w, *arguments))
        return await started.ended(command), command.output


def given(w: World, *arguments: str) -> list[str]:
    record = ("--record", str(w.folder / "consolidation.db")) if "--apply" in arguments else ()
    return ["consolidate", "--kubeconfig", str(w.kubeconfig), *record, *arguments]


def nodes_in_use(w: World) -> set[str]:
    return {pod["spec"].get("nodeName", "") for pod in w.cluster.list("pods")}


def cordoned(w: World) -> set[str]:
    nodes = w.cluster.list("nodes")
    return {n["metadata"]["name"] for n in nodes if n["spec"].get("unschedulable")}


async def records_of(w: World) -> list[object]:
    async with open_journal(str(w.folder / "consolidation.db"), read_only=True) as journal:
        return [stored.record async for stored in journal.read()]


@asynccontextmanager
async def spread_cluster(folder: Path) -> AsyncIterator[tuple[World, ReplicaSets]]:
    """Four nodes with a pod of 1 CPU each, and a daemon."""
    async with world(folder, nodes=4, cpu="4") as w:
        replica_sets = ReplicaSets(w)
        for number in range(4):
            replica_sets.create("web", "1", f"n{number}")
        async with w.daemon():
            yield w, replica_sets


def shown_words() -> list[list[str]]:
    """The words of the lines that docs/how-to/consolidation.md shows as an output."""
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "consolidation.md").read_text()
    shown = page.partition("    $ asched consolidate\n")[2].partition("\n\n|")[0]
    return [line.split() for line in shown.splitlines() if re.search(r"\w", line)]


async def test_nothing_is_written_without_apply(tmp_path: Path) -> None:
    async with spread_cluster(tmp_path) as (w, _):
        code, out = await consolidate(w, "-o", "json")
        assert code == 0, out
        plan = json.loads(out)
        assert [domain["name"] for domain in plan["freed"]] == ["n0", "n1", "n2"]
        assert {m["target"] for domain in plan["freed"] for m in domain["moves"]} == {"n3"}
        code, out = await consolidate(w)
        assert [
            line for line in shown_words() if line not in map(str.split, out.splitlines())
        ] == []
        assert nodes_in_use(w) == {"n0", "n1", "n2", "n3"}
        assert cordoned(w) == set()


async def test_apply_frees_nodes_and_its_journal_replays(tmp_path: Path) -> None:
    async with spread_cluster(tmp_path) as (w, _):
        code, out = await consolidate(w, "--apply", "--timeout", "20")
        assert code == 0, out
        assert "n2 is free and cordoned, after 1 eviction" in out
        assert nodes_in_use(w) == {"n3"}
        assert cordoned(w) == {"n0", "n1", "n2"}
        node = w.cluster.get("nodes", "n1")
        assert node["metadata"]["annotations"][CONSOLIDATION_ANNOTATION] == "n1"
        assert not w.placements.violations
    found = await records_of(w)
    decided = [each for each in found if isinstance(each, ConsolidationDecided)]
    assert [d.settings.domains for d in decided] == [(), ("n0",), ("n1",), ("n2",)]
    ended = [each for each in found if isinstance(each, ConsolidationEnded)]
    assert ended == [ConsolidationEnded(f"n{number}", 1) for number in range(3)]
    async with open_journal(str(tmp_path / "consolidation.db"), read_only=True) as journal:
        report = await replay(journal, PluginRegistry.discover())
    assert (report.equal, report.decisions) == (True, 4)


async def test_a_changed_plan_is_a_divergence(tmp_path: Path) -> None:
    async with spread_cluster(tmp_path) as (w, _):
        assert (await consolidate(w, "--apply", "--max", "1"))[0] == 0
    async with (
        open_journal(str(tmp_path / "consolidation.db"), read_only=True) as journal,
        open_journal(str(tmp_path / "changed.db")) as changed,
    ):
        await changed.claim("test", claimed_at_ns=0)
        async for stored in journal.read():
            record = stored.record
            if isinstance(record, ConsolidationDecided):
                freed = replace(record.freed[0], cost=7.0)
                record = replace(record, freed=(freed,))
            await changed.append([record], written_at_ns=0)
        report = await replay(changed, PluginRegistry.discover())
    assert report.divergence is not None
    assert report.divergence.reason == "different decision"


async def test_throttled_eviction_is_repeated(tmp_path: Path) -> None:
    async with spread_cluster(tmp_path) as (w, _):
        w.faults.respond(429, count=2, verb="create", resource="pods/eviction")
        code, out = await consolidate(w, "--apply", "--max", "1")
        assert (code, nodes_in_use(w)) == (0, {"n1", "n2", "n3"})
        assert "n0 is free" in out
        assert w.faults.injected == 2


async def test_missing_replacement_stops_and_uncordons(tmp_path: Path) -> None:
    async with spread_cluster(tmp_path) as (w, replica_sets):
        replica_sets.active = False
        code, out = await consolidate(w, "--apply", "--timeout", "1")
        assert code == 1
        assert "stopped at n0 after 1 eviction: the replacement of pod default/web-1" in out
        assert cordoned(w) == set()
    ended = [each for each in await records_of(w) if isinstance(each, ConsolidationEnded)]
    assert [(each.domain, each.evicted) for each in ended] == [("n0", 1)]
    assert "is not bound after 1 s" in ended[0].deviation


async def test_node_that_remains_cordoned_is_reported(tmp_path: Path) -> None:
    async with spread_cluster(tmp_path) as (w, replica_sets):
        replica_sets.active = False

        def refuse(_: str) -> None:
            w.faults.respond(403, verb="patch", resource="nodes")

        replica_sets.on_deleted = refuse  # all nodes are cordoned before the first eviction
        code, out = await consolidate(w, "--apply", "--timeout", "1")
        assert code == 1
        (node,) = cordoned(w)
        (line,) = (line for line in out.splitlines() if "node remains cordoned" in line)
        assert f'"node": "{node}"' in line


async def test_a_pod_that_arrives_stops_the_plan(tmp_path: Path) -> None:
    """A pod without controller on a node of a later domain: the plan is decided again there."""
    async with spread_cluster(tmp_path) as (w, replica_sets):

        def add_bare_pod(_: str) -> None:
            replica_sets.on_deleted = lambda name: None
            w.add_pod("bare", nodeName="n1")

        replica_sets.on_deleted = add_bare_pod
        code, out = await consolidate(w, "--apply", "--timeout", "20")
        assert code == 1
        assert "n0 is free and cordoned" in out
        assert "stopped at n1 after 0 evictions: pod default/bare has no controller" in out
        assert cordoned(w) == {"n0"}


async def test_node_that_vanishes_stops_the_plan(tmp_path: Path) -> None:
    """As by an autoscaler. What became of the domains before is reported and recorded."""
    async with spread_cluster(tmp_path) as (w, replica_sets):

        def remove_node(_: str) -> None:
            replica_sets.on_deleted = lambda name: None
            w.cluster.delete("nodes", "n1")

        replica_sets.on_deleted = remove_node
        code, out = await consolidate(w, "--apply", "--timeout", "20")
        assert code == 1
        assert "n0 is free and cordoned" in out
        assert "stopped at n1 after 0 evictions: node n1 is not in the cluster" in out
        assert cordoned(w) == {"n0"}
    ended = [each.domain for each in await records_of(w) if isinstance(each, ConsolidationEnded)]
    assert ended == ["n0", "n1"]


async def test_annotations_and_local_storage_keep_nodes(tmp_path: Path) -> None:
    async with spread_cluster(tmp_path) as (w, replica_sets):
        annotations = {"karpenter.sh/do-not-disrupt": "true"}
        w.cluster.patch("nodes", "n0", {"metadata": {"annotations": annotations}})
        replica_sets.create("cache", "1", "n1", volumes=[{"name": "tmp", "emptyDir": {}}])
        code, out = await consolidate(w, "-o", "json")
        reasons = {kept["name"]: kept["reason"] for kept in json.loads(out)["kept"]}
        assert reasons["n0"] == "node n0 has annotation karpenter.sh/do-not-disrupt=true"
        assert reasons["n1"] == "pod default/cache-5 has local storage (volume tmp)"
        assert code == 0
        _, out = await consolidate(w, "-o", "json", "--ignore-local-storage")
        assert "local storage" not in out


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("--by", "rack"), "asched: no node has label rack"),
        (("--nodes", "pool"), "asched: --nodes: 'pool' is not LABEL=VALUE"),
        (("--at", "1h"), "asched: --at is a time of a journal: give --journal"),
        (
            ("--journal", "j.db", "--apply"),
            "asched: --journal needs no cluster: omit --apply, --record and --kubeconfig",
        ),
        (
            ("--journal", "j.db", "--feature-gates", "A=true"),
            "asched: --journal has its configuration: omit --config and --feature-gates",
        ),
    ],
)
async def test_bad_input_is_one_line(tmp_path: Path, arguments: Sequence[str], line: str) -> None:
    async with world(tmp_path, nodes=1) as w:
        assert await consolidate(w, *arguments) == (2, line + "\n")


async def test_plan_for_the_journal_of_a_daemon(tmp_path: Path) -> None:
    async with spread_cluster(tmp_path) as (w, _):
        _, live = await consolidate(w, "-o", "json")
        async with commands(tmp_path) as started:
            command = await started.start("consolidate", "--journal", str(w.journal), "-o", "json")
            assert await started.ended(command) == 0
        assert json.loads(command.output)["freed"] == json.loads(live)["freed"]


async def test_signal_uncordons_nodes_that_are_not_free(tmp_path: Path) -> None:
    async with spread_cluster(tmp_path) as (w, replica_sets), commands(tmp_path) as started:
        replica_sets.active = False
        deleted = anyio.Event()
        replica_sets.on_deleted = lambda name: deleted.set()
        command = await started.start(*given(w, "--apply"))
        with anyio.fail_after(TIMEOUT_S):
            await deleted.wait()
        assert cordoned(w) == {"n0", "n1", "n2"}
        command.send(signal.SIGTERM)
        assert await started.ended(command) == 130
        assert "interrupted; nodes that are not free are uncordoned" in command.output
        assert cordoned(w) == set()
