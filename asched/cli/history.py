"""``asched history``: what happened to pods or to a node, from the journal alone."""

from __future__ import annotations

from typing import Annotated

import typer

from asched.audit.entries import (
    AssignmentEntry,
    AttemptFailureEntry,
    BindingEntry,
    BindingFailureEntry,
    ChangeEntry,
    DeletionEntry,
    Entry,
    EvictionEntry,
    EvictionFailureEntry,
    ExtenderCallEntry,
    ExtenderReplyEntry,
    ObservedEntry,
    PermitAnswerEntry,
    PodTimeline,
    PreemptionEntry,
    QueueMoveEntry,
    RejectionEntry,
)
from asched.audit.history import (
    NodeTimeline,
    Owner,
    Period,
    node_timeline,
    timelines,
    timelines_of_owner,
    timelines_of_preempted,
    timelines_of_unschedulable,
)
from asched.audit.lookup import AuditError, PodName
from asched.cli.errors import BadInput
from asched.cli.main import command_app
from asched.cli.options import (
    DEFAULT_URL,
    JournalOption,
    SinceOption,
    UntilOption,
    ask_journal,
    period,
)
from asched.cli.output import OutputOption, TableOrData, print_json, print_table
from asched.config.registry import PluginRegistry
from asched.framework.runtime.profile import PluginLoader
from asched.journal.store import JournalStore

app = command_app("Tell what happened to pods or to a node, from the journal alone.")


@app.command()
def history(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[POD|NODE]", help="NAME or NAMESPACE/NAME of a pod, or a node's name."
        ),
    ] = None,
    journal: JournalOption = DEFAULT_URL,
    owner: Annotated[
        str | None,
        typer.Option(
            metavar="KIND/NAME",
            help="All pods of a controller, such as Deployment/web or shop/Job/nightly.",
        ),
    ] = None,
    unschedulable: Annotated[
        bool, typer.Option("--unschedulable", help="All pods that were rejected.")
    ] = False,
    preempted: Annotated[
        bool, typer.Option("--preempted", help="All pods that were to be evicted for others.")
    ] = False,
    since: SinceOption = None,
    until: UntilOption = None,
    output: OutputOption = TableOrData.TABLE,
) -> None:
    """Tell what happened to pods or to a node, from the journal alone.

    When a pod was seen, how it moved between queues and why, each attempt and its decision, what came
    of it, and its end; for pods long deleted too. Pods of the same name are told apart by uid.
    """
    if (name is not None) + (owner is not None) + unschedulable + preempted != 1:
        raise BadInput(
            "asched: name a pod or a node, or give one of --owner, --unschedulable and --preempted"
        )
    asked = period(since, until)

    async def question(
        store: JournalStore, registry: PluginRegistry
    ) -> list[PodTimeline] | NodeTimeline:
        load = registry.load
        if owner is not None:
            return await timelines_of_owner(store, Owner.parse(owner), load, asked)
        if unschedulable:
            return await timelines_of_unschedulable(store, load, asked)
        if preempted:
            return await timelines_of_preempted(store, load, asked)
        return await _named(store, name or "", load, asked)

    found = ask_journal(journal, question)
    if isinstance(found, NodeTimeline):
        _show_node(found, output)
    elif output is TableOrData.JSON:
        print_json({"pods": found})
    elif unschedulable or preempted:
        _print_overview(found)
    elif found:
        for timeline in found:
            _print_timeline(timeline)
    else:
        print("nothing happened to it within that time")


async def _named(
    journal: JournalStore, name: str, load: PluginLoader, period: Period
) -> list[PodTimeline] | NodeTimeline:
    """The pods of that name, or else the node."""
    try:
        return await timelines(journal, PodName.parse(name), load, period)
    except AuditError:
        node = await node_timeline(journal, name, load, period)
        if node is None:
            raise
        return node


def _show_node(found: NodeTimeline, output: TableOrData) -> None:
    if output is TableOrData.JSON:
        print_json({"node": found})
        return
    rows = [
        (f"{entry.at:%Y-%m-%d %H:%M:%S}", str(entry.seq), entry.event, entry.pod, entry.detail)
        for entry in found.entries
    ]
    print_table(("TIME (UTC)", "RECORD", "EVENT", "POD", ""), rows, title=f"node {found.name}")


def _print_overview(found: list[PodTimeline]) -> None:
    """A line for each of many pods: what was wrong last, and what became of it."""
    rows = []
    for timeline in found:
        troubles = [e for e in timeline.entries if isinstance(e, RejectionEntry | PreemptionEntry)]
        last = troubles[-1]
        rows.append(
            (
                f"{timeline.namespace}/{timeline.name}",
                f"{last.at:%Y-%m-%d %H:%M:%S}",
                str(len(troubles)),
                " ".join(described(last)),
                " ".join(described(timeline.entries[-1])),
            )
        )
    print_table(("POD", "LAST (UTC)", "TIMES", "WHAT", "NOW"), rows)
    print(f"{len(rows)} pod(s)")


def _print_timeline(timeline: PodTimeline) -> None:
    begin = timeline.entries[0].at
    rows = [
        (
            f"{entry.at:%Y-%m-%d %H:%M:%S}.{entry.at.microsecond // 1000:03d}",
            f"+{(entry.at - begin).total_seconds():.3f} s",
            str(entry.seq),
            *described(entry),
        )
        for entry in timeline.entries
    ]
    print_table(
        ("TIME (UTC)", "AFTER", "RECORD", "EVENT", ""),
        rows,
        title=f"pod {timeline.namespace}/{timeline.name}, uid {timeline.uid}",
    )


def described(entry: Entry) -> tuple[str, str]:
    """The kind of an entry, and the rest of it, in words."""
    match entry:
        case ObservedEntry():
            where = f", bound to {entry.node}" if entry.node else ""
            gates = f", gated by {', '.join(entry.gates)}" if entry.gates else ""
            return "seen", f"for {entry.scheduler_name}, priority {entry.priority}{where}{gates}"
        case ChangeEntry():
            return "changed", "; ".join(entry.changes) or "nothing that scheduling reads"
        case QueueMoveEntry():
            before = f"from {entry.before} " if entry.before else ""
            return "queued", f"{before}to {entry.queue}: {entry.cause}"
        case AssignmentEntry():
            return "assigned", _assigned(entry)
        case RejectionEntry():
            return "rejected", _rejected(entry)
        case AttemptFailureEntry():
            return "failed", f"attempt {entry.attempt}: {entry.message}"
        case ExtenderCallEntry():
            return "asked", f"attempt {entry.attempt}: {', '.join(entry.extenders)} to {entry.verb}"
        case ExtenderReplyEntry():
            failed = f" failed: {entry.failure}" if entry.failure else " answered"
            return "extender", f"attempt {entry.attempt}: {entry.verb} of {entry.extender}{failed}"
        case PermitAnswerEntry():
            said = "let it go" if entry.allowed else f"turned it away: {entry.message}"
            return "permit", f"{entry.plugin} {said}"
        case _:
            return _effect(entry)


def _assigned(entry: AssignmentEntry) -> str:
    text = f"attempt {entry.attempt}: to {entry.node}, "
    if entry.feasible == 1:
        text += "the only feasible node"
    else:
        text += f"score {entry.score}, best of {entry.feasible} feasible nodes"
    if entry.ties > 1:
        text += f", drawn among {entry.ties} equally good"
    if entry.held_by:
        text += f"; held by {', '.join(entry.held_by)}"
    return text


def _rejected(entry: RejectionEntry) -> str:
    text = f"attempt {entry.attempt}: {entry.message}"
    if entry.nominated_node:
        text += f"; nominated to {entry.nominated_node}"
    if entry.victims:
        text += f", evicting {', '.join(entry.victims)}"
    return text


def _effect(
    entry: BindingEntry
    | BindingFailureEntry
    | PreemptionEntry
    | EvictionEntry
    | EvictionFailureEntry
    | DeletionEntry,
) -> tuple[str, str]:
    match entry:
        case BindingEntry():
            return "bound", f"the API server confirmed the binding to {entry.node}"
        case BindingFailureEntry():
            return "binding failed", f"to {entry.node}: {entry.plugin}: {entry.message}"
        case PreemptionEntry():
            return "preempted", f"to make room for {entry.by} on {entry.node}"
        case EvictionEntry():
            return "evicted", "the API server accepted the deletion"
        case EvictionFailureEntry():
            return "eviction failed", entry.message
        case DeletionEntry():
            return "gone", "deleted, or finished"
