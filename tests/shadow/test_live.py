"""Shadow mode on a live cluster: a second asched owns it, over real HTTP."""

from __future__ import annotations

import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from asched.apiserver.http import ApiServer
from asched.config.file import parse
from asched.config.registry import PluginRegistry
from asched.cycle.shadow_report import Difference
from asched.daemon.shadow.daemon import Shadow, running_shadow
from asched.daemon.shadow.explainer import Window
from asched.journal import open_journal
from asched.journal.errors import JournalKindError
from asched.journal.kind import require_kind
from asched.kube.connection import connect
from asched.state.records import DisagreementCause, ShadowCompared, ShadowExplained
from tests.daemon.processes import NO_HEALTH, commands
from tests.daemon.world import TIMEOUT_S, ObservedFaults, World, failed_checks, world

READS = {"get", "list", "watch"}


class Watcher:
    """A shadow, its findings, and the requests that it sent."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str]] = []
        self.findings: list[ShadowCompared | Difference] = []
        self._arrived = anyio.Event()
        self.shadow: Shadow | None = None

    def heard(self, finding: ShadowCompared | Difference) -> None:
        self.findings.append(finding)
        self._arrived.set()
        self._arrived = anyio.Event()

    async def findings_about(self, pod: str) -> list[ShadowCompared | Difference]:
        """What was found about the pod, when there is something."""
        with anyio.fail_after(TIMEOUT_S):
            while not (found := self.about(pod)):
                await self._arrived.wait()
        return found

    def about(self, pod: str) -> list[ShadowCompared | Difference]:
        key = f"default/{pod}"
        return [
            finding
            for finding in self.findings
            if key == (finding.pod if isinstance(finding, Difference) else finding.key)
        ]

    async def explained(self) -> Difference:
        with anyio.fail_after(TIMEOUT_S):
            while not (found := [f for f in self.findings if isinstance(f, Difference)]):
                await self._arrived.wait()
        return found[0]


@asynccontextmanager
async def shadow_of(w: World, window: Window | None = None) -> AsyncIterator[Watcher]:
    """A shadow of the world's scheduler. It has its own API server over the same cluster, so
    that its requests are distinguishable."""
    watcher, faults, registry = Watcher(), ObservedFaults(), PluginRegistry.discover()
    faults.on_request = lambda verb, resource: watcher.requests.append((verb, resource))
    configuration = parse("", "test", registry, empty_is_defaults=True)
    server = ApiServer(w.cluster, faults=faults)
    async with (
        server.run(),
        connect(server.kubeconfig(w.folder / "shadow.yaml")) as client,
        open_journal(str(w.folder / "shadow.db")) as journal,
        running_shadow(
            configuration, registry, client, journal, listener=watcher.heard, window=window
        ) as shadow,
    ):
        watcher.shadow = shadow
        with anyio.fail_after(TIMEOUT_S):
            await shadow.engine.synced.wait()
        assert failed_checks(shadow.engine.checks()) == []
        yield watcher
    assert watcher.requests
    assert {verb for verb, _ in watcher.requests} <= READS


async def test_quiet_cluster_agrees_completely(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=2, cpu="3") as w:
        w.add_node("other", "7", zone="a")
        async with w.daemon(), shadow_of(w) as watcher:
            for number in range(12):
                w.add_pod(f"p-{number}", "700m")
                await watcher.findings_about(f"p-{number}")
            w.add_pod("huge", "50")
            await watcher.findings_about("huge")
        assert watcher.shadow is not None
        found = watcher.shadow.report()
        assert (found.bindings.compared, found.bindings.agreed) == (12, 12)
        assert (found.messages.compared, found.messages.agreed) == (1, 1)
        assert (found.differences, found.not_compared) == ([], {})


async def test_worse_node_is_reported_with_its_cause(tmp_path: Path) -> None:
    async with (
        world(tmp_path, nodes=2, cpu="4") as w,
        shadow_of(w, Window(back_s=0.05, ahead_s=0.05)) as watcher,
    ):
        w.add_node("big", "8")
        assert watcher.shadow is not None
        with anyio.fail_after(TIMEOUT_S):
            while watcher.shadow.cluster.nodes.row_of("big") is None:
                await anyio.lowlevel.checkpoint()
        w.add_pod("p")
        w.cluster.bind("default", "p", "n1")
        difference = await watcher.explained()
        assert (difference.node, difference.best) == ("n1", ("big",))
        assert difference.cause in (
            DisagreementCause.UNEXPLAINED,
            DisagreementCause.UNSEEN_CHANGE,  # on a fast machine the node may be as young
        )


async def test_existing_pods_are_not_compared(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=2) as w:
        async with w.daemon():
            w.add_pods(5, "old")
            w.add_pod("huge", "50")
            await w.until(lambda: w.unbound() == ["huge"] and w.message("huge") != "")
        async with shadow_of(w) as watcher:
            # The pod is shown again, with the words that it had before.
            w.cluster.patch(
                "pods", "huge", {"metadata": {"labels": {"a": "b"}}}, namespace="default"
            )
            async with w.daemon():
                w.add_pod("new")
                await watcher.findings_about("new")
        assert {f.key for f in watcher.findings if isinstance(f, ShadowCompared)} == {"default/new"}


async def test_restart_continues_the_journal(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=2) as w, w.daemon():
        for start in range(2):
            async with shadow_of(w) as watcher:
                w.add_pod(f"p-{start}")
                await watcher.findings_about(f"p-{start}")
        async with open_journal(str(tmp_path / "shadow.db"), read_only=True) as journal:
            records = [stored.record async for stored in journal.read()]
        assert [r.key for r in records if isinstance(r, ShadowCompared)] == [
            "default/p-0",
            "default/p-1",
        ]


async def test_open_disagreements_are_explained_at_the_end(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=1) as w:
        w.add_node("big", "64")
        async with shadow_of(w, Window(ahead_s=3600)) as watcher:
            w.add_pod("p")
            w.cluster.bind("default", "p", "n0")
            [compared] = await watcher.findings_about("p")
            assert isinstance(compared, ShadowCompared)
            assert not compared.agreed
        assert watcher.shadow is not None
        [difference] = watcher.shadow.report().differences
        assert difference.explained
        async with open_journal(str(tmp_path / "shadow.db"), read_only=True) as journal:
            kept = [stored.record async for stored in journal.read()]
        assert [r.number for r in kept if isinstance(r, ShadowExplained)] == [compared.number]


async def test_client_of_shadow_cannot_write(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=1) as w, connect(w.kubeconfig) as client:
        asked: list[str] = []
        w.faults.on_request = lambda verb, _: asked.append(verb)
        reading = client.read_only()
        assert b"n0" in await reading.request("GET", "/api/v1/nodes")
        for method in ("POST", "PUT", "PATCH", "DELETE"):
            with pytest.raises(PermissionError, match="this client is read-only"):
                await reading.request(method, "/api/v1/nodes/n0", body=b"{}")
        assert asked == ["list"]


async def test_journal_of_other_kind_is_rejected(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=1) as w:
        async with w.daemon() as daemon:
            await daemon.engine.synced.wait()
        async with shadow_of(w):
            pass  # it was synced, so its journal has begun
        async with open_journal(str(w.journal)) as scheduling:
            await require_kind(scheduling, shadow=False)
            with pytest.raises(JournalKindError, match="a scheduler wrote the journal"):
                await require_kind(scheduling, shadow=True)
        async with open_journal(str(tmp_path / "shadow.db")) as shadows:
            await require_kind(shadows, shadow=True)
            with pytest.raises(JournalKindError, match="a shadow wrote the journal"):
                await require_kind(shadows, shadow=False)


@pytest.mark.parametrize("command", [("shadow", "-o", "json"), ("run", "--mode", "shadow")])
async def test_command_prints_report_when_stopped(command: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(NO_HEALTH)
    async with world(tmp_path, nodes=2) as w, commands(tmp_path) as started:
        synced = anyio.Event()
        seen: list[str] = []

        def on_request(verb: str, resource: str) -> None:
            seen.append(verb)
            if verb == "watch" and resource == "pods":
                synced.set()

        w.faults.on_request = on_request
        running = await started.start(
            *command,
            *("--kubeconfig", str(w.kubeconfig)),
            *("--config", str(tmp_path / "config.yaml")),
            *("--journal", str(tmp_path / "shadow.db")),
        )
        with anyio.fail_after(TIMEOUT_S):
            await synced.wait()
        running.send(signal.SIGTERM)
        assert await started.ended(running) == 0
        assert set(seen) <= READS
        if "json" in command:
            text = running.output
            assert json.loads(text[text.index("\n{\n") :])["bindings"]["compared"] == 0
        else:
            assert "Agreement with the other scheduler" in running.output
