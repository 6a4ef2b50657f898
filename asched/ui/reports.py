"""Answers about the journal itself and about the plugins of its profiles."""

from __future__ import annotations

import time
from datetime import datetime

import msgspec

from asched.audit.plugin_times import PluginTimes, plugin_times
from asched.audit.timeline import time_of
from asched.config.registry import PluginRegistry
from asched.framework.interface import ExtensionPoint
from asched.framework.runtime.profile import ProfileError, ProfileSpec
from asched.journal.statistics import journal_id
from asched.ui.journal_progress import JournalProgress, VerificationReport
from asched.ui.journal_reader import JournalReader
from asched.ui.past import PastStates
from asched.ui.plugin_history import CircuitFacts, PluginFacts


class ArchiveSegment(msgspec.Struct, frozen=True, rename="camel"):
    """A file of the archive."""

    segment: int
    first_seq: int
    last_seq: int
    file: str
    archived_at: datetime


class JournalClaim(msgspec.Struct, frozen=True, rename="camel"):
    """A process that claimed the journal."""

    epoch: int
    writer: str
    claimed_at: datetime


class JournalReport(msgspec.Struct, frozen=True, rename="camel"):
    """The journal as ``asched journal stats`` and ``asched journal verify`` see it."""

    journal_id: str
    """Empty if it was never claimed."""
    progress: JournalProgress
    signed_seq: int
    """The last record that a signed head covers; 0 without one."""
    archived_seq: int
    """Records up to this one are in the archive; 0 without one."""
    archive: tuple[ArchiveSegment, ...]
    gap: str
    """What is missing between archive and journal, or stored outside the chain; empty if nothing
    is."""
    checkpoints: tuple[int, ...]
    """Their records."""
    writers: tuple[JournalClaim, ...]
    verification: VerificationReport | None
    """None until the first verification ended."""


async def journal_report(reader: JournalReader) -> JournalReport:
    """Raises JournalError."""
    store = reader.store
    archived, head, signed = await store.archived(), await store.head(), await store.signed_head()
    segments = await store.segments()
    gap = await store.find_unchained(head) or ""
    if not gap and archived.seq != (segments[-1].last_seq if segments else 0):
        gap = f"the archive ends before record {archived.seq}"
    return JournalReport(
        journal_id=await journal_id(store),
        progress=reader.progress,
        signed_seq=0 if signed is None else signed.head.seq,
        archived_seq=archived.seq,
        archive=tuple(
            ArchiveSegment(s.segment, s.first_seq, s.last_seq, s.file, time_of(s.archived_at_ns))
            for s in segments
        ),
        gap=gap,
        checkpoints=tuple(mark.seq for mark in await store.checkpoint_marks()),
        writers=tuple(
            JournalClaim(w.epoch, w.writer, time_of(w.claimed_at_ns)) for w in await store.writers()
        ),
        verification=reader.verifier.report,
    )


class EnabledPoint(msgspec.Struct, frozen=True, rename="camel"):
    """An extension point at which a profile enables a plugin."""

    extension_point: str
    weight: int | None = None
    """At score only."""


class PluginStatus(msgspec.Struct, frozen=True, rename="camel"):
    """A plugin of a recorded profile."""

    profile: str
    name: str
    distribution: str
    version: str
    """As recorded."""
    installed: str
    """Distribution and version where ``asched ui`` runs; empty if it is not installed."""
    differs: bool
    """Whether the installed version is not the recorded one."""
    enabled: tuple[EnabledPoint, ...]
    external: bool
    """Evaluated in a worker process or by another service."""
    circuit: str
    """``closed``, ``open``, ``trial``, or empty without a circuit breaker."""
    circuit_open_until: datetime | None
    recent_failures: int
    """Failures in the window of its circuit breaker."""
    failures: int
    """Failed attempts in the indexed records, in all profiles."""


class PluginReport(msgspec.Struct, frozen=True, rename="camel"):
    seq: int
    at: datetime
    plugins: tuple[PluginStatus, ...]
    missing: tuple[str, ...]
    """Why a profile is folded without some of its plugins."""


def plugin_report(
    facts: PluginFacts, at_ns: int, seq: int, registry: PluginRegistry, failures: dict[str, int]
) -> PluginReport:
    """The plugins of all profiles after a record. ``failures``: attempts that each failed."""
    circuits = {(circuit.profile, circuit.plugin): circuit for circuit in facts.circuits}
    found: list[PluginStatus] = []
    for profile in facts.profiles:
        spec = profile.spec
        origins = {origin.name: origin for origin in spec.origins}
        external = {plugin.name for plugin in spec.external}
        for name in spec.plugin_names:
            origin, here = origins.get(name), _installed(registry, name)
            recorded = "" if origin is None else f"{origin.distribution} {origin.version}".strip()
            circuit = circuits.get((spec.scheduler_name, name))
            status, open_until = _circuit(circuit)
            found.append(
                PluginStatus(
                    profile=spec.scheduler_name,
                    name=name,
                    distribution="" if origin is None else origin.distribution,
                    version="" if origin is None else origin.version,
                    installed=here,
                    differs=bool(recorded) and recorded != here,
                    enabled=_enabled_points(spec, name),
                    external=name in external,
                    circuit=status,
                    circuit_open_until=open_until,
                    recent_failures=0 if circuit is None else circuit.failures,
                    failures=failures.get(name, 0),
                )
            )
    missing = tuple(profile.missing for profile in facts.profiles if profile.missing)
    return PluginReport(seq, time_of(at_ns), tuple(found), missing)


def _enabled_points(spec: ProfileSpec, name: str) -> tuple[EnabledPoint, ...]:
    return tuple(
        EnabledPoint(point.field, plugin.weight if point is ExtensionPoint.SCORE else None)
        for point in ExtensionPoint
        for plugin in spec.plugins_at(point)
        if plugin.name == name
    )


async def past_plugins(
    journal: PastStates, seq: int, failures: tuple[tuple[str, int], ...]
) -> PluginReport:
    """:func:`plugin_report` after a record that is not indexed, for a worker process."""
    return await journal.on_state(
        seq,
        lambda state: plugin_report(
            PluginFacts.of(state), state.date_ns, seq, journal.registry, dict(failures)
        ),
    )


async def measured_plugins(journal: PastStates, seq: int) -> PluginTimes:
    """The durations of plugin calls for the attempts before a record, for a worker process."""
    return await plugin_times(journal.store, journal.load, seq, time.perf_counter_ns)


def _installed(registry: PluginRegistry, name: str) -> str:
    try:
        origin = registry.origin(name)
    except (ProfileError, LookupError):
        return ""
    return f"{origin.distribution} {origin.version}".strip()


def _circuit(circuit: CircuitFacts | None) -> tuple[str, datetime | None]:
    if circuit is None:
        return "", None
    if circuit.open_until_ns:
        return "open", time_of(circuit.open_until_ns)
    return ("trial" if circuit.on_trial else "closed"), None
