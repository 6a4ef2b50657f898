"""Two replicas in separate processes, a cluster, and checks of what must never happen."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from signal import SIGKILL
from time import monotonic
from typing import NamedTuple

import aiohttp
import anyio
from prometheus_client.parser import text_string_to_metric_families

from asched.apiserver.storage import StoreChange
from tests.daemon.processes import Command, Commands, commands
from tests.daemon.world import OWN, World

NAMESPACE, LEASE = "kube-system", "asched"
LEASE_S = 3
"""Short for quick tests; the default is 15."""
SHORT_LEASE = "{leaseDuration: 3s, renewDeadline: 2s, retryPeriod: 200ms}"
TAKEOVER_S = 2.0
"""Limit of a takeover after the lease expired."""


class Journals(NamedTuple):
    a: str
    b: str

    @property
    def shared(self) -> bool:
        return self.a == self.b


class Replica:
    """One of the two; it is restarted after each end."""

    def __init__(self, name: str, made: Commands, arguments: Sequence[str]) -> None:
        self.name = name
        self._made = made
        self._arguments = list(arguments)
        self.command: Command | None = None

    async def start(self) -> None:
        self.command = await self._made.start("run", *self._arguments)

    @property
    def process(self) -> Command:
        assert self.command is not None
        return self.command

    async def ended(self) -> int:
        return await self._made.ended(self.process)

    def has_said(self, event: str) -> bool:
        """Whether its log has that."""
        return f'"{event}"' in self.process.output

    async def master_status(self) -> float:
        """``leader_election_master_status`` as its /metrics shows it."""
        page = await self._page("metrics")
        (sample,) = (
            sample
            for family in text_string_to_metric_families(page)
            if family.name == "leader_election_master_status"
            for sample in family.samples
        )
        assert sample.labels == {"name": LEASE}
        return sample.value

    async def readiness(self) -> list[str]:
        """The checks of its /readyz, each with its sign, in order."""
        page = await self._page("readyz?verbose")
        return [line.removesuffix(" ok") for line in page.splitlines() if line[:1] == "["]

    async def _page(self, path: str) -> str:
        said = [json.loads(line) for line in self.process.lines if '"health"' in line]
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://{said[0]['health']}/{path}") as response,
        ):
            return await response.text()

    def holds(self, holder: str) -> bool:
        """Whether a lease that this one holds is its own."""
        return self.command is not None and f"_{self.command.pid}_" in holder


class Ledger:
    """Records changes of the lease's holder, and the holder at each binding."""

    def __init__(self, w: World) -> None:
        self.holder = ""
        self.freed_at_s = 0.0
        """When the lease was given back last."""
        self.first_bound_s: dict[str, float] = {}
        """By holder of the lease: when the first pod was bound after it had taken it."""
        self.bindings: dict[str, int] = {}
        """By uid of the pod: how often it was bound."""
        self.candidates = 0
        """How often somebody began to watch the lease, as each candidate does once."""
        self._world = w
        w.faults.on_request = self._on_request
        w.cluster.listen("leases.coordination.k8s.io", self._on_lease)
        w.cluster.listen("pods", self._on_pod)

    def _on_request(self, verb: str, resource: str) -> None:
        if (verb, resource) == ("watch", "leases"):
            self.candidates += 1
            self._world.touch()

    def _on_lease(self, change: StoreChange) -> None:
        lease = change.new.obj
        if lease["metadata"]["name"] == LEASE:
            self.holder = lease["spec"].get("holderIdentity") or ""
            if not self.holder:
                self.freed_at_s = monotonic()
            self._world.touch()

    def _on_pod(self, change: StoreChange) -> None:
        old = change.old.obj if change.old is not None else None
        pod = change.new.obj
        node = pod["spec"].get("nodeName")
        if node and old is not None and not old["spec"].get("nodeName"):
            uid = pod["metadata"]["uid"]
            self.bindings[uid] = self.bindings.get(uid, 0) + 1
            self.first_bound_s.setdefault(self.holder, monotonic())


class Pair:
    """Created by :func:`pair`."""

    def __init__(self, w: World, a: Replica, b: Replica) -> None:
        self.world = w
        self.ledger = Ledger(w)
        self.replicas = [a, b]
        self._waves = 0

    async def start(self, replica: Replica) -> None:
        """Start it and wait until it is warm, and a candidate or the leader: one that gets the
        lease with its first request may not watch it."""
        before = self.ledger.candidates
        await replica.start()
        await self.world.until(
            lambda: self.ledger.candidates > before or replica.holds(self.ledger.holder)
        )

    @property
    def leader(self) -> Replica | None:
        """Who holds the lease."""
        return next((r for r in self.replicas if r.holds(self.ledger.holder)), None)

    async def bind_all(self, pods: int) -> None:
        """Have so many more pods, and wait until all there are are bound."""
        self.add(pods)
        await self.world.until(lambda: not self.world.unbound())

    def add(self, pods: int) -> None:
        self._waves += 1
        self.world.add_pods(pods, f"wave-{self._waves}", "50m")

    def check(self) -> None:
        """Nothing was bound twice, nothing overfull, nothing forgotten."""
        assert self.world.placements.violations == []
        assert self.world.unbound() == []
        assert set(self.ledger.bindings.values()) == {1}


@asynccontextmanager
async def pair(
    w: World,
    folder: Path,
    journals: Journals,
    *,
    kubeconfigs: tuple[Path, Path] | None = None,
    election: str = SHORT_LEASE,
) -> AsyncIterator[Pair]:
    """Two replicas, not started yet. The end of the block kills them."""
    config = folder / "config.yaml"
    config.write_text(
        f"{OWN}health: {{address: '127.0.0.1:0'}}\nlog: {{format: json}}\nleaderElection:"
        f" {election}\n"
    )
    made: list[Replica] = []
    async with AsyncExitStack() as stack:
        for index, url in enumerate(journals):
            name = "ab"[index]
            own = folder / name
            own.mkdir()
            kubeconfig = kubeconfigs[index] if kubeconfigs else w.kubeconfig
            arguments = ["--kubeconfig", kubeconfig, "--journal", url, "--config", config]
            commands_of_one = await stack.enter_async_context(commands(own))
            made.append(Replica(name, commands_of_one, list(map(str, arguments))))
        try:
            yield Pair(w, *made)
        finally:
            with anyio.CancelScope(shield=True):
                for replica in made:
                    if replica.command is not None and replica.command.status is None:
                        # It may have ended by itself.
                        with suppress(ProcessLookupError):
                            replica.command.send(SIGKILL)
                        await replica.ended()
