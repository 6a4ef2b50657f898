"""The files that configure batch sessions, and their changes while the daemon runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import anyio
import structlog

from asched.batch.registry import SessionRegistry
from asched.config.batch import ConfError, read_conf
from asched.config.settings import BatchSettings
from asched.framework.sessions import SessionSpec
from asched.kube.timing import Clock
from asched.state.session_records import SessionsLoaded

SLOWEST_POLL_S = 5.0
"""The files are read again with every period of a session, but not less often than this."""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class SessionFiles:
    """Looks after the files while the daemon runs."""

    def __init__(
        self,
        batch: Sequence[BatchSettings],
        loaded: Sequence[SessionSpec],
        registry: SessionRegistry,
        clock: Clock,
        report: Callable[[SessionsLoaded], None],
    ) -> None:
        """``loaded`` is what the daemon began with. A change that can be used is reported."""
        self._batch = batch
        self._loaded = {spec.scheduler_name: spec for spec in loaded}
        self._registry = registry
        self._clock = clock
        self._report = report
        self._complaints: dict[str, str] = {}

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            periods = [s.period.total_seconds() for s in self._batch if s.conf]
            await self._clock.sleep(min((*periods, SLOWEST_POLL_S)))
            await self.look()

    def follow(self, batch: Sequence[BatchSettings], loaded: Sequence[SessionSpec]) -> None:
        """Look after the files of another configuration, which was loaded as given."""
        self._batch = batch
        self._loaded = {spec.scheduler_name: spec for spec in loaded}
        self._complaints.clear()

    async def look(self) -> None:
        """Read all files once. One that cannot be used leaves things as they are."""
        changed, batch = False, self._batch
        for settings in batch:
            if not settings.conf:
                continue
            spec = await anyio.to_thread.run_sync(self._usable, settings)
            if batch is not self._batch:
                return  # what was read is not configured any more
            if spec is not None and spec != self._loaded[settings.scheduler_name]:
                self._loaded[settings.scheduler_name] = spec
                changed = True
                log.info("sessions are configured anew", conf=settings.conf)
        if changed:
            specs = (self._loaded[settings.scheduler_name] for settings in self._batch)
            self._report(SessionsLoaded(tuple(specs)))

    def _usable(self, settings: BatchSettings) -> SessionSpec | None:
        """What the file says now; None, said once, where that cannot be used."""
        try:
            found = read_conf(settings, self._registry)
            complaint = found.fault
        except ConfError as error:
            complaint = str(error)
        if complaint:
            if self._complaints.get(settings.conf) != complaint:
                log.error(
                    "a changed configuration cannot be used; the last one stays", error=complaint
                )
            self._complaints[settings.conf] = complaint
            return None
        self._complaints.pop(settings.conf, None)
        return found.spec
