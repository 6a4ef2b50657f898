"""What commands print: tables and progress bars for people, JSON and YAML for programs."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
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

_COLUMN_GAP: Final = 3
_PROGRESS_STEPS: Final = 500
_LINE_BREAKS: Final = str.maketrans("\t\r\n", "   ")


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
    """Raises BadInput if the file cannot be written; then no part of it is left."""
    from asched.planning.result_cache import write_or_remove

    try:
        write_or_remove(file, page.encode())
    except OSError as error:
        raise BadInput(f"{file}: cannot be written: {error.strerror or error}") from None


def output_width() -> int | None:
    """Columns of the terminal, or those that COLUMNS sets; None for a file or pipe."""
    columns = os.environ.get("COLUMNS", "")
    if sys.stdout.isatty() or (columns.isdecimal() and int(columns)):
        return shutil.get_terminal_size().columns
    return None


def print_text(text: str) -> None:
    """Print lines, on a terminal wrapped between words with the indentation of each line."""
    width = output_width()
    for line in text.split("\n"):
        if width is not None and len(line) > width:
            indent = line[: len(line) - len(line.lstrip())]
            line = textwrap.fill(
                line,
                width,
                subsequent_indent=indent + "  ",
                break_long_words=False,
                break_on_hyphens=False,
            )
        print(line)


def print_next(command: str, purpose: str) -> None:
    """Name the command that a reader would run next. Only on a terminal."""
    if output_width() is not None:
        print_text(f"next: {command}  ({purpose})")


def print_table(
    columns: Sequence[str], rows: Iterable[Iterable[object]], *, title: str | None = None
) -> None:
    """A table of ``str`` of each cell, without effect of markup and control characters.

    On a terminal it fits the width. In a file or pipe each row is a line with tabs between cells.
    """
    cells = [[escape_control(str(cell)) for cell in row] for row in rows]
    width = output_width()
    if width is None:
        _print_tab_separated([columns, *cells] if any(columns) else cells, title)
    else:
        _print_drawn(columns, cells, title, width)


def _print_tab_separated(lines: Iterable[Sequence[str]], title: str | None) -> None:
    if title:
        print(escape_control(title))
    for line in lines:
        print("\t".join(cell.translate(_LINE_BREAKS) for cell in line))


def _print_drawn(
    columns: Sequence[str], cells: Sequence[Sequence[str]], title: str | None, width: int
) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(width=width)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column, column_width in zip(columns, column_widths(columns, cells, width), strict=True):
        table.add_column(Text(column), overflow="fold", width=column_width)
    for row in cells:
        table.add_row(*map(Text, row))
    if title:
        console.print(Text(escape_control(title), style="bold"))
    console.print(table)


def column_widths(
    columns: Sequence[str], cells: Iterable[Sequence[str]], width: int
) -> Sequence[int]:
    """Widths at which a table fits ``width``: the widest columns are the first to wrap, and words
    break only where the longest words of all columns do not fit side by side."""
    from rich.cells import cell_len

    texts = list(zip(columns, *cells, strict=True))
    widths = [
        max(cell_len(line) for text in column for line in text.split("\n")) for column in texts
    ]
    words = [
        max(cell_len(word) for text in column for word in text.split() or [""]) for column in texts
    ]
    excess = sum(widths) + _COLUMN_GAP * len(widths) - 1 - width
    for _ in range(max(0, excess)):
        wrappable = [i for i, word in enumerate(words) if widths[i] > word]
        widest = max(wrappable or range(len(widths)), key=widths.__getitem__)
        widths[widest] = max(1, widths[widest] - 1)
    return widths


def breaks_words(columns: Sequence[str], rows: Iterable[Iterable[object]]) -> bool:
    """Whether the terminal is too narrow for a table with unbroken words."""
    width = output_width()
    texts = zip(columns, *(map(str, row) for row in rows), strict=True)
    words = [max(len(word) for text in column for word in text.split() or [""]) for column in texts]
    return width is not None and sum(words) + _COLUMN_GAP * len(words) - 1 > width


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
