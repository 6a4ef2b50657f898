"""``asched explain``: which plugins said what on which nodes, recomputed from the journal.

What ``asched explain`` prints of a job of batch sessions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final, NamedTuple

import msgspec
import typer

from asched.audit.explain import (
    Explanation,
    InSessionsError,
    NodeExplanation,
    NodeRejection,
    explain,
)
from asched.audit.explain_job import JobExplanation, explain_job
from asched.audit.lookup import PodName
from asched.cli.errors import BadInput
from asched.cli.main import command_app
from asched.cli.options import DEFAULT_URL, JournalOption, ask, time_ns
from asched.cli.output import OutputOption, TableOrData, print_json, print_table
from asched.config.registry import PluginRegistry
from asched.framework.runtime.strict import nearest
from asched.journal.store import JournalStore


def show_job(found: JobExplanation, output: TableOrData) -> None:
    """Print it. Exits with 1 where the session, held once more, came to something else."""
    if output is TableOrData.JSON:
        print_json(found)
    else:
        _print_job(found)
    if found.reproduced is False:
        typer.echo("asched: held once more, the session did not come to what is recorded", err=True)
        raise typer.Exit(1)


def _print_job(found: JobExplanation) -> None:
    print(f"job {found.job} of {found.scheduler_name}")
    if found.reproduced is None:
        print("no session looked at it so far; if one were held now:")
    else:
        print(
            f"session {found.session} at {found.at:%Y-%m-%d %H:%M:%S} UTC, record {found.seq},"
            f" held once more from the journal: {'the same' if found.reproduced else 'NOT'}"
        )
    print(f"  {'admitted' if found.admitted else 'not admitted'}")
    for reason in found.reasons:
        print(f"  - {reason}")
    if not found.phase:
        return
    print(
        f"  queue {found.queue}, priority {found.priority}, needs {found.min_available} pods,"
        f" phase {found.phase}"
    )
    print(f"  pods before: {_counts(found.pods_before)}; after: {_counts(found.pods_after)}")
    standing = found.queue_standing
    if standing is not None:
        print_table(
            ("RESOURCE", "ALLOCATED", "DESERVED", "REQUESTED"),
            [
                (r.resource, f"{r.allocated:.0f}", f"{r.deserved:.0f}", f"{r.requested:.0f}")
                for r in standing.resources
            ],
            title=f"queue {standing.name}, weight {standing.weight}: has {standing.share:.0%} of"
            " what it deserves",
        )
    for steps in found.steps:
        print_table((f"WHAT {steps.action.upper()} DID",), [(line,) for line in steps.lines])


def _counts(pods: dict[str, int]) -> str:
    return ", ".join(f"{count} {status}" for status, count in pods.items()) or "none"


app = command_app("Explain a pod's scheduling attempt: what each plugin said of each node.")

_SHOWN: Final = 15
"""Nodes of each kind, unless all are wanted."""


@app.command(name="explain")
def explain_pod(
    pod: Annotated[
        str | None, typer.Argument(metavar="POD", help="NAME or NAMESPACE/NAME.")
    ] = None,
    journal: JournalOption = DEFAULT_URL,
    job: Annotated[
        str | None,
        typer.Option(
            metavar="JOB", help="A job of batch sessions instead: its PodGroup's NAMESPACE/NAME."
        ),
    ] = None,
    attempt: Annotated[
        int | None,
        typer.Option(help="Which attempt, or session. Default: the last one.", min=1),
    ] = None,
    at: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="As it was then: 2026-01-31T12:00:00Z, or so long ago, as 2h30m.",
        ),
    ] = None,
    node: Annotated[str | None, typer.Option(help="Show all that was found of this node.")] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Show all nodes, not the first few of each kind.")
    ] = False,
    unblock: Annotated[
        bool,
        typer.Option(
            "--unblock/--no-unblock", help="Look for what would help a pod that fits nowhere."
        ),
    ] = True,
    output: OutputOption = TableOrData.TABLE,
) -> None:
    """Explain a pod's scheduling attempt: what each plugin said of each node.

    For a job of batch sessions (--job), or a pod that such sessions place: why the job was not
    admitted. The state just before the decision is made again from the journal, and all filters and scores
    are run on every node. Exits with 1 where deciding once more gives another decision than the
    recorded one (another version of asched or of a plugin decided then).
    """
    at_ns = None if at is None else time_ns(at)
    if (pod is None) is (job is None):
        raise BadInput("asched: name either a pod or, with --job, a job")
    asked = _Asked(job is not None, attempt, at_ns, unblock)
    found = ask(journal, job or pod or "", asked.answer)
    if isinstance(found, JobExplanation):
        show_job(found, output)
        return
    if node is not None:
        found = msgspec.structs.replace(found, nodes=(_node(found, node),))
    if output is TableOrData.JSON:
        print_json(found)
    else:
        _print(found, None if every else _SHOWN, one_node=node is not None)
    if found.reproduced is False:
        typer.echo("asched: decided once more, the outcome is not the recorded one", err=True)
        raise typer.Exit(1)


class _Asked(NamedTuple):
    """What is to be explained."""

    job: bool
    """Whether it is a job of batch sessions; else a pod."""
    attempt: int | None
    at_ns: int | None
    unblock: bool

    async def answer(
        self, store: JournalStore, name: PodName, registry: PluginRegistry
    ) -> Explanation | JobExplanation:
        session = self.attempt
        if not self.job:
            try:
                return await explain(
                    store, name, registry.load,
                    attempt=self.attempt, at_ns=self.at_ns, unblock=self.unblock,
                )  # fmt: skip
            except InSessionsError as placed:
                # What placed a pod is of interest, not what sessions had no more to do with it since.
                name, session = PodName.parse(placed.key), session or placed.session or None
        return await explain_job(store, name, registry.load, session=session, at_ns=self.at_ns)


def _print(found: Explanation, limit: int | None, *, one_node: bool) -> None:
    _print_head(found)
    if one_node:
        _print_node(found.nodes[0])
    else:
        _print_nodes(found, limit)
    _print_unblocking(found)


def _node(found: Explanation, name: str) -> NodeExplanation:
    for node in found.nodes:
        if node.name == name:
            return node
    if not found.nodes:
        raise BadInput("asched: no node was looked at: the pod was turned away before")
    guess = nearest(name, [node.name for node in found.nodes])
    hint = f"; did you mean {guess}?" if guess else ""
    raise BadInput(f"asched: no node {name!r} at that time{hint}")


def _print_head(found: Explanation) -> None:
    print(f"pod {found.namespace}/{found.name}, uid {found.uid}, profile {found.profile}")
    decision = found.decision
    if decision.at is None:
        print("never tried so far; if it were now:")
    else:
        print(
            f"attempt {decision.attempt} of {len(found.attempts)} at {decision.at:%Y-%m-%d %H:%M:%S}"
            f" UTC, record {decision.seq}"
        )
        print(f"  decided: {_decided(found)}")
        print(f"  decided once more from the journal: {'the same' if found.reproduced else 'NOT'}")
    if decision.at is None or not found.reproduced:
        print(f"  {found.outcome}{': ' + found.message if found.message else ''}")
    for refusal in found.pre_filter:
        print(f"  {_refused(refusal)}")
    for note in found.notes:
        print(f"  note: {note}")
    if found.nodes:
        print(f"  {found.feasible} of {found.nodes_total} nodes feasible")
    if found.reasons:
        rows = [(str(reason.nodes), reason.plugin, reason.reason) for reason in found.reasons]
        print_table(("NODES", "PLUGIN", "REFUSED BECAUSE"), rows)


def _decided(found: Explanation) -> str:
    decision = found.decision
    if decision.kind != "assigned":
        return f"{decision.kind}: {decision.message}"
    if decision.feasible == 1:
        return f"to {decision.node}, the only feasible node"
    text = f"to {decision.node}, score {decision.score} of {decision.feasible} feasible nodes"
    return f"{text}, drawn among {decision.ties} equally good" if decision.ties > 1 else text


def _refused(refusal: NodeRejection) -> str:
    return f"{refusal.plugin}: {', '.join(refusal.reasons)} ({refusal.code})"


def _print_nodes(found: Explanation, limit: int | None) -> None:
    feasible = [node for node in found.nodes if node.feasible]
    refused = [node for node in found.nodes if not node.feasible]
    if feasible:
        plugins = [(score.plugin, score.weight) for score in feasible[0].scores]
        print_table(
            ("RANK", "NODE", "TOTAL", *(f"{plugin} x{weight}" for plugin, weight in plugins)),
            [
                (
                    str(node.rank),
                    node.name + (" <-" if node.name == found.decision.node else ""),
                    str(node.total),
                    *(str(score.weighted) for score in node.scores),
                )
                for node in _shown(feasible, limit, found.decision.node)
            ],
        )
        _print_left_out(len(feasible), limit)
    if refused:
        print_table(
            ("NODE", "REFUSED BY"),
            [
                (node.name, "; ".join(map(_refused, node.refused_by)))
                for node in _shown(refused, limit, "")
            ],
        )
        _print_left_out(len(refused), limit)


def _print_unblocking(found: Explanation) -> None:
    if found.unblocking is None:
        return
    rows = [
        (prospect.node or "(any)", ", ".join(prospect.refused_by), change.summary)
        for prospect in found.unblocking
        for change in prospect.changes
    ]
    if rows:
        title = "Each of these alone would unblock it (tried, all filters pass then)"
        print_table(("NODE", "REFUSED BY", "CHANGE"), rows, title=title)
    else:
        print("no single change was found that would unblock it on the nearest nodes")


def _shown(
    nodes: Sequence[NodeExplanation], limit: int | None, wanted: str
) -> list[NodeExplanation]:
    """The first ones, and the one that was chosen wherever it stands."""
    return [n for i, n in enumerate(nodes) if limit is None or i < limit or n.name == wanted]


def _print_left_out(count: int, limit: int | None) -> None:
    if limit is not None and count > limit:
        print(f"... of {count}; --all shows every one, --node NODE all of one")


def _print_node(node: NodeExplanation) -> None:
    if not node.feasible:
        print_table(
            ("PLUGIN", "CODE", "REFUSES " + node.name + " BECAUSE"),
            [(r.plugin, r.code, ", ".join(r.reasons)) for r in node.refused_by],
        )
        return
    print_table(
        ("PLUGIN", "RAW", "NORMALIZED", "WEIGHT", "WEIGHTED"),
        [
            (s.plugin, str(s.raw), str(s.normalized), str(s.weight), str(s.weighted))
            for s in node.scores
        ],
        title=f"{node.name}: total {node.total}, rank {node.rank}",
    )
