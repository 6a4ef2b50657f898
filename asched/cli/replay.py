"""``asched replay``: every decision of a journal, made again and compared."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from asched.cli.errors import EXIT_FAILURE, BadInput
from asched.cli.options import DEFAULT_JOURNAL, JournalOption, installed_plugins, query_journal
from asched.cli.output import OutputOption, TableOrData, print_as, progress_bar

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
    output: OutputOption = TableOrData.TABLE,
) -> None:
    """Repeat the decisions in a journal and compare them.

    Folds the journal, makes each decision again from the state before it and compares both byte for
    byte. Exits with 1 at the first divergence and prints both decisions. Lists plugins with other
    versions than the recorded ones.
    """
    if not verify:
        raise BadInput("replay does nothing without --verify; see asched replay --help")
    if last is not None and first is not None and last < first:
        raise BadInput(f"--to {last} is before --from {first}")
    report = _replay(journal, first, last)
    print_as(output, report, _print)
    if not report.equal:
        raise typer.Exit(EXIT_FAILURE)


def _replay(url: str, first: int | None, last: int | None) -> ReplayReport:
    from asched.audit.replay import replay as replayed

    async def query(store: JournalStore) -> ReplayReport:
        end = (await store.head()).seq
        begin = await _first_seq(store, first, end)
        stop = end if last is None else min(last, end)
        with progress_bar("replaying", stop - begin + 1) as show:
            return await replayed(
                store,
                installed_plugins(),
                first_seq=begin,
                last_seq=last,
                progress=lambda seq: show(seq - begin + 1),
            )

    return query_journal(url, query)


async def _first_seq(store: JournalStore, wanted: int | None, end: int) -> int:
    from asched.audit.replay import first_replayable

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
        print(f"plugin {plugin.plugin}: recorded {plugin.recorded}, installed {plugin.installed}")
    divergence = report.divergence
    if divergence is None:
        compared = f"records {report.first_seq} to {report.last_seq}"
        print(f"{compared}: {report.decisions} decisions repeated, all identical")
        return
    after = f"after {report.decisions} identical decisions"
    print(f"record {divergence.seq}: {divergence.reason} ({after})")
    print(f"  recorded: {divergence.recorded or '(nothing)'}")
    print(f"  decided:  {divergence.decided or '(nothing)'}")
