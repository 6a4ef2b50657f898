"""``asched replay``: every decision of a journal, made again and compared."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from asched.cli.errors import EXIT_FAILURE, BadInput
from asched.cli.execution import JobsOption, SchedulerOption, executor_of, item_progress
from asched.cli.options import DEFAULT_JOURNAL, JournalOption, query_journal
from asched.cli.output import OutputOption, TableOrData, print_as, print_text

if TYPE_CHECKING:
    from asched.audit.replay import ReplayReport
    from asched.journal.store import JournalStore


def replay(
    journal: JournalOption = DEFAULT_JOURNAL,
    verify: Annotated[
        bool, typer.Option("--verify", help="Compare each decision with the recorded one.")
    ] = False,
    first: Annotated[
        int | None,
        typer.Option(
            "--from",
            metavar="SEQ",
            help="First record. Default: the first record with a known state before it.",
            min=1,
        ),
    ] = None,
    last: Annotated[
        int | None,
        typer.Option("--to", metavar="SEQ", help="Last record. Default: the newest.", min=1),
    ] = None,
    jobs: JobsOption = None,
    scheduler: SchedulerOption = None,
    output: OutputOption = TableOrData.TABLE,
) -> None:
    """Repeat the decisions in a journal and compare them.

    Folds the journal, makes each decision again from the state before it and compares both byte for
    byte, and the state with each checkpoint. Segments between checkpoints are independent: --jobs
    and --scheduler replay them in parallel, with the same result. Exits with 1 at the first
    divergence and prints both decisions. Lists plugins with other versions than the recorded ones.
    """
    if not verify:
        raise BadInput("replay does nothing without --verify; see asched replay --help")
    if last is not None and first is not None and last < first:
        raise BadInput(f"--to {last} is before --from {first}")
    report = _replay(journal, (first, last), jobs, scheduler)
    print_as(output, report, _print)
    if not report.equal:
        raise typer.Exit(EXIT_FAILURE)


def _replay(
    url: str, records: tuple[int | None, int | None], jobs: int | None, scheduler: str | None
) -> ReplayReport:
    from asched import planning

    first, last = records
    begin = query_journal(url, lambda store: _first_seq(store, first))
    if jobs is None and scheduler is None:
        jobs = 1  # a short journal is replayed before another process has started
    with executor_of(jobs, scheduler) as executor, item_progress("replaying segments") as show:
        return planning.verify(
            planning.open(url), executor, first_seq=begin, last_seq=last, progress=show
        )


async def _first_seq(store: JournalStore, wanted: int | None) -> int:
    from asched.audit.replay import first_replayable

    end = (await store.head()).seq
    first = await first_replayable(store) if wanted is None else wanted
    if first <= max(1, end):
        return first
    if wanted is not None:
        raise BadInput(f"--from {wanted} is beyond the end of the journal, {end}")
    archived = (await store.archived()).seq
    raise BadInput(
        f"nothing to replay: records 1 to {archived} are in the archive (asched journal"
        f" restore), and no record follows the checkpoint at {first - 1}"
    )


def _print(report: ReplayReport) -> None:
    for plugin in report.plugins:
        print_text(
            f"plugin {plugin.plugin}: recorded {plugin.recorded}, installed {plugin.installed}"
        )
    divergence = report.divergence
    if divergence is None:
        compared = f"records {report.first_seq} to {report.last_seq}"
        print_text(f"{compared}: {report.decisions} decisions repeated, all identical")
        if report.checkpoints:
            print_text(f"checkpoints equal to the state of the records: {report.checkpoints}")
        return
    after = f"after {report.decisions} identical decisions"
    print_text(f"record {divergence.seq}: {divergence.reason} ({after})")
    print_text(f"  recorded: {divergence.recorded or '(nothing)'}")
    print_text(f"  decided:  {divergence.decided or '(nothing)'}")
