"""Leader election with a Lease of coordination.k8s.io/v1: the rules, without a clock or requests.

    follow ── lease free or expired ──► write ── succeeded ──► lead ──► renew ...
      ▲                                   │                      │
      └──────────── conflict ─────────────┘◄── renewal too late ─┘

The rules are those of client-go's leader election. A candidate times a foreign lease by its own
monotonic clock, from the moment at which it saw the lease change; the times in a lease are for
readers. client-go times its own lease from the response to a renewal. Here it counts from sending
the request, because no candidate can have seen the renewal before. So two candidates never lead at
once as long as the rates of their clocks differ by less than lease duration to renew deadline.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime
from typing import NamedTuple

import msgspec


class LeaseTiming(msgspec.Struct, frozen=True):
    """Durations of an election, in seconds; the defaults are kube-scheduler's."""

    lease_duration_s: float = 15.0
    """Other candidates wait this long after they last saw the lease change."""
    renew_deadline_s: float = 10.0
    """A leader leads this long after its last renewal."""
    retry_period_s: float = 2.0
    """Between two attempts to renew, or (with jitter) to acquire the lease."""


class LeaseRecord(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The fields of a Lease's ``spec`` that an election uses."""

    holder_identity: str | None = None
    """Empty or absent: the lease is free."""
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class StoredLease(NamedTuple):
    """A lease as the API server has it."""

    record: LeaseRecord
    version: str
    """Its resourceVersion."""
    metadata: bytes
    """All of its metadata, as JSON: an update changes nothing but the leader's journal."""
    journal_id: str = ""
    """Identity of the journal of the last leader; empty if unknown."""


class ReadLease(NamedTuple):
    """Request: get the lease."""


class CreateLease(NamedTuple):
    """Request: create the lease, which does not exist."""

    record: LeaseRecord


class ReplaceLease(NamedTuple):
    """Request: update the lease unless it changed since it was read."""

    record: LeaseRecord
    stored: StoredLease


LeaseRequest = ReadLease | CreateLease | ReplaceLease


class LeaseMissing(NamedTuple):
    """There is no such lease."""


class LeaseConflict(NamedTuple):
    """Another candidate wrote first; the request changed nothing."""


class RequestFailed(NamedTuple):
    """The request may or may not have been carried out."""


LeaseAnswer = StoredLease | LeaseMissing | LeaseConflict | RequestFailed


class Election:
    """The state of one candidate. An attempt starts with the request that :meth:`begin` returns,
    and continues with those that :meth:`next_request` returns until that is None."""

    def __init__(self, identity: str, timing: LeaseTiming, utc: Callable[[], datetime]) -> None:
        """``identity`` must be unique among all candidates, past ones included. ``utc`` gives the
        times that are written to the lease."""
        self.identity = identity
        self._timing = timing
        self._utc = utc
        self._seen: StoredLease | None = None
        self._seen_at_s = 0.0
        """When the last seen record was first seen."""
        self._renewed_at_s: float | None = None
        """When the last successful write was sent; None while not leading."""
        self._current = False
        """Whether the last seen lease is the one written here: it can be renewed without a read."""
        self._releasing = False

    @property
    def holder(self) -> str:
        """Holder of the last seen lease; empty if it is free."""
        return "" if self._seen is None else self._seen.record.holder_identity or ""

    @property
    def stored_metadata(self) -> bytes:
        """Metadata of the last seen lease, as JSON; empty if none was seen."""
        return b"" if self._seen is None else self._seen.metadata

    @property
    def lease_journal_id(self) -> str:
        """Identity of the last leader's journal, as the last seen lease shows it."""
        return "" if self._seen is None else self._seen.journal_id

    @property
    def leads_until_s(self) -> float:
        """Nothing may be decided or sent from then on, unless the lease is renewed before. Minus
        infinity while not leading."""
        if self._renewed_at_s is None:
            return -math.inf
        return self._renewed_at_s + self._timing.renew_deadline_s

    @property
    def lease_ends_s(self) -> float:
        """Another candidate may lead from then on. Minus infinity while not leading."""
        if self._renewed_at_s is None:
            return -math.inf
        return self._renewed_at_s + self._timing.lease_duration_s

    def leads(self, now_s: float) -> bool:
        return now_s < self.leads_until_s

    @property
    def free_at_s(self) -> float:
        """When the lease may be acquired; minus infinity if now."""
        if self._seen is None or self.holder in ("", self.identity):
            return -math.inf
        seconds = self._seen.record.lease_duration_seconds
        duration_s = self._timing.lease_duration_s if seconds is None else float(seconds)
        return self._seen_at_s + duration_s

    def begin(self, now_s: float) -> LeaseRequest:
        """The first request of an attempt to acquire or renew the lease."""
        if self._seen is not None and self._current and self.leads(now_s):
            return ReplaceLease(self._held(self._seen.record), self._seen)
        return ReadLease()

    def next_request(
        self, request: LeaseRequest, answer: LeaseAnswer, sent_at_s: float, now_s: float
    ) -> LeaseRequest | None:
        """Process the answer. Returns the attempt's next request, None if the attempt ends."""
        if isinstance(request, ReadLease):
            return self._after_read(answer, now_s)
        renewal, self._current = self._current, False
        if isinstance(answer, StoredLease):
            self._note(answer, now_s)
            if self.holder == self.identity:
                self._renewed_at_s, self._current = sent_at_s, True
            return None
        # Only a renewal skips the read, so only its conflict needs one within the same attempt.
        return ReadLease() if isinstance(answer, LeaseConflict) and renewal else None

    def release(self) -> LeaseRequest | None:
        """Stop leading for good. Returns the first request of an attempt to free the lease, None if
        it is not held."""
        self._renewed_at_s, self._releasing = None, True
        if self._seen is None or self.holder != self.identity:
            return None
        return ReplaceLease(self._freed(self._seen.record), self._seen)

    def _after_read(self, answer: LeaseAnswer, now_s: float) -> LeaseRequest | None:
        if isinstance(answer, StoredLease):
            return self._after_found(answer, now_s)
        # The holder of a deleted lease may not know yet that it is gone: wait for its duration.
        if not isinstance(answer, LeaseMissing) or self._releasing or now_s < self.free_at_s:
            return None
        now = _micro_time(self._utc())
        return CreateLease(LeaseRecord(self.identity, self._seconds, now, now, 0))

    def _after_found(self, stored: StoredLease, now_s: float) -> LeaseRequest | None:
        self._note(stored, now_s)
        held = self.holder == self.identity
        if not held:
            self._renewed_at_s = None
        if self._releasing:
            return ReplaceLease(self._freed(stored.record), stored) if held else None
        if now_s < self.free_at_s:
            return None
        return ReplaceLease(self._held(stored.record), stored)

    def _note(self, stored: StoredLease, now_s: float) -> None:
        if self._seen is None or self._seen.record != stored.record:
            self._seen_at_s = now_s
        self._seen = stored

    def _held(self, before: LeaseRecord) -> LeaseRecord:
        """``before``, acquired or renewed by this candidate."""
        now = _micro_time(self._utc())
        transitions = before.lease_transitions or 0
        if before.holder_identity == self.identity:
            return LeaseRecord(self.identity, self._seconds, before.acquire_time, now, transitions)
        return LeaseRecord(self.identity, self._seconds, now, now, transitions + 1)

    def _freed(self, before: LeaseRecord) -> LeaseRecord:
        """``before``, released as client-go releases it."""
        now = _micro_time(self._utc())
        return LeaseRecord("", 1, now, now, before.lease_transitions)

    @property
    def _seconds(self) -> int:
        """Leases hold whole seconds: rounded up, so that no candidate takes it too early."""
        return max(1, math.ceil(self._timing.lease_duration_s))


def _micro_time(moment: datetime) -> str:
    """``metav1.MicroTime``."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
