"""``asched history``: what happened to a pod, from the journal alone."""

from __future__ import annotations

from typing import Annotated

import typer

from asched.audit.entries import (
    Assignment,
    Binding,
    BindingFailure,
    Change,
    Deletion,
    Entry,
    Eviction,
    EvictionFailure,
    ExtenderInquiry,
    ExtenderReply,
    Failure,
    Observed,
    PermitAnswer,
    PodTimeline,
    Preemption,
    QueueMove,
    Rejection,
)
from asched.audit.pods import PodName
from asched.audit.timeline import timelines
from asched.cli.journals import DEFAULT_URL, JournalOption, PodArgument, ask
from asched.cli.output import TableOrData, print_json, print_table
from asched.cli.root import command_app
from asched.framework.registry import Registry
from asched.journal.store import JournalStore

app = command_app("Tell what happened to a pod, from the journal alone.")


@app.command()
def history(
    pod: PodArgument,
    journal: JournalOption = DEFAULT_URL,
    output: Annotated[
        TableOrData, typer.Option("--output", "-o", help="How to print.")
    ] = TableOrData.TABLE,
) -> None:
    """Tell what happened to a pod, from the journal alone.

    When it was seen, how it moved between queues and why, each attempt and its decision, what came
    of it, and its end; for pods long deleted too. Pods of the same name are told apart by uid.
    """
    found = ask(journal, pod, _timelines)
    if output is TableOrData.JSON:
        print_json({"pods": found})
        return
    for timeline in found:
        _print_timeline(timeline)


async def _timelines(journal: JournalStore, pod: PodName, registry: Registry) -> list[PodTimeline]:
    return await timelines(journal, pod, registry.load)


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
        case Observed():
            where = f", bound to {entry.node}" if entry.node else ""
            gates = f", gated by {', '.join(entry.gates)}" if entry.gates else ""
            return "seen", f"for {entry.scheduler_name}, priority {entry.priority}{where}{gates}"
        case Change():
            return "changed", "; ".join(entry.changes) or "nothing that scheduling reads"
        case QueueMove():
            before = f"from {entry.before} " if entry.before else ""
            return "queued", f"{before}to {entry.queue}: {entry.cause}"
        case Assignment():
            return "assigned", _assigned(entry)
        case Rejection():
            return "rejected", _rejected(entry)
        case Failure():
            return "failed", f"attempt {entry.attempt}: {entry.message}"
        case ExtenderInquiry():
            return "asked", f"attempt {entry.attempt}: {', '.join(entry.extenders)} to {entry.verb}"
        case ExtenderReply():
            failed = f" failed: {entry.failure}" if entry.failure else " answered"
            return "extender", f"attempt {entry.attempt}: {entry.verb} of {entry.extender}{failed}"
        case PermitAnswer():
            said = "let it go" if entry.allowed else f"turned it away: {entry.message}"
            return "permit", f"{entry.plugin} {said}"
        case _:
            return _effect(entry)


def _assigned(entry: Assignment) -> str:
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


def _rejected(entry: Rejection) -> str:
    text = f"attempt {entry.attempt}: {entry.message}"
    if entry.nominated_node:
        text += f"; nominated to {entry.nominated_node}"
    if entry.victims:
        text += f", evicting {', '.join(entry.victims)}"
    return text


def _effect(
    entry: Binding | BindingFailure | Preemption | Eviction | EvictionFailure | Deletion,
) -> tuple[str, str]:
    match entry:
        case Binding():
            return "bound", f"the API server confirmed the binding to {entry.node}"
        case BindingFailure():
            return "binding failed", f"to {entry.node}: {entry.plugin}: {entry.message}"
        case Preemption():
            return "preempted", f"to make room for {entry.by} on {entry.node}"
        case Eviction():
            return "evicted", "the API server accepted the deletion"
        case EvictionFailure():
            return "eviction failed", entry.message
        case Deletion():
            return "gone", "deleted, or finished"
