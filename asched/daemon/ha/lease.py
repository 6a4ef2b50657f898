"""Leader election against the API server, by the rules of :mod:`asched.daemon.ha.election`.

A guard decides nothing for a scheduler name that another scheduler serves. Two schedulers that
serve one name assign the same capacity twice. kube-scheduler holds a Lease while it serves
``default-scheduler``, which is also the name that asched serves by default.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Set
from datetime import datetime
from functools import partial
from typing import Final, NamedTuple

import anyio
import msgspec
import structlog

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
    ReplaceLease,
    RequestFailed,
    StoredLease,
)
from asched.daemon.telemetry.health import Check
from asched.kube.client import NO_RETRY, ApiClient, RequestOptions
from asched.kube.errors import ApiError, NoResponseError
from asched.kube.timing import Backoff, RetryPolicy
from asched.model.nesting import decode_any_depth

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

JITTER_FACTOR = 1.2
"""Candidates wait up to this many retry periods longer than one (client-go)."""
_WATCH_S = 300
_WATCH_GRACE_S = 30.0
_WATCH_RETRY = RetryPolicy(initial_s=1.0, max_s=30.0)


class LeaseName(NamedTuple):
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def collection(self) -> str:
        return f"/apis/coordination.k8s.io/v1/namespaces/{self.namespace}/leases"

    @property
    def path(self) -> str:
        return f"{self.collection}/{self.name}"


JOURNAL_ANNOTATION = "asched.dev/journal"
"""Of a Lease: the identity of the leader's journal."""


class _Versioned(msgspec.Struct, frozen=True, rename="camel"):
    resource_version: str = ""
    annotations: dict[str, str] = {}


class _Lease(msgspec.Struct, frozen=True, rename="camel"):
    metadata: msgspec.Raw
    spec: LeaseRecord = LeaseRecord()
    api_version: str = "coordination.k8s.io/v1"
    kind: str = "Lease"


_encode = msgspec.json.encode
_lease_decoder = msgspec.json.Decoder(_Lease)
_metadata_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
_version_decoder = msgspec.json.Decoder(_Versioned)


class LeaderElector:
    """One candidate for one lease.

    A watch of the lease wakes the candidate as soon as the leader renews or releases it. Without
    the permission to watch, it reads the lease every retry period, with client-go's jitter.
    """

    def __init__(
        self, client: ApiClient, lease: LeaseName, identity: str, timing: LeaseTiming
    ) -> None:
        """``client`` should have its own connections and rate limit, so that renewals do not wait
        behind bindings."""
        self.lease = lease
        self.timing = timing
        self.election = Election(identity, timing, client.clock.utc)
        self.annotations: dict[str, str] = {}
        """Annotations that the next write of the lease sets."""
        self.journal_id = ""
        """Written to the lease with each acquisition and renewal, unless empty."""
        self.slow_renewals = 0
        """Renewals that had to read the lease first."""
        self._client = client
        self._clock = client.clock
        self._changed = anyio.Event()
        self._last_error = ""

    def leads(self) -> bool:
        """Whether decisions and requests may start now."""
        return self.election.leads(self._clock.monotonic_s())

    def lease_left_s(self) -> float:
        """Seconds until another candidate may lead; 0 or less while not leading."""
        return self.election.lease_ends_s - self._clock.monotonic_s()

    def stored_annotations(self) -> dict[str, str]:
        """The annotations of the lease as it was last read or written."""
        metadata = self.election.stored_metadata
        return _version_decoder.decode(metadata).annotations if metadata else {}

    async def acquire(self, fit: Callable[[], bool] = lambda: True) -> None:
        """Wait until the lease is acquired. No attempt is made while ``fit`` returns False."""
        logged_holder = None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._watch)
            while True:
                able = fit()
                if able:
                    await self._try(self.timing.renew_deadline_s)
                if self.leads():
                    break
                if able and self.election.holder != logged_holder:
                    logged_holder = self.election.holder
                    log.info("waiting for leadership", lease=str(self.lease), holder=logged_holder)
                await self._wait_for_change()
            tasks.cancel_scope.cancel()
        log.info("became leader", lease=str(self.lease), identity=self.election.identity)

    async def _wait_for_change(self) -> None:
        """Until the lease changes or may be acquired, at most a jittered retry period."""
        period_s = self.timing.retry_period_s
        wait_s = period_s * (1 + JITTER_FACTOR * self._client.random.random())
        left_s = self.election.free_at_s - self._clock.monotonic_s()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._wake_after, min(wait_s, left_s) if left_s > 0 else wait_s)
            await self._changed.wait()
            tasks.cancel_scope.cancel()
        self._changed = anyio.Event()

    async def _wake_after(self, delay_s: float) -> None:
        await self._clock.sleep(delay_s)
        self._changed.set()

    async def _watch(self) -> None:
        """Wake the candidate with each event of a watch on the lease. Its content is ignored: the
        candidate reads the lease."""
        backoff = Backoff(_WATCH_RETRY, self._client.random)
        params = {
            "watch": "1",
            "fieldSelector": f"metadata.name={self.lease.name}",
            "timeoutSeconds": str(_WATCH_S),
        }
        while True:
            try:
                async with self._client.stream(
                    self.lease.collection, params, timeout_s=_WATCH_S + _WATCH_GRACE_S
                ) as stream:
                    while await stream.read():
                        backoff.reset()
                        self._changed.set()
            except (ApiError, NoResponseError) as error:
                self._log_error(f"cannot be watched: {error}")
            await self._clock.sleep(backoff.next_s())

    async def keep(self) -> None:
        """Renew the lease periodically. Returns when it no longer leads."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._renew, tasks.cancel_scope)
            # A renewal that still waits at the deadline is cancelled.
            while (left_s := self.election.leads_until_s - self._clock.monotonic_s()) > 0:
                await self._clock.sleep(left_s)
            tasks.cancel_scope.cancel()

    async def _renew(self, keeping: anyio.CancelScope) -> None:
        while True:
            await self._clock.sleep(self.timing.retry_period_s)
            await self._try(self.election.leads_until_s - self._clock.monotonic_s())
            if not self.leads():
                keeping.cancel()
                return

    async def release(self) -> bool:
        """Stop leading, and try to free the lease. Returns whether it is free."""
        await self._run(self.election.release(), self._timeout_s)
        free = not self.election.holder
        if free:
            log.info("leadership released", lease=str(self.lease))
        return free

    @property
    def _timeout_s(self) -> float:
        """client-go's timeout for requests about a lease."""
        return max(1.0, self.timing.renew_deadline_s / 2)

    async def _try(self, limit_s: float) -> None:
        """One attempt to acquire or renew the lease. ``limit_s`` bounds each request."""
        renewing = self.leads()
        request = self.election.begin(self._clock.monotonic_s())
        self.slow_renewals += renewing and isinstance(request, ReadLease)
        await self._run(request, max(0.0, min(self._timeout_s, limit_s)))

    async def _run(self, request: LeaseRequest | None, timeout_s: float) -> None:
        while request is not None:
            sent_at_s = self._clock.monotonic_s()
            answer = await self._send(request, timeout_s)
            now_s = self._clock.monotonic_s()
            request = self.election.next_request(request, answer, sent_at_s, now_s)

    async def _send(self, request: LeaseRequest, timeout_s: float) -> LeaseAnswer:
        options = RequestOptions(retry=NO_RETRY, timeout_s=timeout_s)
        send = partial(self._client.request, options=options)
        try:
            match request:
                case ReadLease():
                    body = await send("GET", self.lease.path)
                case CreateLease(record):
                    metadata = _encode({"name": self.lease.name, "namespace": self.lease.namespace})
                    lease = self._encoded(metadata, record)
                    body = await send("POST", self.lease.collection, body=lease)
                case ReplaceLease(record, stored):
                    lease = self._encoded(stored.metadata, record)
                    body = await send("PUT", self.lease.path, body=lease)
            answer = _stored(body)
        except ApiError as error:
            return self._after_error(request, error)
        except (NoResponseError, msgspec.DecodeError) as error:
            self._log_error(str(error))
            return RequestFailed()
        self._last_error = ""
        return answer

    def _encoded(self, metadata: bytes, record: LeaseRecord) -> bytes:
        """The lease with all of ``metadata``, the annotations and the identity of the journal."""
        named = {JOURNAL_ANNOTATION: self.journal_id} if self.journal_id else {}
        annotated = _with_annotations(metadata, self.annotations | named)
        return _encode(_Lease(msgspec.Raw(annotated), record))

    def _after_error(self, request: LeaseRequest, error: ApiError) -> LeaseAnswer:
        if error.status == 404 and isinstance(request, ReadLease):
            return LeaseMissing()
        if error.status == 409:
            return LeaseConflict()
        self._log_error(str(error))
        # A 404 of a write: the lease was deleted, or its namespace does not exist.
        return LeaseConflict() if error.status == 404 else RequestFailed()

    def _log_error(self, error: str) -> None:
        """Log an error unless it is the same as the last one."""
        if error != self._last_error:
            self._last_error = error
            log.warning("lease request failed", lease=str(self.lease), error=error)


def _with_annotations(metadata: bytes, annotations: dict[str, str]) -> bytes:
    """All of ``metadata``, with these annotations added or replaced."""
    if not annotations:
        return metadata
    fields = _metadata_decoder.decode(metadata)
    before = _version_decoder.decode(metadata).annotations
    return _encode({**fields, "annotations": {**before, **annotations}})


def _stored(body: bytes) -> StoredLease:
    lease = decode_any_depth(_lease_decoder, body)
    metadata = bytes(lease.metadata)
    own = _version_decoder.decode(metadata)
    journal_id = own.annotations.get(JOURNAL_ANNOTATION, "")
    return StoredLease(lease.spec, own.resource_version, metadata, journal_id)


COVERED: Final[Mapping[str, LeaseName]] = {
    "default-scheduler": LeaseName("kube-system", "kube-scheduler")
}
"""Scheduler names, each with the Lease of the scheduler that serves it elsewhere."""
PERIOD_S: Final = 5.0
_DURATION_S: Final = 15
"""Of a Lease that has none: kube-scheduler's default."""
_OPTIONS: Final = RequestOptions(retry=NO_RETRY, timeout_s=5.0)


class _SchedulerLease(msgspec.Struct, frozen=True):
    spec: LeaseRecord = LeaseRecord()


_decode = msgspec.json.Decoder(_SchedulerLease).decode


class ObservedLease:
    """Whether another process renews a lease, by the rules of candidates for it.

    A lease is live for its duration after it was seen to change. When it is first seen, its renewal
    time counts, unless that differs by more than the duration because of different clocks.
    """

    def __init__(self) -> None:
        self.holder = ""
        """While it is live."""
        self._seen: LeaseRecord | None = None
        self._live_until_s = -math.inf

    def observe(self, record: LeaseRecord | None, now_s: float, now: datetime) -> None:
        """``record``: None if there is no such lease. ``now_s``: monotonic; ``now``: wall clock."""
        if record is None or not record.holder_identity:
            self._live_until_s = -math.inf
        elif record != self._seen:
            duration_s = float(record.lease_duration_seconds or _DURATION_S)
            first = self._seen is None
            if not first or _age_s(record, now) < duration_s:
                self._live_until_s = now_s + duration_s
        self._seen = record or LeaseRecord()
        self.holder = (record.holder_identity or "") if record and self.live(now_s) else ""

    def live(self, now_s: float) -> bool:
        return now_s < self._live_until_s


def _age_s(record: LeaseRecord, now: datetime) -> float:
    """Seconds since the renewal; infinite if it has no readable time."""
    try:
        renewed = datetime.fromisoformat(record.renew_time or "")
        return abs((now - renewed).total_seconds())
    except (TypeError, ValueError):
        return math.inf


class NameGuard:
    """Watches the leases that cover the served names."""

    def __init__(
        self,
        client: ApiClient,
        served: Callable[[], Set[str]],
        leases: Mapping[str, LeaseName] = COVERED,
        own_lease: str = "",
    ) -> None:
        """``served``: the present scheduler names. ``own_lease``: namespace and name of the lease
        that this process elects with, which is not another scheduler's."""
        self.on_change: Callable[[], None] = lambda: None
        """Called when :meth:`may_decide` changed."""
        self._client = client
        self._served = served
        self._leases = {
            name: (lease, ObservedLease())
            for name, lease in leases.items()
            if str(lease) != own_lease
        }
        self._checked = not self._leases
        self._problem = ""
        self._unreadable = ""

    def may_decide(self) -> bool:
        """False until the leases were read, and while one of them is live."""
        return self._checked and not self._problem

    def check(self) -> Check:
        """A condition of readiness."""
        return Check("scheduler-names", lambda: self._problem)

    async def run(self) -> None:
        """Read the leases periodically until cancelled."""
        while self._leases:
            served = self._served()
            for name, (lease, observed) in self._leases.items():
                if name in served:
                    await self._read(lease, observed)
            self._conclude(served)
            await self._client.clock.sleep(PERIOD_S)

    async def _read(self, lease: LeaseName, observed: ObservedLease) -> None:
        clock = self._client.clock
        try:
            record = _decode(await self._client.request("GET", lease.path, options=_OPTIONS)).spec
        except ApiError as error:
            if error.status != 404:
                self._report_unreadable(lease, str(error))
                return
            record = None
        except (NoResponseError, msgspec.DecodeError) as error:
            self._report_unreadable(lease, str(error))
            return
        observed.observe(record, clock.monotonic_s(), clock.utc())

    def _conclude(self, served: Set[str]) -> None:
        now_s = self._client.clock.monotonic_s()
        before = self.may_decide()
        problem = ""
        for name, (lease, observed) in self._leases.items():
            if name in served and observed.live(now_s):
                problem = (
                    f"{observed.holder} serves {name}, as lease {lease} shows: stop it, choose"
                    " another schedulerName, or set takeOverNames"
                )
        if problem and problem != self._problem:
            log.warning("no decisions while another scheduler serves the name", reason=problem)
        elif self._problem and not problem:
            log.info("decisions resumed: the other scheduler's lease ended")
        self._checked, self._problem = True, problem
        if self.may_decide() != before:
            self.on_change()

    def _report_unreadable(self, lease: LeaseName, error: str) -> None:
        """Log each new reason once. Decisions continue: the permission may be missing."""
        if error != self._unreadable:
            self._unreadable = error
            log.info("other schedulers cannot be detected", lease=str(lease), error=error)
