"""Decides nothing for a scheduler name that another scheduler serves.

Two schedulers that serve one name assign the same capacity twice. kube-scheduler holds a Lease
while it serves ``default-scheduler``, which is also the name that asched serves by default.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Set
from datetime import datetime
from typing import Final

import msgspec
import structlog

from asched.daemon.ha.election import LeaseRecord
from asched.daemon.ha.lease import LeaseName
from asched.daemon.telemetry.health import Check
from asched.kube.client import NO_RETRY, ApiClient, RequestOptions
from asched.kube.errors import ApiError, NoResponseError

COVERED: Final[Mapping[str, LeaseName]] = {
    "default-scheduler": LeaseName("kube-system", "kube-scheduler")
}
"""Scheduler names, each with the Lease of the scheduler that serves it elsewhere."""
PERIOD_S: Final = 5.0
_DURATION_S: Final = 15
"""Of a Lease that has none: kube-scheduler's default."""
_OPTIONS: Final = RequestOptions(retry=NO_RETRY, timeout_s=5.0)

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class _Lease(msgspec.Struct, frozen=True):
    spec: LeaseRecord = LeaseRecord()


_decode = msgspec.json.Decoder(_Lease).decode


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
            log.info("deciding, the other scheduler's lease ended")
        self._checked, self._problem = True, problem
        if self.may_decide() != before:
            self.on_change()

    def _report_unreadable(self, lease: LeaseName, error: str) -> None:
        """Log each new reason once. Decisions continue: the permission may be missing."""
        if error != self._unreadable:
            self._unreadable = error
            log.info("other schedulers cannot be detected", lease=str(lease), error=error)
