"""The files that configure batch sessions, and their changes while the daemon runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import anyio
import structlog

from asched.batch.conf import (
    DEFAULT_CONF,
    ConfError,
    ConfSyntaxError,
    SessionConf,
    UnknownActionError,
    parse_conf,
)
from asched.batch.registry import SessionRegistry
from asched.daemon.config_settings import BatchSettings
from asched.framework.limited_file import read_limited
from asched.framework.sessions import Compatibility, SessionSpec
from asched.framework.strict import nearest
from asched.kube.timing import Clock
from asched.state.session_records import SessionsLoaded

SLOWEST_POLL_S = 5.0
"""The files are read again with every period of a session, but not less often than this."""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class ReadConf(NamedTuple):
    """A session's configuration as it is to be used."""

    spec: SessionSpec
    fault: str = ""
    """Why it is the default and not what the file says; empty where it is what the file says."""
    notes: tuple[str, ...] = ()
    """What the file says in vain, a line each."""


def read_conf(settings: BatchSettings, registry: SessionRegistry) -> ReadConf:
    """Read the file and resolve its names. One that is not to be read, or is no configuration, is
    replaced by kube-batch's default.

    Raises :class:`ConfError`, in one line with the file's name, for an action or a plugin that is not
    installed. In compatibility mode an unknown plugin is passed over, as kube-batch does.
    """
    fault = ""
    try:
        text = DEFAULT_CONF
        if settings.conf:
            text = read_limited(Path(settings.conf)).decode("utf-8-sig")
        conf = parse_conf(text, registry.action_names)
    except (OSError, UnicodeDecodeError) as error:
        fault, conf = f"cannot be read: {error}", _default(registry)
    except ConfSyntaxError as error:
        fault, conf = str(error), _default(registry)
    except UnknownActionError as error:
        known = registry.action_names
        raise ConfError(
            f'{settings.conf}: unknown action "{error.name}"; {_hint(error.name, known)}'
        ) from None
    notes = _unknown_plugins(settings, conf, registry)
    spec = SessionSpec(
        settings.scheduler_name,
        conf.actions,
        conf.tiers,
        settings.default_queue,
        settings.compatibility,
        settings.period.total_seconds(),
    )
    where = f"{settings.conf}: {fault}; kube-batch's default configuration is used"
    return ReadConf(spec, where if fault else "", notes)


def _default(registry: SessionRegistry) -> SessionConf:
    return parse_conf(DEFAULT_CONF, registry.action_names)


def _unknown_plugins(
    settings: BatchSettings, conf: SessionConf, registry: SessionRegistry
) -> tuple[str, ...]:
    known = registry.plugin_names
    unknown = [name for name in conf.plugin_names if name not in known]
    if unknown and settings.compatibility is not Compatibility.KUBE_BATCH:
        name = unknown[0]
        raise ConfError(f'{settings.conf}: unknown plugin "{name}"; {_hint(name, known)}')
    return tuple(f'{settings.conf}: plugin "{name}" is not known and left out' for name in unknown)


def _hint(name: str, known: Sequence[str]) -> str:
    guess = nearest(name, known)
    return f"did you mean {guess}?" if guess else f"expected one of {', '.join(known)}"


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
