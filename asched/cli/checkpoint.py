"""``asched checkpoint``: keep the state in a journal, for quick starts and time travel."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import anyio
import typer

from asched.cli.errors import CommandError
from asched.cli.failures import as_command_error
from asched.cli.journals import DEFAULT_URL, JournalOption, keep_stdout_for_answers
from asched.cli.root import command_app
from asched.framework.registry import Registry
from asched.journal.checkpoints import write_checkpoints
from asched.journal.opening import open_journal
from asched.state.fold import FoldError

app = command_app("Keep the state in the journal, so that it is opened quickly.")


@app.command(name="checkpoint")
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
            load = Registry.discover().load
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
