"""``asched fit``: whether a pod that does not exist would run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from asched.cli.errors import EXIT_FAILURE, BadInput, InvalidFile
from asched.cli.options import (
    DEFAULT_JOURNAL,
    JournalOption,
    installed_plugins,
    query_journal,
    takes_options,
    time_ns,
)
from asched.cli.output import OutputOption, TableOrData, print_json, print_table

if TYPE_CHECKING:
    from asched.audit.fit import FitAnswer
    from asched.journal.store import JournalStore


@dataclass(frozen=True, kw_only=True)
class FitOptions:
    manifest: Path | None = typer.Argument(None, metavar="POD.yaml", help="The pod (YAML, JSON).")
    journal: JournalOption = DEFAULT_JOURNAL
    at: str | None = typer.Option(
        None, metavar="TIME", help="State at this time: 2026-01-31T12:00:00Z, or 2h30m ago."
    )
    every: bool = typer.Option(
        False, "--all", help="Show all nodes, not the first few of each kind."
    )
    output: OutputOption = TableOrData.TABLE


@takes_options
def fit(options: FitOptions) -> None:
    """Decide whether and where a pod would run.

    Decides a manifest against the state in the journal, now or at a past time, and says what blocks
    it. Nothing is recorded, and no cluster is asked. Exits with 1 if the pod does not fit.
    """
    from asched.audit.fit import fit as fit_pod

    if options.manifest is None:
        raise BadInput("name a file with the manifest of a pod; see asched fit --help")
    manifest = read_manifest(options.manifest)
    at_ns = None if options.at is None else time_ns(options.at)

    async def query(store: JournalStore) -> FitAnswer:
        return await fit_pod(store, manifest, installed_plugins().load, at_ns=at_ns)

    found = query_journal(options.journal, query)
    if options.output is TableOrData.JSON:
        print_json(found)
    else:
        _print(found, options.every)
    if not found.fits:
        raise typer.Exit(EXIT_FAILURE)


def read_manifest(path: Path) -> dict[str, Any]:
    """The only object in a file. Raises InvalidFile, ConfigFileError."""
    from asched.config.file import parse_yaml, read_text

    documents = parse_yaml(read_text(path), str(path))
    if len(documents) != 1 or not isinstance(documents[0].value, dict):
        raise InvalidFile([f"{path}: expected one Pod, got {len(documents)} documents"])
    document = documents[0]
    if document.problems:
        placed = document.located(document.problems)
        raise InvalidFile(f"{path}:{line}: {problem}" for line, problem in placed)
    found: dict[str, Any] = document.value
    return found


def _print(found: FitAnswer, every: bool) -> None:
    from asched.cli.explain import NODE_LIMIT, print_nodes, print_unblocking

    explanation = found.explanation
    print(found.sentence)
    print(f"  at {found.at:%Y-%m-%d %H:%M:%S} UTC, after record {found.seq}")
    for note in (*found.notes, *explanation.notes):
        print(f"  note: {note}")
    if explanation.reasons:
        rows = [(reason.nodes, reason.plugin, reason.reason) for reason in explanation.reasons]
        print_table(("NODES", "PLUGIN", "REJECTED BECAUSE"), rows)
    print_nodes(explanation, None if every else NODE_LIMIT)
    print_unblocking(explanation)
