"""``asched consolidate``: which nodes or domains can be freed, and by which moves."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import typer

from asched.cli.errors import EXIT_FAILURE, BadInput, CommandError
from asched.cli.options import (
    PricesOption,
    installed_plugins,
    prices_of,
    query_journal,
    takes_options,
    time_ns,
)
from asched.cli.output import OutputOption, TableOrData, print_json, print_table, print_text
from asched.cli.run import ClusterOptions

if TYPE_CHECKING:
    from asched.consolidation import ConsolidationPlan, ConsolidationSettings
    from asched.consolidation.search import ProgressListener, SearchProgress
    from asched.journal.store import JournalStore

DEFAULT_RECORD: Final = "asched-consolidation.db"
"""Differs from the journal of ``asched run``, which has one writer."""


@dataclass(frozen=True, kw_only=True)
class ConsolidateOptions(ClusterOptions):
    journal: str | None = typer.Option(
        None, metavar="URL", help="Plan for the state in this journal. Default: the cluster."
    )
    at: str | None = typer.Option(
        None, metavar="TIME", help="With --journal: the state at this time. Default: its end."
    )
    by: str = typer.Option(
        "", metavar="LABEL", help="Free all nodes with the same value of this label together."
    )
    nodes: str = typer.Option(
        "", metavar="LABEL=VALUE", help="Free only nodes with these labels; comma-separated."
    )
    limit: int = typer.Option(0, "--max", metavar="N", help="Free at most N domains.", min=0)
    trials: int = typer.Option(200, metavar="N", help="Sets of domains tried at most.", min=1)
    prices: PricesOption = None
    local_storage: bool = typer.Option(
        False, "--ignore-local-storage", help="Evict pods with emptyDir or hostPath volumes, too."
    )
    apply: bool = typer.Option(
        False, "--apply", help="Cordon the nodes and evict the pods. Default: only print the plan."
    )
    timeout: float = typer.Option(
        300.0, metavar="SECONDS", help="For each eviction and its replacement.", min=0.1
    )
    record: str | None = typer.Option(
        None, metavar="URL", help=f"With --apply: the journal. Default: {DEFAULT_RECORD}."
    )
    output: OutputOption = TableOrData.TABLE


@takes_options
def consolidate(options: ConsolidateOptions) -> None:
    """Free whole nodes or domains by moving their pods.

    Finds the nodes with pods that fit elsewhere, the cheapest to free first. The scheduling cycle
    decides each move, in order. --apply cordons the nodes, evicts the pods through the Eviction
    API, and waits for each replacement; it stops when the cluster differs from the plan.
    """
    settings = settings_of(options)
    if options.journal is not None:
        if options.config or options.feature_gates:
            raise BadInput("--journal has its configuration: omit --config and --feature-gates")
        if options.apply or options.record or options.kubeconfig or options.context:
            raise BadInput("--journal needs no cluster: omit --apply, --record and --kubeconfig")
        show_plan(_plan_of_journal(options, options.journal, settings), options)
        return
    if options.at is not None:
        raise BadInput("--at is a time of a journal: give --journal")
    if options.record is not None and not options.apply:
        raise BadInput("--record is the journal of --apply; without it nothing is recorded")
    from asched.cli.consolidate_cluster import consolidate_cluster

    result = consolidate_cluster(options, settings)
    if options.output is TableOrData.JSON:
        print_json({"plan": result.plan, "ended": result.ended} if options.apply else result.plan)
    elif not options.apply:
        show_plan(result.plan, options)
    if any(ended.deviation for ended in result.ended):
        raise typer.Exit(EXIT_FAILURE)


def settings_of(options: ConsolidateOptions) -> ConsolidationSettings:
    """The settings in the options. Raises BadInput."""
    from asched.consolidation import ConsolidationSettings

    return ConsolidationSettings(
        by=options.by,
        selector=_labels(options.nodes),
        max_domains=options.limit,
        trials=options.trials,
    )


def _labels(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for part in filter(None, text.split(",")):
        key, equals, value = part.strip().partition("=")
        if not equals or not key:
            raise BadInput(f"--nodes: {part!r} is not LABEL=VALUE")
        found[key] = value
    return found


def _plan_of_journal(
    options: ConsolidateOptions, journal: str, settings: ConsolidationSettings
) -> ConsolidationPlan:
    from asched.audit.lookup import state_at
    from asched.consolidation import plan_consolidation
    from asched.consolidation.live import with_prices
    from asched.consolidation.plan import ConsolidationError

    at_ns = None if options.at is None else time_ns(options.at)
    load, prices = installed_plugins().load, prices_of(options.prices)

    async def query(store: JournalStore) -> ConsolidationPlan:
        state, _ = await state_at(store, load, at_ns)
        with search_progress() as show:
            return plan_consolidation(state, load, with_prices(settings, state, prices), show)

    try:
        return query_journal(journal, query)
    except ConsolidationError as error:
        raise BadInput(str(error)) from None


@contextmanager
def search_progress() -> Iterator[ProgressListener]:
    """A listener that shows the steps of the search, on a terminal's stderr only."""
    if not sys.stderr.isatty():
        yield lambda progress: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task("reading the state", total=None)

        def show(progress: SearchProgress) -> None:
            step = f"step {progress.step}: trying {progress.domains:,} nodes or domains"
            bars.update(task, description=step, completed=progress.done, total=progress.domains)

        yield show


def show_plan(plan: ConsolidationPlan, options: ConsolidateOptions) -> None:
    """Print a plan."""
    if options.output is TableOrData.JSON:
        print_json(plan)
        return
    what = plan.by or "node"
    nodes = sum(len(domain.nodes) for domain in plan.freed)
    if nodes:
        print_text(
            f"{nodes} of {plan.nodes} nodes can be freed by {evictions_text(plan.evictions)}"
            f" ({plan.cost_per_node:g} per node)."
        )
    else:
        print_text(f"None of the {plan.nodes} nodes can be freed.")
    prices = prices_of(options.prices)
    if plan.price_per_hour and prices is not None:
        price = f"{plan.price_per_hour:.4g} {prices.currency}".rstrip()
        print_text(f"They cost {price} an hour.")
    if plan.placed_first:
        print_text(f"{plan.placed_first} pending pods get a node first.")
    moves: list[Sequence[object]] = []
    for domain in plan.freed:
        moves += [(domain.name, move.pod, move.node, move.target) for move in domain.moves]
        if not domain.moves:
            moves.append((domain.name, "(no pod to move)", "", ""))
    if moves:
        print_table(("FREES", "POD", "FROM", "TO"), moves)
    if plan.kept:
        kept = [(each.name, f"{each.cost:g}", each.reason) for each in plan.kept]
        print_table((what.upper(), "COST", "REASON"), kept)


def evictions_text(number: int) -> str:
    """``1 eviction``, ``2 evictions``."""
    return f"{number} eviction" if number == 1 else f"{number} evictions"


class ConsolidationStopped(CommandError):  # noqa: N818  as BadInput
    """The cluster could not be read, or differs from the plan."""
