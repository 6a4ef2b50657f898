"""``asched journal``: proof, figures, archive and export of a journal.

``asched checkpoint``: keep the state in a journal, for quick starts and time travel.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, TypeVar

import anyio
import typer

from asched.cli.errors import BadInput, CommandError, as_command_error
from asched.cli.main import command_app
from asched.cli.options import DEFAULT_URL, JournalOption, keep_stdout_for_answers
from asched.cli.output import OutputOption, TableOrData, print_json, print_table
from asched.config.registry import PluginRegistry
from asched.journal import archive as archiving
from asched.journal import export as exporting
from asched.journal.chain import Head, Segment
from asched.journal.checkpoints import keep_boundary, write_checkpoints
from asched.journal.errors import JournalError
from asched.journal.export import back_up
from asched.journal.opening import journal_file, open_journal
from asched.journal.statistics import JournalStatistics, statistics
from asched.journal.store import JournalStore
from asched.journal.verification import KeptHead, Progress, Verified, verify_journal
from asched.model.quantity import NS_PER_S
from asched.state.fold import FoldError

checkpoint_app = command_app("Keep the state in the journal, so that it is opened quickly.")


@checkpoint_app.command(name="checkpoint")
def checkpoint(
    journal: JournalOption = DEFAULT_URL,
    every: Annotated[
        int | None,
        typer.Option(
            help="Keep it also after every so many records since the last checkpoint.", min=1
        ),
    ] = None,
    archive: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="The archive's files: to be folded where no checkpoint is readable."
        ),
    ] = None,
) -> None:
    """Keep the state in the journal, so that it is opened quickly.

    The daemon does so itself (journal.checkpointEvery); this is for journals that it wrote without,
    or with another format of checkpoints. Records are not touched. It may run beside the daemon.
    """

    async def write() -> list[int]:
        async with open_journal(journal, must_exist=True) as store:
            load = PluginRegistry.discover().load
            return await write_checkpoints(store, load, every=every, archive=archive)

    keep_stdout_for_answers()
    try:
        kept = anyio.run(write)
    except FoldError as error:
        raise CommandError(f"asched: the journal contradicts itself: {error}") from None
    except Exception as error:  # noqa: BLE001  whatever it is is raised again
        raise as_command_error(error) from None
    if kept:
        print(f"{len(kept)} checkpoint(s) written, the last one at record {kept[-1]}")
    else:
        print("the journal's end is kept already")


app = command_app("Prove, measure, archive and export a journal.")

T = TypeVar("T")


@app.callback()
def journal() -> None:
    """Prove, measure, archive and export a journal."""


app.command(name="checkpoint")(checkpoint)


@app.command()
def verify(
    journal: JournalOption = DEFAULT_URL,
    head: Annotated[
        str | None,
        typer.Option(
            metavar="SEQ:HASH", help="A head that was kept elsewhere: it must still be there."
        ),
    ] = None,
    archive: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Verify the archive's files in DIR as well.")
    ] = None,
) -> None:
    """Prove that nothing in the journal was altered, deleted, put in, moved or cut off.

    Prints the journal's head, SEQ:HASH. Whoever keeps it out of reach of the journal's owner can
    prove later, with --head, that everything up to there is as it was. Exits with 1 and the name of
    the first bad batch or record where something is wrong.
    """
    kept = _kept_head(head)

    async def prove(store: JournalStore) -> Verified:
        end = await store.head()
        with progress_to(end.seq, "verifying") as progress:
            return await verify_journal(store, kept=kept, archive=archive, progress=progress)

    proven = ask_journal(journal, prove)
    if proven.archived_seq and archive is None:
        typer.echo(
            f"records 1 to {proven.archived_seq} are in the archive, not looked at: --archive DIR"
        )
    typer.echo(
        f"verified {proven.records} records in {proven.batches} batches of {proven.writers}"
        f" writers, {proven.checkpoints} checkpoints"
    )
    typer.echo(f"head {proven.head}")


@app.command()
def stats(
    journal: JournalOption = DEFAULT_URL,
    output: OutputOption = TableOrData.TABLE,
) -> None:
    """Print what the journal holds: records and bytes by kind, batches, times, writers."""

    async def measure(store: JournalStore) -> JournalStatistics:
        end = await store.head()
        with progress_to(end.seq, "reading") as progress:
            return await statistics(store, progress)

    found = ask_journal(journal, measure)
    if output is TableOrData.JSON:
        print_json(found)
    else:
        _print_statistics(found)


@app.command()
def backup(
    to: Annotated[Path, typer.Option(metavar="FILE", help="The copy; it must not be there yet.")],
    journal: JournalOption = DEFAULT_URL,
) -> None:
    """Copy a journal in SQLite while a daemon writes to it, and prove the copy.

    To restore, stop the daemon, move its journal away and copy the copy to its place. A journal in
    PostgreSQL is copied by pg_dump.
    """
    source = _file_of(journal)
    if source is None:
        raise BadInput("asched: only a journal in SQLite is a file; for PostgreSQL use pg_dump")
    try:
        back_up(source, to)
    except JournalError as error:
        raise as_command_error(error) from None

    async def prove(store: JournalStore) -> Verified:
        with progress_to((await store.head()).seq, "verifying") as progress:
            return await verify_journal(store, progress=progress)

    proven = ask_journal(str(to), prove)
    typer.echo(f"{to}: {proven.records} records, verified, {to.stat().st_size} bytes")
    typer.echo(f"head {proven.head}")


def _file_of(journal: str) -> Path | None:
    try:
        return journal_file(journal)
    except JournalError as error:
        raise as_command_error(error) from None


ArchiveOption = Annotated[
    Path | None,
    typer.Option("--archive", metavar="DIR", help="Include the archive's files in DIR."),
]


@app.command()
def archive(
    before: Annotated[
        datetime,
        typer.Option(
            formats=["%Y-%m-%d", "%Y-%m-%dT%H:%M:%S"], help="Move what was written before (UTC)."
        ),
    ],
    to: Annotated[Path, typer.Option(metavar="DIR", help="The folder of the archive's files.")],
    journal: JournalOption = DEFAULT_URL,
) -> None:
    """Move the oldest part of the journal into compressed files.

    A checkpoint is written where the older part ends. What stays begins with it, so that all after
    it can be asked about, and verifies together with the files. The daemon may run meanwhile.
    """

    async def move(store: JournalStore) -> list[Segment]:
        end = await store.head()
        before_ns = int(before.replace(tzinfo=UTC).timestamp()) * NS_PER_S
        await keep_boundary(store, PluginRegistry.discover().load, before_ns)
        with progress_to(end.seq, "archiving") as progress:
            return await archiving.archive(
                store,
                to,
                before_ns=before_ns,
                archived_at_ns=time.time_ns(),
                progress=progress,
            )

    try:
        moved = ask_journal(journal, move, read_only=False)
    except FoldError as error:
        raise CommandError(f"asched: the journal contradicts itself: {error}") from None
    if not moved:
        typer.echo("nothing moved: nothing but the last batch was written before")
    for segment in moved:
        typer.echo(
            f"moved records {segment.first_seq} to {segment.last_seq} to {to / segment.file}"
        )


@app.command()
def restore(
    archive: Annotated[
        Path, typer.Option(metavar="DIR", help="The folder of the archive's files.")
    ],
    to: Annotated[str, typer.Option(metavar="URL", help="The new journal: a file, or a URL.")],
    journal: JournalOption = DEFAULT_URL,
) -> None:
    """Put the archive and the journal together into a new journal, to ask about all of history."""

    async def put_together(store: JournalStore) -> Head:
        async with open_journal(to) as target:
            return await archiving.restore(store, archive, target)

    head = ask_journal(journal, put_together)
    typer.echo(f"{to} holds records 1 to {head.seq}")


@app.command()
def export(
    to: Annotated[Path, typer.Option(metavar="FILE", help="A new file in .jsonl or .parquet.")],
    journal: JournalOption = DEFAULT_URL,
    archive: ArchiveOption = None,
) -> None:
    """Write all records to a file for analysis: JSON lines, or Parquet."""

    async def write(store: JournalStore) -> tuple[int, int]:
        archived = await store.archived()
        records = await exporting.export(
            archiving.whole_journal(store, archive), exporting.open_sink(to)
        )
        return records, archived.seq if archive is None else 0

    records, left_out = ask_journal(journal, write)
    typer.echo(f"wrote {records} records to {to}")
    if left_out:
        typer.echo(f"without records 1 to {left_out}, which are in the archive: --archive DIR")


def ask_journal(
    url: str, question: Callable[[JournalStore], Awaitable[T]], *, read_only: bool = True
) -> T:
    """Open the journal at ``url``, which has to be there, and put a question to it.

    Raises CommandError for what cannot be answered.
    """

    async def answer() -> T:
        async with open_journal(url, read_only=read_only, must_exist=True) as store:
            return await question(store)

    keep_stdout_for_answers()
    try:
        with _without_collections():
            return anyio.run(answer)
    except Exception as error:  # noqa: BLE001  whatever it is is raised again
        raise as_command_error(error) from None


@contextmanager
def _without_collections() -> Iterator[None]:
    """Reading a journal makes millions of tuples and no cycles: to look for garbage among them again
    and again takes a third of the time of a verification."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def progress_to(last_seq: int, doing: str) -> Iterator[Progress]:
    """A progress bar on a terminal's stderr; nowhere else, where it would only be in the way."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    console = Console(stderr=True)
    with Progress(
        *columns,
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as bar:
        task = bar.add_task(doing, total=last_seq)
        step = max(1, last_seq // 500)
        shown = 0

        def progress(seq: int) -> None:
            nonlocal shown
            if seq - shown >= step:
                shown = seq
                bar.update(task, completed=seq)

        yield progress


def _kept_head(text: str | None) -> KeptHead | None:
    try:
        return None if text is None else KeptHead.parse(text)
    except ValueError as error:
        raise BadInput(f"asched: {error}") from None


def _moment(at_ns: int | None) -> str:
    if at_ns is None:
        return "-"
    return f"{datetime.fromtimestamp(at_ns / NS_PER_S, UTC):%Y-%m-%d %H:%M:%S}"


def _print_statistics(found: JournalStatistics) -> None:
    print_table(
        ("", ""),
        [
            ("records", f"{found.records} ({found.first_seq} to {found.last_seq})"),
            ("batches", str(found.batches)),
            ("payload bytes", str(found.payload_bytes)),
            ("first written (UTC)", _moment(found.first_written_at_ns)),
            ("last written (UTC)", _moment(found.last_written_at_ns)),
            ("archived", f"{found.archived_records} records, {found.archived_segments} segments"),
            ("checkpoints", str(found.checkpoints)),
        ],
    )
    print_table(
        ("KIND", "RECORDS", "BYTES", "BYTES EACH"),
        [
            (
                figures.kind,
                str(figures.records),
                str(figures.payload_bytes),
                str(figures.payload_bytes // figures.records),
            )
            for figures in found.kinds
        ],
    )
    print_table(
        ("EPOCH", "WRITER", "CLAIMED (UTC)", "BATCHES", "RECORDS"),
        [
            (
                str(figures.epoch),
                figures.writer,
                _moment(figures.claimed_at_ns),
                str(figures.batches),
                str(figures.records),
            )
            for figures in found.writers
        ],
    )
