"""When a configuration is loaded again: on SIGHUP, and when its file changes.

A file is read every few seconds, through links: in a pod it is a link that Kubernetes swaps. What was
written half may be a whole configuration, if another one, so a change counts once it was seen twice.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, NamedTuple

import anyio
import structlog

from asched.config.file import ConfigFileError, Configuration
from asched.daemon.reload.reconfiguring import ConfigApplied, ReconfigurationError
from asched.daemon.telemetry.logs import configure_logs
from asched.daemon.telemetry.scheduler_metrics import ReloadMetrics
from asched.daemon.telemetry.systemd import ServiceManager
from asched.kube.timing import Clock
from asched.model.quantity import US_PER_S

LOOK_EVERY_S: Final = 2.0
"""How often the file is looked at."""
_REFUSED = "the new configuration cannot be used; the old one goes on"

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class ReloadRequests:
    """Somebody wants the configuration to be loaded again; several before the next look are one."""

    def __init__(self) -> None:
        self._asked = anyio.Event()

    def ask(self) -> None:
        self._asked.set()

    async def next(self) -> None:
        """Wait for a request that was not waited for before."""
        await self._asked.wait()
        self._asked = anyio.Event()

    async def refuse(self, why: str) -> None:
        """Answer every request with a line in the log, until cancelled."""
        while True:
            await self.next()
            log.warning("not reloaded", reason=why)


class _Content(NamedTuple):
    """What a file looked like; all None where it could not be read."""

    stamp: tuple[int, ...] | None
    digest: bytes | None


class ConfigFile:
    """A configuration file and what was last made of it."""

    def __init__(self, path: Path) -> None:
        """As it is now counts as loaded: look before loading, so that nothing slips between."""
        self.path = path
        self._seen = self._now(_Content(None, None))
        self._loaded = self._seen.digest

    def changed(self) -> bool:
        """Whether it holds something else than what was loaded, and did so when last looked at."""
        before, self._seen = self._seen, self._now(self._seen)
        return self._seen.digest == before.digest != self._loaded

    def loading(self) -> None:
        """It is about to be loaded, whatever it holds."""
        self._seen = self._now(_Content(None, None))
        self._loaded = self._seen.digest

    def _now(self, before: _Content) -> _Content:
        try:
            with self.path.open("rb") as file:
                status = os.fstat(file.fileno())
                stamp = (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size)
                if stamp == before.stamp:
                    return before
                return _Content(stamp, hashlib.file_digest(file, "sha256").digest())
        except OSError:
            return _Content(None, None)


class Reloads:
    """Loads the file of a running daemon again and again, as it is asked to and as the file changes."""

    def __init__(
        self,
        file: ConfigFile | None,
        load: Callable[[Path], Configuration],
        take_up: Callable[[Configuration], Awaitable[ConfigApplied]],
        metrics: ReloadMetrics,
        manager: ServiceManager,
        clock: Clock,
    ) -> None:
        """``load`` raises ConfigFileError, ``take_up`` ReconfigurationError. ``file`` is None for a
        daemon that was given none."""
        self._file = file
        self._load = load
        self._take_up = take_up
        self._metrics = metrics
        self._manager = manager
        self._clock = clock
        self._one_at_a_time = anyio.Lock()

    async def run(self, requests: ReloadRequests) -> None:
        """Until cancelled."""
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
            await self._clock.sleep(LOOK_EVERY_S)
            await self.look()

    async def look(self) -> None:
        """Look at the file once, and load it if it changed."""
        if self._file is not None and await anyio.to_thread.run_sync(self._file.changed):
            await self._reload(self._file, "the file changed")

    async def _reload(self, file: ConfigFile, because: str) -> None:
        async with self._one_at_a_time:
            self._manager.reloading(round(self._clock.monotonic_s() * US_PER_S))
            try:
                taken = await self._load_and_take_up(file, because)
            except (ConfigFileError, ReconfigurationError) as error:
                lines = error.lines if isinstance(error, ConfigFileError) else (str(error),)
                said = [line.removeprefix(f"{file.path}: ") for line in lines]
                log.error(
                    _REFUSED, because=because, file=str(file.path), error="; ".join(said)
                )  # fmt: skip
                self._metrics.ended(success=False)
                self._manager.reloaded(_REFUSED)
                return
            self._metrics.ended(success=True)
            self._manager.reloaded()
            if taken.kept:
                log.warning(
                    "settings that count only after a restart", settings=", ".join(taken.kept)
                )

    async def _load_and_take_up(self, file: ConfigFile, because: str) -> ConfigApplied:
        def loaded() -> Configuration:
            file.loading()
            return self._load(file.path)

        configuration = await anyio.to_thread.run_sync(loaded)
        taken = await self._take_up(configuration)
        configure_logs(configuration.settings.log)
        what = "a new configuration is used" if taken.changed else "the configuration is as before"
        log.info(what, because=because, file=str(file.path))
        for warning in configuration.warnings:
            log.warning("configuration", warning=warning)
        return taken
