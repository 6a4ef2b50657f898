"""Records journals with the asched that is installed, to be replayed by all that come after it.

``python -m tests.audit.record_histories`` writes ``tests/audit/histories/VERSION/*.db.gz``, a SQLite
journal each. A released version is recorded once: folders that exist are left alone.
"""

from __future__ import annotations

import gzip
import logging
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import anyio
import structlog

from asched import __version__
from asched.config.file import parse
from asched.config.registry import PluginRegistry
from asched.daemon.shadow.daemon import records_of
from asched.daemon.shadow.follower import ShadowFollower
from asched.journal.opening import open_journal
from asched.kube.tape import Tape
from asched.state.records import AnyRecord, TurnStarted
from tests.audit.eventful import BEGIN_NS, record_eventful
from tests.daemon.world import world
from tests.extenders.service import serving
from tests.shadow.tapes import TapeWriter

HISTORIES = Path(__file__).parent / "histories"


async def eventful(path: Path) -> None:
    """Every kind of record but those of shadow mode."""
    async with open_journal(str(path)) as journal:
        await record_eventful(journal)


async def two_lives(path: Path) -> None:
    """A real daemon with an extender over HTTP, twice: preemption, its own checkpoints."""
    with tempfile.TemporaryDirectory() as folder:
        async with serving() as service, world(Path(folder), nodes=8, cpu="2") as w:
            config = service.config(filterVerb="filter", prioritizeVerb="prioritize", weight=2)
            service.pass_only(*(f"n{number}" for number in range(7)))
            service.score(n1=9, n2=4)
            w.journal = path
            w.cluster.create(
                "priorityclasses.scheduling.k8s.io", {"metadata": {"name": "high"}, "value": 9}
            )
            async with w.daemon(config):
                for number in range(40):
                    w.add_pod(f"first-{number}", "300m", terminationGracePeriodSeconds=0)
                await w.until(lambda: not w.unbound())
            async with w.daemon(config):
                for number in range(4):
                    w.add_pod(f"urgent-{number}", "1", priorityClassName="high")
                w.add_pod("huge", "64")
                w.add_pods(12, "second", "300m")
                await w.until(lambda: all(w.node_of(f"urgent-{n}") for n in range(4)))
                await w.until(lambda: all(w.message(name) for name in w.unbound()))


async def demo(path: Path) -> None:
    """The demo, with its processes and over HTTP."""
    arguments = ("--nodes", "10", "--pods", "60", "--over", "2", "--journal", str(path))
    command = (sys.executable, "-m", "asched", "demo", *arguments)
    await anyio.run_process(command, stdout=subprocess.DEVNULL)


async def shadow(path: Path) -> None:
    """A shadow beside another scheduler, which chooses worse nodes now and then."""
    with tempfile.TemporaryDirectory() as folder:
        await record_shadow(written_tape(Path(folder)), path)


def written_tape(folder: Path) -> Path:
    tape = TapeWriter()
    for number in range(5):
        tape.node(f"n{number}", str(4 + number % 2), image_bytes=(number + 1) << 25)
    for number in range(36):
        tape.pod(f"p-{number}", "500m")
        if number % 9 == 8:
            tape.reject(f"p-{number}", "0/5 nodes are available: not today")
        else:
            tape.bind(f"p-{number}", f"n{number % 5}")
    tape.pod("huge", "64")
    tape.reject("huge", "no")
    tape.nominate("huge", "n1")
    for number in range(6):
        tape.delete(f"p-{number}")
    return tape.write(folder / "tape.gz")


async def record_shadow(tape: Path, path: Path) -> None:
    """Append what a shadow makes of a tape to a new journal, a batch for each of its turns."""
    registry = PluginRegistry.discover()
    configuration = parse("", "test", registry, empty_is_defaults=True)
    follower = ShadowFollower(registry.load)
    async with open_journal(str(path)) as journal:
        await journal.claim("history", claimed_at_ns=BEGIN_NS)
        batch: list[AnyRecord] = []
        for record in records_of(Tape(tape), follower, configuration):
            if isinstance(record, TurnStarted) and batch:
                await journal.append(batch, written_at_ns=BEGIN_NS + follower.state.now_ns)
                batch = []
            batch.append(record)
        await journal.append(batch, written_at_ns=BEGIN_NS + follower.state.now_ns)


RECORDINGS: Mapping[str, Callable[[Path], Awaitable[None]]] = {
    recording.__name__: recording for recording in (eventful, two_lives, demo, shadow)
}


async def record_all(folder: Path) -> None:
    """Record every history into ``folder``, which is there."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    for name, recording in RECORDINGS.items():
        with tempfile.TemporaryDirectory() as work:
            path = Path(work) / "journal.db"
            await recording(path)
            (folder / f"{name}.db.gz").write_bytes(compacted(path))


def compacted(path: Path) -> bytes:
    """The database in one file, compressed; the same content gives the same bytes."""
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
    connection.close()
    return gzip.compress(path.read_bytes(), mtime=0)


def main() -> None:
    folder = HISTORIES / __version__
    if folder.exists():
        sys.exit(f"{folder} exists: a release is recorded once")
    folder.mkdir(parents=True)
    anyio.run(record_all, folder)
    for path in sorted(folder.iterdir()):
        print(f"{path.stat().st_size:8} bytes  {path}")


if __name__ == "__main__":
    main()
