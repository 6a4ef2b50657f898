"""``asched journal`` and ``asched checkpoint``: verify, measure, archive and export a journal."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from asched.audit.times import TIMES
from asched.cli.errors import BadInput, CommandError
from asched.cli.options import (
    DEFAULT_JOURNAL,
    JOURNAL_ENV,
    JournalOption,
    SigningKeyOption,
    TrustedKeyOption,
    command_group,
    installed_plugins,
    journal_keys,
    query_journal,
    takes_options,
    time_ns,
)
from asched.cli.output import (
    OutputOption,
    TableOrData,
    print_as,
    print_table,
    print_text,
    progress_bar,
)

if TYPE_CHECKING:
    from asched.journal.chain import Head, Segment
    from asched.journal.signatures import AnchoredHead
    from asched.journal.statistics import JournalStatistics
    from asched.journal.store import JournalStore
    from asched.journal.verification import TrustedHead, VerificationResult


app = command_group("Verify, measure, archive, restore and export a journal.")

ArchiveOption = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Include the archive files in DIR.")
]


@app.command()
def checkpoint(
    journal: JournalOption = DEFAULT_JOURNAL,
    every: Annotated[
        int | None,
        typer.Option(help="Also write one whenever this many records follow the last one.", min=1),
    ] = None,
    archive: ArchiveOption = None,
    signing_key: SigningKeyOption = None,
) -> None:
    """Write a checkpoint of the state to the journal.

    Checkpoints make opening and time travel fast. The daemon writes them itself
    (journal.checkpointEvery). Use this for a journal without checkpoints, or with checkpoints in
    another format. It may run while the daemon runs. Records do not change.
    """
    from asched.journal.checkpoints import write_checkpoints
    from asched.journal.signatures import check_history

    async def write(store: JournalStore) -> list[int]:
        await check_history(store)
        load = installed_plugins().load
        return await write_checkpoints(store, load, every=every, archive=archive)

    keys = journal_keys(signing_key)
    written = query_journal(journal, write, read_only=False, must_exist=True, keys=keys)
    if written:
        typer.echo(f"{len(written)} checkpoint(s) written, the last one at record {written[-1]}")
    else:
        typer.echo("the journal has a checkpoint at its end")


@dataclass(frozen=True, kw_only=True)
class VerifyOptions:
    journal: str = typer.Option(
        DEFAULT_JOURNAL,
        envvar=JOURNAL_ENV,
        help="The journal: a file, or a URL (docs/reference/journal.md).",
    )
    head: str | None = typer.Option(
        None,
        metavar="SEQ:HASH",
        help="A head stored elsewhere that must match; at least 48 digits of the hash.",
    )
    archive: ArchiveOption = None
    skip_archive: bool = typer.Option(
        False, help="Verify only what follows the archive, without its files."
    )
    trusted_key: TrustedKeyOption = None
    anchors: list[Path] | None = typer.Option(
        None,
        metavar="FILE",
        help="An anchor file, or the Lease as JSON; may be repeated. All heads must match.",
    )
    proof: Path | None = typer.Option(
        None, metavar="FILE", help="Verify a file of asched journal prove, without the journal."
    )


@app.command()
@takes_options
def verify(options: VerifyOptions) -> None:
    """Verify that nothing in the journal was altered, deleted, inserted, moved or cut off.

    Prints the journal's head, SEQ:HASH. If you store it out of reach of the journal's owner, --head
    proves later that everything up to that record is unchanged. A signed journal also proves it
    with a public key (--trusted-key) and with signed heads in other places (--anchors). Exits with
    1 and names the first bad batch or record if the verification fails.
    """
    from asched.cli.proof import print_signatures, verify_proof
    from asched.journal.verification import TrustedHead

    keys = journal_keys(trusted=options.trusted_key or ())
    if options.proof is not None:
        verify_proof(options.proof, keys.trusted)
        return
    try:
        kept = None if options.head is None else TrustedHead.parse(options.head)
    except ValueError as error:
        raise BadInput(str(error)) from None
    anchored = _anchored(options.anchors or ())

    async def check(store: JournalStore) -> VerificationResult:
        return await _verify(store, options, kept, anchored)

    verified = query_journal(options.journal, check, must_exist=True, keys=keys)
    if verified.archived_seq:
        typer.echo(f"not verified: records 1 to {verified.archived_seq} in the archive")
    print_text(
        f"verified {verified.records} records in {verified.batches} batches;"
        f" writers: {verified.writers}, checkpoints: {verified.checkpoints}"
    )
    print_signatures(verified, head_given=kept is not None)
    typer.echo(f"head {verified.head}")


async def _verify(
    store: JournalStore,
    options: VerifyOptions,
    kept: TrustedHead | None,
    anchored: Sequence[AnchoredHead],
) -> VerificationResult:
    from asched.journal.errors import JournalCorruptError
    from asched.journal.verification import verify_journal

    with progress_bar("verifying", (await store.head()).seq) as progress:
        try:
            return await verify_journal(
                store,
                trusted=kept,
                archive=options.archive,
                skip_archive=options.skip_archive,
                anchored=anchored,
                progress=progress,
            )
        except JournalCorruptError as error:
            # The answer to the question, and no wrong input as for the other commands.
            raise CommandError(str(error)) from None


def _anchored(paths: Sequence[Path]) -> list[AnchoredHead]:
    from asched.journal.signatures import AnchoredHead
    from asched.proof.anchors import read_anchors

    return [AnchoredHead(str(path), head) for path in paths for head in read_anchors(path)]


@app.command()
def stats(
    journal: JournalOption = DEFAULT_JOURNAL, output: OutputOption = TableOrData.TABLE
) -> None:
    """Print records and bytes by type, batches, times and writers."""
    from asched.journal.statistics import statistics

    async def measure(store: JournalStore) -> JournalStatistics:
        with progress_bar("reading", (await store.head()).seq) as progress:
            return await statistics(store, progress)

    print_as(output, query_journal(journal, measure, must_exist=True), _print_statistics)


@app.command()
def backup(
    to: Annotated[Path, typer.Option(metavar="FILE", help="The copy, a new file.")],
    journal: JournalOption = DEFAULT_JOURNAL,
) -> None:
    """Copy a SQLite journal while a daemon writes to it, and verify the copy.

    To restore, stop the daemon, move its journal away and put the copy in its place. For PostgreSQL
    use pg_dump.
    """
    from asched.journal.export import back_up
    from asched.journal.opening import journal_file

    source = journal_file(journal)
    if source is None:
        raise BadInput("only SQLite journals are files; for PostgreSQL use pg_dump")
    back_up(source, to)
    options = VerifyOptions(journal=str(to), head=None, archive=None, skip_archive=True)
    verified = query_journal(
        str(to), lambda store: _verify(store, options, None, ()), must_exist=True
    )
    typer.echo(f"{to}: {verified.records} records, verified, {to.stat().st_size} bytes")
    typer.echo(f"head {verified.head}")


@app.command()
def archive(
    before: Annotated[
        str,
        typer.Option(metavar="TIME", help=f"Move records written before this time: {TIMES}."),
    ],
    to: Annotated[Path, typer.Option(metavar="DIR", help="The directory of the archive files.")],
    journal: JournalOption = DEFAULT_JOURNAL,
    signing_key: SigningKeyOption = None,
) -> None:
    """Move the oldest part of the journal into compressed files.

    Writes a checkpoint where the archived part ends, so later records stay available to all
    commands. The remaining journal verifies together with the archive. The daemon may run
    meanwhile.
    """
    from asched.journal import archive as archiving
    from asched.journal.checkpoints import checkpoint_before
    from asched.journal.kind import require_kind
    from asched.journal.signatures import check_history

    before_ns = time_ns(before)

    async def move(store: JournalStore) -> list[Segment]:
        end = await store.head()
        await require_kind(store, shadow=False)
        await check_history(store)
        await checkpoint_before(store, installed_plugins().load, before_ns)
        with progress_bar("archiving", end.seq) as progress:
            return await archiving.archive(
                store, to, before_ns=before_ns, archived_at_ns=time.time_ns(), progress=progress
            )

    keys = journal_keys(signing_key)
    moved = query_journal(journal, move, read_only=False, must_exist=True, keys=keys)
    if not moved:
        typer.echo("nothing moved: no batch before the last one is that old")
    for segment in moved:
        records = f"records {segment.first_seq} to {segment.last_seq}"
        typer.echo(f"moved {records} to {to / segment.file}")


@app.command()
def restore(
    archive: Annotated[
        Path, typer.Option(metavar="DIR", help="The directory of the archive files.")
    ],
    to: Annotated[str, typer.Option(metavar="URL", help="The new journal: a file, or a URL.")],
    journal: JournalOption = DEFAULT_JOURNAL,
) -> None:
    """Combine the archive and the journal into a new journal with all records."""
    from asched.journal import archive as archiving
    from asched.journal.opening import open_journal

    async def combine(store: JournalStore) -> Head:
        async with open_journal(to) as target:
            return await archiving.restore(store, archive, target)

    head = query_journal(journal, combine, must_exist=True)
    typer.echo(f"{to} holds records 1 to {head.seq}")


@app.command()
def export(
    to: Annotated[Path, typer.Option(metavar="FILE", help="A new .jsonl or .parquet file.")],
    journal: JournalOption = DEFAULT_JOURNAL,
    archive: ArchiveOption = None,
) -> None:
    """Write all records to a file for analysis: JSON lines, or Parquet."""
    from asched.journal import export as exporting
    from asched.journal.archive import all_batches
    from asched.journal.errors import JournalBusyError, JournalIOError

    async def write(store: JournalStore) -> tuple[int, int]:
        archived = await store.archived()
        sink = exporting.open_sink(to)
        try:
            records = await exporting.export(all_batches(store, archive), sink)
            if await store.archived() != archived:
                raise JournalBusyError("records were archived meanwhile: repeat the command")
        except BaseException as error:
            to.unlink(missing_ok=True)  # it is not complete
            if isinstance(error, OSError):
                why = error.strerror or error
                raise JournalIOError(f"cannot write {to}: {why}") from None
            raise
        return records, archived.seq if archive is None else 0

    records, omitted = query_journal(journal, write, must_exist=True)
    typer.echo(f"wrote {records} records to {to}")
    if omitted:
        typer.echo(f"omitted records 1 to {omitted}, which are in the archive: --archive DIR")


def _utc(at_ns: int | None) -> str:
    from asched.audit.timeline import time_of

    return "-" if at_ns is None else f"{time_of(at_ns):%Y-%m-%d %H:%M:%S}"


def _print_statistics(found: JournalStatistics) -> None:
    print_table(
        ("", ""),
        [
            ("identity", found.journal_id or "-"),
            ("records", f"{found.records} ({found.first_seq} to {found.last_seq})"),
            ("batches", found.batches),
            ("payload bytes", found.payload_bytes),
            ("first written (UTC)", _utc(found.first_written_at_ns)),
            ("last written (UTC)", _utc(found.last_written_at_ns)),
            ("archived", f"{found.archived_records} records, {found.archived_segments} segments"),
            ("checkpoints", found.checkpoints),
        ],
    )
    print_table(
        ("TYPE", "RECORDS", "BYTES", "BYTES EACH"),
        [(k.kind, k.records, k.payload_bytes, k.payload_bytes // k.records) for k in found.kinds],
    )
    print_table(
        ("EPOCH", "WRITER", "CLAIMED (UTC)", "BATCHES", "RECORDS"),
        [(w.epoch, w.writer, _utc(w.claimed_at_ns), w.batches, w.records) for w in found.writers],
    )
