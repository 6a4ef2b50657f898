"""Reloads configuration files when they change, and on SIGHUP.

Files are polled through symbolic links: in a pod a file is a link that Kubernetes swaps. A change
counts once two polls see it, because a half-written file may be a valid configuration.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import anyio
import structlog

from asched.batch.registry import SessionRegistry
from asched.config.batch import ConfError, load_conf
from asched.config.file import ConfigFileError, Configuration
from asched.config.settings import BatchSettings
from asched.config.yaml import CONFIG_LIMIT_BYTES
from asched.daemon.telemetry.health import ServiceManager
from asched.daemon.telemetry.logs import configure_logs
from asched.daemon.telemetry.scheduler_metrics import ReloadMetrics
from asched.framework.sessions import SessionSpec
from asched.kube.timing import Clock
from asched.model.quantity import US_PER_S
from asched.state.session_records import SessionsLoaded

POLL_INTERVAL_S: Final = 2.0
_REJECTED = "new configuration rejected"

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class ReconfigurationError(Exception):
    """The configuration cannot be used; the text is one line."""


class ConfigApplied(NamedTuple):
    """The result of a valid configuration."""

    changed: bool
    """False if no reloadable setting differs from the configuration before."""
    restart_settings: tuple[str, ...]
    """Names of changed settings that need a restart."""


class ReloadRequests:
    """Requests to reload the configuration. Several before the next :meth:`next` count as one."""

    def __init__(self) -> None:
        self._requested = anyio.Event()

    def request(self) -> None:
        self._requested.set()

    async def next(self) -> None:
        """Wait for the next request."""
        await self._requested.wait()
        self._requested = anyio.Event()

    async def refuse(self, reason: str) -> None:
        """Log each request as refused, until cancelled."""
        while True:
            await self.next()
            log.warning("reload refused", reason=reason)


class _Content(NamedTuple):
    """What a file held; None for a file that cannot be read."""

    stamp: tuple[int, ...] | None
    digest: bytes | None


class ConfigFile:
    """Detects changes of a configuration file."""

    def __init__(self, path: Path) -> None:
        """The present content counts as loaded: create this before the file is loaded."""
        self.path = path
        self._seen = self._read(_Content(None, None))
        self._loaded = self._seen.digest

    def changed(self) -> bool:
        """Whether this and the previous call saw the same content, and it was not loaded yet."""
        before, self._seen = self._seen, self._read(self._seen)
        return self._seen.digest == before.digest != self._loaded

    def loading(self) -> None:
        """The file is about to be loaded."""
        self._seen = self._read(_Content(None, None))
        self._loaded = self._seen.digest

    def _read(self, before: _Content) -> _Content:
        try:
            with self.path.open("rb") as file:
                status = os.fstat(file.fileno())
                stamp = (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size)
                if stamp == before.stamp:
                    return before
                # Loading rejects more, and a device has no end.
                content = file.read(CONFIG_LIMIT_BYTES + 1)
                return _Content(stamp, hashlib.sha256(content).digest())
        except OSError:
            return _Content(None, None)


class ConfigReloader:
    """Reloads the configuration file of a running daemon, on request and when it changes."""

    def __init__(
        self,
        file: ConfigFile | None,
        load: Callable[[Path], Configuration],
        apply_config: Callable[[Configuration], Awaitable[ConfigApplied]],
        metrics: ReloadMetrics,
        manager: ServiceManager,
        clock: Clock,
    ) -> None:
        """``load`` raises ConfigFileError, ``apply_config`` ReconfigurationError. ``file`` is None
        if the daemon runs without one."""
        self._file = file
        self._load = load
        self._apply_config = apply_config
        self._metrics = metrics
        self._manager = manager
        self._clock = clock
        self._lock = anyio.Lock()

    async def run(self, requests: ReloadRequests) -> None:
        """Serve requests and poll the file until cancelled."""
        if self._file is None:
            await requests.refuse("there is no configuration file (--config)")
            return
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._watch)
            while True:
                await requests.next()
                await self._reload(self._file, "SIGHUP")

    async def _watch(self) -> None:
        while True:
            await self._clock.sleep(POLL_INTERVAL_S)
            await self.poll()

    async def poll(self) -> None:
        """Read the file once, and load it if it changed."""
        if self._file is not None and await anyio.to_thread.run_sync(self._file.changed):
            await self._reload(self._file, "the file changed")

    async def _reload(self, file: ConfigFile, because: str) -> None:
        async with self._lock:
            self._manager.reloading(round(self._clock.monotonic_s() * US_PER_S))
            try:
                applied = await self._load_and_apply(file, because)
            except (ConfigFileError, ReconfigurationError) as error:
                lines = error.lines if isinstance(error, ConfigFileError) else (str(error),)
                errors = "; ".join(line.removeprefix(f"{file.path}: ") for line in lines)
                log.error(_REJECTED, trigger=because, file=str(file.path), error=errors)
                self._metrics.ended(success=False)
                self._manager.reloaded(_REJECTED)
                return
            self._metrics.ended(success=True)
            self._manager.reloaded()
            if applied.restart_settings:
                settings = ", ".join(applied.restart_settings)
                log.warning("changed settings need a restart", settings=settings)

    async def _load_and_apply(self, file: ConfigFile, because: str) -> ConfigApplied:
        def load() -> Configuration:
            file.loading()
            return self._load(file.path)

        configuration = await anyio.to_thread.run_sync(load)
        applied = await self._apply_config(configuration)
        configure_logs(configuration.settings.log)
        event = "new configuration applied" if applied.changed else "configuration unchanged"
        log.info(event, trigger=because, file=str(file.path))
        for warning in configuration.warnings:
            log.warning("configuration", warning=warning)
        return applied


# -- files of batch sessions -----------------------------------------------------------------------

MAX_POLL_INTERVAL_S = 5.0
"""Files are polled with the shortest session period, and at least this often."""


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
