"""``asched history``: the timelines of pods and nodes, read from the journal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import typer

from asched.audit import entries
from asched.audit.entries import PodTimeline
from asched.audit.entry_text import describe
from asched.cli.errors import BadInput
from asched.cli.options import (
    DEFAULT_JOURNAL,
    JournalOption,
    SinceOption,
    UntilOption,
    installed_plugins,
    period,
    query_journal,
    takes_options,
    with_journal,
)
from asched.cli.output import (
    OutputOption,
    TableOrData,
    output_width,
    print_json,
    print_next,
    print_table,
    print_text,
)

if TYPE_CHECKING:
    from asched.audit.history import NodeTimeline
    from asched.audit.pod_group.history import PodGroupHistory
    from asched.journal.store import JournalStore


_NARROW: Final = 100
"""Columns of a terminal that has no room for dates next to the text of events."""


@dataclass(frozen=True, kw_only=True)
class HistoryOptions:
    name: str | None = typer.Argument(
        None, metavar="[POD|NODE]", help="A pod (NAME or NAMESPACE/NAME), or a node."
    )
    journal: JournalOption = DEFAULT_JOURNAL
    owner: str | None = typer.Option(
        None,
        metavar="KIND/NAME",
        help="All pods of a controller, such as Deployment/web or shop/Job/nightly.",
    )
    group: str | None = typer.Option(
        None, metavar="GROUP", help="A PodGroup as a whole: its NAMESPACE/NAME."
    )
    unschedulable: bool = typer.Option(
        False, "--unschedulable", help="All pods that were rejected."
    )
    preempted: bool = typer.Option(False, "--preempted", help="All pods that were preempted.")
    since: SinceOption = None
    until: UntilOption = None
    output: OutputOption = TableOrData.TABLE


@takes_options
def history(options: HistoryOptions) -> None:
    """Show what happened to pods or to a node.

    Lists when a pod was observed, its queue moves with their causes, each attempt with its decision
    and outcome, and the deletion. Includes deleted pods. Pods of the same name are listed by uid.
    For a PodGroup (--group), lists its attempts as a whole, its members and its victims.
    """
    from asched.audit.history import NodeTimeline

    chosen = (options.name is not None) + (options.owner is not None)
    chosen += options.group is not None
    if chosen + options.unschedulable + options.preempted != 1:
        raise BadInput(
            "name a pod or a node, or give one of --owner, --group, --unschedulable and --preempted"
        )
    if options.group is not None:
        _show_group(options, options.group)
        return
    found = _timelines(options)
    if isinstance(found, NodeTimeline):
        _print_node(found, options.output)
    elif options.output is TableOrData.JSON:
        print_json({"pods": found})
    elif options.unschedulable or options.preempted:
        _print_overview(found)
    elif found:
        for timeline in found:
            _print_timeline(timeline)
        if options.name is not None:
            explain = f"asched explain {found[-1].namespace}/{found[-1].name}"
            print_next(with_journal(explain, options.journal), "each plugin on each node")
    else:
        print_text("no events in this period")


def _show_group(options: HistoryOptions, name: str) -> None:
    from asched.audit.pod_group.explain import parse_group
    from asched.audit.pod_group.history import pod_group_history
    from asched.cli.explain_group import print_group_history

    key, within = parse_group(name), period(options.since, options.until)

    async def query(store: JournalStore) -> PodGroupHistory:
        return await pod_group_history(store, installed_plugins().load, key, within)

    found = query_journal(options.journal, query)
    if options.output is TableOrData.JSON:
        print_json({"group": found})
    else:
        print_group_history(found)


def _timelines(options: HistoryOptions) -> list[PodTimeline] | NodeTimeline:
    from asched.audit import history
    from asched.audit.lookup import AuditError, PodName

    within = period(options.since, options.until)

    async def query(store: JournalStore) -> list[PodTimeline] | NodeTimeline:
        load = installed_plugins().load
        if options.owner is not None:
            owner = history.Owner.parse(options.owner)
            return await history.timelines_of_owner(store, owner, load, within)
        if options.unschedulable:
            return await history.timelines_of_unschedulable(store, load, within)
        if options.preempted:
            return await history.timelines_of_preempted(store, load, within)
        name = options.name or ""
        try:
            return await history.timelines(store, PodName.parse(name), load, within)
        except AuditError:
            node = await history.node_timeline(store, name, load, within)
            if node is None:
                raise
            return node

    return query_journal(options.journal, query)


def _print_node(found: NodeTimeline, output: TableOrData) -> None:
    if output is TableOrData.JSON:
        print_json({"node": found})
        return
    rows = [
        (f"{entry.at:%Y-%m-%d %H:%M:%S}", entry.seq, entry.event, entry.pod, entry.detail)
        for entry in found.entries
    ]
    print_table(("TIME (UTC)", "RECORD", "EVENT", "POD", ""), rows, title=f"node {found.name}")


def _print_overview(found: list[PodTimeline]) -> None:
    """A line for each of many pods: the last problem and the present state."""
    rows = []
    kinds = entries.RejectionEntry | entries.PreemptionEntry
    for timeline in found:
        problems = [entry for entry in timeline.entries if isinstance(entry, kinds)]
        last, now = problems[-1], timeline.entries[-1]
        pod, at = f"{timeline.namespace}/{timeline.name}", f"{last.at:%Y-%m-%d %H:%M:%S}"
        event, present = " ".join(describe(last)), " ".join(describe(now))
        rows.append((pod, at, len(problems), event, present))
    print_table(("POD", "LAST (UTC)", "TIMES", "EVENT", "NOW"), rows)
    print_text(f"{len(rows)} pod(s)")


def _print_timeline(timeline: PodTimeline) -> None:
    begin = timeline.entries[0].at
    title = f"pod {timeline.namespace}/{timeline.name}, uid {timeline.uid}"
    width, form = output_width(), "%Y-%m-%d %H:%M:%S"
    if width is not None and width < _NARROW and timeline.entries[-1].at.date() == begin.date():
        title, form = f"{title}, {begin:%Y-%m-%d}", "%H:%M:%S"
    rows = [
        (
            f"{entry.at:{form}}.{entry.at.microsecond // 1000:03d}",
            f"+{(entry.at - begin).total_seconds():.3f} s",
            entry.seq,
            *describe(entry),
        )
        for entry in timeline.entries
    ]
    print_table(
        ("TIME (UTC)", "AFTER", "RECORD", "EVENT", ""),
        rows,
        title=title,
    )
