"""Records journals with the installed version, for replay tests of all later versions.

``python -m tests.audit.record_histories`` writes a SQLite journal to each of
``tests/audit/histories/VERSION/*.db.gz``. It does not overwrite the histories of a version.
"""

from __future__ import annotations

import gzip
import logging
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from pathlib import Path

import anyio
import structlog

from asched import __version__
from asched.config.file import parse
from asched.config.registry import PluginRegistry
from asched.daemon.shadow.daemon import records_of
from asched.daemon.shadow.follower import ShadowFollower
from asched.journal.opening import open_journal
from asched.journal.store import JournalStore
from asched.kube.tape import Tape
from asched.state.records import AnyRecord, TurnStarted
from tests.audit.eventful import BEGIN_NS, record_eventful
from tests.batch_world.test_fold import run as run_batch_sessions
from tests.daemon.world import world
from tests.extenders.service import serving
from tests.shadow.tapes import TapeWriter

HISTORIES = Path(__file__).parent / "histories"


async def eventful(path: Path) -> None:
    """All record kinds except those of sessions and shadow mode."""
    async with open_journal(str(path)) as journal:
        await record_eventful(journal)


async def two_starts(path: Path) -> None:
    """A daemon with an HTTP extender, started twice: preemption and checkpoints."""
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
    """The demo, with its processes and HTTP."""
    arguments = ("--nodes", "10", "--pods", "60", "--over", "2", "--journal", str(path))
    command = (sys.executable, "-m", "asched", "demo", *arguments)
    await anyio.run_process(command, stdout=subprocess.DEVNULL)


async def shadow(path: Path) -> None:
    """Shadow mode with a scheduler that sometimes chooses worse nodes."""
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


def shadow_records(tape: Path) -> Iterator[AnyRecord]:
    """The records of a shadow on a tape."""
    registry = PluginRegistry.discover()
    configuration = parse("", "test", registry, empty_is_defaults=True)
    return records_of(Tape(tape), ShadowFollower(registry.load), configuration)


async def record_shadow(tape: Path, path: Path) -> None:
    """Write the records of a shadow on a tape to a new journal."""
    await write_turns(shadow_records(tape), path)


async def sessions(path: Path) -> None:
    """Batch sessions with evictions, and outcomes of both kinds."""
    outcomes = [("writes end", "a", 1), ("evictions end", "a", 1), ("bound", "c", 0)]
    retry = [("no pod", "a", 0), ("time", "a", 0), ("writes end", "a", 0), ("time", "a", 0)]
    deletions = [("no pod", group, number) for group in "abc" for number in (0, 1)]
    events = [("crowd", "a", 0), *outcomes, *retry, *deletions, ("time", "a", 0)] * 4
    await write_turns(run_batch_sessions(events).records, path)


async def write_turns(records: Iterable[AnyRecord], path: Path) -> None:
    """Append the records to a new journal, one batch per turn."""
    async with open_journal(str(path)) as journal:
        await append_turns(records, journal)


async def append_turns(records: Iterable[AnyRecord], journal: JournalStore) -> None:
    """Claim the empty journal and append the records, one batch per turn."""
    await journal.claim("history", claimed_at_ns=BEGIN_NS)
    batch: list[AnyRecord] = []
    now_ns = 0
    for record in records:
        if isinstance(record, TurnStarted):
            if batch:
                await journal.append(batch, written_at_ns=BEGIN_NS + now_ns)
                batch = []
            now_ns = record.now_ns
        batch.append(record)
    await journal.append(batch, written_at_ns=BEGIN_NS + now_ns)


RECORDINGS: Mapping[str, Callable[[Path], Awaitable[None]]] = {
    recording.__name__: recording for recording in (eventful, two_starts, demo, shadow, sessions)
}


async def record_all(folder: Path) -> None:
    """Record every history into the existing ``folder``."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    for name, recording in RECORDINGS.items():
        with tempfile.TemporaryDirectory() as work:
            path = Path(work) / "journal.db"
            await recording(path)
            (folder / f"{name}.db.gz").write_bytes(compacted(path))


def compacted(path: Path) -> bytes:
    """The database as one compressed file; equal content gives equal bytes."""
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
    connection.close()
    return gzip.compress(path.read_bytes(), mtime=0)


def main() -> None:
    folder = HISTORIES / __version__
    if folder.exists():
        sys.exit(f"{folder} exists: a version is recorded once")
    folder.mkdir(parents=True)
    anyio.run(record_all, folder)
    for path in sorted(folder.iterdir()):
        print(f"{path.stat().st_size:8} bytes  {path}")


if __name__ == "__main__":
    main()
