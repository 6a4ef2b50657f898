"""Watches the files that configure batch sessions while the daemon runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import anyio
import structlog

from asched.batch.registry import SessionRegistry
from asched.config.batch import ConfError, load_conf
from asched.config.settings import BatchSettings
from asched.framework.sessions import SessionSpec
from asched.kube.timing import Clock
from asched.state.session_records import SessionsLoaded

MAX_POLL_INTERVAL_S = 5.0
"""Files are polled with the shortest session period, and at least this often."""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class SessionFiles:
    """Polls the files and reports changes."""

    def __init__(
        self,
        batch: Sequence[BatchSettings],
        loaded: Sequence[SessionSpec],
        registry: SessionRegistry,
        clock: Clock,
        report: Callable[[SessionsLoaded], None],
    ) -> None:
        """``loaded``: what the daemon was started with. ``report`` gets each valid change."""
        self._registry = registry
        self._clock = clock
        self._report = report
        self._errors: dict[str, str] = {}
        """The error logged last, by file."""
        self.configure(batch, loaded)

    def configure(self, batch: Sequence[BatchSettings], loaded: Sequence[SessionSpec]) -> None:
        """Watch the files of another configuration, from which ``loaded`` was read."""
        self._batch = batch
        self._loaded = {spec.scheduler_name: spec for spec in loaded}
        self._errors.clear()

    async def run(self) -> None:
        """Poll until cancelled."""
        while True:
            periods = [s.period.total_seconds() for s in self._batch if s.conf]
            await self._clock.sleep(min((*periods, MAX_POLL_INTERVAL_S)))
            await self.poll()

    async def poll(self) -> None:
        """Read all files once. An invalid file keeps its previous configuration."""
        changed, batch = False, self._batch
        for settings in batch:
            if not settings.conf:
                continue
            spec = await anyio.to_thread.run_sync(self._read, settings)
            if batch is not self._batch:
                return  # another configuration was applied meanwhile
            if spec is not None and spec != self._loaded[settings.scheduler_name]:
                self._loaded[settings.scheduler_name] = spec
                changed = True
                log.info("session configuration changed", conf=settings.conf)
        if changed:
            specs = (self._loaded[settings.scheduler_name] for settings in self._batch)
            self._report(SessionsLoaded(tuple(specs)))

    def _read(self, settings: BatchSettings) -> SessionSpec | None:
        """The specification in the file; None, logged once, if it is invalid."""
        try:
            found = load_conf(settings, self._registry)
            problem = found.fault
        except ConfError as error:
            problem = str(error)
        if not problem:
            self._errors.pop(settings.conf, None)
            return found.spec
        if self._errors.get(settings.conf) != problem:
            log.error("session configuration rejected", conf=settings.conf, error=problem)
        self._errors[settings.conf] = problem
        return None
