"""Logging to standard error, one event a line: readable on a terminal, JSON otherwise."""

from __future__ import annotations

import logging
import sys
from typing import Any

import structlog

from asched.config.settings import LogFormat, LogSettings
from asched.daemon.process import escape_control, unescaped

_LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}


def configure_logs(settings: LogSettings) -> None:
    """Configure structlog and the standard library's logging."""
    console = settings.format is LogFormat.CONSOLE or (
        settings.format is LogFormat.AUTO and sys.stderr.isatty()
    )
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    if console:
        shared += [_escape_values, structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())]
    else:
        shared += [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    level = _LEVELS[settings.level.value]
    structlog.configure(
        processors=shared,
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(unescaped(sys.stderr)),
        cache_logger_on_first_use=False,
    )
    logging.basicConfig(
        stream=sys.stderr, level=max(level, logging.WARNING), format="%(levelname)s %(message)s"
    )


def _escape_values(
    _: Any, __: str, event: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    """Escape control characters for a terminal; JSON escapes them anyway."""
    return {
        key: escape_control(value) if isinstance(value, str) else value
        for key, value in event.items()
    }
