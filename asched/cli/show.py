"""``asched show``: evictions, queues, gangs and groups of pods, read from the journal."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import typer

from asched.cli.errors import BadInput
from asched.cli.options import (
    DEFAULT_JOURNAL,
    JournalOption,
    SinceOption,
    UntilOption,
    command_group,
    installed_plugins,
    period,
    query_journal,
    takes_options,
    time_ns,
    with_journal,
)
from asched.cli.output import (
    OutputOption,
    TableOrData,
    print_json,
    print_next,
    print_table,
    print_text,
)

if TYPE_CHECKING:
    from asched.audit.evictions import EvictionReport
    from asched.audit.group_history import GroupHistory
    from asched.audit.groups import GroupExplanation, GroupName
    from asched.audit.queue_log import QueueHistory
    from asched.audit.queues import QueuesReport
    from asched.journal.store import JournalStore

app = command_group("Show evictions, queues, gangs and pod groups of a journal.")

_LIMIT: Final = 20
_AT: Final = typer.Option(
    None, metavar="TIME", help="State at this time: 2026-01-31T12:00:00Z, or 2h30m ago."
)


@dataclass(frozen=True, kw_only=True)
class EvictionOptions:
    text: str | None = typer.Argument(
        None, metavar="[TEXT]", help="Only with this text in a name: pod, gang, owner, node, rule."
    )
    journal: JournalOption = DEFAULT_JOURNAL
    since: SinceOption = None
    until: UntilOption = None
    output: OutputOption = TableOrData.TABLE


@app.command("evictions")
@takes_options
def evictions(options: EvictionOptions) -> None:
    """List evicted pods: for which pod, by which rule, and whether that pod started.

    Newest first. Includes preemption, the actions preempt and reclaim of batch sessions, and
    reservations that a gang released for an earlier one. Results are as of --until.
    """
    from asched.audit.evictions import evictions as find

    within = period(options.since, options.until)

    async def query(store: JournalStore) -> Any:
        return await find(store, installed_plugins().load, within, options.text or "")

    found = query_journal(options.journal, query)
    if options.output is TableOrData.JSON:
        print_json(found)
        return
    print_table(
        ("TIME (UTC)", "RECORD", "EVICTED", "FOR", "BY", "RULE", "RESULT", "BENEFICIARY"),
        [_eviction(one) for one in found.evictions],
    )
    print_text(f"{found.total} eviction(s)")


def _eviction(one: EvictionReport) -> tuple[object, ...]:
    victim, pod = one.victim, one.beneficiary
    after = "" if one.wait_s is None else f" after {one.wait_s:.3f} s on {one.started_on}"
    return (
        _time(one.at),
        one.seq,
        f"{victim.namespace}/{victim.name}",
        f"{pod.namespace}/{pod.name}",
        one.by,
        one.rule,
        f"{one.result.value}{': ' + one.message if one.message else ''}",
        f"{one.outcome.value}{after}",
    )


@dataclass(frozen=True, kw_only=True)
class MomentOptions:
    journal: JournalOption = DEFAULT_JOURNAL
    at: str | None = _AT
    output: OutputOption = TableOrData.TABLE


def _at(options: MomentOptions, query: Callable[..., Awaitable[Any]]) -> Any:
    """What ``query`` finds with journal, plugins and time."""
    at_ns = None if options.at is None else time_ns(options.at)

    async def run(store: JournalStore) -> Any:
        return await query(store, installed_plugins().load, at_ns)

    return query_journal(options.journal, run)


@app.command("queues")
@takes_options
def queues(options: MomentOptions) -> None:
    """Show the queues of batch sessions: shares, and which job goes first and why.

    The next session is opened on a copy of the state; its actions are not run.
    """
    from asched.audit.queues import queues_at

    found: QueuesReport = _at(options, queues_at)
    if options.output is TableOrData.JSON:
        print_json(found)
        return
    lengths = ", ".join(f"{name} {length}" for name, length in found.scheduling.items())
    print_text(f"record {found.seq} at {_time(found.at)} UTC; pods one by one: {lengths}")
    for session in found.sessions:
        print_text(f"{session.scheduler_name}, after session {session.session} {session.problem}")
    columns = (
        "SCHEDULER",
        "QUEUE",
        "WEIGHT",
        "RESOURCE",
        "DESERVED",
        "ALLOCATED",
        "REQUESTED",
        "SHARE",
    )
    rows = [
        (
            *(row.scheduler_name, row.queue, row.weight, row.resource),
            *(f"{amount:.0f}" for amount in (row.deserved, row.allocated, row.requested)),
            f"{row.share:.0%}",
        )
        for row in found.rows()
    ]
    print_table(columns, rows)
    jobs = [
        (
            job.queue,
            job.position,
            job.group or job.owner or job.job,
            job.min_available,
            job.ready,
            job.pending,
            job.order_reason,
        )
        for session in found.sessions
        for job in session.jobs
    ]
    print_table(("QUEUE", "POSITION", "JOB", "MINIMUM", "READY", "PENDING", "ORDER"), jobs)


@dataclass(frozen=True, kw_only=True)
class ShareOptions:
    journal: JournalOption = DEFAULT_JOURNAL
    since: SinceOption = None
    until: UntilOption = None
    output: OutputOption = TableOrData.TABLE


@app.command("shares")
@takes_options
def shares(options: ShareOptions) -> None:
    """Show the shares of queues over time, and what recent batch sessions decided, in order."""
    from asched.audit.queue_log import queue_history

    within = period(options.since, options.until)

    async def query(store: JournalStore) -> Any:
        return await queue_history(store, installed_plugins().load, within)

    found: QueueHistory = query_journal(options.journal, query)
    if options.output is TableOrData.JSON:
        print_json(found)
        return
    points = [
        (
            *(_time(point.at), point.queue, f"{point.share:.0%}", name),
            *(
                f"{amount:.0f}"
                for amount in (amounts.deserved, amounts.allocated, amounts.requested)
            ),
        )
        for point in found.points
        for name, amounts in point.resources.items()
    ]
    columns = ("TIME (UTC)", "QUEUE", "SHARE", "RESOURCE", "DESERVED", "ALLOCATED", "REQUESTED")
    print_table(columns, points)
    parts = [
        (
            _time(session.at),
            session.number,
            part.operation,
            part.group or part.first_pod,
            part.pods,
            part.beneficiary,
        )
        for session in found.sessions
        for part in session.parts
    ]
    print_table(("TIME (UTC)", "SESSION", "DECISION", "GANG OR POD", "PODS", "FOR"), parts)


@app.command("gangs")
@takes_options
def gangs(options: MomentOptions) -> None:
    """List gangs: how many of their pods have a node, since when, and which comes first."""
    from asched.audit.gangs import gangs_at

    found = _at(options, gangs_at)
    if options.output is TableOrData.JSON:
        print_json(found)
        return
    rows = [
        (
            gang.position or "",
            f"{gang.namespace}/{gang.name}",
            gang.phase.value,
            *(gang.minimum, gang.bound, gang.waiting, gang.pending, gang.queue),
            "" if gang.waited_s is None else f"{gang.waited_s:.0f} s",
            gang.order_reason,
        )
        for gang in found.gangs
    ]
    columns = (
        "POSITION",
        "GANG",
        "PHASE",
        "MINIMUM",
        "BOUND",
        "WAITING",
        "PENDING",
        "QUEUE",
        "WAITED",
    )
    print_table((*columns, "ORDER"), rows)


@dataclass(frozen=True, kw_only=True)
class PendingOptions:
    journal: JournalOption = DEFAULT_JOURNAL
    at: str | None = _AT
    limit: int = typer.Option(_LIMIT, help="Pods at most.", min=1)
    output: OutputOption = TableOrData.TABLE


@app.command("pending")
@takes_options
def pending(options: PendingOptions) -> None:
    """List the pods that have waited longest for a node."""
    from asched.audit.pod_state import pending_at

    at_ns = None if options.at is None else time_ns(options.at)

    async def query(store: JournalStore) -> Any:
        return await pending_at(store, installed_plugins().load, options.limit, at_ns)

    found = query_journal(options.journal, query)
    if options.output is TableOrData.JSON:
        print_json(found)
        return
    rows = [
        (
            f"{pod.namespace}/{pod.name}",
            pod.state,
            "" if pod.waited_s is None else f"{pod.waited_s:.0f} s",
            pod.reason,
        )
        for pod in found.pods
    ]
    print_table(("POD", "STATE", "WAITED", "REASON"), rows)
    print_text(f"{len(found.pods)} of {found.total} pending pod(s)")
    if found.pods:
        first = found.pods[0]
        explain = f"asched explain {first.namespace}/{first.name}"
        print_next(with_journal(explain, options.journal), "why it is pending")


@dataclass(frozen=True, kw_only=True)
class GroupOptions:
    name: str = typer.Argument(
        "",
        metavar="NAME",
        help="NAMESPACE/NAME of a gang, or KIND/NAME of an owner.",
        show_default=False,
    )
    journal: JournalOption = DEFAULT_JOURNAL
    at: str | None = _AT
    timeline: bool = typer.Option(
        False, "--timeline", help="What happened to the pods, and what caused what."
    )
    output: OutputOption = TableOrData.TABLE


@app.command("gang")
@takes_options
def gang(options: GroupOptions) -> None:
    """Explain a gang: its pods by state, and the reason that holds most of them."""
    from asched.audit.groups import GroupName

    _show_group(options, GroupName.of_gang)


@app.command("owner")
@takes_options
def owner(options: GroupOptions) -> None:
    """Explain the pods of an owner (KIND/NAME or NAMESPACE/KIND/NAME): ReplicaSet, Job and others.

    Shows the pods by state, and the reason that holds most of them.
    """
    from asched.audit.groups import GroupName

    _show_group(options, GroupName.of_owner)


def _show_group(options: GroupOptions, parse: Callable[[str], GroupName]) -> None:
    from asched.audit.group_history import group_history
    from asched.audit.groups import explain_group
    from asched.audit.history import Period

    if not options.name:
        raise BadInput("give the name of the group")
    name = parse(options.name)
    at_ns = None if options.at is None else time_ns(options.at)

    async def query(store: JournalStore) -> Any:
        load = installed_plugins().load
        if options.timeline:
            return await group_history(store, load, name, Period(0, at_ns))
        return await explain_group(store, load, name, at_ns)

    found = query_journal(options.journal, query)
    if options.output is TableOrData.JSON:
        print_json(found)
    elif options.timeline:
        _print_history(found)
    else:
        _print_group(found)


def _print_group(found: GroupExplanation) -> None:
    print_text(f"{found.sentence}\n  record {found.seq} at {_time(found.at)} UTC")
    print_text("  " + ", ".join(f"{count} {state}" for state, count in found.states.items()))
    if found.reasons:
        rows = [(one.pods, ", ".join(one.plugins), one.reason) for one in found.reasons]
        print_table(("PODS", "PLUGINS", "REASON"), rows)
    members = [
        (
            f"{pod.namespace}/{pod.name}",
            pod.state,
            pod.node,
            "" if pod.waited_s is None else f"{pod.waited_s:.0f} s",
        )
        for pod in found.members
    ]
    print_table(("POD", "STATE", "NODE", "WAITED"), members)
    for reason in found.job.reasons if found.job is not None else ():
        print_text(f"  {reason}")


def _print_history(found: GroupHistory) -> None:
    from asched.audit.entry_text import describe

    rows = sorted(
        (entry.seq, _time(entry.at), f"{pod.namespace}/{pod.name}", *describe(entry))
        for pod in found.pods
        for entry in pod.entries
    )
    print_table(("RECORD", "TIME (UTC)", "POD", "EVENT", ""), rows)
    causes = [(link.to_seq, link.kind.value, link.to_pod, link.text) for link in found.causes]
    print_table(("RECORD", "CAUSE", "POD", ""), causes)


def _time(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S}.{at.microsecond // 1000:03d}"
