"""``asched explain``: a scheduling attempt or a session, recomputed from the journal."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec
import typer

from asched.cli.device_requests import print_device_requests
from asched.cli.errors import EXIT_FAILURE, BadInput
from asched.cli.explained_nodes import print_node, print_nodes, rejection_text
from asched.cli.options import (
    DEFAULT_JOURNAL,
    JournalOption,
    PricesOption,
    installed_plugins,
    prices_of,
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
    from asched.audit.explain_job import JobExplanation
    from asched.audit.explanation import Explanation, NodeExplanation
    from asched.audit.pod_group.forms import PodGroupExplanation
    from asched.audit.preemption import PreemptionExplanation
    from asched.audit.unblock import NodeUnblocking
    from asched.journal.store import JournalStore
    from asched.pricing.alternatives import DecisionCosts

_CANDIDATES: Final = 5
"""Nodes shown of a preemption."""


@dataclass(frozen=True, kw_only=True)
class ExplainOptions:
    pod: str | None = typer.Argument(None, metavar="POD", help="NAME or NAMESPACE/NAME.")
    journal: JournalOption = DEFAULT_JOURNAL
    job: str | None = typer.Option(
        None, metavar="JOB", help="Explain a job of batch sessions: its PodGroup's NAMESPACE/NAME."
    )
    group: str | None = typer.Option(
        None, metavar="GROUP", help="Explain a PodGroup: its NAMESPACE/NAME."
    )
    attempt: int | None = typer.Option(
        None, help="Number of the attempt or session. Default: the last one.", min=1
    )
    at: str | None = typer.Option(
        None, metavar="TIME", help="State at this time: 2026-01-31T12:00:00Z, or 2h30m ago."
    )
    node: str | None = typer.Option(None, help="Show every result for this node.")
    every: bool = typer.Option(
        False, "--all", help="Show all nodes, not the first few of each kind."
    )
    unblock: bool = typer.Option(
        True, "--unblock/--no-unblock", help="Search changes that make a pod or group schedulable."
    )
    prices: PricesOption = None
    output: OutputOption = TableOrData.TABLE


@takes_options
def explain(options: ExplainOptions) -> None:
    """Explain a scheduling attempt: each plugin on each node.

    Restores the state before the decision from the journal and runs all filters and scores on every
    node. For a job (--job), or a pod placed by batch sessions, shows why the job was not admitted.
    For a PodGroup (--group), shows the dominant reason, what each topology domain lacks, and the
    changes that admit it. Exits with 1 if the recomputed decision differs from the recorded one,
    for example because another version of asched or of a plugin made it.
    """
    from asched.audit.explain_job import JobExplanation

    chosen = [options.pod, options.job, options.group]
    if sum(name is not None for name in chosen) != 1:
        raise BadInput("name either a pod or, with --job, a job or, with --group, a PodGroup")
    if options.prices is not None and options.pod is None:
        raise BadInput("--prices: costs are those of a pod's decision; name a pod")
    if options.group is not None:
        if options.node is not None:
            raise BadInput("--node: a group has no single node; explain one of its pods")
        _explain_group(options, options.group)
        return
    found = _explanation(options)
    if options.node is not None and not isinstance(found, JobExplanation):
        found = msgspec.structs.replace(found, nodes=(_node(found, options.node),))
    if options.output is TableOrData.JSON:
        print_json(found)
    elif isinstance(found, JobExplanation):
        _print_job(found)
    else:
        _print_head(found)
        if options.node is not None:
            print_node(found.nodes[0])
        else:
            print_nodes(found, every=options.every)
            if not found.feasible:
                print_device_requests(found.nodes)
        if found.preemption is not None:
            _print_preemption(found.preemption)
        if found.costs is not None:
            print_costs(found.costs)
        print_unblocking(found)
        if not found.feasible and not found.decision.node:
            history = f"asched history {found.namespace}/{found.name}"
            print_next(with_journal(history, options.journal), "all its attempts")
    _check_reproduced(found.reproduced)


def _explain_group(options: ExplainOptions, name: str) -> None:
    from asched.audit.pod_group.explain import GroupQuestion, explain_pod_group, parse_group
    from asched.cli.explain_group import print_group

    key = parse_group(name)
    at_ns = None if options.at is None else time_ns(options.at)

    asked = GroupQuestion(options.attempt, at_ns, unblock=options.unblock)

    async def query(store: JournalStore) -> PodGroupExplanation:
        return await explain_pod_group(store, installed_plugins().load, key, asked)

    found = query_journal(options.journal, query)
    if options.output is TableOrData.JSON:
        print_json(found)
    else:
        print_group(found)
    _check_reproduced(found.reproduced)


def _check_reproduced(reproduced: bool | None) -> None:
    if reproduced is False:
        typer.echo("asched: the recomputed decision differs from the recorded one", err=True)
        raise typer.Exit(EXIT_FAILURE)


def _explanation(options: ExplainOptions) -> Explanation | JobExplanation:
    from asched.audit.explain import InSessionsError
    from asched.audit.explain import explain as explain_pod
    from asched.audit.explain_job import explain_job
    from asched.audit.lookup import PodName

    at_ns = None if options.at is None else time_ns(options.at)
    prices = prices_of(options.prices)

    async def query(store: JournalStore) -> Explanation | JobExplanation:
        load, session = installed_plugins().load, options.attempt
        name = PodName.parse(options.job or options.pod or "")
        if options.job is None:
            try:
                return await explain_pod(
                    store,
                    name,
                    load,
                    attempt=session,
                    at_ns=at_ns,
                    unblock=options.unblock,
                    prices=prices,
                )
            except InSessionsError as placed:
                if prices is not None:
                    raise BadInput(f"--prices: {placed}; they have no ranked nodes") from None
                # The session that placed the pod, not a later one that left it alone.
                name, session = PodName.parse(placed.key), session or placed.session or None
        return await explain_job(store, name, load, session=session, at_ns=at_ns)

    return query_journal(options.journal, query)


def _print_job(found: JobExplanation) -> None:
    print_text(f"job {found.job} of {found.scheduler_name}")
    if found.reproduced is None:
        print_text("no session has included it; in a session now:")
    else:
        print_text(
            f"session {found.session} at {found.at:%Y-%m-%d %H:%M:%S} UTC, record {found.seq},"
            f" recomputed from the journal: {_comparison_result(found.reproduced)}"
        )
    print_text(f"  {'admitted' if found.admitted else 'not admitted'}")
    for reason in found.reasons:
        print_text(f"  - {reason}")
    if not found.phase:
        return
    print_text(
        f"  queue {found.queue}, priority {found.priority}, needs {found.min_available} pods,"
        f" phase {found.phase}"
    )
    print_text(f"  pods before: {_counts(found.pods_before)}; after: {_counts(found.pods_after)}")
    usage = found.queue_usage
    if usage is not None:
        print_table(
            ("RESOURCE", "ALLOCATED", "DESERVED", "REQUESTED"),
            [
                (r.resource, f"{r.allocated:.0f}", f"{r.deserved:.0f}", f"{r.requested:.0f}")
                for r in usage.resources
            ],
            title=f"queue {usage.name}, weight {usage.weight}, share {usage.share:.0%} of deserved",
        )
    for steps in found.steps:
        print_table((f"ACTION {steps.action.upper()}",), [(line,) for line in steps.lines])


def _counts(pods: dict[str, int]) -> str:
    return ", ".join(f"{count} {status}" for status, count in pods.items()) or "none"


def _comparison_result(reproduced: bool | None) -> str:
    return "identical" if reproduced else "DIFFERENT"


def _node(found: Explanation, name: str) -> NodeExplanation:
    from asched.framework.runtime.strict import nearest

    for node in found.nodes:
        if node.name == name:
            return node
    if not found.nodes:
        raise BadInput("the pod was rejected before any node was evaluated")
    guess = nearest(name, [node.name for node in found.nodes])
    hint = f"; did you mean {guess}?" if guess else ""
    raise BadInput(f"no node {name!r} at that time{hint}")


def _print_head(found: Explanation) -> None:
    print_text(f"pod {found.namespace}/{found.name}, uid {found.uid}, profile {found.profile}")
    group = found.group
    if group is not None:
        print_text(f"PodGroup {group.namespace}/{group.name}: {group.sentence}")
    decision = found.decision
    if decision.at is None:
        print_text("no attempt so far; an attempt now:")
    else:
        print_text(
            f"attempt {decision.attempt} of {len(found.attempts)}"
            f" at {decision.at:%Y-%m-%d %H:%M:%S} UTC, record {decision.seq}"
        )
        print_text(f"  decision: {_decision(found)}")
        for device in decision.devices:
            print_text(f"    device {device}")
        if decision.released_claim:
            print_text(f"    releases claim {decision.released_claim}")
        print_text(f"  recomputed from the journal: {_comparison_result(found.reproduced)}")
    if decision.at is None or not found.reproduced:
        print_text(f"  {found.outcome}{': ' + found.message if found.message else ''}")
    for rejection in found.pre_filter:
        print_text(f"  {rejection_text(rejection)}")
    for note in found.notes:
        print_text(f"  note: {note}")
    if found.nodes:
        print_text(f"  {found.feasible} of {found.nodes_total} nodes feasible")


def _decision(found: Explanation) -> str:
    decision = found.decision
    if decision.kind != "assigned":
        return f"{decision.kind}: {decision.message}"
    if decision.feasible == 1:
        return f"assigned to {decision.node}, the only feasible node"
    ties = f", selected from {decision.ties} nodes with that score" if decision.ties > 1 else ""
    nodes = f"{decision.feasible} feasible nodes"
    return f"assigned to {decision.node}, score {decision.score} of {nodes}{ties}"


def _print_preemption(found: PreemptionExplanation) -> None:
    print_text(
        f"preemption on {found.node}: {found.criterion.value};"
        f" {len(found.candidates)} candidates, {found.examined} nodes where evictions could help"
    )
    rows = [
        (
            one.node + (" <-" if one.node == found.node else ""),
            one.budget_violations,
            ", ".join(f"{victim.pod} ({victim.priority})" for victim in one.victims),
        )
        for one in found.candidates[:_CANDIDATES]
    ]
    print_table(("NODE", "BUDGETS VIOLATED", "VICTIMS (PRIORITY)"), rows)
    if len(found.candidates) > _CANDIDATES:
        print_text(f"... of {len(found.candidates)}; -o json has all")


def print_costs(costs: DecisionCosts) -> None:
    """Print what the decision costs, and its alternatives."""
    kinds = [("chosen", costs.chosen), ("cheapest", costs.cheapest)]
    if costs.runner_up is not None:
        kinds.insert(1, ("runner-up", costs.runner_up))
    print_table(
        ("NODE", "", "NODE PRICE", "DIFFERENCE", "PART OF THE POD", "DIFFERENCE"),
        [
            (
                cost.node,
                kind,
                f"{cost.node_per_hour:,.4f}",
                f"{cost.node_difference:+,.4f}",
                f"{cost.pod_per_hour:,.4f}",
                f"{cost.pod_difference:+,.4f}",
            )
            for kind, cost in kinds
        ],
        title=f"costs by the hour{', ' if costs.currency else ''}{costs.currency}",
    )


def print_unblocking(found: Explanation) -> None:
    if found.unblocking is None:
        return
    alike: defaultdict[tuple[str, str], list[NodeUnblocking]] = defaultdict(list)
    for node in found.unblocking:
        for change in node.changes:
            alike[", ".join(node.rejected_by), change.summary].append(node)
    rows = [(_unblocked(nodes), *change) for change, nodes in alike.items()]
    if rows:
        title = (
            "Each of these changes alone makes the node pass all filters"
            " (extenders, Reserve and Permit are not evaluated)"
        )
        print_table(("NODE", "REJECTED BY", "CHANGE"), rows, title=title)
    else:
        print_text("no single change makes one of the nearest nodes pass all filters")


def _unblocked(nodes: Sequence[NodeUnblocking]) -> str:
    number = sum(1 + node.alike for node in nodes)
    first = nodes[0].node or "(any)"
    return first if number == 1 else f"{number} nodes such as {first}"
