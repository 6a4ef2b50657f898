"""The explanation and the history of a pod group as text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Final

from asched.cli.output import output_width, print_table, print_text

if TYPE_CHECKING:
    from datetime import datetime

    from asched.audit.pod_group.forms import (
        DomainShortage,
        PodGroupExplanation,
        RecordedGroupAttempt,
    )
    from asched.audit.pod_group.history import PodGroupHistory

_MODES: Final = {
    "groupCycle": "scheduled as a whole",
    "podByPod": "scheduled pod by pod",
    "batchSession": "scheduled by batch sessions",
}


def print_group(found: PodGroupExplanation) -> None:
    mode = f", {_MODES[found.mode]}" if found.mode else ""
    print_text(f"PodGroup {found.namespace}/{found.name}{mode}: {found.reason.value}")
    print_text(f"  {found.sentence}")
    topology = f", one domain of {found.topology_key}" if found.topology_key else ""
    print_text(
        f"  minimum {found.minimum}{topology}, priority {found.priority}; {found.pods} pods:"
        f" {found.with_node} with a node, {found.pending} pending"
    )
    print_text(f"  state after record {found.seq} at {found.at:%Y-%m-%d %H:%M:%S} UTC")
    _print_attempt(found)
    for note in found.notes:
        print_text(f"  note: {note}")
    if found.job is not None:
        for reason in found.job.reasons[1:]:
            print_text(f"  - {reason}")
    if found.domains:
        heads = ("DOMAINS", "EXAMPLES", "NODES", "MEMBERS THAT FIT", "LACKS")
        rows = [
            (*_domain(row), f"{row.fits} of {found.missing}", row.lacks) for row in found.domains
        ]
        print_table(heads, rows)
    _print_changes(found)


def _domain(row: DomainShortage) -> tuple[object, ...]:
    more = " ..." if row.domains > len(row.names) > 0 else ""
    return row.domains, f"{', '.join(row.names) or '(all nodes)'}{more}", row.nodes


def _print_attempt(found: PodGroupExplanation) -> None:
    attempt = found.attempt
    if attempt is None:
        return
    where = f" in {attempt.domain}" if attempt.domain else ""
    tried = f", {attempt.domains_tried} domains tried" if attempt.domains_tried > 1 else ""
    print_text(
        f"  last attempt at {attempt.at:%Y-%m-%d %H:%M:%S} UTC, record {attempt.seq}:"
        f" {attempt.outcome}, {attempt.placed} of {attempt.members} members fit{where}{tried}"
    )
    if attempt.victims:
        print_text(f"  victims: {', '.join(attempt.victims)}")
    if found.reproduced is not None:
        same = "identical" if found.reproduced else "DIFFERENT"
        print_text(f"  recomputed from the journal: {same}")


def _print_changes(found: PodGroupExplanation) -> None:
    if found.changes is None:
        return
    if not found.changes:
        print_text("no single change that was tried admits the group")
        return
    rows = [(change.size, change.kind.value, change.summary) for change in found.changes]
    title = "Each change alone admits the group; the smallest first"
    print_table(("OBJECTS", "KIND", "CHANGE"), rows, title=title)


_PODS: Final = 50
"""Members that a table shows."""
_TIME: Final = "%H:%M:%S"
_DAY_AND_TIME: Final = f"%Y-%m-%d {_TIME}"


def print_group_history(found: PodGroupHistory) -> None:
    print_text(f"PodGroup {found.namespace}/{found.name}: {len(found.members)} pods")
    wait = "" if found.wait_s is None else f", {found.wait_s:.3f} s after its first pod"
    domain = f" in {found.domain}" if found.domain else ""
    print_text(f"  first pod {_time(found.first_at)}")
    print_text(f"  started   {_time(found.started_at)}{wait}{domain}")
    print_text(f"  ended     {_time(found.ended_at)}")
    outcomes = ", ".join(f"{count} {outcome}" for outcome, count in found.outcomes.items())
    whole = f"{len(found.attempts)} attempts of the whole group"
    print_text(
        f"  {whole}{f' ({outcomes})' if outcomes else ''}, {found.member_attempts} of its pods"
    )
    print_text(f"  {len(found.victims)} pods evicted for it, {found.evicted} of its own evicted")
    heads = (
        *("FIRST (UTC)", "LAST", "RECORD", "ATTEMPTS", "OUTCOME"),
        *("PLACED", "DOMAIN", "TRIED", "VICTIMS", "MESSAGE"),
    )
    form = _TIME if output_width() is not None and _is_of_one_day(found) else _DAY_AND_TIME
    if found.attempts:
        rows = [*attempt_rows(found.attempts, form)]
        print_table(*(_without_empty_columns(heads, rows) if form == _TIME else (heads, rows)))
    members = [
        (
            *(one.name, one.node, one.attempts),
            *(_time(at, form) for at in (one.first_at, one.bound_at, one.ended_at)),
        )
        for one in found.members
    ]
    print_table(("POD", "NODE", "ATTEMPTS", "FIRST (UTC)", "BOUND", "ENDED"), members[:_PODS])
    if len(members) > _PODS:
        print_text(f"... of {len(members)}; -o json has all")


def attempt_rows(
    attempts: Iterable[RecordedGroupAttempt], form: str = _DAY_AND_TIME
) -> Iterator[tuple[object, ...]]:
    """One row for successive attempts with the same result."""
    for result, alike in groupby(attempts, _result):
        first, *others = alike
        last = _time(others[-1].at, form) if others else ""
        yield _time(first.at, form), last, first.seq, len(others) + 1, *result


def _result(one: RecordedGroupAttempt) -> tuple[object, ...]:
    placed, victims = f"{one.placed} of {one.members}", ", ".join(one.victims)
    return one.outcome, placed, one.domain, one.domains_tried, victims, one.message


def _without_empty_columns(
    heads: Sequence[str], rows: Sequence[Sequence[object]]
) -> tuple[list[str], list[list[object]]]:
    """The table without columns that have no text in any row."""
    kept = [index for index in range(len(heads)) if any(row[index] != "" for row in rows)]
    return [heads[index] for index in kept], [[row[index] for index in kept] for row in rows]


def _is_of_one_day(found: PodGroupHistory) -> bool:
    """Whether the lines above the tables name the day of all times in them."""
    times = [attempt.at for attempt in found.attempts]
    times += [
        at
        for one in found.members
        for at in (one.first_at, one.bound_at, one.ended_at)
        if at is not None
    ]
    return found.first_at is not None and {at.date() for at in times} <= {found.first_at.date()}


def _time(at: datetime | None, form: str = _DAY_AND_TIME) -> str:
    return "" if at is None else f"{at:{form}}.{at.microsecond // 1000:03d}"
