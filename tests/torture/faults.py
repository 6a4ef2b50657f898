"""The faults: each injects itself, lasts for a drawn time, and heals."""

from __future__ import annotations

import resource
import shutil
import signal
import sqlite3
from collections.abc import Callable, Coroutine, Sequence
from contextlib import closing, suppress
from enum import Enum
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import anyio
import anyio.to_thread

from tests.torture.history import SILENCE_S, History
from tests.torture.lying_proxy import Lie
from tests.torture.postgres import PostgresControl
from tests.torture.replicas import SupervisedReplica

_CLOCK_STEPS_S = (-86400 * 365, -3600, -30, 30, 3600, 86400 * 365)
_FREE_DESCRIPTORS = 2
_PAIRS = 0.25
_FREE_FILE_BYTES = 65536
POLL_S = 0.05


class Scene:
    """What faults act on."""

    def __init__(
        self,
        replicas: list[SupervisedReplica],
        history: History,
        chance: Random,
        longest_s: float,
        postgres: PostgresControl | None,
    ) -> None:
        """``longest_s``: the longest duration of a fault."""
        self.replicas = replicas
        self.history = history
        self.chance = chance
        self.longest_s = longest_s
        self._postgres = postgres

    @property
    def postgres(self) -> PostgresControl:
        assert self._postgres is not None
        return self._postgres

    @property
    def leader(self) -> SupervisedReplica:
        """The holder of the lease; any replica if there is none."""
        holder = self.history.holder
        return next((r for r in self.replicas if r.holds(holder)), self.replicas[0])

    def some(self) -> list[SupervisedReplica]:
        """Usually the leader, sometimes both."""
        return [self.leader] if self.chance.random() < 0.7 else self.replicas

    async def last(self, at_most_s: float | None = None) -> None:
        """Let the fault last."""
        longest_s = min(self.longest_s, at_most_s or self.longest_s)
        await anyio.sleep(self.chance.uniform(longest_s / 3, longest_s))

    async def notice(self, replica: SupervisedReplica) -> None:
        """Wait until its process ends, at most as long as it may report that it is ready."""
        pid = replica.process.pid
        with anyio.move_on_after(SILENCE_S + 3):
            while replica.runs and replica.process.pid == pid:  # noqa: ASYNC110  it is polled
                await anyio.sleep(POLL_S)


class Part(Enum):
    """What a fault hits. Two faults at the same time hit different parts."""

    PROCESS = 1
    MACHINE = 2
    FILES = 3
    CREDENTIALS = 4
    API = 5
    DATABASE = 6


class Fault(NamedTuple):
    name: str
    part: Part
    journals: tuple[str, ...]
    """The kinds of journal that it can happen to."""
    inject: Callable[[Scene], Coroutine[Any, Any, None]]
    """Injects it and heals it."""


def _lie(name: str, lie: Lie, share: float, *, until_noticed: bool = False) -> Fault:
    """``until_noticed``: lasts until the leader ends, or should have reported it."""

    async def inject(scene: Scene) -> None:
        chosen = scene.some()
        for replica in chosen:
            replica.proxy.set(lie, share)
        try:
            await (scene.notice(chosen[0]) if until_noticed else scene.last())
        finally:
            for replica in chosen:
                replica.proxy.heal()

    return Fault(name, Part.API, ("own", "shared"), inject)


# -- processes ------------------------------------------------------------------------------------


async def _kill_leader(scene: Scene) -> None:
    scene.leader.send(signal.SIGKILL)


async def _kill_both(scene: Scene) -> None:
    for replica in scene.replicas:
        replica.send(signal.SIGKILL)


async def _pause_leader(scene: Scene) -> None:
    leader = scene.leader
    leader.send(signal.SIGSTOP)
    try:
        await scene.last()
    finally:
        leader.send(signal.SIGCONT)


async def _stop_leader(scene: Scene) -> None:
    scene.leader.send(signal.SIGTERM)


async def _step_clock(scene: Scene) -> None:
    """It is set back at the next step, as by a correction."""
    step_s = scene.chance.choice(_CLOCK_STEPS_S)
    chosen = scene.some()
    for replica in chosen:
        replica.clock.ns += step_s * 10**9
    await scene.last()
    for replica in chosen:
        replica.clock.ns = 0


# -- limits of the machine ------------------------------------------------------------------------


async def _limited(replica: SupervisedReplica, limit: int, soft: int, scene: Scene) -> None:
    pid = replica.process.pid
    with suppress(ProcessLookupError):
        before = resource.prlimit(pid, limit)
        resource.prlimit(pid, limit, (soft, before[1]))
        try:
            await scene.last()
        finally:
            resource.prlimit(pid, limit, before)


async def _descriptors(scene: Scene) -> None:
    leader = scene.leader
    soft = leader.open_files() + _FREE_DESCRIPTORS
    await _limited(leader, resource.RLIMIT_NOFILE, soft, scene)


async def _no_descriptors(scene: Scene) -> None:
    leader = scene.leader
    await _limited(leader, resource.RLIMIT_NOFILE, max(3, leader.open_files() // 2), scene)


async def _file_size(scene: Scene) -> None:
    """Files cannot grow: writes fail as on a full disk, with another error."""
    leader = scene.leader
    # The log, in the same process, stays below the limit.
    soft = len(leader.process.output) + _FREE_FILE_BYTES
    await _limited(leader, resource.RLIMIT_FSIZE, soft, scene)


async def _disk_full(scene: Scene) -> None:
    """The journal of the leader is on a file system of its own."""
    ballast = Path(scene.leader.journal).with_name("ballast")
    try:
        with ballast.open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(b"\0" * 4096)
        await scene.last()
    finally:
        ballast.unlink(missing_ok=True)


# -- files of the journal -------------------------------------------------------------------------


async def _delete_journal(scene: Scene) -> None:
    leader = scene.leader
    for file in leader.journal_files:
        file.unlink(missing_ok=True)
    await scene.notice(leader)


async def _replace_journal(scene: Scene) -> None:
    """An earlier copy of the journal is moved to its place."""
    leader = scene.leader
    copy = leader.folder / "copy.db"
    copy.unlink(missing_ok=True)
    if not await anyio.to_thread.run_sync(_copied, leader.journal, copy):
        return
    await scene.last()
    for file in leader.journal_files[1:]:
        file.unlink(missing_ok=True)
    # The journal may be on a file system of its own. Writing into the open file would destroy it.
    moved = Path(leader.journal).with_name(copy.name)
    shutil.move(copy, moved)
    moved.replace(leader.journal)
    await scene.notice(leader)


def _copied(source: str, copy: Path) -> bool:
    """Whether there was a journal to copy: its replica may be starting."""
    try:
        with (
            closing(sqlite3.connect(f"file:{source}?mode=rw", uri=True)) as database,
            closing(sqlite3.connect(copy)) as to,
        ):
            database.backup(to)
    except sqlite3.Error:
        return False
    return True


# -- credentials ----------------------------------------------------------------------------------


async def _hang_plugin(scene: Scene) -> None:
    """The token is revoked, and the exec plugin of one replica does not end."""
    replica = scene.replicas[1]
    (replica.folder / "hang").touch()
    replica.proxy.set(Lie.UNAUTHORIZED, 0.5)
    try:
        await scene.last()
    finally:
        replica.proxy.heal()
        replica.kill_hanging_plugins()


async def _stale_restart(scene: Scene) -> None:
    """A replica starts with lists that are as old as the cluster."""
    leader = scene.leader
    leader.proxy.set(Lie.STALE_LIST)
    leader.send(signal.SIGKILL)
    try:
        await scene.last()
    finally:
        leader.proxy.heal()


# -- PostgreSQL -----------------------------------------------------------------------------------


async def _crash_postgres(scene: Scene) -> None:
    await scene.postgres.stop("immediate")
    try:
        await scene.last()
    finally:
        with anyio.CancelScope(shield=True):
            await scene.postgres.start()


async def _restart_postgres(scene: Scene) -> None:
    await scene.postgres.stop("fast")
    await scene.postgres.start()


async def _demote_postgres(scene: Scene) -> None:
    await scene.postgres.demote()
    try:
        await scene.last()
    finally:
        with anyio.CancelScope(shield=True):
            await scene.postgres.promote()


async def _set_postgres_back(scene: Scene) -> None:
    await scene.postgres.take_copy()
    await scene.last()
    await scene.postgres.set_back()


_ANY, _OWN, _SHARED = ("own", "shared"), ("own",), ("shared",)
DISK_FULL = Fault("journal's disk full", Part.FILES, _OWN, _disk_full)
FAULTS: tuple[Fault, ...] = (
    Fault("kill the leader", Part.PROCESS, _ANY, _kill_leader),
    Fault("kill both", Part.PROCESS, _ANY, _kill_both),
    Fault("stop the leader", Part.PROCESS, _ANY, _stop_leader),
    Fault("pause the leader", Part.PROCESS, _ANY, _pause_leader),
    Fault("step the clock", Part.MACHINE, _ANY, _step_clock),
    Fault("few descriptors left", Part.MACHINE, _ANY, _descriptors),
    Fault("no descriptor left", Part.MACHINE, _ANY, _no_descriptors),
    Fault("limited file size", Part.MACHINE, _OWN, _file_size),
    Fault("journal deleted", Part.FILES, _OWN, _delete_journal),
    Fault("journal replaced", Part.FILES, _OWN, _replace_journal),
    Fault("exec plugin hangs", Part.CREDENTIALS, _ANY, _hang_plugin),
    Fault("restart with stale lists", Part.API, _ANY, _stale_restart),
    _lie("responses late", Lie.DELAY, 0.5),
    _lie("connections reset", Lie.RESET, 0.5),
    _lie("responses lost", Lie.RESET_AFTER, 0.5),
    _lie("responses truncated", Lie.TRUNCATE, 0.3),
    _lie("responses repeated", Lie.DUPLICATE_ANSWER, 0.3),
    _lie("requests repeated", Lie.DUPLICATE_REQUEST, 0.5),
    _lie("5xx after the effect", Lie.ERROR_AFTER, 0.5),
    _lie("bindings refused", Lie.BINDINGS_REFUSED, 1.0, until_noticed=True),
    _lie("bindings silent", Lie.BINDINGS_SILENT, 1.0, until_noticed=True),
    _lie("API server silent", Lie.BLACK_HOLE, 1.0),
    _lie("API server unreachable", Lie.RESET, 1.0),
    Fault("PostgreSQL crashes", Part.DATABASE, _SHARED, _crash_postgres),
    Fault("PostgreSQL restarts", Part.DATABASE, _SHARED, _restart_postgres),
    Fault("PostgreSQL is read-only", Part.DATABASE, _SHARED, _demote_postgres),
    Fault("PostgreSQL loses commits", Part.DATABASE, _SHARED, _set_postgres_back),
)


def drawn(chance: Random, faults: Sequence[Fault]) -> list[tuple[Fault, ...]]:
    """The next faults: all of them in a drawn order, a quarter of them together with another."""
    return [
        (first, second) if chance.random() < _PAIRS and first.part is not second.part else (first,)
        for first, second in zip(
            chance.sample(faults, len(faults)), chance.choices(faults, k=len(faults)), strict=True
        )
    ]
