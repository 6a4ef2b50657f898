"""Entries of a pod's timeline as text."""

from __future__ import annotations

from asched.audit import entries
from asched.audit.entries import Entry


def describe(entry: Entry) -> tuple[str, str]:
    """The event of an entry and its details, as text."""
    match entry:
        case entries.ObservedEntry():
            where = f", bound to {entry.node}" if entry.node else ""
            gates = f", gated by {', '.join(entry.gates)}" if entry.gates else ""
            text = f"for {entry.scheduler_name}, priority {entry.priority}{where}{gates}"
            return "observed", text
        case entries.ChangeEntry():
            return "changed", "; ".join(entry.changes) or "no field that scheduling reads"
        case entries.QueueMoveEntry():
            before = f"from {entry.before} " if entry.before else ""
            return "queued", f"{before}to {entry.queue}: {entry.cause}"
        case entries.AssignmentEntry():
            return "assigned", _assignment(entry)
        case entries.RejectionEntry():
            return "rejected", _rejection(entry)
        case entries.AttemptFailureEntry():
            return "failed", f"attempt {entry.attempt}: {entry.message}"
        case entries.ExtenderCallEntry():
            names = ", ".join(entry.extenders)
            return "extender called", f"attempt {entry.attempt}: {entry.verb} of {names}"
        case entries.ExtenderReplyEntry():
            result = f"failed: {entry.failure}" if entry.failure else "succeeded"
            text = f"attempt {entry.attempt}: {entry.verb} of {entry.extender} {result}"
            return "extender replied", text
        case entries.PermitEntry():
            result = "allowed" if entry.allowed else f"rejected: {entry.message}"
            return "permit", f"{entry.plugin} {result}"
        case entries.BindingEntry():
            return "bound", f"the API server confirmed the binding to {entry.node}"
        case entries.BindingFailureEntry():
            return "binding failed", f"to {entry.node}: {entry.plugin}: {entry.message}"
        case entries.PreemptionEntry():
            return "preempted", f"by {entry.by} on {entry.node}"
        case entries.EvictionEntry():
            return "evicted", "the API server accepted the deletion"
        case entries.EvictionFailureEntry():
            return "eviction failed", entry.message
        case entries.ClaimReleaseEntry():
            return "claim released", entry.message or "the API server accepted the update"
        case entries.DeletionEntry():
            return "deleted", "deleted or finished"


def _assignment(entry: entries.AssignmentEntry) -> str:
    text = f"attempt {entry.attempt}: to {entry.node}"
    if entry.feasible_nodes == 1:
        text += ", the only feasible node"
    elif entry.feasible_nodes:  # batch sessions record no nodes
        text += f", score {entry.score}, best of {entry.feasible_nodes} feasible nodes"
    if entry.ties > 1:
        text += f", selected from {entry.ties} nodes with that score"
    if entry.permit_waits:
        text += f"; waiting on {', '.join(entry.permit_waits)}"
    if entry.devices:
        text += f"; devices {', '.join(entry.devices)}"
    return text


def _rejection(entry: entries.RejectionEntry) -> str:
    text = f"attempt {entry.attempt}: {entry.message}"
    if entry.nominated_node:
        text += f"; nominated to {entry.nominated_node}"
    if entry.victims:
        text += f", evicting {', '.join(entry.victims)}"
    if entry.released_claim:
        text += f"; releases claim {entry.released_claim}"
    return text
