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
    """Configure structlog and the standard library's logging, with records of the same form.

    Tracebacks show lines of code and no values of variables, which may be secrets.
    """
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
        rendering: list[structlog.typing.Processor] = [
            _escape_values,
            structlog.dev.ConsoleRenderer(
                colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
            ),
        ]
    else:
        rendering = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    level, stream = _LEVELS[settings.level.value], unescaped(sys.stderr)
    structlog.configure(
        processors=[*shared, *rendering],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(stream),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, _add_logger_name],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *rendering],
        )
    )
    logging.basicConfig(handlers=[handler], level=max(level, logging.WARNING))


def _add_logger_name(
    _: Any, __: str, event: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    """Name the library of a record."""
    record = event.get("_record")
    return event if record is None else {**event, "logger": record.name}


def _escape_values(
    _: Any, __: str, event: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    """Escape control characters for a terminal; JSON escapes them anyway."""
    return {
        key: escape_control(value) if isinstance(value, str) else value
        for key, value in event.items()
    }
