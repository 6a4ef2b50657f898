"""``asched replay``: every decision made once more from the journal, and compared."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated

import anyio
import typer

from asched.audit.replay import ReplayReport, first_replayable, replay
from asched.cli.errors import BadInput, CommandError, as_command_error
from asched.cli.main import command_app
from asched.cli.options import DEFAULT_URL, JournalOption, keep_stdout_for_answers
from asched.cli.output import OutputOption, TableOrData, print_json
from asched.config.registry import PluginRegistry
from asched.daemon.interpreter import infrequent_gc
from asched.journal.opening import open_journal
from asched.state.fold import FoldError

app = command_app("Decide everything in a journal once more, and compare.")


@app.command(name="replay")
def replay_journal(
    journal: JournalOption = DEFAULT_URL,
    verify: Annotated[
        bool, typer.Option("--verify", help="Compare each decision with the recorded one.")
    ] = False,
    first: Annotated[
        int | None,
        typer.Option(
            "--from",
            metavar="SEQ",
            help="The first record to replay. Default: the first whose state is known.",
            min=1,
        ),
    ] = None,
    last: Annotated[
        int | None,
        typer.Option("--to", metavar="SEQ", help="The last record. Default: the newest.", min=1),
    ] = None,
    output: OutputOption = TableOrData.TABLE,
) -> None:
    """Decide everything in a journal once more, and compare.

    The journal is folded again and each decision is made again from the state before it; both are
    compared byte for byte. Exits with 1 at the first divergence and prints both decisions. Plugins
    of other versions than the recorded ones are named.
    """
    if not verify:
        raise BadInput(
            "asched: replay has nothing to do without --verify; see asched replay --help"
        )
    if last is not None and first is not None and last < first:
        raise BadInput(f"asched: --to {last} lies before --from {first}")
    report = _replayed(journal, first, last)
    if output is TableOrData.JSON:
        print_json(report)
    else:
        _print(report)
    if not report.equal:
        raise typer.Exit(1)


def _replayed(url: str, wanted: int | None, last: int | None) -> ReplayReport:
    async def answer() -> ReplayReport:
        async with open_journal(url, read_only=True) as store:
            head = await store.head()
            first = await first_replayable(store) if wanted is None else wanted
            if wanted is None and first > max(1, head.seq):
                raise BadInput(
                    f"asched: nothing to replay: records 1 to {(await store.archived()).seq} are in"
                    f" the archive (asched journal restore), and no record follows the checkpoint"
                    f" after them, at {first - 1}"
                )
            if first > max(1, head.seq):
                raise BadInput(f"asched: --from {first} is beyond the journal's end, {head.seq}")
            end = head.seq if last is None else min(last, head.seq)
            with _progress(first, end) as progress:
                return await replay(
                    store,
                    PluginRegistry.discover(),
                    first_seq=first,
                    last_seq=last,
                    progress=progress,
                )

    keep_stdout_for_answers()
    try:
        with infrequent_gc():
            return anyio.run(answer)
    except FoldError as error:
        message = f"asched: what lies before record {wanted or 1} contradicts itself: {error}"
        raise CommandError(message) from None
    except Exception as error:  # noqa: BLE001  whatever it is is raised again
        raise as_command_error(error) from None


@contextmanager
def _progress(first: int, last: int) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal, nothing elsewhere."""
    if not sys.stderr.isatty():
        yield lambda seq: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    columns = ("replaying", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("replay", total=last - first + 1)
        yield lambda seq: bar.update(task, completed=seq - first + 1)


def _print(report: ReplayReport) -> None:
    for plugin in report.plugins:
        print(f"plugin {plugin.plugin}: recorded {plugin.recorded}, installed {plugin.installed}")
    divergence = report.divergence
    if divergence is None:
        print(
            f"records {report.first_seq} to {report.last_seq}: {report.decisions} decisions made"
            " once more, all the same"
        )
        return
    print(
        f"record {divergence.seq}: {divergence.reason} (after {report.decisions} decisions made"
        " once more)"
    )
    print(f"  recorded: {divergence.recorded or '(nothing)'}")
    print(f"  decided:  {divergence.decided or '(nothing)'}")
