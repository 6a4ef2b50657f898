"""Answers about shadow mode: how often two schedulers agree, and why they do not."""

from __future__ import annotations

import msgspec

from asched.audit.lookup import AuditError
from asched.audit.shadow import RecordedDifference, RecordedShadow
from asched.cycle.shadow_report import compared_nodes, pod_difference
from asched.journal.store import StoredRecord
from asched.state.records import ShadowCompared
from asched.ui.errors import RequestError
from asched.ui.journal_progress import Moment
from asched.ui.journal_reader import JournalReader

EXAMPLES = 200
"""Disagreements on a page."""


class ShadowDifference(msgspec.Struct, frozen=True, rename="camel"):
    """One disagreement with both evaluations."""

    difference: RecordedDifference
    """As in ``asched shadow -o json``, with its nodes."""
    plugins: tuple[str, ...]
    """The plugins with a score other than 0."""
    agreed: int
    compared: int
    """Comparisons of the same kind so far."""
    currency: str | None = None
    """Of the costs of nodes; None without prices."""


async def shadow_report(
    reader: JournalReader, moment: Moment, cause: str, pod: str
) -> RecordedShadow:
    """The report at a moment; ``cause`` and ``pod`` limit the listed disagreements.

    Raises :class:`RequestError` for an unknown cause, AuditError.
    """
    seq = await reader.seq_of(moment)
    reader.following()
    # A journal without records has no time either.
    written_at_ns = (await _stored(reader, seq)).written_at_ns if seq else 0
    found = reader.logs.shadow.report(seq, written_at_ns)
    known = [one.cause.value for one in found.causes]
    if cause and cause not in (*known, "open"):
        wanted = ", ".join([*known, "open"])
        raise RequestError(f"cause: {cause[:40]!r} is not one of {wanted}")
    listed = tuple(
        one for one in found.differences if pod in one.pod and cause in ("", _cause_of(one))
    )
    return msgspec.structs.replace(found, differences=listed)


def _cause_of(found: RecordedDifference) -> str:
    return found.cause.value if found.explained else "open"


async def _stored(reader: JournalReader, seq: int) -> StoredRecord:
    async for stored in reader.store.read(seq - 1, seq):
        return stored
    raise AuditError(f"record {seq} cannot be read")


async def shadow_difference(reader: JournalReader, seq: int) -> ShadowDifference:
    """The disagreement of a record. Raises AuditError, JournalError."""
    await reader.seq_of(Moment(seq))
    live, stored = reader.following(), await _stored(reader, seq)
    report = reader.logs.shadow.report(live.seq, stored.written_at_ns)
    found = next((one for one in report.differences if one.seq == seq), None)
    record = stored.record
    if found is None or not isinstance(record, ShadowCompared):
        raise AuditError(f"record {seq} is not a disagreement with kept details")
    prices = reader.prices
    nodes, difference = await reader.on_state(
        seq - 1,
        lambda state: (
            compared_nodes(state, record, prices),
            pod_difference(state, record, prices),
        ),
    )
    counts = report.bindings if found.node else report.messages
    return ShadowDifference(
        difference=msgspec.structs.replace(found, nodes=nodes, pod_difference=difference),
        plugins=tuple(
            dict.fromkeys(name for node in nodes for name, score in node.scores.items() if score)
        ),
        agreed=counts.agreed,
        compared=counts.compared,
        currency=None if prices is None else prices.currency,
    )
