"""Options for where planning work runs, and its progress on the terminal."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from asched.cli.errors import BadInput

if TYPE_CHECKING:
    from asched.planning import Progress, ProgressListener

JobsOption = Annotated[
    int | None, typer.Option("--jobs", metavar="N", help="Processes; 1 works in this one.", min=1)
]
SchedulerOption = Annotated[
    str | None,
    typer.Option(
        "--scheduler",
        metavar="URL",
        help="Work on the Dask cluster with this scheduler, such as tcp://host:8786.",
    ),
]


@contextmanager
def executor_of(jobs: int | None, scheduler: str | None) -> Iterator[Executor]:
    """The executor that the options choose; without them, one process for each processor.

    Raises BadInput if both are given.
    """
    from asched import planning

    if scheduler is not None:
        if jobs is not None:
            raise BadInput("give --jobs or --scheduler, not both")
        with planning.dask_executor(scheduler) as executor:
            # It logs a lost scheduler with tracebacks. The command's error is one line.
            logging.getLogger("distributed.client").setLevel(logging.CRITICAL)
            yield executor
    elif jobs == 1:
        with ThreadPoolExecutor(1) as thread:
            yield thread
    else:
        with planning.own_processes(jobs) as processes:
            yield processes


@contextmanager
def item_progress(activity: str) -> Iterator[ProgressListener]:
    """A listener that shows how many items are done, on a terminal's stderr only."""
    if not sys.stderr.isatty():
        yield lambda progress: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    columns = (activity, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Bars(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task(activity, total=None)

        def show(progress: Progress) -> None:
            bars.update(task, total=progress.total, completed=progress.done)

        yield show
