"""What the demo prints: a live view on a terminal or plain lines, and a summary at the end."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from asched.cli.demo.workload import GPU, DemoWorkload
from asched.cli.output import print_table
from asched.model.requests import CPU, MEMORY, PODS
from asched.state.cluster import ClusterState

if TYPE_CHECKING:
    from asched.cli.demo.runner import JournalCounts

_BAR_WIDTH: Final = 28
_REASONS: Final = 6
_NOTICES: Final = 3
_LINE_EVERY_S: Final = 1.0
_UNBOUND_SHOWN: Final = 10

_RESOURCES: Final = (CPU, MEMORY, GPU, PODS)
_UNITS: Final = {CPU: 1000, MEMORY: 1 << 30}
"""Amounts of a core and a GiB."""
_NOT_TRIED: Final = "not tried yet"


class NodeUtilization(NamedTuple):
    """Requested amount of a resource on all nodes, in cores, GiB or pieces."""

    resource: str
    requested: float
    allocatable: float

    @property
    def part(self) -> float:
        return self.requested / self.allocatable if self.allocatable else 0.0


class Reason(NamedTuple):
    """A message of the scheduler and the number of pending pods with it."""

    pods: int
    text: str


@dataclass(frozen=True)
class DemoStatus:
    """The state of the run at one moment."""

    elapsed_s: float
    total: int
    """Pods to create."""
    feasible: int
    """Schedulable pods among them."""
    created: int
    bound: int
    """Bound feasible pods."""
    recent_per_s: int
    nodes: int
    active: int
    backoff: int
    unschedulable: int
    gated: int
    in_flight: int
    utilization: tuple[NodeUtilization, ...]
    reasons: tuple[Reason, ...]
    latest: tuple[str, ...]
    notices: tuple[str, ...]


def utilization(state: ClusterState) -> tuple[NodeUtilization, ...]:
    """Requested and allocatable amounts of all nodes together."""
    table = state.nodes
    found = []
    for resource in _RESOURCES:
        if resource == PODS:
            requested, allocatable = table.pod_count, table.allowed_pods
        else:
            requested, allocatable = table.requested(resource), table.allocatable(resource)
        requested_sum, allocatable_sum = int(requested.sum()), int(allocatable.sum())
        unit = _UNITS.get(resource, 1)
        found.append(NodeUtilization(resource, requested_sum / unit, allocatable_sum / unit))
    return tuple(found)


def pending_reasons(state: ClusterState) -> tuple[Reason, ...]:
    """Messages of rejected and gated pods, most frequent first."""
    counts: Counter[str] = Counter()
    queue = state.queue
    for pod in queue.gated.values():
        counts[f"gated by {pod.gating_plugin}"] += 1
    for waiting in (queue.unschedulable, queue.backoff, queue.active):
        for key in waiting:
            counts[state.pods[key].rejection or _NOT_TRIED] += 1
    del counts[_NOT_TRIED]
    return tuple(Reason(n, text) for text, n in sorted(counts.items(), key=lambda c: (-c[1], c[0])))


class LineView:
    """A line each second, for files and pipes."""

    def __init__(self) -> None:
        self._next_s = 0.0
        self._notices_shown = 0

    def show(self, status: DemoStatus) -> None:
        for notice in status.notices[self._notices_shown :]:
            print(f"{status.elapsed_s:6.1f} s  {notice}", flush=True)
        self._notices_shown = len(status.notices)
        finished = status.bound == status.feasible
        if status.elapsed_s < self._next_s and not finished:
            return
        self._next_s = status.elapsed_s + _LINE_EVERY_S
        print(
            f"{status.elapsed_s:6.1f} s  created {status.created}/{status.total}"
            f"  bound {status.bound}/{status.feasible}  active {status.active}"
            f"  backoff {status.backoff}  unschedulable {status.unschedulable}"
            f"  gated {status.gated}  {status.recent_per_s} pods/s",
            flush=True,
        )


@contextmanager
def open_view() -> Iterator[Callable[[DemoStatus], None]]:
    """A function that redraws a panel if standard output is a terminal, else prints lines."""
    if not sys.stdout.isatty():
        yield LineView().show
        return
    # Log lines appear above the panel.
    with Live(console=Console(), auto_refresh=False, transient=True) as live:
        yield lambda status: live.update(panel(status), refresh=True)


def panel(status: DemoStatus) -> RenderableType:
    """The status in one panel."""
    parts: list[RenderableType] = [_progress(status), _queues(status)]
    parts.append(_utilization(status.utilization))
    if status.reasons:
        parts.append(_reasons(status))
    parts.append(_latest(status))
    title = f"asched demo  {status.elapsed_s:.1f} s"
    return Panel(Group(*parts), title=title, title_align="left", border_style="dim")


def _progress(status: DemoStatus) -> Table:
    grid = Table.grid(padding=(0, 2))
    for name, done, total in (
        ("created", status.created, status.total),
        ("bound", status.bound, status.feasible),
    ):
        bar = ProgressBar(total=max(1, total), completed=done, width=_BAR_WIDTH)
        grid.add_row(Text(name), bar, Text(f"{done} / {total}"))
    return grid


def _queues(status: DemoStatus) -> Text:
    text = Text("\n")
    for name, value in (
        ("pods/s", status.recent_per_s),
        ("nodes", status.nodes),
        ("active", status.active),
        ("binding", status.in_flight),
        ("backoff", status.backoff),
        ("unschedulable", status.unschedulable),
        ("gated", status.gated),
    ):
        text.append(f"{name} ", "dim")
        text.append(f"{value}   ", "bold")
    text.append("\n")
    return text


def _utilization(uses: tuple[NodeUtilization, ...]) -> Table:
    grid = Table.grid(padding=(0, 2))
    for use in uses:
        bar = ProgressBar(total=1.0, completed=use.part, width=_BAR_WIDTH)
        grid.add_row(Text(use.resource), bar, Text(f"{use.part:4.0%}  {describe(use)}"))
    return grid


def describe(use: NodeUtilization) -> str:
    """Text such as ``1204 of 3200 cores``."""
    unit = {CPU: " cores", MEMORY: " GiB"}.get(use.resource, "")
    return f"{use.requested:.0f} of {use.allocatable:.0f}{unit}"


def _reasons(status: DemoStatus) -> Group:
    lines: list[RenderableType] = [Text("\npending because", style="dim")]
    lines += [_line(f"{reason.pods:5}  {reason.text}") for reason in status.reasons[:_REASONS]]
    rest = status.reasons[_REASONS:]
    if rest:
        lines.append(_line(f"{sum(r.pods for r in rest):5}  for {len(rest)} other reasons"))
    return Group(*lines)


def _latest(status: DemoStatus) -> Group:
    lines: list[RenderableType] = [Text("\nlatest", style="dim")]
    lines += [_line(f"  {text}", "yellow") for text in status.notices[-_NOTICES:]]
    lines += [_line(f"  {text}") for text in status.latest]
    return Group(*lines)


def _line(text: str, style: str = "") -> Text:
    return Text(text, style=style, no_wrap=True, overflow="ellipsis")


@dataclass(frozen=True)
class DemoResult:
    """The result of a run."""

    workload: DemoWorkload
    counts: JournalCounts
    utilization: tuple[NodeUtilization, ...]
    pending: dict[str, str]
    """The scheduler's messages for pending pods, by key."""
    journal: Path

    @property
    def succeeded(self) -> bool:
        """Whether all feasible pods are bound and all infeasible ones have a message."""
        return not self.counts.unbound and self.workload.infeasible.keys() <= self.pending.keys()


def print_summary(result: DemoResult) -> None:
    """Print the figures, and the pending pods with their messages."""
    counts, workload = result.counts, result.workload
    throughput = (
        f"{counts.pods_per_s:.0f} pods/s over {counts.elapsed_s:.1f} s,"
        f" {counts.best_second} in the best second"
    )
    files = (result.journal, result.journal.with_name(f"{result.journal.name}-wal"))
    size_bytes = sum(file.stat().st_size for file in files if file.exists())
    latency = f"p50 {counts.latency_s(50) * 1000:.0f} ms, p99 {counts.latency_s(99) * 1000:.0f} ms"
    rows = [
        ("schedulable pods", len(workload.feasible)),
        ("  bound", len(workload.feasible) - len(counts.unbound)),
        ("unschedulable pods", len(workload.infeasible)),
        ("throughput", throughput),
        ("observed to bound", latency),
        ("more than one attempt", f"{len(counts.attempts)} pods"),
        ("failed attempts", counts.failures),
        *(
            (f"requested {use.resource}", f"{use.part:.0%}  ({describe(use)})")
            for use in result.utilization
        ),
        ("journal", f"{counts.seq} records, {size_bytes / 1e6:.1f} MB"),
    ]
    print_table(("THE RUN", ""), rows)
    _print_pending(result)


def _print_pending(result: DemoResult) -> None:
    number = Counter(result.workload.infeasible.values())
    # Messages of similar pods differ in counts of nodes, because nodes join: show the last.
    messages = {
        why: result.pending.get(key, "(no message)")
        for key, why in sorted(result.workload.infeasible.items())
    }
    print_table(
        ("UNSCHEDULABLE", "THE POD", "MESSAGE OF THE SCHEDULER"),
        [(count, why, messages[why]) for why, count in number.items()],
    )
    if result.counts.unbound:
        unbound = sorted(result.counts.unbound)
        print_table(
            ("NOT BOUND", "MESSAGE OF THE SCHEDULER"),
            [(key, result.pending.get(key, "")) for key in unbound[:_UNBOUND_SHOWN]],
            title=f"{len(unbound)} schedulable pods are not bound",
        )


def next_commands(result: DemoResult, kubeconfig: Path | None) -> Sequence[str]:
    """Commands to inspect the run, with ``kubectl`` commands if the cluster still runs."""
    journal = f"--journal {shlex.quote(str(result.journal))}"
    asched = "asched" if shutil.which("asched") else shlex.quote(sys.argv[0])
    lines = []
    retried = max(result.counts.attempts, key=lambda key: result.counts.attempts[key], default=None)
    waited = next((k for k in sorted(result.counts.attempts) if k in result.workload.feasible), "")
    bound = sorted(result.workload.feasible - result.counts.unbound)
    shown = waited or retried or next(iter(bound), "")
    if shown:
        lines.append(f"{asched} history {shown} {journal}")
    infeasible = next((k for k in sorted(result.workload.infeasible) if "/intolerant-" in k), None)
    if infeasible:
        lines.append(f"{asched} explain {infeasible} {journal}")
    if bound:
        lines.append(f"{asched} explain {bound[len(bound) // 2]} {journal}")
    lines.append(f"{asched} ui {journal}")
    if kubeconfig is not None:
        kubectl = f"kubectl --kubeconfig {shlex.quote(str(kubeconfig))}"
        lines += [f"{kubectl} get pods -A -o wide", f"{kubectl} get nodes"]
    return lines
