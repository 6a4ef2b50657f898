"""What ``asched explain`` prints of a job of batch sessions."""

from __future__ import annotations

import typer

from asched.audit.explain_job import JobExplanation
from asched.cli.output import TableOrData, print_json, print_table


def show_job(found: JobExplanation, output: TableOrData) -> None:
    """Print it. Exits with 1 where the session, held once more, came to something else."""
    if output is TableOrData.JSON:
        print_json(found)
    else:
        _print(found)
    if found.reproduced is False:
        typer.echo("asched: held once more, the session did not come to what is recorded", err=True)
        raise typer.Exit(1)


def _print(found: JobExplanation) -> None:
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
