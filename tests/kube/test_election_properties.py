"""Several candidates, clocks that run at different paces, requests that come late, twice lost or
not at all, processes that are paused: never do two lead at the same time."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import count
from random import Random
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from asched.daemon.ha.election import (
    CreateLease,
    Election,
    LeaseAnswer,
    LeaseConflict,
    LeaseMissing,
    LeaseRecord,
    LeaseRequest,
    LeaseTiming,
    ReadLease,
    RequestFailed,
    StoredLease,
)

TIMING = LeaseTiming()
PACE = 0.15
"""Relative error of clocks: two differ by less than 15 to 10."""
UNTIL_S = 200.0


class Store:
    """A lease in an API server, which processes each request when it arrives."""

    def __init__(self) -> None:
        self.record: LeaseRecord | None = None
        self.version = 0

    def carry_out(self, request: LeaseRequest) -> LeaseAnswer:
        if isinstance(request, ReadLease):
            return LeaseMissing() if self.record is None else self._stored(self.record)
        if isinstance(request, CreateLease):
            if self.record is not None:
                return LeaseConflict()
        elif self.record is None or request.stored.version != str(self.version):
            return LeaseConflict()
        self.record = request.record
        self.version += 1
        return self._stored(request.record)

    def _stored(self, record: LeaseRecord) -> StoredLease:
        return StoredLease(record, str(self.version), b"{}")


class Term(NamedTuple):
    """An interval in true time in which a candidate considers itself the leader."""

    who: str
    begin_s: float
    end_s: float


class Candidate:
    """An election with its own clock."""

    def __init__(self, name: str, pace: float, offset_s: float) -> None:
        self._pace, self._offset_s = pace, offset_s
        self.paused_until_s = 0.0
        self.requests = 0
        """Numbers its wakeups."""
        self.election = Election(
            name, TIMING, lambda: datetime.now(UTC) - timedelta(days=365 * pace)
        )

    def local(self, true_s: float) -> float:
        return true_s * self._pace + self._offset_s

    def true(self, local_s: float) -> float:
        return (local_s - self._offset_s) / self._pace


class Simulation:
    """Candidates, a store, and a network that loses and delays messages."""

    def __init__(self, chance: Random, candidates: int) -> None:
        self._chance = chance
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()
        self.now_s = 0.0
        self.store = Store()
        self.terms: list[Term] = []
        self.trouble = chance.choice((0.02, 0.1, 0.3))
        self.candidates = [
            Candidate(f"c{n}", chance.uniform(1 - PACE, 1 + PACE), chance.uniform(-1e6, 1e6))
            for n in range(candidates)
        ]

    def run(self) -> None:
        for candidate in self.candidates:
            self._in(self._chance.uniform(0, 5), partial(self._begin, candidate))
        while self._queue and self.now_s < UNTIL_S:
            self.now_s, _, step = heapq.heappop(self._queue)
            step()

    def _in(self, delay_s: float, step: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (self.now_s + delay_s, next(self._numbers), step))

    def _delay_s(self) -> float:
        usual = self._chance.random() > self.trouble
        return self._chance.uniform(0.001, 0.05) if usual else self._chance.uniform(0.05, 25.0)

    def _begin(self, candidate: Candidate) -> None:
        if self._chance.random() < self.trouble / 10:
            candidate.paused_until_s = self.now_s + self._chance.uniform(1.0, 40.0)
        if self.now_s < candidate.paused_until_s:
            self._in(candidate.paused_until_s - self.now_s, lambda: self._begin(candidate))
            return
        if self._chance.random() < self.trouble / 20 and candidate.election.leads(
            self._local(candidate)
        ):
            request = candidate.election.release()
            self._cut_short(candidate.election.identity)
            self._send(candidate, request)
            return
        self._send(candidate, candidate.election.begin(self._local(candidate)))

    def _local(self, candidate: Candidate) -> float:
        return candidate.local(self.now_s)

    def _send(self, candidate: Candidate, request: LeaseRequest | None) -> None:
        candidate.requests += 1
        if request is None:
            # This attempt is over.
            period_s = TIMING.retry_period_s * self._chance.uniform(1.0, 2.2)
            self._in(period_s, lambda: self._begin(candidate))
            return
        number = candidate.requests
        sent_at_s = self._local(candidate)

        def arrive() -> None:
            answer = self.store.carry_out(request)
            if self._chance.random() > self.trouble:
                self._in(
                    self._delay_s(),
                    lambda: self._answer(candidate, number, request, answer, sent_at_s),
                )

        if self._chance.random() > self.trouble:
            self._in(self._delay_s(), arrive)
        # Requests time out later than a lease: the rules must not depend on the timeout.
        self._in(20.0, lambda: self._answer(candidate, number, request, RequestFailed(), sent_at_s))

    def _answer(
        self,
        candidate: Candidate,
        number: int,
        request: LeaseRequest,
        answer: LeaseAnswer,
        sent_at_s: float,
    ) -> None:
        if number != candidate.requests:
            return  # it has a response, or timed out
        if self.now_s < candidate.paused_until_s:
            self._in(
                candidate.paused_until_s - self.now_s,
                lambda: self._answer(candidate, number, request, answer, sent_at_s),
            )
            return
        election = candidate.election
        following = election.next_request(request, answer, sent_at_s, self._local(candidate))
        if election.leads(self._local(candidate)):
            end_s = candidate.true(election.leads_until_s)
            self.terms.append(Term(election.identity, self.now_s, end_s))
        elif not isinstance(answer, RequestFailed):
            self._cut_short(election.identity)
        self._send(candidate, following)

    def _cut_short(self, who: str) -> None:
        """The candidate learns that it does not lead."""
        self.terms = [
            t._replace(end_s=min(t.end_s, self.now_s)) if t.who == who else t for t in self.terms
        ]


@given(seed=st.integers(0, 2**32), candidates=st.integers(2, 4))
def test_at_most_one_leader_at_any_time(seed: int, candidates: int) -> None:
    simulation = Simulation(Random(seed), candidates)
    simulation.run()
    terms = [term for term in simulation.terms if term.end_s > term.begin_s]
    for index, term in enumerate(terms):
        for other in terms[index + 1 :]:
            if other.who != term.who:
                assert other.begin_s >= term.end_s or term.begin_s >= other.end_s, (term, other)
