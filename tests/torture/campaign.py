"""Runs two replicas under load and faults, and checks what must never happen."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from time import monotonic

import aiohttp
import anyio

from asched.apiserver.auth import ADMIN
from asched.apiserver.cluster import EmbeddedCluster
from asched.apiserver.http import ApiServer
from asched.apiserver.storage import encode
from tests.daemon.processes import Commands
from tests.torture.canaries import TOKEN, leaks, leaks_in_files
from tests.torture.faults import DISK_FULL, FAULTS, POLL_S, Fault, Scene, drawn
from tests.torture.history import History, wrongly_ready
from tests.torture.load import Load
from tests.torture.lying_proxy import LyingProxy
from tests.torture.postgres import PostgresControl, controlled_postgres
from tests.torture.replicas import SupervisedReplica, supervised, with_password
from tests.torture.report import FaultRow, Summary, Timeline

SAMPLE_S = 0.5
METRICS_EVERY = 10
"""Samples of /readyz for each one of /metrics."""
STOP_TIMEOUT_S = 60.0
_DISK = "size=48m"
_TRACEBACK = re.compile(r"Traceback \(most recent call last\)|stopped by an internal error")


@dataclass(frozen=True, kw_only=True)
class Options:
    journals: str
    """``own`` or ``shared``."""
    seed: int
    run_s: float
    longest_fault_s: float = 15.0
    recovery_s: float = 60.0
    """How soon after a fault a new pod must be bound."""
    only: Sequence[str] = ()
    """Names of the faults to use; all if empty."""
    prints: bool = True


class Campaign:
    """One run. Created by :func:`run`."""

    def __init__(self, options: Options, folder: Path, postgres: PostgresControl | None) -> None:
        self._options = options
        self._folder = folder
        self._postgres = postgres
        self._chance = Random(f"{options.journals} {options.seed}")
        self._cluster = EmbeddedCluster(seed=options.seed)
        self._server = ApiServer(self._cluster, tokens={TOKEN: ADMIN})
        self._history = History(self._cluster)
        self._load = Load(self._cluster, Random(self._chance.random()))
        self._replicas: list[SupervisedReplica] = []
        self._runners: list[Commands] = []
        self._has_disk = False
        self._rows: dict[str, FaultRow] = {}
        self._checks: dict[str, int] = {}
        self._samples = 0
        self.timeline = Timeline(folder / "timeline", prints=options.prints)

    async def run(self) -> Summary:
        async with self._started(), anyio.create_task_group() as tasks:
            tasks.start_soon(self._load.run)
            tasks.start_soon(self._observe)
            await self._recovered("start")
            await self._inject_faults()
            self.timeline.fault = "end"
            await self._settle()
            tasks.cancel_scope.cancel()
        self._check_texts()
        self._count()
        options = self._options
        return Summary(
            options.journals, options.seed, self._folder, self._rows, self._checks,
            self.timeline.breaches,
        )  # fmt: skip

    # -- setup --------------------------------------------------------------------------------

    @asynccontextmanager
    async def _started(self) -> AsyncIterator[None]:
        """The cluster, the proxies and the replicas."""
        self._load.add_nodes()
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._server.run())
            self._has_disk = bool(self._mounted(stack)) if self._postgres is None else False
            for index, name in enumerate("ab"):
                proxy = LyingProxy(self._server.url, Random(self._chance.random()))
                await stack.enter_async_context(proxy.running())
                replica = SupervisedReplica(self._home(name), self._journal(name), proxy)
                self._replicas.append(replica)
                runner = await stack.enter_async_context(supervised(replica, exec_plugin=index > 0))
                self._runners.append(runner)
            yield

    def _home(self, name: str) -> Path:
        folder = self._folder / name
        folder.mkdir(exist_ok=True)
        return folder

    def _journal(self, name: str) -> str:
        if self._postgres is not None:
            return with_password(self._postgres.url)
        disk = self._home(name) / "disk"
        disk.mkdir(exist_ok=True)
        return str(disk / "journal.db")

    def _mounted(self, stack: AsyncExitStack) -> bool:
        """Put each journal on a small file system of its own, if that is allowed here."""
        if self._options.only and DISK_FULL.name not in self._options.only:
            return False
        for name in "ab":
            disk = Path(self._journal(name)).parent
            mount = ["mount", "-t", "tmpfs", "-o", _DISK, "tmpfs", str(disk)]
            try:
                subprocess.run(mount, check=True, capture_output=True)
            except (OSError, subprocess.CalledProcessError):
                return False
            stack.callback(subprocess.run, ["umount", "-l", str(disk)], check=False)
        return True

    # -- faults -------------------------------------------------------------------------------

    def _faults(self) -> list[Fault]:
        known = [*FAULTS, *([DISK_FULL] if self._has_disk else [])]
        only, kind = self._options.only, self._options.journals
        return [f for f in known if kind in f.journals and (not only or f.name in only)]

    async def _inject_faults(self) -> None:
        scene = Scene(
            self._replicas,
            self._history,
            self._chance,
            self._options.longest_fault_s,
            self._postgres,
        )
        ends_s = monotonic() + self._options.run_s
        while True:
            for faults in drawn(self._chance, self._faults()):
                if monotonic() >= ends_s:
                    return
                await self._inject(faults, scene)

    async def _inject(self, faults: tuple[Fault, ...], scene: Scene) -> None:
        name = self.timeline.fault = " with ".join(fault.name for fault in faults)
        leader = next((r.name for r in self._replicas if r.holds(self._history.holder)), "none")
        self.timeline.add(f"{name} (leader: {leader})")
        async with anyio.create_task_group() as tasks:
            for fault in faults:
                tasks.start_soon(fault.inject, scene)
        healed_s = monotonic()
        await self._recovered(name)
        for fault in faults:
            row = self._rows.get(fault.name, FaultRow())
            self._rows[fault.name] = row.with_one(monotonic() - healed_s)
        self._check_now()

    async def _recovered(self, name: str) -> None:
        """Wait until a new pod is bound; both are killed if none is in time."""
        probe = f"probe-{self._load.created}"
        self._load.add(probe)
        for _ in range(2):
            if await self._within(self._options.recovery_s, lambda: probe not in self._pending):
                return
            health = "; ".join(
                f"{r.name} {'ready' if r.samples and r.samples[-1].ready else 'not ready'}"
                for r in self._replicas
            )
            self.timeline.breach(
                f"nothing is bound {self._options.recovery_s:g} s after {name!r} ended ({health})"
            )
            for replica in self._replicas:
                replica.send(signal.SIGKILL)
        self.timeline.breach("nothing is bound after a restart of both replicas")

    @property
    def _pending(self) -> dict[str, float]:
        return self._history.pending

    async def _within(self, limit_s: float, holds: Callable[[], bool]) -> bool:
        with anyio.move_on_after(limit_s):
            while not holds():  # noqa: ASYNC110  processes are polled
                await anyio.sleep(POLL_S)
            return True
        return False

    # -- checks -------------------------------------------------------------------------------

    async def _observe(self) -> None:
        """Read the pages of the replicas, and compare them with the history."""
        number = 0
        async with aiohttp.ClientSession() as session:
            while True:
                for replica in self._replicas:
                    if replica.runs:
                        await replica.sample(session, metrics=number % METRICS_EVERY == 0)
                        self._samples += 1
                self._check_readiness()
                number += 1
                await anyio.sleep(SAMPLE_S)

    def _check_readiness(self) -> None:
        now_s = monotonic()
        unbound_s = self._history.unbound_for_s(now_s)
        leaders = [r for r in self._replicas if r.holds(self._history.holder) and r.runs]
        judged = leaders or self._replicas
        if leaders:
            # As a standby it was right to be ready.
            unbound_s = min(unbound_s, now_s - self._history.held_since_s)
        if all(r.runs and wrongly_ready(r.samples, unbound_s, now_s) for r in judged):
            what = "the leader is" if leaders else "all replicas are"
            self.timeline.breach(f"{what} ready although nothing was bound for 10 s")
        last_s = self._history.bindings[-1].at_s if self._history.bindings else 0.0
        for leader in leaders:
            bound_since = leader.journal_files and last_s > leader.recorded_at_s + 2
            unrecorded_s = now_s - leader.recorded_at_s if bound_since else 0.0
            if wrongly_ready(leader.samples, unrecorded_s, now_s):
                self.timeline.breach(
                    "the leader is ready and binds although its journal did not change for 10 s"
                )

    def _check_now(self) -> None:
        for line in self._history.breaches():
            self.timeline.breach(line)
        for replica in self._replicas:
            for end in replica.unexpected_ends:
                self.timeline.breach(f"replica {end.replica} {end.text}")
            replica.unexpected_ends.clear()
            for leak in replica.leaks:
                self.timeline.breach(leak)

    async def _settle(self) -> None:
        """After all faults: every pod is bound, both replicas stop, the journals verify."""
        if not await self._within(self._options.recovery_s, lambda: not self._pending_long()):
            self.timeline.breach(f"{len(self._pending_long())} pods are never bound")
        for replica in self._replicas:
            replica.stopping = True
            replica.send(signal.SIGTERM)
        if not await self._within(STOP_TIMEOUT_S, lambda: not any(r.runs for r in self._replicas)):
            self.timeline.breach(f"a replica does not stop within {STOP_TIMEOUT_S:g} s")
            return
        self._check_now()
        async with anyio.create_task_group() as tasks:
            pairs = zip(self._replicas, self._runners, strict=True)
            journals = {pair[0].journal: pair for pair in pairs}
            for replica, runner in journals.values():
                tasks.start_soon(self._check_journal, replica, runner)
        if self._postgres is not None:
            for leak in await self._postgres.leaks():
                self.timeline.breach(leak)

    def _pending_long(self) -> list[str]:
        """Pods that wait longer than an attempt takes; the load continues."""
        before_s = monotonic() - 5
        return [name for name, created_s in self._pending.items() if created_s < before_s]

    async def _check_journal(self, replica: SupervisedReplica, runner: Commands) -> None:
        export = ["journal", "export", "--to", str(replica.folder / "export.jsonl")]
        for arguments in (["journal", "verify"], ["replay", "--verify"], export):
            command = await runner.start(*arguments)
            status = await runner.ended(command)
            name = " ".join(arguments[:2])
            if status:
                last = command.lines[-1] if command.lines else ""
                self.timeline.breach(f"asched {name} ends with {status}: {last}")
            self._checks[name] = self._checks.get(name, 0) + 1

    def _check_texts(self) -> None:
        """No secret and no traceback in any file, and no secret in the cluster."""
        files = [
            file
            for replica in self._replicas
            for pattern in ("output-*", "exec-environment-*", "export.jsonl", "disk/*")
            for file in replica.folder.glob(pattern)
            if file.is_file()
        ]
        self._checks["files searched for secrets"] = len(files)
        for leak in leaks_in_files(iter(files)):
            self.timeline.breach(re.sub(r"-\d+ ", " ", leak))
        for file in files:
            if file.name.startswith("output"):
                for line in _tracebacks(file.read_text(errors="replace")):
                    self.timeline.breach(f"a traceback in the log: {line}")
        for resource in ("pods", "events.events.k8s.io", "leases.coordination.k8s.io"):
            for leak in leaks(encode(self._cluster.list(resource)), resource):
                self.timeline.breach(leak)

    def _count(self) -> None:
        history = self._history
        self._checks |= {
            "pods created": self._load.created,
            "bindings accepted": len(history.bindings),
            "leaders": len({binding.holder for binding in history.bindings}),
            "starts of replicas": sum(r.starts for r in self._replicas),
            "readings of /readyz": self._samples,
            "requests falsified": sum(sum(r.proxy.injected.values()) for r in self._replicas),
        }


def _tracebacks(text: str) -> list[str]:
    """The last line of each traceback, shortened."""
    return [
        line.replace("\\n", "\n").rstrip('}"\n ').splitlines()[-1][:200]
        for line in text.splitlines()
        if _TRACEBACK.search(line)
    ]


async def run(options: Options, folder: Path) -> Summary:
    """Run a campaign; all files are in ``folder``."""
    await anyio.Path(folder).mkdir(parents=True, exist_ok=True)
    if options.journals == "own":
        return await Campaign(options, folder, None).run()
    async with controlled_postgres(folder / "postgres") as postgres:
        return await Campaign(options, folder, postgres).run()
