"""What the demo shows while it runs: a live view on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from asched.cli.demo.standing import Standing, Use
from asched.model.requests import CPU, MEMORY

_BAR_WIDTH: Final = 28
_REASONS: Final = 6
_NOTICES: Final = 3
_LINE_EVERY_S: Final = 1.0


class View(Protocol):
    def show(self, standing: Standing) -> None: ...


class LineView:
    """A line now and then, for files and pipes."""

    def __init__(self) -> None:
        self._next_s = 0.0
        self._noticed = 0

    def show(self, standing: Standing) -> None:
        for notice in standing.notices[self._noticed :]:
            print(f"{standing.elapsed_s:6.1f} s  {notice}", flush=True)
        self._noticed = len(standing.notices)
        finished = standing.bound == standing.feasible
        if standing.elapsed_s < self._next_s and not finished:
            return
        self._next_s = standing.elapsed_s + _LINE_EVERY_S
        print(
            f"{standing.elapsed_s:6.1f} s  created {standing.created}/{standing.total}"
            f"  bound {standing.bound}/{standing.feasible}  active {standing.active}"
            f"  backoff {standing.backoff}  unschedulable {standing.unschedulable}"
            f"  gated {standing.gated}  {standing.recent_per_s} pods/s",
            flush=True,
        )


class LiveView:
    """One picture, redrawn."""

    def __init__(self, live: Live) -> None:
        self._live = live

    def show(self, standing: Standing) -> None:
        self._live.update(picture(standing), refresh=True)


@contextmanager
def open_view() -> Iterator[View]:
    """A live view where standard output is a terminal, else lines."""
    if not sys.stdout.isatty():
        yield LineView()
        return
    # Logs written meanwhile appear above the picture.
    with Live(console=Console(), auto_refresh=False, transient=True) as live:
        yield LiveView(live)


def picture(standing: Standing) -> RenderableType:
    """All of the standing at a glance."""
    parts: list[RenderableType] = [_progress(standing), _queues(standing), _use(standing.use)]
    if standing.reasons:
        parts.append(_reasons(standing))
    parts.append(_latest(standing))
    title = f"asched demo  {standing.elapsed_s:.1f} s"
    return Panel(Group(*parts), title=title, title_align="left", border_style="dim")


def _progress(standing: Standing) -> Table:
    grid = Table.grid(padding=(0, 2))
    for name, done, total in (
        ("created", standing.created, standing.total),
        ("bound", standing.bound, standing.feasible),
    ):
        bar = ProgressBar(total=max(1, total), completed=done, width=_BAR_WIDTH)
        grid.add_row(Text(name), bar, Text(f"{done} / {total}"))
    return grid


def _queues(standing: Standing) -> Text:
    text = Text("\n")
    for name, value in (
        ("pods/s", standing.recent_per_s),
        ("nodes", standing.nodes),
        ("active", standing.active),
        ("binding", standing.in_flight),
        ("backoff", standing.backoff),
        ("unschedulable", standing.unschedulable),
        ("gated", standing.gated),
    ):
        text.append(f"{name} ", "dim")
        text.append(f"{value}   ", "bold")
    text.append("\n")
    return text


def _use(uses: tuple[Use, ...]) -> Table:
    grid = Table.grid(padding=(0, 2))
    for use in uses:
        bar = ProgressBar(total=1.0, completed=use.part, width=_BAR_WIDTH)
        grid.add_row(Text(use.resource), bar, Text(f"{use.part:4.0%}  {describe(use)}"))
    return grid


def describe(use: Use) -> str:
    """Such as ``1204 of 3200 cores``."""
    unit = {CPU: " cores", MEMORY: " GiB"}.get(use.resource, "")
    return f"{use.requested:.0f} of {use.allocatable:.0f}{unit}"


def _reasons(standing: Standing) -> Group:
    lines: list[RenderableType] = [Text("\npending because", style="dim")]
    lines += [_line(f"{reason.pods:5}  {reason.text}") for reason in standing.reasons[:_REASONS]]
    rest = standing.reasons[_REASONS:]
    if rest:
        lines.append(_line(f"{sum(r.pods for r in rest):5}  for {len(rest)} other reasons"))
    return Group(*lines)


def _latest(standing: Standing) -> Group:
    lines: list[RenderableType] = [Text("\nlatest", style="dim")]
    lines += [_line(f"  {text}", "yellow") for text in standing.notices[-_NOTICES:]]
    lines += [_line(f"  {text}") for text in standing.latest]
    return Group(*lines)


def _line(text: str, style: str = "") -> Text:
    return Text(text, style=style, no_wrap=True, overflow="ellipsis")
