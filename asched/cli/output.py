"""What commands print: tables and progress bars for people, JSON and YAML for programs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import msgspec
import typer

from asched.cli.errors import BadInput
from asched.daemon.process import escape_control

T = TypeVar("T")

PIPE_WIDTH: Final = 160
"""Columns of a table that goes into a file or pipe."""
_PROGRESS_STEPS: Final = 500


class TableOrData(StrEnum):
    """The choices of ``-o`` without YAML."""

    TABLE = "table"
    JSON = "json"


OutputOption = Annotated[TableOrData, typer.Option("--output", "-o", help="Output format.")]


class TableOrDocument(StrEnum):
    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


class DocumentFormat(StrEnum):
    YAML = "yaml"
    JSON = "json"


HtmlOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Write an HTML report with charts.")
]


def to_plain(value: Any) -> Any:
    """Structs as JSON values under their own field names, durations in Go's notation."""
    return _with_durations(msgspec.to_builtins(value, builtin_types=(timedelta,), str_keys=True))


def _with_durations(value: Any) -> Any:
    match value:
        case timedelta():
            from asched.model.quantity import format_duration

            return format_duration(value)
        case dict():
            return {key: _with_durations(item) for key, item in value.items()}
        case list() | tuple():
            return [_with_durations(item) for item in value]
    return value


def print_json(value: Any) -> None:
    text = msgspec.json.format(msgspec.json.encode(to_plain(value)), indent=2)
    sys.stdout.write(text.decode() + "\n")


def print_as(output: TableOrData, value: T, print_tables: Callable[[T], None]) -> None:
    """Print the value as JSON, or its tables."""
    if output is TableOrData.JSON:
        print_json(value)
    else:
        print_tables(value)


def print_yaml(*documents: Any) -> None:
    import yaml

    sys.stdout.write(
        yaml.safe_dump_all(map(to_plain, documents), sort_keys=False, allow_unicode=True, width=100)
    )


def write_page(file: Path, page: str) -> None:
    """Raises BadInput if the file is not writable."""
    try:
        file.write_text(page, encoding="utf-8")
    except OSError as error:
        raise BadInput(f"{file}: cannot be written: {error.strerror or error}") from None


def print_table(
    columns: Sequence[str], rows: Iterable[Iterable[object]], *, title: str | None = None
) -> None:
    """A plain table of ``str`` of each cell, without effect of markup and control characters."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(width=None if sys.stdout.isatty() else PIPE_WIDTH)
    table = Table(
        box=box.SIMPLE_HEAD,
        title=Text(escape_control(title), style="bold") if title else None,
        title_justify="left",
        pad_edge=False,
    )
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(escape_control(str(cell))) for cell in row))
    console.print(table)


@contextmanager
def progress_bar(activity: str, total: int) -> Iterator[Callable[[int], None]]:
    """A function that shows how much of ``total`` is done, on a terminal's stderr only."""
    if not sys.stderr.isatty():
        yield lambda done: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    columns = (activity, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    step = max(1, total // _PROGRESS_STEPS)
    shown = 0
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(activity, total=total)

        def show(done: int) -> None:
            nonlocal shown
            if done - shown >= step:
                shown = done
                bar.update(task, completed=done)

        yield show
