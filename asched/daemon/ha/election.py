"""Who leads, by a Lease of coordination.k8s.io/v1: the rules, without a clock and without requests.

    follow ── the lease is free, or ran out ──► write ── carried out ──► lead ──► write it again ...
      ▲                                           │                       │
      └────── somebody else was faster ───────────┘◄── renewed too late ──┘

The rules are those of client-go's leader election, and make no use of anybody's wall clock: how long
a foreign lease holds is timed by the candidate's own monotonic clock, from the moment at which it saw
the lease change. The times written in a lease are for people. Where client-go counts the own lease
from the answer to a renewal, here it counts from the moment at which the request was sent, because
nobody can have seen the renewal before; so two never lead at once as long as their monotonic clocks
differ in pace by less than the lease's duration from the deadline of its renewal.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime
from typing import NamedTuple

import msgspec


class LeaseTiming(msgspec.Struct, frozen=True):
    """Patience of an election, in seconds; the defaults are kube-scheduler's."""

    lease_duration_s: float = 15.0
    """So long after they last saw a lease change the others leave it alone."""
    renew_deadline_s: float = 10.0
    """So long after the last renewal a leader goes on leading."""
    retry_period_s: float = 2.0
    """Between two tries to renew, or (with jitter) to take the lease."""


class LeaseRecord(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """``spec`` of a Lease, as far as an election uses it."""

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
    """All of its metadata, as JSON: an update sends it back as it was."""


class ReadLease(NamedTuple):
    """Get the lease."""


class CreateLease(NamedTuple):
    """Make the lease, which does not exist."""

    record: LeaseRecord


class ReplaceLease(NamedTuple):
    """Write the lease, unless it has changed since it was read."""

    record: LeaseRecord
    stored: StoredLease


LeaseRequest = ReadLease | CreateLease | ReplaceLease


class LeaseMissing(NamedTuple):
    """There is no such lease."""


class LeaseConflict(NamedTuple):
    """Somebody else wrote first: nothing was done."""


class RequestFailed(NamedTuple):
    """Whether anything was done is not known."""


LeaseAnswer = StoredLease | LeaseMissing | LeaseConflict | RequestFailed


class Election:
    """One candidate. It is told what it asked came to, and asked what to do next.

    A try begins with :meth:`begin` and goes on with what :meth:`answered` returns, until that is None.
    """

    def __init__(self, identity: str, timing: LeaseTiming, utc: Callable[[], datetime]) -> None:
        """``identity`` is to be like no other candidate's, now or earlier. ``utc`` dates what is
        written, for those who read it."""
        self.identity = identity
        self._timing = timing
        self._utc = utc
        self._seen: StoredLease | None = None
        self._seen_at_s = 0.0
        """When the record that was seen last was seen first."""
        self._renewed_at_s: float | None = None
        """When the write was sent by which we lead; None while we do not."""
        self._up_to_date = False
        """Whether what was seen is what we wrote, so that it can be renewed without reading it."""
        self._releasing = False

    # -- what is so -----------------------------------------------------------------------------

    @property
    def holder(self) -> str:
        """Who held the lease when it was last seen; empty for nobody."""
        return "" if self._seen is None else self._seen.record.holder_identity or ""

    @property
    def leads_until_s(self) -> float:
        """From then on nothing may be decided, or sent, unless the lease is renewed before. Minus
        infinity for who does not lead."""
        if self._renewed_at_s is None:
            return -math.inf
        return self._renewed_at_s + self._timing.renew_deadline_s

    @property
    def lease_ends_s(self) -> float:
        """From then on somebody else may lead. Minus infinity for who does not lead."""
        if self._renewed_at_s is None:
            return -math.inf
        return self._renewed_at_s + self._timing.lease_duration_s

    def leads(self, now_s: float) -> bool:
        return now_s < self.leads_until_s

    @property
    def free_at_s(self) -> float:
        """When the lease may be taken, for all that is known: minus infinity if at once."""
        if self._seen is None or self.holder in ("", self.identity):
            return -math.inf
        seconds = self._seen.record.lease_duration_seconds
        duration_s = self._timing.lease_duration_s if seconds is None else float(seconds)
        return self._seen_at_s + duration_s

    # -- a try ----------------------------------------------------------------------------------

    def begin(self, now_s: float) -> LeaseRequest:
        """The first request of a try to take or renew the lease."""
        if self._seen is not None and self._up_to_date and self.leads(now_s):
            return ReplaceLease(self._ours(self._seen.record), self._seen)
        return ReadLease()

    def answered(
        self, request: LeaseRequest, answer: LeaseAnswer, sent_at_s: float, now_s: float
    ) -> LeaseRequest | None:
        """Take in what a request came to; the next request of this try, None if it is over."""
        if isinstance(request, ReadLease):
            return self._read(answer, now_s)
        renewal, self._up_to_date = self._up_to_date, False
        if isinstance(answer, StoredLease):
            self._note(answer, now_s)
            if self.holder == self.identity:
                self._renewed_at_s, self._up_to_date = sent_at_s, True
            return None
        # Unless it is ours it was read just before, so that to read it again is for the next try.
        return ReadLease() if isinstance(answer, LeaseConflict) and renewal else None

    def release(self) -> LeaseRequest | None:
        """Stop leading, now and for good. The request that lets the others know, a try of its own; None
        if there is nothing to tell."""
        self._renewed_at_s, self._releasing = None, True
        if self._seen is None or self.holder != self.identity:
            return None
        return ReplaceLease(self._freed(self._seen.record), self._seen)

    def _read(self, answer: LeaseAnswer, now_s: float) -> LeaseRequest | None:
        if isinstance(answer, StoredLease):
            return self._read_stored(answer, now_s)
        # Whoever held a lease that was deleted may not know it yet.
        if not isinstance(answer, LeaseMissing) or self._releasing or now_s < self.free_at_s:
            return None
        now = _micro_time(self._utc())
        return CreateLease(LeaseRecord(self.identity, self._seconds, now, now, 0))

    def _read_stored(self, stored: StoredLease, now_s: float) -> LeaseRequest | None:
        self._note(stored, now_s)
        ours = self.holder == self.identity
        if not ours:
            self._renewed_at_s = None
        if self._releasing:
            return ReplaceLease(self._freed(stored.record), stored) if ours else None
        if now_s < self.free_at_s:
            return None
        return ReplaceLease(self._ours(stored.record), stored)

    def _note(self, stored: StoredLease, now_s: float) -> None:
        if self._seen is None or self._seen.record != stored.record:
            self._seen_at_s = now_s
        self._seen = stored

    def _ours(self, before: LeaseRecord) -> LeaseRecord:
        """The lease as we write it, over ``before``."""
        now = _micro_time(self._utc())
        transitions = before.lease_transitions or 0
        if before.holder_identity == self.identity:
            return LeaseRecord(self.identity, self._seconds, before.acquire_time, now, transitions)
        return LeaseRecord(self.identity, self._seconds, now, now, transitions + 1)

    def _freed(self, before: LeaseRecord) -> LeaseRecord:
        """The lease as client-go leaves it behind."""
        now = _micro_time(self._utc())
        return LeaseRecord("", 1, now, now, before.lease_transitions)

    @property
    def _seconds(self) -> int:
        """A lease knows whole seconds; the others must not think that it ends before it does."""
        return max(1, math.ceil(self._timing.lease_duration_s))


def _micro_time(moment: datetime) -> str:
    """``metav1.MicroTime``."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
