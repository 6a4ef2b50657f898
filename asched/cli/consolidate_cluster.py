"""``asched consolidate`` for a live cluster."""

from __future__ import annotations

import signal
import sys
from contextlib import AsyncExitStack
from typing import Final, NamedTuple

import anyio

from asched.cli.consolidate import (
    DEFAULT_RECORD,
    ConsolidateOptions,
    ConsolidationStopped,
    evictions_text,
    search_progress,
    show_plan,
)
from asched.cli.errors import EXIT_INTERRUPTED, as_command_error
from asched.cli.followed_cluster import configuration_of, followed_cluster
from asched.cli.options import prices_of
from asched.cli.output import TableOrData
from asched.config.file import Configuration
from asched.config.registry import PluginRegistry
from asched.consolidation.execution import ExecutionOptions, carry_out
from asched.consolidation.facts import ClusterReadError, with_facts
from asched.consolidation.live import FollowedCluster, with_prices
from asched.consolidation.plan import (
    ConsolidationError,
    ConsolidationPlan,
    plan_consolidation,
)
from asched.journal.kind import require_kind
from asched.journal.opening import open_journal
from asched.journal.store import JournalStore
from asched.kube.client import ApiClient
from asched.pricing.prices import Prices
from asched.state.consolidation_records import ConsolidationEnded, ConsolidationSettings

_BAD_INPUT: Final = (ConsolidationError,)


class ConsolidationResult(NamedTuple):
    """What was planned, and what became of it."""

    plan: ConsolidationPlan
    ended: list[ConsolidationEnded]


class ConsolidationInterrupted(ConsolidationStopped):
    """A signal ended the command."""

    exit_code = EXIT_INTERRUPTED


def consolidate_cluster(
    options: ConsolidateOptions, settings: ConsolidationSettings
) -> ConsolidationResult:
    """Plan for a live cluster, and carry the plan out with ``--apply``. Raises CommandError."""
    registry, prices = PluginRegistry.discover(), prices_of(options.prices)
    configuration = configuration_of(options, registry)
    try:
        return anyio.run(_consolidate, options, settings, prices, configuration, registry)
    except (BaseExceptionGroup, *_BAD_INPUT, ClusterReadError) as error:
        raise as_command_error(error, bad_input=_BAD_INPUT, failures=(ClusterReadError,)) from None


async def _consolidate(
    options: ConsolidateOptions,
    settings: ConsolidationSettings,
    prices: Prices | None,
    configuration: Configuration,
    registry: PluginRegistry,
) -> ConsolidationResult:
    async with AsyncExitStack() as stack:
        journal: JournalStore | None = None
        if options.apply:
            journal = await stack.enter_async_context(
                open_journal(options.record or DEFAULT_RECORD, daemon=True)
            )
            await require_kind(journal, shadow=True)
        cluster = await stack.enter_async_context(
            followed_cluster(options, configuration, registry, options.timeout, journal)
        )
        result: ConsolidationResult | None = None
        async with anyio.create_task_group() as tasks:
            if options.apply:
                tasks.start_soon(_stop_at_signal, tasks.cancel_scope)
            result = await _run(options, settings, prices, *cluster)
            tasks.cancel_scope.cancel()
        if result is None:
            raise ConsolidationInterrupted("interrupted; nodes that are not free are uncordoned")
        return result


async def _stop_at_signal(scope: anyio.CancelScope) -> None:
    """Cancel at SIGINT or SIGTERM, so that cordoned nodes are uncordoned."""
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for _ in signals:
            scope.cancel()
            return


async def _run(
    options: ConsolidateOptions,
    settings: ConsolidationSettings,
    prices: Prices | None,
    cluster: FollowedCluster,
    client: ApiClient,
) -> ConsolidationResult:
    settings = with_prices(settings, cluster.state, prices)
    known = await with_facts(client, settings, local_storage=options.local_storage)
    with search_progress() as show:
        if not options.apply:
            plan = plan_consolidation(cluster.state, cluster.load, known, show)
            return ConsolidationResult(plan, [])
        plan = await cluster.decide(known, show)
    quiet = options.output is TableOrData.JSON
    if not quiet:
        show_plan(plan, options)
    ended = await carry_out(
        cluster,
        client,
        settings,
        plan,
        ExecutionOptions(options.timeout, local_storage=options.local_storage),
        (lambda line: None) if quiet else _print_now,
    )
    for each in () if quiet else ended:
        _print_now(_sentence(each))
    return ConsolidationResult(plan, ended)


def _print_now(line: str) -> None:
    print(line)
    sys.stdout.flush()


def _sentence(ended: ConsolidationEnded) -> str:
    evictions = evictions_text(ended.evicted)
    if ended.deviation:
        return f"stopped at {ended.domain} after {evictions}: {ended.deviation}"
    return f"{ended.domain} is free and cordoned, after {evictions}"
