"""What the demo shows while it runs: a live view on a terminal, plain lines elsewhere.

What the demo says at its end.
"""

from __future__ import annotations

import shlex
import shutil
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from asched.cli.demo.progress import DemoStatus, JournalCounts, NodeUtilization
from asched.cli.demo.workload import DemoWorkload
from asched.cli.output import print_table
from asched.model.requests import CPU, MEMORY

_BAR_WIDTH: Final = 28
_REASONS: Final = 6
_NOTICES: Final = 3
_LINE_EVERY_S: Final = 1.0


class View(Protocol):
    def show(self, standing: DemoStatus) -> None: ...


class LineView:
    """A line now and then, for files and pipes."""

    def __init__(self) -> None:
        self._next_s = 0.0
        self._noticed = 0

    def show(self, standing: DemoStatus) -> None:
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

    def show(self, standing: DemoStatus) -> None:
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


def picture(standing: DemoStatus) -> RenderableType:
    """All of the standing at a glance."""
    parts: list[RenderableType] = [_progress(standing), _queues(standing), _use(standing.use)]
    if standing.reasons:
        parts.append(_reasons(standing))
    parts.append(_latest(standing))
    title = f"asched demo  {standing.elapsed_s:.1f} s"
    return Panel(Group(*parts), title=title, title_align="left", border_style="dim")


def _progress(standing: DemoStatus) -> Table:
    grid = Table.grid(padding=(0, 2))
    for name, done, total in (
        ("created", standing.created, standing.total),
        ("bound", standing.bound, standing.feasible),
    ):
        bar = ProgressBar(total=max(1, total), completed=done, width=_BAR_WIDTH)
        grid.add_row(Text(name), bar, Text(f"{done} / {total}"))
    return grid


def _queues(standing: DemoStatus) -> Text:
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


def _use(uses: tuple[NodeUtilization, ...]) -> Table:
    grid = Table.grid(padding=(0, 2))
    for use in uses:
        bar = ProgressBar(total=1.0, completed=use.part, width=_BAR_WIDTH)
        grid.add_row(Text(use.resource), bar, Text(f"{use.part:4.0%}  {describe(use)}"))
    return grid


def describe(use: NodeUtilization) -> str:
    """Such as ``1204 of 3200 cores``."""
    unit = {CPU: " cores", MEMORY: " GiB"}.get(use.resource, "")
    return f"{use.requested:.0f} of {use.allocatable:.0f}{unit}"


def _reasons(standing: DemoStatus) -> Group:
    lines: list[RenderableType] = [Text("\npending because", style="dim")]
    lines += [_line(f"{reason.pods:5}  {reason.text}") for reason in standing.reasons[:_REASONS]]
    rest = standing.reasons[_REASONS:]
    if rest:
        lines.append(_line(f"{sum(r.pods for r in rest):5}  for {len(rest)} other reasons"))
    return Group(*lines)


def _latest(standing: DemoStatus) -> Group:
    lines: list[RenderableType] = [Text("\nlatest", style="dim")]
    lines += [_line(f"  {text}", "yellow") for text in standing.notices[-_NOTICES:]]
    lines += [_line(f"  {text}") for text in standing.latest]
    return Group(*lines)


def _line(text: str, style: str = "") -> Text:
    return Text(text, style=style, no_wrap=True, overflow="ellipsis")


_UNBOUND_SHOWN: Final = 10


@dataclass(frozen=True)
class DemoResult:
    """How the run ended."""

    workload: DemoWorkload
    tally: JournalCounts
    use: tuple[NodeUtilization, ...]
    pending: dict[str, str]
    """Keys of the pods that are pending, and what the scheduler says of each."""
    journal: Path

    @property
    def succeeded(self) -> bool:
        """Every pod that can run was bound, and every one that cannot was told why."""
        return not self.tally.unbound and self.workload.hopeless.keys() <= self.pending.keys()


def print_summary(outcome: DemoResult) -> None:
    """The figures, what is pending and why, and where to look further."""
    tally, workload = outcome.tally, outcome.workload
    throughput = (
        f"{tally.pods_per_s:.0f} pods/s over {tally.elapsed_s:.1f} s,"
        f" {tally.best_second} in the best second"
    )
    latency = f"p50 {tally.latency_s(50) * 1000:.0f} ms, p99 {tally.latency_s(99) * 1000:.0f} ms"
    rows = [
        ("pods that can run", f"{len(workload.feasible)}"),
        ("  bound", f"{len(workload.feasible) - len(tally.unbound)}"),
        ("pods that cannot run", f"{len(workload.hopeless)}"),
        ("throughput", throughput),
        ("seen to bound", latency),
        ("tried more than once", f"{len(tally.attempts)} pods"),
        ("failed attempts", f"{tally.failures}"),
        *(
            (f"requested {use.resource}", f"{use.part:.0%}  ({describe(use)})")
            for use in outcome.use
        ),
        ("journal", f"{tally.seq} records, {_size_bytes(outcome.journal) / 1e6:.1f} MB"),
    ]
    print_table(("THE RUN", ""), rows)
    _print_pending(outcome)


def _size_bytes(journal: Path) -> int:
    files = (journal, journal.with_name(f"{journal.name}-wal"))
    return sum(file.stat().st_size for file in files if file.exists())


def _print_pending(outcome: DemoResult) -> None:
    counts = Counter(outcome.workload.hopeless.values())
    # Nodes join meanwhile, so the counts of nodes differ between like pods: the last one's word.
    said = {
        why: outcome.pending.get(key, "(was not told)")
        for key, why in sorted(outcome.workload.hopeless.items())
    }
    print_table(
        ("CANNOT RUN", "BECAUSE THE POD", "THE SCHEDULER SAYS"),
        [(str(count), why, said[why]) for why, count in counts.items()],
    )
    if outcome.tally.unbound:
        unbound = sorted(outcome.tally.unbound)
        print_table(
            ("SHOULD HAVE RUN", "THE SCHEDULER SAYS"),
            [(key, outcome.pending.get(key, "")) for key in unbound[:_UNBOUND_SHOWN]],
            title=f"{len(unbound)} pods that can run are not bound",
        )


def next_commands(outcome: DemoResult, kubeconfig: Path | None) -> Sequence[str]:
    """What to type to look further, with names from the run. ``kubeconfig`` of a cluster that is
    still there."""
    journal = f"--journal {shlex.quote(str(outcome.journal))}"
    asched = "asched" if shutil.which("asched") else shlex.quote(sys.argv[0])
    lines = []
    retried = max(outcome.tally.attempts, key=lambda key: outcome.tally.attempts[key], default=None)
    waited = next((k for k in sorted(outcome.tally.attempts) if k in outcome.workload.feasible), "")
    if waited or retried:
        lines.append(f"{asched} history {waited or retried} {journal}")
    hopeless = next((k for k in sorted(outcome.workload.hopeless) if "/shy-" in k), None)
    if hopeless:
        lines.append(f"{asched} explain {hopeless} {journal}")
    bound = sorted(outcome.workload.feasible - outcome.tally.unbound)
    if bound:
        lines.append(f"{asched} explain {bound[len(bound) // 2]} {journal}")
    if kubeconfig is not None:
        kubectl = f"kubectl --kubeconfig {shlex.quote(str(kubeconfig))}"
        lines += [f"{kubectl} get pods -A -o wide", f"{kubectl} get nodes"]
    return lines
